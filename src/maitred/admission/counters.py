"""The books: what became of every request, per model and class; and what a pool looks like now.

    arrived  = queue_full + tenant_queue_full + queue_timeout + sum(refused) + cancelled + sum(ended) + waiting + in_flight
    admitted = sum(ended) + in_flight + retried

A request that the rate gate stops has not arrived: it is counted beside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from maitred.admission.enums import ReleaseReason
from maitred.core.histogram import ERROR_BOUNDS, Histogram
from maitred.core.request import PriorityClass


class ClassCounters:
    """What became of the requests of one class of one model. Requests that have left live on here, as numbers."""

    __slots__ = (
        "admitted",
        "arrived",
        "cancelled",
        "ended",
        "in_flight",
        "preempted_by",
        "promoted",
        "queue_full",
        "queue_timeout",
        "queue_wait",
        "rate_limited",
        "refused",
        "retried",
        "slot_hold",
        "tenant_queue_full",
        "waiting",
        "wasted_slot_time",
    )

    def __init__(self) -> None:
        self.arrived = self.waiting = self.in_flight = 0
        self.admitted = 0
        """Slots taken: more than requests if some were tried again."""
        self.queue_full = self.tenant_queue_full = self.queue_timeout = 0
        self.cancelled = 0
        """Left while they waited."""
        self.rate_limited = 0
        self.refused: Counter[str] = Counter()
        """By admission policies and by flow control: how many, by reason."""
        self.ended = dict.fromkeys(ReleaseReason, 0)
        """Held a slot and gave it back, for good."""
        self.promoted = 0
        self.retried = 0
        """Victims that wait, or waited, again."""
        self.preempted_by = dict.fromkeys(PriorityClass, 0)
        """Victims, by the class that wanted their slot."""
        self.queue_wait = Histogram()
        """Of those who queued, whatever became of them."""
        self.slot_hold = Histogram()
        self.wasted_slot_time = Histogram()
        """Slot time of victims: work that was thrown away."""

    def is_balanced(self) -> bool:
        """Every request that came is accounted for, once."""
        refused = self.queue_full + self.tenant_queue_full + self.queue_timeout + self.cancelled + sum(self.refused.values())
        ended = sum(self.ended.values())
        return (
            self.arrived == refused + ended + self.waiting + self.in_flight
            and self.admitted == ended + self.in_flight + self.retried
        )


class ClassView(msgspec.Struct, frozen=True, kw_only=True):
    """One class of one pool: slots and requests at this instant, and totals since the start (see Totals)."""

    waiting: int
    queue_size: int
    in_flight: int
    reserved: int
    desired: int
    """What it would reserve if the capacity allowed: more than `reserved` means that reservations were scaled down."""
    pressure: float
    """0 to 1: how full its queue is, or how far it is above its reservation, whichever is more."""
    arrived: int
    admitted: int
    queue_full: int
    tenant_queue_full: int
    queue_timeout: int
    cancelled: int
    rate_limited: int
    refused: Counter[str]
    ended: dict[ReleaseReason, int]
    promoted: int
    retried: int
    preempted_by: dict[PriorityClass, int]
    queue_wait: Histogram
    slot_hold: Histogram
    wasted_slot_time: Histogram
    retry_after_error: Histogram
    """What rejections promised minus what it took."""


class PoolView(msgspec.Struct, frozen=True):
    """One pool at this instant."""

    capacity: int
    """Slots; 1,000,000,000 where there is no limit."""
    in_flight: int
    """Requests that hold a slot. May be above `capacity` after a shrink, until enough have ended."""
    waiting: int
    classes: dict[PriorityClass, ClassView]
    """Most urgent first."""


def merge_counters(counters: Iterable[ClassCounters]) -> ClassCounters:
    """One account of several."""
    whole = ClassCounters()
    for one in counters:
        for name in _COUNTER_NAMES:
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
        for end, n in one.ended.items():
            whole.ended[end] += n
        for c, n in one.preempted_by.items():
            whole.preempted_by[c] += n
        for reason, n in one.refused.items():
            whole.refused[reason] += n
        for name in _HISTOGRAM_NAMES:
            getattr(whole, name).add(getattr(one, name))
    return whole


_HISTOGRAM_NAMES = ("queue_wait", "slot_hold", "wasted_slot_time")
_COUNTER_NAMES = tuple(
    name for name in ClassCounters.__slots__ if name not in (*_HISTOGRAM_NAMES, "ended", "preempted_by", "refused")
)


def make_class_view(
    counters: ClassCounters, queue_size: int, reserved: int, desired: int, pressure: float, errors: Histogram
) -> ClassView:
    """What the totals of one class say, beside its slots and its queue."""
    said = {name: getattr(counters, name) for name in (*_COUNTER_NAMES, *_HISTOGRAM_NAMES)}
    return ClassView(
        queue_size=queue_size,
        reserved=reserved,
        desired=desired,
        pressure=pressure,
        ended=dict(counters.ended),
        refused=counters.refused.copy(),
        preempted_by=dict(counters.preempted_by),
        retry_after_error=_copy_histogram(errors),
        **said,
    )


def _copy_histogram(errors: Histogram) -> Histogram:
    copied = Histogram(ERROR_BOUNDS)
    copied.merge(errors)
    return copied
