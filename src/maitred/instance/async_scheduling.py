"""An instance that plans one step ahead, as vLLM does with async scheduling (its default since 0.14).

While a step runs the next one is planned already, so that the GPU never waits for the scheduler. So whoever comes during step n
is picked up when it ends, too late for the plan of step n + 1, and joins step n + 2; and the slot of one that ends with step n
is filled in step n + 2.

    arrival (during n)  →  in the wait queue (n ends)  →  admitted at the earliest (n + 1 ends)

Nobody is late in an instance that runs nothing. The KV blocks of those that end are free for step n + 1 already: a step earlier
than in vLLM, where it matters only when blocks, not slots, are scarce.
"""

from __future__ import annotations

from random import Random

from maitred.core.errors import InvariantError
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.config import InstanceConfig
from maitred.instance.engine import Instance, StepRun
from maitred.instance.events import EventKind


class AsyncScheduledInstance(Instance):
    """`Instance`, but for when arrivals are seen. `SequenceState.queued_at` says when."""

    def __init__(self, config: InstanceConfig, rng: Random) -> None:
        super().__init__(config, rng)
        self._unseen: dict[RequestId, SequenceState] = {}
        """Who came while a step was running, and does not stand in the wait queue yet."""

    def check(self) -> None:
        self._batch.check()
        waiting = len(self._waiting) + len(self._unseen)
        if waiting + self.running != len(self._sequences):
            raise InvariantError(f"{waiting} wait + {self.running} run, but {len(self._sequences)} sequences are here")

    def _add_waiting(self, seq: SequenceState, now: Micros) -> None:
        run = self._run
        if run is None:
            seq.queued_at = now
        else:
            begun = self._latency.steps_within(run.shape, max(now - run.starts_at, 1) - 1, run.steps - 1)
            seq.queued_at = run.starts_at + self._latency.run_time(run.shape, begun + 1)
        if run is None and not self._batch.running:
            self._see_arrivals()  # who came while the batch was full stands before it
            self._waiting.add(seq, now)
        else:
            self._unseen[seq.request.id] = seq

    def _start_run(self, now: Micros) -> StepRun:
        if not self._batch.running:  # there was nothing to plan
            self._see_arrivals()
        else:
            self._see_arrivals_before(now)
        run = super()._start_run(now)
        if self._unseen or self._batch.pending_free_slots:
            self._see_arrivals()
            if run.steps > 1 and len(self._waiting) and not self._batch.is_full:
                run.steps = 1
                self._set_run_end(run)
        return run

    def _withdraw(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        self._see_arrivals_before(now)
        super()._withdraw(seq, now, kind)

    def _remove_running(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        self._see_arrivals_before(now)  # they stood in the queue before it learns from who leaves
        super()._remove_running(seq, now, kind)
        if kind is EventKind.FINISHED:
            self._batch.pending_free_slots += 1

    def _see_arrivals(self) -> None:
        """What has happened in the step that is over is known now."""
        self._batch.pending_free_slots = 0
        for seq in self._unseen.values():
            assert seq.queued_at is not None
            self._waiting.add(seq, seq.queued_at)
        self._unseen.clear()

    def _see_arrivals_before(self, now: Micros) -> None:
        """Who came before the step that has just ended was known when this one was planned: nobody asked while the batch was
        full."""
        for seq in list(self._unseen.values()):
            assert seq.queued_at is not None
            if seq.queued_at < now:
                self._waiting.add(seq, seq.queued_at)
                del self._unseen[seq.request.id]

    def _forget(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        self._unseen.pop(seq.request.id, None)
        super()._forget(seq, now, kind)
