"""How fast each client of a workload sends, and when: from the specification to instants.

A gap of the arrival process is an amount of expected requests; an arrival comes when the rate, summed over time, has come to
so much. Under a steady rate that is a gap stretched to the rate, and under a changing one the process is bent with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from maitred.units import SECOND, Micros
from maitred.workload.arrivals import Gaps
from maitred.workload.shapes import Segment, Shares, daily, drained, total, until
from maitred.workload.spec import Workload
from maitred.workload.spec_clients import Client, Cohort
from maitred.workload.spec_parts import LONGEST, Window

_SLACK: Final = 1e-9
"""Of a request: sums of gaps that should end with a segment may miss its end by a rounding."""


class Instant(msgspec.Struct, frozen=True, gc=False):
    """An arrival."""

    at: Micros
    window: int
    """Which of the client's windows it lies in; -1: it has none."""


class Instants:
    """The arrivals of one client, in order."""

    def __init__(self, segments: Iterator[Segment], gaps: Gaps, of_window: Mapping[int, Gaps]) -> None:
        """`of_window`: gaps in place of `gaps`, for windows that have their own."""
        self._segments, self._gaps, self._of_window = segments, gaps, of_window
        self._segment = next(segments, Segment(0.0, 0.0, 0.0))
        self._at = self._segment.start

    def __iter__(self) -> Iterator[Instant]:
        return self

    def __next__(self) -> Instant:
        segment, at = self._segment, self._at
        needed = next(self._of_window.get(segment.window, self._gaps))
        while needed > (room := (segment.end - at) * segment.rate) + _SLACK or not segment.rate:
            needed -= room
            segment = self._segment = next(self._segments)
            at = segment.start
        self._at = min(at + needed / segment.rate, segment.end)
        return Instant(round(self._at), segment.window)


class Paces:
    """The rates of all who send at a rate, and their arrivals."""

    def __init__(self, workload: Workload, rate_scale: float) -> None:
        self._workload = workload
        self._scale = rate_scale / SECOND
        self._horizon = float(workload.horizon or LONGEST)
        senders: list[Client | Cohort] = [*(client for client in workload.clients if not client.concurrency), *workload.cohorts]
        active = [span for sender in senders for span in self._spans(sender) if self._shares(sender, span.window)]
        self._all = Shares(workload.aggregate_rate * self._scale, active)

    def instants(self, sender: Client | Cohort, stream: str, share: float = 1.0) -> Instants:
        """The arrivals of a client or a cohort, or of a share of it, drawn from the stream of this name."""
        expected = total(self._segments(sender, share)) if sender.arrival.process == "normalized" else math.inf
        of_window = {
            index: window.arrival.made().gaps(Random(f"{stream}/{index}").random, math.inf)
            for index, window in enumerate(_windows(sender))
            if window.arrival is not None
        }
        return Instants(self._segments(sender, share), sender.arrival.made().gaps(Random(stream).random, expected), of_window)

    def _segments(self, sender: Client | Cohort, share: float) -> Iterator[Segment]:
        """Its rates, from time to time."""
        return until(self._shaped(sender, self._rated(sender, share)), self._horizon)

    def _rated(self, sender: Client | Cohort, share: float) -> Iterator[Segment]:
        for span in self._spans(sender):
            if self._shares(sender, span.window):
                parts = self._all.of(span)
            else:
                parts = iter((msgspec.structs.replace(span, rate=span.rate * self._scale),))
            for part in parts:
                yield msgspec.structs.replace(part, rate=part.rate * share)

    def _spans(self, sender: Client | Cohort) -> Iterator[Segment]:
        """When it is active. The `rate` of a span is its weight where the sender shares, and else requests per second."""
        usual = sender.rate or sender.arrival.own_rate or sender.rate_fraction or 0.0
        windows = _windows(sender)
        for index, window in enumerate(windows):
            own = window.arrival and window.arrival.own_rate
            yield Segment(window.start_us, window.end_us, own or window.trace_rate or usual, index)
        if isinstance(sender, Cohort) and sender.spike is not None:
            start = sender.spike.start_time_us
            yield Segment(start, start + sender.spike.duration_us, sender.spike.trace_rate or usual)
        elif isinstance(sender, Cohort) and sender.drain is not None:
            yield Segment(0.0, sender.drain.start_time_us + sender.drain.ramp_duration_us, usual)
        elif not windows:
            yield Segment(0.0, math.inf, usual)

    def _shares(self, sender: Client | Cohort, window: int) -> bool:
        """Whether it has a part of the aggregate rate, in this window."""
        if not self._workload.aggregate_rate or not sender.rate_fraction or sender.rate or sender.arrival.own_rate:
            return False
        arrival = _windows(sender)[window].arrival if window >= 0 else None
        return arrival is None or arrival.own_rate is None

    def _shaped(self, sender: Client | Cohort, line: Iterator[Segment]) -> Iterator[Segment]:
        if isinstance(sender, Cohort) and sender.diurnal is not None:
            return daily(line, sender.diurnal.peak_hour, sender.diurnal.peak_to_trough_ratio)
        if isinstance(sender, Cohort) and sender.drain is not None:
            return drained(line, sender.drain.start_time_us, sender.drain.ramp_duration_us)
        return line


def _windows(sender: Client | Cohort) -> Sequence[Window]:
    return sender.lifecycle.windows if isinstance(sender, Client) and sender.lifecycle else ()
