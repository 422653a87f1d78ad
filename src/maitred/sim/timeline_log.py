"""Timeline log: what happened to single requests beside the instants in their rows.

A row has one instant of each kind, the last. A request whose KV was freed ran in several stretches, and a request that
waited for admission has a reason. Both are rare, so they are kept apart, for as many requests as they concern.

    request 7     queued 0 ms, ran 2 to 40 ms, KV freed, ran 55 to 90 ms:
                  the row has `scheduled` 55 and `finished` 90, and the log the stretch (7, 2, 40)
"""

from __future__ import annotations

from array import array

import numpy as np

from maitred.admission import Action
from maitred.core.decisions import Decision
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.sim.results import NEVER, Timelines

_ADMIT, _VICTIM_ENDS = Action.ADMIT, Action.PREEMPT_SLOT


class TimelineLog:
    """The log of one run."""

    def __init__(self) -> None:
        self._request_id, self._began, self._ended = array("q"), array("q"), array("q")
        self._reasons: dict[int, str] = {}

    def on_kv_preempted(self, seq: SequenceState, at: Micros) -> None:
        """Note that a request ran until `at`, and lost its KV then."""
        self._request_id.append(seq.request.id)
        self._began.append(NEVER if seq.scheduled_at is None else seq.scheduled_at)
        self._ended.append(at)

    def on_decision(self, decision: Decision) -> None:
        """Note what admission decided of a request. One that enters at once needs no reason."""
        known = self._reasons.get(decision.subject)
        if known is None and decision.action is _ADMIT:
            return
        what = f"{decision.action}: {decision.reason}"
        if decision.action is _VICTIM_ENDS and decision.other is not None:
            what += f" (request {decision.other})"
        self._reasons[decision.subject] = what if known is None else f"{known}; {what}"

    def timelines(self) -> Timelines:
        columns = (np.array(column, dtype=np.int64) for column in (self._request_id, self._began, self._ended))
        request_id, began, ended = columns
        return Timelines(request_id=request_id, began=began, ended=ended, reasons=self._reasons)
