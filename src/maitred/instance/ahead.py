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

from maitred.errors import InvariantError
from maitred.instance.config import InstanceConfig
from maitred.instance.engine import Instance, Run
from maitred.instance.events import EventKind
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class AheadInstance(Instance):
    """`Instance`, but for when arrivals are seen. `Seq.queued_at` says when."""

    def __init__(self, config: InstanceConfig, rng: Random) -> None:
        super().__init__(config, rng)
        self._arrived: dict[RequestId, Seq] = {}
        """Who came while a step was running, and does not stand in the wait queue yet."""

    def check(self) -> None:
        self._batch.check()
        waiting = len(self._waiting) + len(self._arrived)
        if waiting + self.running != len(self._seqs):
            raise InvariantError(f"{waiting} wait + {self.running} run, but {len(self._seqs)} sequences are here")

    def _line_up(self, seq: Seq, now: Micros) -> None:
        run = self._run
        if run is None:
            seq.queued_at = now
        else:
            begun = self._latency.steps_within(run.shape, max(now - run.start, 1) - 1, run.steps - 1)
            seq.queued_at = run.start + self._latency.run_time(run.shape, begun + 1)
        if run is None and not self._batch.running:
            self._pick_up()  # who came while the batch was full stands before it
            self._waiting.add(seq, now)
        else:
            self._arrived[seq.request.id] = seq

    def _begin(self, now: Micros) -> Run:
        if not self._batch.running:  # there was nothing to plan
            self._pick_up()
        else:
            self._line_up_known(now)
        run = super()._begin(now)
        if self._arrived or self._batch.leaving:
            self._pick_up()
            if run.steps > 1 and len(self._waiting) and not self._batch.full:
                run.steps = 1
                self._time(run)
        return run

    def _withdraw(self, seq: Seq, now: Micros, kind: EventKind) -> None:
        self._line_up_known(now)
        super()._withdraw(seq, now, kind)

    def _leave(self, seq: Seq, now: Micros, kind: EventKind) -> None:
        self._line_up_known(now)  # they stood in the queue before it learns from who leaves
        super()._leave(seq, now, kind)
        if kind is EventKind.FINISHED:
            self._batch.leaving += 1

    def _pick_up(self) -> None:
        """What has happened in the step that is over is known now."""
        self._batch.leaving = 0
        for seq in self._arrived.values():
            assert seq.queued_at is not None
            self._waiting.add(seq, seq.queued_at)
        self._arrived.clear()

    def _line_up_known(self, now: Micros) -> None:
        """Who came before the step that has just ended was known when this one was planned: nobody asked while the batch was
        full."""
        for seq in list(self._arrived.values()):
            assert seq.queued_at is not None
            if seq.queued_at < now:
                self._waiting.add(seq, seq.queued_at)
                del self._arrived[seq.request.id]

    def _forget(self, seq: Seq, now: Micros, kind: EventKind) -> None:
        self._arrived.pop(seq.request.id, None)
        super()._forget(seq, now, kind)
