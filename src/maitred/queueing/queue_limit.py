"""How many may wait, and who goes when one too many comes.

SGLang's rule (`max_queued_requests`): a full queue turns the newcomer away, unless priorities count and somebody who waits is
strictly less urgent. Then the least urgent is aborted in its place, and among those the last to enter the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Protocol, TypeVar

import msgspec


class PrioritySign(IntEnum):
    """Which numbers are urgent. Inside maitred larger ones are; SGLang lets its users say."""

    LOW_FIRST = 1
    HIGH_FIRST = -1

    @property
    def default_priority(self) -> int:
        """What SGLang takes for a priority that nobody gave: nothing is less urgent."""
        return self * (1 << 63) - (self is PrioritySign.LOW_FIRST)


class QueuedRequest(Protocol):
    """What the limit must know of one who waits."""

    @property
    def priority(self) -> float: ...

    @property
    def queued_at(self) -> float:
        """When it entered the queue (the last time, if more than once), in any unit."""
        ...


Q = TypeVar("Q", bound=QueuedRequest)


class QueueFullReason(StrEnum):
    """Why a request was turned away, in SGLang's words. Its client is answered with status 503."""

    FULL = "The request queue is full."
    OUTRANKED = "The request is aborted by a higher priority request."


class QueueLimit(msgspec.Struct, frozen=True):
    """At most `most` may wait; None: any number. `sign` None: priorities do not count."""

    max_waiting: int | None = None
    sign: PrioritySign | None = None

    def request_to_evict(self, waiting: Sequence[Q], incoming: QueuedRequest) -> Q | None:
        """Who must go so that `incoming` may wait; None: nobody needs to, or it is `incoming` itself. O(n) when full."""
        if self.sign is None or not self.is_full(len(waiting)) or not waiting:
            return None
        sign = int(self.sign)
        last = max(waiting, key=lambda queued: (sign * queued.priority, queued.queued_at))
        return last if sign * incoming.priority < sign * last.priority else None

    def is_full(self, waiting: int) -> bool:
        """Whether one more than `waiting` is too many."""
        return self.max_waiting is not None and waiting + 1 > self.max_waiting
