"""Gap log: whose the gaps between tokens were.

The meter counts gaps by their size, of all sequences at once. To say later who had which, the log knows two things: stretches
of steps in which nobody began or stopped to decode and whose gaps are about equal (one bucket of the sketch), and for each
sequence through which stretches it decoded. It had one gap for every step of these. Pauses are noted one by one.

That is two numbers for a stretch and three for a sequence, however long answers are, and nothing per step. How steps were cut
into runs does not show: what goes on in the same way is the same stretch.
"""

from __future__ import annotations

from array import array
from typing import Final

from maitred.core.errors import ConfigError
from maitred.core.request import RequestId
from maitred.core.units import Micros

_NO_BUCKET: Final = -2
"""No kind: what comes next is a stretch of its own."""


class ItlLog:
    """Of one instance. Told of every run by the meter, and by the instance of who decodes."""

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
        """By stretch: how many steps it had, and how long these took together (µs)."""
        self.request_ids, self.first_stretches, self.end_stretches = array("q"), array("q"), array("q")
        """Who decoded, from which stretch on, and up to and without which one."""
        self.paused_request_ids, self.pauses = array("q"), array("q")
        """Who stood still between two tokens, and how far apart these were (µs)."""
        self._open_intervals: dict[RequestId, int] = {}
        """Where those who decode now stand in these."""
        self._last_bucket = _NO_BUCKET

    def add_steps(self, itl_bucket: int, steps: int, time: Micros) -> None:
        """Steps that are over. Those of the same `kind` have gaps in the same bucket."""
        if itl_bucket == self._last_bucket:
            self.stretch_steps[-1] += steps
            self.stretch_times[-1] += time
        else:
            self._last_bucket = itl_bucket
            self.stretch_steps.append(steps)
            self.stretch_times.append(time)

    def on_decode_start(self, request_id: RequestId) -> None:
        """It decodes in the steps that come now. Raises ConfigError for an id of more than 64 bits."""
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
        """It has decoded in the steps so far, and does not in those to come."""
        self._last_bucket = _NO_BUCKET
        self.end_stretches[self._open_intervals.pop(request_id)] = len(self.stretch_steps)

    def add_pause(self, request_id: RequestId, gap: Micros) -> None:
        """Between two tokens, `gap` after each other."""
        self.paused_request_ids.append(request_id)
        self.pauses.append(gap)

    def close(self) -> None:
        """The run is over: those who still decode have come to here."""
        for place in self._open_intervals.values():
            self.end_stretches[place] = len(self.stretch_steps)
        self._open_intervals.clear()
