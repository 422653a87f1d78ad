"""Run the recorded retractions: who gives way when decoding lacks memory, and the new-token ratio after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from maitred.compat.sglang.new_token_ratio import NewTokenRatio
from maitred.compat.sglang.orders import PrioritySign
from maitred.compat.sglang.prefill_request import PrefillRequest
from maitred.compat.sglang.retraction import DecodeMemory, keep_order, retract
from maitred.kv.radix_cache import RadixLock

from .resident import ResidentMemory
from .tokens import Runs, decoded, default_priority, namespace

_POOL_TOKENS = 32768


class Recorded(msgspec.Struct):
    rid: str
    prompt: Runs
    output: Runs
    max_new_tokens: int
    priority: int | None


class CacheEntry(msgspec.Struct):
    tokens: Runs


class Case(msgspec.Struct):
    page_size: int
    policy: str
    schedule_low_priority_values_first: bool
    running: Sequence[Recorded]
    cache: Sequence[CacheEntry]
    available_before: int
    evictable_before: int
    expected: dict[str, Any]


def run_case(raw: bytes) -> Iterator[str]:
    """Yield the differences from what was recorded, one line each."""
    case = msgspec.json.decode(raw, type=Case)
    got = _Replay(case).outcome()
    for name, wanted in case.expected.items():
        if got[name] != wanted:
            yield f"{name}: {wanted} expected, {got[name]} came"


class _Replay(DecodeMemory):
    def __init__(self, case: Case) -> None:
        self.case = case
        self.memory = ResidentMemory(case.page_size, _POOL_TOKENS)
        for entry in case.cache:
            self.memory.insert(namespace(None, None), decoded(entry.tokens))
        sign = PrioritySign.LOW_FIRST if case.schedule_low_priority_values_first else PrioritySign.HIGH_FIRST
        self.rids: dict[PrefillRequest, str] = {}
        self.locks: dict[PrefillRequest, RadixLock] = {}
        for recorded in case.running:
            priority = default_priority(sign) if recorded.priority is None else recorded.priority
            prompt, output = decoded(recorded.prompt), decoded(recorded.output)
            request = PrefillRequest(len(prompt), recorded.max_new_tokens, len(output), -sign * priority)
            self.rids[request] = recorded.rid
            lock = self.locks[request] = self.memory.compute(self.memory.prompt(prompt, output), len(prompt))
            self.memory.decode(lock, len(prompt), len(output) - 1)
        self.memory.occupy(self.memory.free - case.available_before)

    def outcome(self) -> dict[str, Any]:
        """Return what came of it, under the names of the record."""
        case, running, by_urgency = self.case, list(self.rids), self.case.policy == "priority"
        before = {
            "tokens_needed_next_decode": self._needed(),
            "fits": self.fits_decode(),
            "keep_order": keep_order(running, by_urgency=by_urgency),
        }
        result = retract(running, self, by_urgency=by_urgency)
        ratio = NewTokenRatio()
        ratio.on_retraction((request.output_tokens, request.max_new_tokens) for request in result.kept)
        names = {
            name: [self.rids[request] for request in requests]
            for name, requests in (("retracted", result.retracted), ("aborted", result.aborted), ("kept", result.kept))
        }
        after = {"available_after": self.memory.free, "evictable_after": self.memory.evictable}
        assert case.evictable_before >= 0
        return before | names | after | {"new_token_ratio": ratio.value}

    def fits_decode(self) -> bool:
        self.memory.evict_until_free(self._needed())
        return self.memory.free >= self._needed()

    def release(self, request: PrefillRequest) -> None:
        self.memory.release(self.locks.pop(request))

    def evict_until_free(self, tokens: int) -> None:
        self.memory.evict_until_free(tokens)

    def _needed(self) -> int:
        """Return the tokens of the pages that the next decode step opens."""
        page = self.case.page_size
        return page * sum((request.num_tokens - 1) % page == 0 for request in self.locks)
