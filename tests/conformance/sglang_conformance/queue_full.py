"""Run the recorded cases of a full queue: which request is rejected or aborted."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from maitred.compat.sglang.orders import PrioritySign

from .queue_limit import QueueFullReason, QueueLimit
from .tokens import default_priority


class RecordedRequest(msgspec.Struct):
    rid: str
    priority: int | None
    wait_queue_entry_time: float


class Expected(msgspec.Struct):
    incoming_rejected: bool
    aborted: list[tuple[str, str]]
    waiting_after: list[str]
    """Of the requests that waited before."""


class Case(msgspec.Struct):
    max_queued_requests: int | None
    enable_priority_scheduling: bool
    schedule_low_priority_values_first: bool
    waiting: list[RecordedRequest]
    incoming: RecordedRequest
    expected: Expected


class Queued(msgspec.Struct):
    rid: str
    priority: float
    queued_at: float


def run_case(raw: bytes) -> Iterator[str]:
    """Yield the differences from what was recorded, one line each."""
    case = msgspec.json.decode(raw, type=Case)
    got = _outcome(case)
    for name in Expected.__struct_fields__:
        wanted, came = getattr(case.expected, name), getattr(got, name)
        if wanted != came:
            yield f"{name}: {wanted} expected, {came} came"


def _outcome(case: Case) -> Expected:
    sign = PrioritySign.LOW_FIRST if case.schedule_low_priority_values_first else PrioritySign.HIGH_FIRST

    def queued(request: RecordedRequest) -> Queued:
        priority = default_priority(sign) if request.priority is None else request.priority
        return Queued(request.rid, priority, request.wait_queue_entry_time)

    limit = QueueLimit(case.max_queued_requests, sign if case.enable_priority_scheduling else None)
    waiting, incoming = [queued(request) for request in case.waiting], queued(case.incoming)
    if not limit.is_full(len(waiting)):
        return Expected(False, [], [each.rid for each in waiting])
    victim = limit.request_to_evict(waiting, incoming)
    if victim is None:
        return Expected(True, [(incoming.rid, QueueFullReason.FULL)], [each.rid for each in waiting])
    return Expected(False, [(victim.rid, QueueFullReason.OUTRANKED)], [each.rid for each in waiting if each is not victim])
