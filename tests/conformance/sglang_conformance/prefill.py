"""Run the recorded prefill batches: the policy, the budgets, preemption, on a radix cache with its residents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from maitred.compat.sglang.orders import (
    CACHE_AWARE,
    CUT_OFF,
    CUT_OFF_POLICIES,
    InBatchCaching,
    PrioritySign,
    QueueEntry,
    SchedulingPass,
    SGLangPolicy,
    match_all,
    next_order,
)
from maitred.compat.sglang.prefill_adder import AddResult, PrefillAdder
from maitred.compat.sglang.prefill_pass import PrefillHost, PrefillPass
from maitred.compat.sglang.prefill_request import PrefillRequest
from maitred.compat.sglang.rules import PassRules, PrefillLimits
from maitred.kv.radix_cache import RadixLock

from .resident import Prompt, ResidentMemory
from .tokens import Runs, decoded, default_priority, namespace


class Recorded(msgspec.Struct):
    """A request as recorded."""

    rid: str
    prompt: Runs
    max_new_tokens: int
    ignore_eos: bool
    priority: int | None
    routing_key: str | None
    wait_queue_entry_time: float
    arrival_processed_tokens: int
    output: Runs = ()
    done: int = 0


class CacheEntry(msgspec.Struct):
    tokens: Runs
    extra_key: str | None = None
    cache_salt: str | None = None


class Case(msgspec.Struct):
    page_size: int
    pool_size: int
    req_slots: int
    max_running_requests: int
    max_prefill_tokens: int
    chunked_prefill_size: int | None
    mixed_chunk: bool
    new_token_ratio: float
    policy: SGLangPolicy
    disable_cache: bool
    enable_priority_scheduling: bool
    schedule_low_priority_values_first: bool
    disable_priority_preemption: bool
    preemption_threshold: float
    prefill_max_requests: int | None
    truncation_align_size: int | None
    processed_tokens: int
    cache: Sequence[CacheEntry]
    running: Sequence[Recorded]
    waiting: Sequence[Recorded]
    chunked: Recorded | None
    expected: dict[str, Any]


def run_case(raw: bytes) -> Iterator[str]:
    """Yield the differences from what was recorded, one line each."""
    case = msgspec.json.decode(raw, type=Case)
    got = _Replay(case).outcome()
    waiting = case.expected["waiting_after"]
    requeued = len(case.expected["preempted"])  # the last ones of the queue, in an order that is not recorded
    wanted_values = case.expected | {
        "waiting_after": waiting[: len(waiting) - requeued] + sorted(waiting[len(waiting) - requeued :])
    }
    for name, wanted in wanted_values.items():
        if got[name] != wanted:
            yield f"{name}: {wanted} expected, {got[name]} came"


class _RecordingAdder(PrefillAdder):
    """An adder that notes what is asked of it."""

    replay: _Replay

    def add_chunked(self, request: PrefillRequest) -> bool:
        goes_on = super().add_chunked(request)
        self.replay.calls.append(["chunk", self.replay.rids[request], goes_on])
        return goes_on

    def add(self, request: PrefillRequest) -> AddResult:
        verdict = super().add(request)
        self.replay.calls.append(["add", self.replay.rids[request], verdict.value])
        return verdict

    def budgets(self) -> dict[str, float | None]:
        return {
            "rem_total": round(self.rem_total, _DECIMALS),
            "rem_cur": self.rem_current,
            "rem_input": self.rem_input,
            "rem_chunk": self.rem_chunk,
        }


class _RecordingPass(PrefillPass):
    replay: _Replay

    def _preempt_for(self, request: PrefillRequest, adder: PrefillAdder) -> bool:
        succeeded = super()._preempt_for(request, adder)
        self.replay.calls.append(["preempt", self.replay.rids[request], succeeded])
        return succeeded


class _Replay(PrefillHost):
    """One case: its pools, its residents and its queue."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.memory = ResidentMemory(case.page_size, case.pool_size, has_cache=not case.disable_cache)
        for entry in case.cache:
            self.memory.insert(namespace(entry.extra_key, entry.cache_salt), decoded(entry.tokens))
        self.sign = PrioritySign.LOW_FIRST if case.schedule_low_priority_values_first else PrioritySign.HIGH_FIRST
        self.rids: dict[PrefillRequest, str] = {}
        self.prompts: dict[PrefillRequest, Prompt] = {}
        self.locks: dict[PrefillRequest, RadixLock] = {}
        self.calls: list[list[Any]] = []
        self.chunked = self._resident_chunk()
        self.running = [self._resident(request) for request in case.running]
        self.queue = [(recorded, self._request(recorded)) for recorded in case.waiting]
        self.order: list[str] | None = None
        self.budget_before: dict[str, float | None] | None = None

    def outcome(self) -> dict[str, Any]:
        """Return what came of the pass, under the names of the record."""
        case, memory = self.case, self.memory
        before = {"available": memory.free, "evictable": memory.evictable, "free_req_slots": self.num_free_slots()}
        preempts = case.enable_priority_scheduling and not case.disable_priority_preemption
        rules = PassRules(
            self._limits(),
            case.max_running_requests,
            preempts=preempts,
            preemption_threshold=case.preemption_threshold,
            mixes=case.mixed_chunk,
            caps_chunks=case.policy is SGLangPolicy.SHORTEST_PREFILL_FIRST,
        )
        this = _RecordingPass(rules, self, self.running, is_full=False)
        this.replay = self
        admitted = this.run(self.chunked)
        adder = this.adder
        preempted = sorted(self.rids[request] for request in this.preempted)
        assert adder is None or isinstance(adder, _RecordingAdder)
        return before | {
            "pass_ran": adder is not None,
            "order": self.order,
            "calls": self.calls,
            "budget_before": self.budget_before,
            "budget_after": None if adder is None else adder.budgets(),
            "admitted": [
                {
                    "rid": self.rids[request],
                    "prefix_len": request.cached_tokens,
                    "extend_len": request.extend_tokens,
                    "is_chunk": adder is not None and request is adder.chunked,
                }
                for request in admitted
            ],
            "chunked_after": None if adder is None or adder.chunked is None else self.rids[adder.chunked],
            "preempted": preempted,
            "batch_is_full": this.is_full,
            "running_after": [self.rids[request] for request in self.running if request not in this.preempted],
            "waiting_after": [recorded.rid for recorded, _ in self.queue] + preempted,
            "available_after": memory.free,
            "evictable_after": memory.evictable,
        }

    # the host of the pass

    def available_tokens(self) -> int:
        return self.memory.available

    def lock(self, request: PrefillRequest) -> None:
        self.locks[request] = self.memory.lock(self.prompts[request].pages[: request.cached_tokens // self.case.page_size])

    def unlock(self, request: PrefillRequest) -> None:
        self.memory.release(self.locks.pop(request))

    def num_waiting(self) -> int:
        return len(self.queue)

    def num_free_slots(self) -> int:
        return self.case.req_slots - len(self.running) - (self.chunked is not None)

    def sort_queue(self) -> None:
        case = self.case
        entries = [self._entry(recorded, request) for recorded, request in self.queue]
        cache = None if case.disable_cache else self.memory.pages
        if cache is not None:
            looks = case.policy in CACHE_AWARE and not (case.policy in CUT_OFF_POLICIES and len(entries) > CUT_OFF)
            for entry in entries if looks else reversed(entries[:CUT_OFF]):
                self.memory.touch(entry.pages)
        at = SchedulingPass(
            rng=Random(0),
            cache=cache,
            sign=self.sign if case.enable_priority_scheduling else None,
            prefilled_tokens=case.processed_tokens,
            running=Counter(running.routing_key for running in case.running if running.routing_key),
        )
        matches = [] if cache is None else match_all(entries, cache, _IN_BATCH)
        order = next_order(case.policy, entries, at)
        self.works = [
            max(1, entries[index].prompt + entries[index].output - matches[index].matched) for index in order if matches
        ]
        self.queue = [self.queue[index] for index in order]
        self.order = [recorded.rid for recorded, _ in self.queue]

    def head(self) -> PrefillRequest | None:
        return self.queue[0][1] if self.queue else None

    def take_head(self) -> None:
        self.queue.pop(0)

    def match(self, request: PrefillRequest) -> None:
        request.fill_tokens = request.num_tokens
        pages = self.prompts[request].pages[: (request.fill_tokens - 1) // self.case.page_size]
        request.cached_tokens = self.memory.touch(pages) * self.case.page_size

    def uncached_work(self) -> Iterable[int]:
        return self.works

    def release(self, request: PrefillRequest) -> None:
        self.memory.release(self.locks.pop(request))

    def evict_until_free(self, tokens: int) -> None:
        self.memory.evict_until_free(tokens)

    def make_adder(self, running: Sequence[PrefillRequest], num_mixed: int) -> PrefillAdder:
        case = self.case
        adder = _RecordingAdder(
            self._limits(), self, running, case.new_token_ratio, num_mixed, has_cache=not case.disable_cache
        )
        adder.replay = self
        self.budget_before = adder.budgets()
        return adder

    # what was recorded

    def _limits(self) -> PrefillLimits:
        case = self.case
        return PrefillLimits(
            page_size=case.page_size,
            max_prefill_tokens=case.max_prefill_tokens,
            chunked_prefill_size=case.chunked_prefill_size,
            prefill_max_requests=case.prefill_max_requests,
            truncation_align_size=case.truncation_align_size,
        )

    def _request(self, recorded: Recorded) -> PrefillRequest:
        priority = default_priority(self.sign) if recorded.priority is None else recorded.priority
        prompt, output = decoded(recorded.prompt), decoded(recorded.output)
        request = PrefillRequest(
            len(prompt),
            recorded.max_new_tokens,
            len(output),
            -self.sign * priority,
            recorded.wait_queue_entry_time,
            ignores_eos=recorded.ignore_eos,
        )
        self.rids[request] = recorded.rid
        self.prompts[request] = self.memory.prompt(prompt, output)
        return request

    def _resident_chunk(self) -> PrefillRequest | None:
        recorded = self.case.chunked
        if recorded is None:
            return None
        request = self._request(recorded)
        request.fill_tokens, request.cached_tokens = request.num_tokens, recorded.done
        self.locks[request] = self.memory.compute(self.prompts[request], recorded.done)
        return request

    def _resident(self, recorded: Recorded) -> PrefillRequest:
        request = self._request(recorded)
        prompt = self.prompts[request]
        lock = self.locks[request] = self.memory.compute(prompt, request.prompt_tokens)
        self.memory.decode(lock, request.prompt_tokens, request.output_tokens - 1)
        return request

    def _entry(self, recorded: Recorded, request: PrefillRequest) -> QueueEntry:
        prompt = self.prompts[request]
        beginning = prompt.tokens[: _IN_BATCH.deprioritize]
        return QueueEntry(
            rid=recorded.rid,
            prompt=request.prompt_tokens,
            output=request.output_tokens,
            max_new_tokens=request.max_new_tokens,
            priority=default_priority(self.sign) if recorded.priority is None else recorded.priority,
            routing_key=recorded.routing_key or "",
            queued_at=recorded.wait_queue_entry_time,
            prefilled_at_entry=recorded.arrival_processed_tokens,
            pages=prompt.pages,
            beginning=beginning if len(beginning) == _IN_BATCH.deprioritize else None,
        )


_DECIMALS = 6
"""Budgets were recorded with so many."""
_IN_BATCH = InBatchCaching()
