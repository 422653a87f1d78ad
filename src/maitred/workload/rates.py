"""Rates: how fast each sender of a workload sends over time, and at which instants its requests arrive.

A sender's rate over time is a sequence of segments of constant rate:

    1. active spans     the windows of a client, the spike of a cohort, or one span without end
    2. shared rate      senders with a `rate_fraction` share the aggregate rate: at each instant the active ones have it in
                        proportion to their fractions (or to the `trace_rate` of their windows). The total is constant while any
                        of them is active, so a sender that stops makes the others faster, as in BLIS. A sender with a rate of
                        its own takes no part in this
    3. shape            a cohort's `diurnal` or `drain` lowers the rate over time. BLIS switches a cohort off for a part of
                        each hour (of each tenth of a ramp) instead: the same number of requests, with silent parts
    4. horizon          later segments are cut off

The gaps of the arrival process are amounts of expected requests: a request arrives when the rate, integrated over time, has
grown by the gap. Example: with 2 requests per second for 3 s and then 1 per second, an arrival at 2 s and a gap of 4, the
segment has 2 expected requests left, and the remaining 2 take 2 s at the lower rate: the next request arrives at 5 s.
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
from maitred.workload.spec_clients import Client, Cohort, SenderSet
from maitred.workload.spec_parts import MAX_DURATION, Window

HOUR_US = 3_600 * SECOND
_RAMP_STEPS = 10

_SLACK: Final = 1e-9
"""Expected requests. A sum of gaps that should end exactly with its segment may exceed the end by rounding."""


class RateSegment(msgspec.Struct, frozen=True, gc=False):
    """A span of constant rate."""

    start: float
    """µs"""
    end: float
    """µs; inf if the segment has no end."""
    rate: float
    """Requests per µs, 0 or more. Until the aggregate rate is shared: a weight, or requests per second."""
    window: int = -1
    """The index of the client's window that the segment is a part of; -1 if it is part of none."""

    @property
    def expected_requests(self) -> float:
        """Expected number of requests in the segment."""
        return (self.end - self.start) * self.rate if self.rate else 0.0


class AggregateRate:
    """The aggregate rate, and the weights of the senders that share it over time."""

    def __init__(self, rate: float, active: Sequence[RateSegment]) -> None:
        """`rate` is in requests per µs. The `rate` of each segment of `active` is a weight."""
        self._rate = rate
        changes: dict[float, float] = {}
        for span in active:
            changes[span.start] = changes.get(span.start, 0.0) + span.rate
            changes[span.end] = changes.get(span.end, 0.0) - span.rate
        self._change_points = sorted(changes)
        self._weights = list(accumulate(changes[instant] for instant in self._change_points))

    def split(self, span: RateSegment) -> Iterator[RateSegment]:
        """Yield `span` in parts, each with the rate that its weight amounts to there."""
        # The span itself is among the active ones, so the weights that it is divided by are above 0.
        first = bisect_right(self._change_points, span.start)
        instants = [span.start, *(instant for instant in self._change_points[first:] if instant < span.end), span.end]
        for index, (start, end) in enumerate(pairwise(instants), start=first - 1):
            yield RateSegment(start, end, self._rate * span.rate / self._weights[index], span.window)


