"""An instance by BLIS's clock: what a step brings about is there when it begins.

BLIS forms a step, computes what comes of it and gives back slots and KV blocks all at one instant, and then lets the time of
the step pass. So who looks at the instance during a step sees what it will be like afterwards, and a deadline within the last
step of a request comes too late. Tokens are timed at the end of their step all the same.

    enqueue, abort  <  begin = commit (a step begins, and its outcome is there)  <  timeout

A run of k steps is therefore over when its last step begins, and the next step begins when that one ends: `_boundary` lies in
the future meanwhile. If nobody is left, though, it begins as soon as somebody comes.

A step begins when it is the instance's turn (`advance`), not when the driver asks what is next. So there is nothing to be said
between a beginning and its outcome, and whoever comes at this instant joins the step or finds it made, in a run or by itself.
A driver with several instances, in which what happens in one at t has consequences at t in another, whose turn at t is over,
says so by `settle(t)` before `enqueue` and `abort`: that the other had nothing to tell at t does not mean that no step began.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from maitred.batching import BlisStep
from maitred.contracts import BatchShape
from maitred.instance.config import InstanceConfig
from maitred.instance.engine import Instance, Run
from maitred.instance.events import InstanceEvent
from maitred.kv import TieredBlocks
from maitred.request import PrefixKeys, Request, RequestId
from maitred.seq import Seq
from maitred.units import Micros


class BlisInstance(Instance):
    """Compatible with BLIS, its acausal views included; see `Instance`."""

    def __init__(self, config: InstanceConfig, rng: Random) -> None:
        super().__init__(config, rng)
        self._now: Micros = 0

    @property
    def fetched_blocks(self) -> int:
        return self._blocks.fetched if isinstance(self._blocks, TieredBlocks) else 0

    def enqueue(
        self,
        request: Request,
        output_tokens: int,
        now: Micros,
        whole: PrefixKeys | None = None,
        *,
        carried: Seq | None = None,
    ) -> None:
        self._reach(now)
        if not self._batch.full:
            self._interrupt(now - 1)
        super().enqueue(request, output_tokens, now, whole, carried=carried)

    def abort(self, request_id: RequestId, now: Micros) -> bool:
        self._reach(now)
        self._interrupt(now - 1)
        return super().abort(request_id, now)

    def advance(self, now: Micros) -> Sequence[InstanceEvent]:
        self._now = now
        return super().advance(now)

    def next_event(self) -> Micros | None:
        if self._events:
            return self._now
        if self._run is None and not self._seqs:
            return None
        then, due = self._boundary if self._run is None else self._run.end, self._next_deadline()
        return then if due is None else min(then, due)

    def settle(self, now: Micros) -> None:
        """The steps of the run in progress that began by `now` are over, but for its last."""
        run = self._run
        if run is None or run.steps == 1 or run.start > now:
            return
        self._part_over(run, 1 + self._latency.steps_within(run.shape, now - run.start, run.steps - 2))

    def _settle_to_boundary(self, now: Micros) -> None:
        self.settle(now)

    def _reach(self, now: Micros) -> None:
        self._now = now
        self._catch_up(now)

    def _catch_up(self, now: Micros, *, through: Micros = -1) -> None:
        last = max(now - 1, through)
        while True:
            run, due = self._run, self._next_deadline()
            if due is not None and due > last:
                due = None
            then = last if due is None else due
            if run is not None and run.end <= then:
                self._commit(run)
            elif run is None and self._seqs and self._boundary <= then:
                self._begin(self._boundary)
            elif due is not None:
                self._expire(due)
            else:
                return

    def _preempted(self, seq: Seq, now: Micros) -> None:
        super()._preempted(seq, now)
        seq.emitted = seq.charged = seq.stalled = 0
        seq.first_token_at = None

    def _time(self, run: Run) -> None:
        run.end = run.start + self._duration(run.shape, run.steps - 1)
        run.over = run.start + self._duration(run.shape, run.steps)
        if isinstance(run.step, BlisStep):
            run.over += run.step.fetching

    def _duration(self, shape: BatchShape, steps: int) -> Micros:
        """A step without work takes 1 µs."""
        if not steps or not (shape.decodes or shape.chunks):
            return steps
        return self._latency.run_time(shape, steps)

    def _commit(self, run: Run) -> None:
        stalled = run.step.stalled if isinstance(run.step, BlisStep) else ()
        for seq in stalled:
            seq.stalled += run.over - run.start
            self._ends.forsake()
            if self.gap_log is not None:
                self.gap_log.ends(seq.request.id)
        super()._commit(run)
        for seq in stalled:
            if self.gap_log is not None:
                self.gap_log.begins(seq.request.id)
            self._ends.add(seq, seq.origin + self._answers[seq.request.id])
            self._end_step = self._ends.first()
        if not self._seqs:
            self._boundary = run.end  # nothing is left to do, so nobody waits for the end of the step

    def _interrupt(self, now: Micros) -> None:
        """The steps of the run in progress that began by `now` are over; the others are formed anew."""
        run = self._run
        if run is None:
            return
        self.settle(now)
        if not run.parted:  # it began after `now`, and its first step with it
            self._part_over(run, 1)
        self._run, self._boundary = None, run.start
