"""UnseenArrivals: planning one step ahead, as vLLM does with async scheduling (its default since 0.14).

While a step runs, the next one has been planned already, so that the GPU never waits for the scheduler. So an arrival during
step n is seen when step n ends, too late for the plan of step n + 1, and joins step n + 2; and the slot of a sequence that
completes with step n is filled in step n + 2.

    arrival (during n)  →  in the wait queue (n ends)  →  admitted at the earliest (n + 1 ends)

Example: steps of 100 µs begin at t = 0, 100 and 200. A request that arrives at t = 30 is in the wait queue at t = 100. The step
that begins then was planned without it, so its first chunk is in the step that begins at t = 200.

An engine that runs nothing has planned nothing, so its arrivals are seen at once. What a completed sequence holds until the
next step is planned is the matter of `batching.plan_ahead`. Under a batch scheduler that is its slot alone: its blocks are free
at once.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.batching import ContinuousBatch
from maitred.core.contracts import WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.step_run import StepRun


class UnseenArrivals:
    """The arrivals that the scheduler has not seen yet. They are not in the wait queue."""

    __slots__ = ("_batch", "_sequences", "_waiting")

    def __init__(self, waiting: WaitQueue, batch: ContinuousBatch) -> None:
        self._waiting = waiting
        self._batch = batch
        self._sequences: dict[RequestId, SequenceState] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, seq: SequenceState, seen_at: Micros, *, is_idle: bool) -> None:
        """Keep `seq` until it is seen at `seen_at`, when the step in progress ends; if `is_idle`, there is none."""
        seq.queued_at = seen_at
        self._sequences[seq.request_id] = seq
        if is_idle and not self._batch.running:
            self.reveal_all()  # arrivals while the batch was full are before it

    def before_planning(self, now: Micros) -> None:
        """Reveal the arrivals that a scheduler one step ahead knew when it planned the step that begins at `now`. Call it just
        before that step is planned here."""
        if self._batch.running:
            self.reveal_before(now)
        else:
            self.reveal_all()  # nothing ran, so nothing was planned ahead

    def reveal_news(self, run: StepRun) -> None:
        """Let the step after those of `run`, which have just been planned, know what was not known when they were."""
        batch = self._batch
        had_news = bool(batch.leaving or batch.pending_free_slots or self._sequences)
        run.departed_decodes = batch.num_ghosts
        batch.drop_leaving()
        self.reveal_all()
        if had_news and run.steps > 1 and len(self._waiting) and not batch.is_full:
            run.shorten(1)  # the plan of the next step may admit what was seen only now

    def reveal_before(self, now: Micros) -> None:
        """Put the arrivals that were seen before `now` into the wait queue. They may be many if the batch was full."""
        for seq in list(self._sequences.values()):
            assert seq.queued_at is not None
            if seq.queued_at < now:
                self._waiting.add(seq, seq.queued_at)
                del self._sequences[seq.request_id]

    def forget(self, request_id: RequestId) -> None:
        """Drop the arrival of a request that has ended, if it is here."""
        self._sequences.pop(request_id, None)

    def reveal_all(self) -> None:
        """Put all arrivals into the wait queue."""
        for seq in self._sequences.values():
            assert seq.queued_at is not None
            self._waiting.add(seq, seq.queued_at)
        self._sequences.clear()
