"""HeldDecodes: the gaps between tokens that grow while sequences stand still that decode.

Under SGLang's rules a step prefills or decodes, and prefill goes first: all that decode are *held* meanwhile. Under other rules
a step may leave out some. None of them emits a token, and the gap before the next one lasts from the last token to the end
of the first step in which the sequence decodes again.

Example: a sequence emits a token at 100 ms. Two steps of prefill end at 140 and 180 ms; another sequence completes its prompt
at 140. The step after them ends at 190 ms. The gaps are 90 ms and 50 ms, whereas the step took 10.

Where all are held at once, and no log asks which sequence had which gap, they are counted and not listed: so a step of prefill
costs the same however many sequences decode. Only those are listed that began to decode after that, since they are held from a
later instant on. In the example that is the other sequence: 1 is counted from 100 ms on, and 1 is listed with 140 ms.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.step_meter import ItlLog, StepMeter


class HeldDecodes:
    """The held sequences of one instance, each with the instant of its last token."""

    __slots__ = ("_all_since", "_num_together", "_since", "_started", "count")

    def __init__(self) -> None:
        self.count = 0
        """Sequences that are held. Under most rules it is always 0."""
        self._since: dict[SequenceState, Micros] = {}
        """The instant of the last token of each that is listed."""
        self._num_together = 0
        """Those that are not listed, which were held together."""
        self._all_since: Micros = 0
        """The instant of their last token."""
        self._started: set[SequenceState] = set()
        """Sequences that decode since then, and are not held yet."""

    def hold(self, sequences: Iterable[SequenceState], since: Micros, itl_log: ItlLog | None) -> None:
        """Note a step that began at `since`, and in which those of `sequences` that decode were held."""
        for seq in sequences:
            if seq.is_decoding and seq not in self._since:
                self._since[seq] = since
                self.count += 1
                if itl_log is not None:
                    itl_log.on_decode_end(seq.request_id)

    def hold_all(self, sequences: Iterable[SequenceState], num_decodes: int, since: Micros, itl_log: ItlLog | None) -> None:
        """As `hold`, for all `num_decodes` sequences that decode."""
        if itl_log is not None:
            self.hold(sequences, since, itl_log)
            return
        if self._num_together:
            self._since.update(dict.fromkeys(self._started, since))
        else:
            self._num_together, self._all_since = num_decodes - len(self._since), since
        self._started.clear()
        self.count = num_decodes

    def on_decode_start(self, seq: SequenceState) -> None:
        """Note that `seq` decodes from now on, while others are held. It makes no difference where all are listed."""
        if self._num_together:
            self._started.add(seq)

    def pop(self, seq: SequenceState) -> Micros | None:
        """Forget `seq`, which decodes, and return the instant of its last token; None if it is not held."""
        if seq in self._started:
            self._started.remove(seq)
            return None
        since = self._since.pop(seq, None)
        if since is None and self._num_together:
            self._num_together -= 1
            since = self._all_since
        if since is not None:
            self.count -= 1
        return since

    def num_resuming(self, stalled: Sequence[SequenceState]) -> int:
        """Return how many of them decode in a step that leaves out `stalled`."""
        return self.count - sum([seq in self._since for seq in stalled])

    def end(self, now: Micros, meter: StepMeter | None, itl_log: ItlLog | None, stalled: Sequence[SequenceState]) -> None:
        """Note that all of them but `stalled` have emitted a token at `now`."""
        resuming = [seq for seq in self._since if seq not in stalled]
        for seq in resuming:
            gap = now - self._since.pop(seq)
            if meter is not None:
                meter.add_single_gap(seq.request_id, gap)
            if itl_log is not None:
                itl_log.on_decode_start(seq.request_id)
        if self._num_together and meter is not None:
            meter.add_single_gaps(now - self._all_since, self._num_together)
        self._num_together = 0
        self._started.clear()
        self.count = len(self._since)
