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

from maitred.batching import BlisStepPlan
from maitred.core.contracts import BatchShape
from maitred.core.request import PrefixKeys, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.config import InstanceConfig
from maitred.instance.engine import Instance, StepRun
from maitred.instance.events import InstanceEvent
from maitred.kv import TieredBlockManager


class BlisInstance(Instance):
    """Compatible with BLIS, its acausal views included; see `Instance`."""

    def __init__(self, config: InstanceConfig, rng: Random) -> None:
        super().__init__(config, rng)
        self._now: Micros = 0

    @property
    def fetched_blocks(self) -> int:
        return self._blocks.num_fetched_blocks if isinstance(self._blocks, TieredBlockManager) else 0

    def enqueue(
        self,
        request: Request,
        output_tokens: int,
        now: Micros,
        conversation_prefix: PrefixKeys | None = None,
        *,
        transferred: SequenceState | None = None,
    ) -> None:
        self._process_through(now)
        if not self._batch.is_full:
            self._end_after_current_step(now - 1)
        super().enqueue(request, output_tokens, now, conversation_prefix, transferred=transferred)

    def abort(self, request_id: RequestId, now: Micros) -> bool:
        self._process_through(now)
        self._end_after_current_step(now - 1)
        return super().abort(request_id, now)

    def advance(self, now: Micros) -> Sequence[InstanceEvent]:
        self._now = now
        return super().advance(now)

    def next_event(self) -> Micros | None:
        if self._events:
            return self._now
        if self._run is None and not self._sequences:
            return None
        then, due = self._boundary if self._run is None else self._run.outcome_at, self._next_deadline()
        return then if due is None else min(then, due)

    def commit_ended_steps(self, now: Micros) -> None:
        """The steps of the run in progress that began by `now` are over, but for its last."""
        run = self._run
        if run is None or run.steps == 1 or run.starts_at > now:
            return
        self._commit_part(run, 1 + self._latency.steps_within(run.shape, now - run.starts_at, run.steps - 2))

    def _commit_to_boundary(self, now: Micros) -> None:
        self.commit_ended_steps(now)

    def _process_through(self, now: Micros) -> None:
        self._now = now
        self._process_due(now)

    def _process_due(self, now: Micros, *, inclusive_until: Micros = -1) -> None:
        last = max(now - 1, inclusive_until)
        while True:
            run, due = self._run, self._next_deadline()
            if due is not None and due > last:
                due = None
            then = last if due is None else due
            if run is not None and run.outcome_at <= then:
                self._commit_run(run)
            elif run is None and self._sequences and self._boundary <= then:
                self._start_run(self._boundary)
            elif due is not None:
                self._time_out_first(due)
            else:
                return

    def _requeue_preempted(self, seq: SequenceState, now: Micros) -> None:
        super()._requeue_preempted(seq, now)
        seq.num_output_tokens = seq.num_accounted_output_tokens = seq.stall_time = 0
        seq.first_token_at = None

    def _set_run_end(self, run: StepRun) -> None:
        run.outcome_at = run.starts_at + self._steps_time(run.shape, run.steps - 1)
        run.ends_at = run.starts_at + self._steps_time(run.shape, run.steps)
        if isinstance(run.plan, BlisStepPlan):
            run.ends_at += run.plan.fetch_time

    def _steps_time(self, shape: BatchShape, steps: int) -> Micros:
        """A step without work takes 1 µs."""
        if not steps or not (shape.num_decodes or shape.chunks):
            return steps
        return self._latency.run_time(shape, steps)

    def _commit_run(self, run: StepRun) -> None:
        stalled = run.plan.stalled if isinstance(run.plan, BlisStepPlan) else ()
        for seq in stalled:
            seq.stall_time += run.ends_at - run.starts_at
            self._completions.invalidate()
            if self.itl_log is not None:
                self.itl_log.on_decode_end(seq.request.id)
        super()._commit_run(run)
        for seq in stalled:
            if self.itl_log is not None:
                self.itl_log.on_decode_start(seq.request.id)
            self._completions.add(seq, seq.decode_origin_step + self._output_lengths[seq.request.id])
            self._next_completion_step = self._completions.first_step()
        if not self._sequences:
            self._boundary = run.outcome_at  # nothing is left to do, so nobody waits for the end of the step

    def _end_after_current_step(self, now: Micros) -> None:
        """The steps of the run in progress that began by `now` are over; the others are formed anew."""
        run = self._run
        if run is None:
            return
        self.commit_ended_steps(now)
        if not run.partially_committed:  # it began after `now`, and its first step with it
            self._commit_part(run, 1)
        self._run, self._boundary = None, run.starts_at