def apply_diurnal(segments: Iterable[RateSegment], peak_hour: int, peak_to_trough_ratio: float) -> Iterator[RateSegment]:
    """Yield the segments in hours: the full rate in the peak hour, 1/ratio of it twelve hours away, a cosine between."""
    low = 1.0 / peak_to_trough_ratio
    steps = [(1.0 + math.cos(math.tau * (hour - peak_hour) / 24)) / 2 * (1.0 - low) + low for hour in range(24)]
    for segment in segments:
        for hour in count(int(segment.start // HOUR_US)):
            start, end = max(segment.start, hour * HOUR_US), min(segment.end, (hour + 1) * HOUR_US)
            if start >= end:
                break
            yield RateSegment(start, end, segment.rate * steps[hour % 24], segment.window)


def apply_drain(segments: Iterable[RateSegment], start: float, duration: float) -> Iterator[RateSegment]:
    """Yield the segments with the full rate until `start`, then in ten steps down to 0 at `start + duration` (µs)."""
    edges = [0.0, *(start + duration * step / _RAMP_STEPS for step in range(_RAMP_STEPS + 1))]
    for segment in segments:
        for step, (left, right) in enumerate(pairwise(edges)):
            begins, ends = max(segment.start, left), min(segment.end, right)
            if begins < ends:
                share = 1.0 if step == 0 else (_RAMP_STEPS - step + 1) / _RAMP_STEPS
                yield RateSegment(begins, ends, segment.rate * share, segment.window)


def clip(segments: Iterable[RateSegment], horizon: float) -> Iterator[RateSegment]:
    """Yield the segments up to `horizon` (µs)."""
    for segment in segments:
        if segment.start >= horizon:
            return
        yield segment if segment.end <= horizon else msgspec.structs.replace(segment, end=horizon)


def expected_requests(segments: Iterable[RateSegment]) -> float:
    """Return the expected number of requests in all segments."""
    return sum(segment.expected_requests for segment in segments)


class ArrivalTime(msgspec.Struct, frozen=True, gc=False):
    """The instant of an arrival."""

    at: Micros
    window: int
    """The index of the client's window in which it lies; -1 if it lies in none."""


class ArrivalTimes:
    """The arrivals of one sender, in order: an iterator of `ArrivalTime`."""

    def __init__(self, segments: Iterator[RateSegment], gaps: Gaps, gaps_by_window: Mapping[int, Gaps]) -> None:
        """`gaps_by_window` replaces `gaps` in windows that have an arrival process of their own."""
        self._segments, self._gaps, self._gaps_by_window = segments, gaps, gaps_by_window
        self._segment = next(segments, RateSegment(0.0, 0.0, 0.0))
        self._at = self._segment.start

    def __iter__(self) -> Iterator[ArrivalTime]:
        return self

    def __next__(self) -> ArrivalTime:
        segment, at = self._segment, self._at
        # The process of the window in which a gap begins draws it, wherever it ends. Either iterator may end here: without gaps
        # or segments there are no more arrivals, and StopIteration says so.
        needed = next(self._gaps_by_window.get(segment.window, self._gaps))
        while needed > (room := (segment.end - at) * segment.rate) + _SLACK or not segment.rate:
            needed -= room
            segment = self._segment = next(self._segments)
            at = segment.start
        # The exact time is kept, and only the arrival is rounded: rounding errors must not add up over a long run.
        self._at = min(at + needed / segment.rate, segment.end)
        return ArrivalTime(round(self._at), segment.window)


class SenderRates:
    """The rates and arrivals of all senders that send at a rate."""

    def __init__(self, senders: SenderSet, rate_scale: float) -> None:
        self._has_aggregate = bool(senders.aggregate_rate)
        self._scale = rate_scale / SECOND
        self._horizon = float(senders.horizon or MAX_DURATION)
        at_a_rate: list[Client | Cohort] = [
            *(client for client in senders.clients if not client.concurrency),
            *senders.cohorts,
        ]
        active = [
            span for sender in at_a_rate for span in self._active_spans(sender) if self._shares_aggregate(sender, span.window)
        ]
        self._aggregate = AggregateRate(senders.aggregate_rate * self._scale, active)

    def arrival_times(self, sender: Client | Cohort, stream: str, share: float = 1.0) -> ArrivalTimes:
        """Return the arrivals of a sender, or of a `share` of it, drawn from the random stream with this name."""
        process = sender.arrival.build()
        expected = math.inf
        if sender.arrival.process == "normalized":
            expected = expected_requests(self._segments(sender, share))
        gaps_by_window = {
            index: window.arrival.build().gaps(Random(f"{stream}/{index}").random, math.inf)
            for index, window in enumerate(_windows(sender))
            if window.arrival is not None
        }
        return ArrivalTimes(self._segments(sender, share), process.gaps(Random(stream).random, expected), gaps_by_window)

    def _segments(self, sender: Client | Cohort, share: float) -> Iterator[RateSegment]:
        """Return the sender's rate over time."""
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
        """Yield the spans in which the sender is active. Their `rate` is a weight in the aggregate rate, or in requests/s."""
        default = sender.rate or sender.arrival.own_rate or sender.rate_fraction or 0.0
        windows = _windows(sender)
        for index, window in enumerate(windows):
            own = window.arrival and window.arrival.own_rate
            yield RateSegment(window.start_us, window.end_us, own or window.trace_rate or default, index)
        if isinstance(sender, Cohort) and sender.spike is not None:
            start = sender.spike.start_time_us
            yield RateSegment(start, start + sender.spike.duration_us, sender.spike.trace_rate or default)
        elif isinstance(sender, Cohort) and sender.drain is not None:
            yield RateSegment(0.0, sender.drain.start_time_us + sender.drain.ramp_duration_us, default)
        elif not windows:
            yield RateSegment(0.0, math.inf, default)

    def _shares_aggregate(self, sender: Client | Cohort, window: int) -> bool:
        """Return whether the sender has a share of the aggregate rate in this window."""
        if not self._has_aggregate or not sender.rate_fraction or sender.rate or sender.arrival.own_rate:
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
