"""HeldDecodes: the gaps between tokens that grow while sequences stand still that decode.

Under SGLang's rules a step prefills or decodes, and prefill goes first: all that decode are *held* meanwhile. Under other rules
a step may leave out some. None of them emits a token, and the gap before the next one lasts from the last token to the end
of the first step in which the sequence decodes again.

Example: a sequence emits a token at 100 ms. Two steps of prefill end at 140 and 180 ms; another sequence completes its prompt
at 140. The step after them ends at 190 ms. The gaps are 90 ms and 50 ms, whereas the step took 10.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.step_meter import ItlLog, StepMeter


class HeldDecodes:
    """The held sequences of one instance, each with the instant of its last token."""

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: dict[SequenceState, Micros] = {}
        """The instant of the last token of each. Under most rules it is always empty."""

    def hold(self, sequences: Iterable[SequenceState], since: Micros, itl_log: ItlLog | None) -> None:
        """Note a step that began at `since`, and in which those of `sequences` that decode were held."""
        for seq in sequences:
            if seq.is_decoding and seq not in self.since:
                self.since[seq] = since
                if itl_log is not None:
                    itl_log.on_decode_end(seq.request.id)

    def pop(self, seq: SequenceState) -> Micros | None:
        """Forget `seq`, and return the instant of its last token; None if it is not held."""
        return self.since.pop(seq, None)

    def num_resuming(self, stalled: Sequence[SequenceState]) -> int:
        """Return how many of them decode in a step that leaves out `stalled`."""
        return sum([seq not in stalled for seq in self.since]) if stalled else len(self.since)

    def end(self, now: Micros, meter: StepMeter | None, itl_log: ItlLog | None, stalled: Sequence[SequenceState]) -> None:
        """Note that all of them but `stalled` have emitted a token at `now`."""
        resuming = [seq for seq in self.since if seq not in stalled]
        for seq in resuming:
            gap = now - self.since.pop(seq)
            if meter is not None:
                meter.add_pause(seq.request.id, gap)
            if itl_log is not None:
                itl_log.on_decode_start(seq.request.id)
