"""Run the recorded cases of SGLang's policies: every variant, on the recorded cache and waiting list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import msgspec

from maitred.compat.sglang.orders import (
    InBatchCaching,
    PrefixMatch,
    PrioritySign,
    QueueEntry,
    SchedulingPass,
    SGLangPolicy,
    match_all,
    next_order,
)

from .tokens import Keys, Runs, decoded, namespace


class Entry(msgspec.Struct):
    tokens: Runs
    extra_key: str | None
    cache_salt: str | None


class RecordedRequest(msgspec.Struct):
    rid: str
    prompt: Runs
    max_new_tokens: int
    priority: int
    routing_key: str | None
    extra_key: str | None
    cache_salt: str | None
    wait_queue_entry_time: float
    arrival_processed_tokens: int
    output: Runs = ()
    return_logprob: bool = False
    logprob_start_len: int = -1


class Running(msgspec.Struct):
    routing_key: str | None


class Expected(msgspec.Struct):
    order: list[int]
    prefix_len: list[int] | None = None
    """None where SGLang did not match."""
    matched: list[int] = []
    deprioritized: list[int] = []


class Case(msgspec.Struct):
    id: int
    page_size: int
    check_threshold: int
    deprioritize_threshold: int
    processed_tokens: int
    cache: list[Entry]
    requests: list[RecordedRequest]
    running: list[Running]
    random_seed: int
    expected: Mapping[str, Expected]


class Pages:
    """A cache of whole pages, filled once: the first page to come has the first position."""

    def __init__(self, case: Case) -> None:
        self.page_size = case.page_size
        self._keys = Keys(case.page_size)
        self._positions: dict[int, int] = {}
        for entry in case.cache:
            for key in self.page_keys(entry, decoded(entry.tokens)):
                self._positions.setdefault(key, len(self._positions))

    def page_keys(self, of: Entry | RecordedRequest, tokens: Sequence[int]) -> list[int]:
        return self._keys.page_keys(namespace(of.extra_key, of.cache_salt), tokens)

    def contains(self, block_hash: int) -> bool:
        return block_hash in self._positions

    def position(self, key: int) -> int:
        return self._positions[key]


SIGNS = {"priority-high-first": PrioritySign.HIGH_FIRST, "priority-low-first": PrioritySign.LOW_FIRST}


def run_case(raw: bytes) -> Iterator[str]:
    """Yield the differences from what was recorded, one line each."""
    case = msgspec.json.decode(raw, type=Case)
    cache = Pages(case)
    waiting = [_queue_entry(request, case, cache) for request in case.requests]
    in_batch = InBatchCaching(case.check_threshold, case.deprioritize_threshold)
    matches = match_all(waiting, cache, in_batch)
    for variant, expected in case.expected.items():
        name, _, option = variant.partition("+")
        at = SchedulingPass(
            rng=Random(case.random_seed),
            cache=None if option == "cache-disabled" else cache,
            in_batch=in_batch,
            sign=SIGNS.get(option),
            prefilled_tokens=case.processed_tokens,
            running=Counter(running.routing_key for running in case.running if running.routing_key),
        )
        got = next_order(SGLangPolicy(name), waiting, at)
        if got != expected.order:
            yield f"{variant}: {difference(expected.order, got)}"
        if expected.prefix_len is not None:
            yield from (f"{variant}: {line}" for line in _matches_differ(expected, matches))


def _queue_entry(request: RecordedRequest, case: Case, cache: Pages) -> QueueEntry:
    prompt, output = decoded(request.prompt), decoded(request.output)
    fill = prompt + output
    beginning = tuple(fill[: case.deprioritize_threshold])
    long_enough = len(beginning) == case.deprioritize_threshold
    return QueueEntry(
        rid=request.rid,
        prompt=len(prompt),
        output=len(output),
        max_new_tokens=request.max_new_tokens,
        priority=request.priority,
        routing_key=request.routing_key or "",
        queued_at=request.wait_queue_entry_time,
        prefilled_at_entry=request.arrival_processed_tokens,
        pages=cache.page_keys(request, fill),
        beginning=(namespace(request.extra_key, request.cache_salt), beginning) if long_enough else None,
        match_limit=request.logprob_start_len if request.return_logprob and request.logprob_start_len >= 0 else None,
    )


def _matches_differ(expected: Expected, matches: Sequence[PrefixMatch]) -> Iterator[str]:
    got = {
        "prefix_len": [match.prefix for match in matches],
        "matched": [match.matched for match in matches],
        "deprioritized": [i for i, match in enumerate(matches) if match.deprioritized],
    }
    for what, values in got.items():
        wanted = getattr(expected, what)
        if values != wanted:
            yield f"{what}: {difference(wanted, values)}"


def difference(wanted: Sequence[object], got: Sequence[object]) -> str:
    """Describe shortly where two lists begin to differ."""
    if len(wanted) != len(got):
        return f"{len(wanted)} entries expected, {len(got)} came"
    at = next(i for i, (a, b) in enumerate(zip(wanted, got, strict=True)) if a != b)
    return f"from position {at} on, {list(wanted[at : at + 4])} ... expected, {list(got[at : at + 4])} ... came"
