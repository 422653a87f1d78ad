"""When a client sends, and at which rate: a line of segments of constant rate.

Clients with a `rate_fraction` share the aggregate rate: at each instant those that are active have it in proportion to their
fractions, or to the `trace_rate` of their windows. So the total stays what it is while any of them is active, and a client
that leaves makes the others faster, as in BLIS. A client with a rate of its own takes no part in this.

A shape lowers the rate of a cohort from time to time. BLIS switches a cohort off for a part of each hour of its day (and of
each tenth of a ramp) instead: the same number of requests in each, without the pauses.

How fast each client of a workload sends, and when: from the specification to instants.

A gap of the arrival process is an amount of expected requests; an arrival comes when the rate, summed over time, has come to
so much. Under a steady rate that is a gap stretched to the rate, and under a changing one the process is bent with it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count, pairwise
from random import Random
from typing import Final

import msgspec

from maitred.core.units import SECOND, Micros
from maitred.workload.arrivals import Gaps
from maitred.workload.spec import Workload
from maitred.workload.spec_clients import Client, Cohort
from maitred.workload.spec_parts import MAX_DURATION, Window

HOUR_US = 3_600 * SECOND
_RAMP_STEPS = 10


class RateSegment(msgspec.Struct, frozen=True, gc=False):
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
    def expected_requests(self) -> float:
        """Requests in it."""
        return (self.end - self.start) * self.rate if self.rate else 0.0


def expected_requests(segments: Iterable[RateSegment]) -> float:
    return sum(segment.expected_requests for segment in segments)


class AggregateRate:
    """The aggregate rate, and who is active with which weight and when."""

    def __init__(self, rate: float, active: Sequence[RateSegment]) -> None:
        """`rate` in requests per µs; the `rate` of each segment is its weight."""
        self._rate = rate
        changes: dict[float, float] = {}
        for span in active:
            changes[span.start] = changes.get(span.start, 0.0) + span.rate
            changes[span.end] = changes.get(span.end, 0.0) - span.rate
        self._change_points = sorted(changes)
        self._weights = list(accumulate(changes[instant] for instant in self._change_points))

    def split(self, span: RateSegment) -> Iterator[RateSegment]:
        """`span` at the rates that its weight comes to."""
        first = bisect_right(self._change_points, span.start)
        instants = [span.start, *(instant for instant in self._change_points[first:] if instant < span.end), span.end]
        for at, (start, end) in enumerate(pairwise(instants), start=first - 1):
            yield RateSegment(start, end, self._rate * span.rate / self._weights[at], span.window)


def apply_diurnal(segments: Iterable[RateSegment], peak_hour: int, peak_to_trough_ratio: float) -> Iterator[RateSegment]:
    """A day of 24 steps, over and over: the full rate in the peak hour, 1/ratio of it twelve hours away, a cosine between."""
    low = 1.0 / peak_to_trough_ratio
    steps = [(1.0 + math.cos(math.tau * (hour - peak_hour) / 24)) / 2 * (1.0 - low) + low for hour in range(24)]
    for segment in segments:
        for hour in count(int(segment.start // HOUR_US)):
            start, end = max(segment.start, hour * HOUR_US), min(segment.end, (hour + 1) * HOUR_US)
            if start >= end:
                break
            yield RateSegment(start, end, segment.rate * steps[hour % 24], segment.window)


def apply_drain(segments: Iterable[RateSegment], start: float, duration: float) -> Iterator[RateSegment]:
    """The full rate until `start`, then ten steps down to nothing at `start + duration` (µs)."""
    edges = [0.0, *(start + duration * step / _RAMP_STEPS for step in range(_RAMP_STEPS + 1))]
    for segment in segments:
        for step, (left, right) in enumerate(pairwise(edges)):
            begins, ends = max(segment.start, left), min(segment.end, right)
            if begins < ends:
                share = 1.0 if step == 0 else (_RAMP_STEPS - step + 1) / _RAMP_STEPS
                yield RateSegment(begins, ends, segment.rate * share, segment.window)


def clip(segments: Iterable[RateSegment], horizon: float) -> Iterator[RateSegment]:
    """Up to and with `horizon` (µs)."""
    for segment in segments:
        if segment.start >= horizon:
            return
        yield segment if segment.end <= horizon else msgspec.structs.replace(segment, end=horizon)


_SLACK: Final = 1e-9
"""Of a request: sums of gaps that should end with a segment may miss its end by a rounding."""


class ArrivalTime(msgspec.Struct, frozen=True, gc=False):
    """An arrival."""

    at: Micros
    window: int
    """Which of the client's windows it lies in; -1: it has none."""


