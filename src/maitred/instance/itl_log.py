"""ItlLog: which request had which gaps between its tokens (ITL: inter-token latency).

The meter counts gaps by their size, over all sequences. To tell later which sequence had which gaps, the log knows two things:
*stretches* of steps in which no sequence began or stopped to decode and whose gaps are about equal (one bucket of the sketch),
and for each sequence through which stretches it decoded. It had one gap for every step of these. Pauses are noted one by one.

That is two numbers for a stretch and three for a sequence, however long answers are, and nothing per step. How steps were
divided into runs does not show: steps that go on in the same way belong to the same stretch.

Example: request 1 decodes through 10 steps of 100 µs, and request 2 joins for the last 4 of them, which take 110 µs each:

    stretch_steps        6    4           request_ids        1    2
    stretch_times      600  440           first_stretches    0    1
                                          end_stretches      2    2

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from array import array
from typing import Final

from maitred.core.errors import ConfigError
from maitred.core.request import RequestId
from maitred.core.units import Micros

_NO_BUCKET: Final = -2
"""No bucket: the next steps begin a stretch of their own."""


class ItlLog:
    """The log of one instance. The meter adds every run, and the instance says which sequences decode."""

    __slots__ = (
        "_last_bucket",
        "_open_intervals",
        "end_stretches",
        "first_stretches",
        "paused_request_ids",
        "pauses",
        "request_ids",
        "stretch_steps",
        "stretch_times",
    )

    def __init__(self) -> None:
        self.stretch_steps, self.stretch_times = array("q"), array("q")
        """By stretch: its steps, and the time that they took together (µs)."""
        self.request_ids, self.first_stretches, self.end_stretches = array("q"), array("q"), array("q")
        """By interval of decoding: the request, its first stretch, and the stretch before which it ended."""
        self.paused_request_ids, self.pauses = array("q"), array("q")
        """By pause: the request, and the time between its two tokens (µs)."""
        self._open_intervals: dict[RequestId, int] = {}
        """Index of the interval of each request that decodes now."""
        self._last_bucket = _NO_BUCKET

    def add_steps(self, itl_bucket: int, steps: int, time: Micros) -> None:
        """Add steps that have ended, with gaps in one bucket of the sketch, to the present stretch or as a new one."""
        if itl_bucket == self._last_bucket:
            self.stretch_steps[-1] += steps
            self.stretch_times[-1] += time
        else:
            self._last_bucket = itl_bucket
            self.stretch_steps.append(steps)
            self.stretch_times.append(time)

    def on_decode_start(self, request_id: RequestId) -> None:
        """Begin an interval: a request decodes from the next step on. Raises ConfigError for an id of more than 64 bits."""
        self._last_bucket = _NO_BUCKET
        self._open_intervals[request_id] = len(self.end_stretches)
        try:
            self.request_ids.append(request_id)
        except OverflowError as error:
            raise ConfigError(f"request {request_id}: its id is too large", hint="ids have 64 bits at most") from error
        stretch = len(self.stretch_steps)
        self.first_stretches.append(stretch)
        self.end_stretches.append(stretch)

    def on_decode_end(self, request_id: RequestId) -> None:
        """End the interval of a request, which does not decode from the next step on."""
        self._last_bucket = _NO_BUCKET
        self.end_stretches[self._open_intervals.pop(request_id)] = len(self.stretch_steps)

    def add_pause(self, request_id: RequestId, gap: Micros) -> None:
        """Add a pause of a request between two tokens, which came `gap` µs after each other."""
        self.paused_request_ids.append(request_id)
        self.pauses.append(gap)

    def close(self) -> None:
        """End the intervals of the requests that still decode: the simulation has ended."""
        for index in self._open_intervals.values():
            self.end_stretches[index] = len(self.stretch_steps)
        self._open_intervals.clear()
