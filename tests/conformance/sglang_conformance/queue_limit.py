"""QueueLimit is SGLang's `max_queued_requests`: how many requests may wait, and which one is aborted when one more comes.

A full queue rejects the incoming request, unless priorities count and a waiting request is strictly less urgent. Then the least
urgent one is aborted in its place, and among several the one that entered the queue last.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from maitred.compat.sglang.orders import PrioritySign


class QueuedRequest(Protocol):
    """What the limit must know of a waiting request."""

    @property
    def priority(self) -> float: ...

    @property
    def queued_at(self) -> float:
        """When it entered the queue (the last time, if more than once), in any unit."""
        ...


Q = TypeVar("Q", bound=QueuedRequest)


class QueueFullReason(StrEnum):
    """Why a request was rejected, in SGLang's words. The status is 503."""

    FULL = "The request queue is full."
    OUTRANKED = "The request is aborted by a higher priority request."


class QueueLimit(msgspec.Struct, frozen=True):
    """A limit on the number of waiting requests."""

    max_waiting: int | None = None
    """None for no limit."""
    sign: PrioritySign | None = None
    """Which priorities are urgent, or None if priorities do not count."""

    def request_to_evict(self, waiting: Sequence[Q], incoming: QueuedRequest) -> Q | None:
        """Return the request that must go so that `incoming` may wait, or None if the queue is not full, or `incoming` itself
        must go. O(n) when full."""
        if self.sign is None or not self.is_full(len(waiting)) or not waiting:
            return None
        sign = int(self.sign)
        last = max(waiting, key=lambda queued: (sign * queued.priority, queued.queued_at))
        return last if sign * incoming.priority < sign * last.priority else None

    def is_full(self, num_waiting: int) -> bool:
        """Whether one request more than `num_waiting` is too many."""
        return self.max_waiting is not None and num_waiting + 1 > self.max_waiting