class ArrivalTimes:
    """The arrivals of one client, in order."""

    def __init__(self, segments: Iterator[RateSegment], gaps: Gaps, of_window: Mapping[int, Gaps]) -> None:
        """`of_window`: gaps in place of `gaps`, for windows that have their own."""
        self._segments, self._gaps, self._of_window = segments, gaps, of_window
        self._segment = next(segments, RateSegment(0.0, 0.0, 0.0))
        self._at = self._segment.start

    def __iter__(self) -> Iterator[ArrivalTime]:
        return self

    def __next__(self) -> ArrivalTime:
        segment, at = self._segment, self._at
        needed = next(self._of_window.get(segment.window, self._gaps))
        while needed > (room := (segment.end - at) * segment.rate) + _SLACK or not segment.rate:
            needed -= room
            segment = self._segment = next(self._segments)
            at = segment.start
        self._at = min(at + needed / segment.rate, segment.end)
        return ArrivalTime(round(self._at), segment.window)


class SenderRates:
    """The rates of all who send at a rate, and their arrivals."""

    def __init__(self, workload: Workload, rate_scale: float) -> None:
        self._workload = workload
        self._scale = rate_scale / SECOND
        self._horizon = float(workload.horizon or MAX_DURATION)
        senders: list[Client | Cohort] = [*(client for client in workload.clients if not client.concurrency), *workload.cohorts]
        active = [
            span for sender in senders for span in self._active_spans(sender) if self._shares_aggregate(sender, span.window)
        ]
        self._aggregate = AggregateRate(workload.aggregate_rate * self._scale, active)

    def arrival_times(self, sender: Client | Cohort, stream: str, share: float = 1.0) -> ArrivalTimes:
        """The arrivals of a client or a cohort, or of a share of it, drawn from the stream of this name."""
        expected = expected_requests(self._segments(sender, share)) if sender.arrival.process == "normalized" else math.inf
        of_window = {
            index: window.arrival.build().gaps(Random(f"{stream}/{index}").random, math.inf)
            for index, window in enumerate(_windows(sender))
            if window.arrival is not None
        }
        return ArrivalTimes(
            self._segments(sender, share), sender.arrival.build().gaps(Random(stream).random, expected), of_window
        )

    def _segments(self, sender: Client | Cohort, share: float) -> Iterator[RateSegment]:
        """Its rates, from time to time."""
        return clip(self._apply_shape(sender, self._unshaped_segments(sender, share)), self._horizon)

    def _unshaped_segments(self, sender: Client | Cohort, share: float) -> Iterator[RateSegment]:
        for span in self._active_spans(sender):
            if self._shares_aggregate(sender, span.window):
                parts = self._aggregate.split(span)
            else:
                parts = iter((msgspec.structs.replace(span, rate=span.rate * self._scale),))
            for part in parts:
                yield msgspec.structs.replace(part, rate=part.rate * share)

    def _active_spans(self, sender: Client | Cohort) -> Iterator[RateSegment]:
        """When it is active. The `rate` of a span is its weight where the sender shares, and else requests per second."""
        usual = sender.rate or sender.arrival.own_rate or sender.rate_fraction or 0.0
        windows = _windows(sender)
        for index, window in enumerate(windows):
            own = window.arrival and window.arrival.own_rate
            yield RateSegment(window.start_us, window.end_us, own or window.trace_rate or usual, index)
        if isinstance(sender, Cohort) and sender.spike is not None:
            start = sender.spike.start_time_us
            yield RateSegment(start, start + sender.spike.duration_us, sender.spike.trace_rate or usual)
        elif isinstance(sender, Cohort) and sender.drain is not None:
            yield RateSegment(0.0, sender.drain.start_time_us + sender.drain.ramp_duration_us, usual)
        elif not windows:
            yield RateSegment(0.0, math.inf, usual)

    def _shares_aggregate(self, sender: Client | Cohort, window: int) -> bool:
        """Whether it has a part of the aggregate rate, in this window."""
        if not self._workload.aggregate_rate or not sender.rate_fraction or sender.rate or sender.arrival.own_rate:
            return False
        arrival = _windows(sender)[window].arrival if window >= 0 else None
        return arrival is None or arrival.own_rate is None

    def _apply_shape(self, sender: Client | Cohort, segments: Iterator[RateSegment]) -> Iterator[RateSegment]:
        if isinstance(sender, Cohort) and sender.diurnal is not None:
            return apply_diurnal(segments, sender.diurnal.peak_hour, sender.diurnal.peak_to_trough_ratio)
        if isinstance(sender, Cohort) and sender.drain is not None:
            return apply_drain(segments, sender.drain.start_time_us, sender.drain.ramp_duration_us)
        return segments


def _windows(sender: Client | Cohort) -> Sequence[Window]:
    return sender.lifecycle.windows if isinstance(sender, Client) and sender.lifecycle else ()
