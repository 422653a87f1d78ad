"""Counters: what became of every request, per model and class.

Each request is counted once, by how it ended or by where it is now:

    arrived  = queue_full + tenant_queue_full + queue_timeout + sum(refused) + cancelled + sum(ended) + waiting + in_flight
    admitted = sum(ended) + in_flight + retried

Example: 10 requests arrive at a class. 2 are in flight, 1 waits, 1 found the queue full and 6 were served (`drained`); one of
these 6 was preempted first and tried again, so it took a slot twice. Then 10 = 1 + 6 + 1 + 2, and admitted = 6 + 2 + 1 = 9.

A request that the rate gate stops has not arrived: `rate_limited` counts it apart. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import Counter

from maitred.admission.terms.enums import ReleaseReason
from maitred.core.histogram import ERROR_BOUNDS, Histogram
from maitred.core.request import PriorityClass

_COUNTS = (
    *("admitted", "arrived", "cancelled", "declined", "in_flight", "promoted", "queue_full", "queue_timeout", "rate_limited"),
    *("retried", "tenant_queue_full", "waiting"),
)
_COUNTS_BY_KEY = ("ended", "preempted_by", "refused")
_HISTOGRAMS = ("queue_wait", "slot_hold", "wasted_slot_time")


class ClassCounters:
    """The outcomes of the requests of one class of one model. Requests that have left stay here as numbers."""

    __slots__ = (*_COUNTS, *_COUNTS_BY_KEY, *_HISTOGRAMS)

    def __init__(self) -> None:
        self.arrived = self.waiting = self.in_flight = 0
        self.admitted = 0
        """Slots taken: more than requests if some were tried again."""
        self.queue_full = self.tenant_queue_full = self.queue_timeout = 0
        self.cancelled = 0
        """Requests that were waiting when their client disconnected."""
        self.rate_limited = 0
        self.refused: Counter[str] = Counter()
        """Requests that an admission policy or flow control refused, by reason."""
        self.ended = dict.fromkeys(ReleaseReason, 0)
        """Requests that held a slot and gave it back for good, by how they ended."""
        self.promoted = 0
        self.retried = 0
        """Requests that have lost their slot, by a preemption or with their backend, and wait, or waited, again."""
        self.declined = 0
        """Victims that have kept their slots, because their responses had begun already. `preempted_by` counts them too."""
        self.preempted_by = dict.fromkeys(PriorityClass, 0)
        """Victims of a preemption, by the class of the preemptor."""
        self.queue_wait = Histogram()
        """Time in the queue, µs, of all requests that queued, whatever became of them."""
        self.slot_hold = Histogram()
        """Time for which slots were held, µs."""
        self.wasted_slot_time = Histogram()
        """Time for which victims held their slots, µs: work that was thrown away."""

    def merge(self, other: ClassCounters) -> None:
        """Add everything that `other` counts."""
        if not (other.arrived or other.rate_limited):  # Nothing has happened there, as in most pools of many models.
            return
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _COUNTS_BY_KEY:
            counts = getattr(self, name)
            for key, n in getattr(other, name).items():
                counts[key] += n
        for name in _HISTOGRAMS:
            getattr(self, name).merge(getattr(other, name))

    @property
    def rejected(self) -> int:
        """Requests that got no slot, but for those that were left by their clients."""
        return self.queue_full + self.tenant_queue_full + self.queue_timeout + sum(self.refused.values())

    def is_balanced(self) -> bool:
        """Return whether every request that arrived is counted exactly once."""
        ended = sum(self.ended.values())
        return (
            self.arrived == self.rejected + self.cancelled + ended + self.waiting + self.in_flight
            and self.admitted == ended + self.in_flight + self.retried
        )


class ClassView(ClassCounters):
    """One class of one pool, or of several: its slots and queue at this instant, and a copy of its counters."""

    __slots__ = ("desired", "held", "pressure", "queue_size", "reserved", "retry_after_error")

    def __init__(self) -> None:
        super().__init__()
        self.queue_size = 0
        """The largest number of requests that may wait."""
        self.reserved = 0
        """Slots reserved for the class."""
        self.desired = 0
        """Slots that the class would reserve if the capacity allowed: more than `reserved` after reservations shrank."""
        self.held = 0
        """Slots that are held back for it now: the part of `reserved` that it does not use, with `reserve: adaptive` less."""
        self.pressure = 0.0
        """How full its queue is, or how far it is above its reservation, whichever is more; 0 to 1, of the fullest pool."""
        self.retry_after_error = Histogram(ERROR_BOUNDS)
        """The errors of `Retry-After`: the estimate less the time that it took, µs."""

    def merge_view(self, other: ClassView) -> None:
        """Add what `other` shows of the same class in another pool."""
        self.merge(other)
        self.queue_size += other.queue_size
        self.reserved += other.reserved
        self.desired += other.desired
        self.held += other.held
        self.pressure = max(self.pressure, other.pressure)
        self.retry_after_error.merge(other.retry_after_error)
