"""An instance by BLIS's clock: what a step brings about is there when it begins.

BLIS forms a step, computes what comes of it and gives back slots and KV blocks all at one instant, and then lets the time of
the step pass. So who looks at the instance during a step sees what it will be like afterwards, and a deadline within the last
step of a request comes too late. Tokens are timed at the end of their step all the same.

    enqueue  <  begin = commit (a step begins, and its outcome is there)  <  timeout

A run of k steps is therefore over when its last step begins, and the next step begins when that one ends: `_boundary` lies in
the future meanwhile. If nobody is left, though, it begins as soon as somebody comes.
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
        self._to_come = False
        """The first step of the run in progress has not begun yet: those before it are over."""

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
        self._now = now
        super().enqueue(request, output_tokens, now, whole, carried=carried)
        run = self._run
        if run is None or self._batch.full:
            return
        if self._to_come and run.start >= now:
            self._forgo(run)
        elif run.end < now:  # it was cut to the step in progress, whose outcome is there
            self._commit(run)

    def abort(self, request_id: RequestId, now: Micros) -> bool:
        self._now = now
        return super().abort(request_id, now)

    def advance(self, now: Micros) -> Sequence[InstanceEvent]:
        self._now = now
        return super().advance(now)

    def next_event(self) -> Micros | None:
        if self._run is None and self._seqs and not self._events and self._boundary <= self._now:
            self._begin(self._boundary)
        if self._events:
            return self._now
        if self._run is None and not self._seqs:
            return None
        then, due = self._boundary if self._run is None else self._run.end, self._next_deadline()
        return then if due is None else min(then, due)

    def settle(self, now: Micros) -> None:
        """The steps of the run in progress that began by `now` are over."""
        run = self._run
        if run is None or run.steps == 1 or run.start > now:
            return
        begun = 1 + self._latency.steps_within(run.shape, now - run.start, run.steps - 2)
        self._part_over(run, begun)
        self._to_come = True

    def _settle_to_boundary(self, now: Micros) -> None:
        self.settle(now)

    def _catch_up(self, now: Micros, *, through: Micros = -1) -> None:
        last = max(now - 1, through)
        while True:
            run, due = self._run, self._next_deadline()
            if due is not None and due > last:
                due = None
            if run is not None and run.end <= last and (due is None or run.end <= due):
                self._commit(run)
            elif run is None and self._seqs and self._boundary < now and (due is None or self._boundary <= due):
                self._begin(self._boundary)
            elif due is not None and not (run is None and self._boundary == due):
                self._expire(due)
            else:
                return

    def _begin(self, now: Micros) -> Run:
        self._to_come = False
        return super()._begin(now)

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
        self.settle(now)
        if self._run is not None:
            self._forgo(self._run)

    def _forgo(self, run: Run) -> None:
        """None of the steps of `run` has begun: form them anew."""
        self._run, self._boundary = None, run.start
