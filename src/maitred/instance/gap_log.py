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

from maitred.errors import ConfigError
from maitred.request import RequestId
from maitred.units import Micros

_ANOTHER: Final = -2
"""No kind: what comes next is a stretch of its own."""


class GapLog:
    """Of one instance. Told of every run by the meter, and by the instance of who decodes."""

    __slots__ = ("_kind", "_open", "paused", "pauses", "request_ids", "since", "spans", "steps", "until")

    def __init__(self) -> None:
        self.steps, self.spans = array("q"), array("q")
        """By stretch: how many steps it had, and how long these took together (µs)."""
        self.request_ids, self.since, self.until = array("q"), array("q"), array("q")
        """Who decoded, from which stretch on, and up to and without which one."""
        self.paused, self.pauses = array("q"), array("q")
        """Who stood still between two tokens, and how far apart these were (µs)."""
        self._open: dict[RequestId, int] = {}
        """Where those who decode now stand in these."""
        self._kind = _ANOTHER

    def ran(self, kind: int, steps: int, span: Micros) -> None:
        """Steps that are over. Those of the same `kind` have gaps in the same bucket."""
        if kind == self._kind:
            self.steps[-1] += steps
            self.spans[-1] += span
        else:
            self._kind = kind
            self.steps.append(steps)
            self.spans.append(span)

    def begins(self, request_id: RequestId) -> None:
        """It decodes in the steps that come now. Raises ConfigError for an id of more than 64 bits."""
        self._kind = _ANOTHER
        self._open[request_id] = len(self.until)
        try:
            self.request_ids.append(request_id)
        except OverflowError as error:
            raise ConfigError(f"request {request_id}: its id is too large", hint="ids have 64 bits at most") from error
        stretch = len(self.steps)
        self.since.append(stretch)
        self.until.append(stretch)

    def ends(self, request_id: RequestId) -> None:
        """It has decoded in the steps so far, and does not in those to come."""
        self._kind = _ANOTHER
        self.until[self._open.pop(request_id)] = len(self.steps)

    def stood_still(self, request_id: RequestId, gap: Micros) -> None:
        """Between two tokens, `gap` after each other."""
        self.paused.append(request_id)
        self.pauses.append(gap)

    def close(self) -> None:
        """The run is over: those who still decode have come to here."""
        for place in self._open.values():
            self.until[place] = len(self.steps)
        self._open.clear()
