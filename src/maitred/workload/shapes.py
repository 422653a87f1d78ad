"""When a client sends, and at which rate: a line of segments of constant rate.

Clients with a `rate_fraction` share the aggregate rate: at each instant those that are active have it in proportion to their
fractions, or to the `trace_rate` of their windows. So the total stays what it is while any of them is active, and a client
that leaves makes the others faster, as in BLIS. A client with a rate of its own takes no part in this.

A shape lowers the rate of a cohort from time to time. BLIS switches a cohort off for a part of each hour of its day (and of
each tenth of a ramp) instead: the same number of requests in each, without the pauses.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count, pairwise

import msgspec

from maitred.units import SECOND

HOUR = 3_600 * SECOND
_RAMP_STEPS = 10


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A span of constant rate."""

    start: float
    """µs"""
    end: float
    """µs; inf: it does not end."""
    rate: float
    """Requests per µs; not negative."""
    window: int = -1
    """Which of the client's windows it is a part of; -1: it has none."""

    @property
    def expected(self) -> float:
        """Requests in it."""
        return (self.end - self.start) * self.rate if self.rate else 0.0


def total(segments: Iterable[Segment]) -> float:
    return sum(segment.expected for segment in segments)


class Shares:
    """The aggregate rate, and who is active with which weight and when."""

    def __init__(self, rate: float, active: Sequence[Segment]) -> None:
        """`rate` in requests per µs; the `rate` of each segment is its weight."""
        self._rate = rate
        changes: dict[float, float] = {}
        for span in active:
            changes[span.start] = changes.get(span.start, 0.0) + span.rate
            changes[span.end] = changes.get(span.end, 0.0) - span.rate
        self._instants = sorted(changes)
        self._weights = list(accumulate(changes[instant] for instant in self._instants))

    def of(self, span: Segment) -> Iterator[Segment]:
        """`span` at the rates that its weight comes to."""
        first = bisect_right(self._instants, span.start)
        instants = [span.start, *(instant for instant in self._instants[first:] if instant < span.end), span.end]
        for at, (start, end) in enumerate(pairwise(instants), start=first - 1):
            yield Segment(start, end, self._rate * span.rate / self._weights[at], span.window)


def daily(segments: Iterable[Segment], peak_hour: int, peak_to_trough_ratio: float) -> Iterator[Segment]:
    """A day of 24 steps, over and over: the full rate in the peak hour, 1/ratio of it twelve hours away, a cosine between."""
    low = 1.0 / peak_to_trough_ratio
    steps = [(1.0 + math.cos(math.tau * (hour - peak_hour) / 24)) / 2 * (1.0 - low) + low for hour in range(24)]
    for segment in segments:
        for hour in count(int(segment.start // HOUR)):
            start, end = max(segment.start, hour * HOUR), min(segment.end, (hour + 1) * HOUR)
            if start >= end:
                break
            yield Segment(start, end, segment.rate * steps[hour % 24], segment.window)


def drained(segments: Iterable[Segment], start: float, duration: float) -> Iterator[Segment]:
    """The full rate until `start`, then ten steps down to nothing at `start + duration` (µs)."""
    edges = [0.0, *(start + duration * step / _RAMP_STEPS for step in range(_RAMP_STEPS + 1))]
    for segment in segments:
        for step, (left, right) in enumerate(pairwise(edges)):
            begins, ends = max(segment.start, left), min(segment.end, right)
            if begins < ends:
                share = 1.0 if step == 0 else (_RAMP_STEPS - step + 1) / _RAMP_STEPS
                yield Segment(begins, ends, segment.rate * share, segment.window)


def until(segments: Iterable[Segment], horizon: float) -> Iterator[Segment]:
    """Up to and with `horizon` (µs)."""
    for segment in segments:
        if segment.start >= horizon:
            return
        yield segment if segment.end <= horizon else msgspec.structs.replace(segment, end=horizon)
