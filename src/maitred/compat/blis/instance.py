"""BlisInstance: an instance by BLIS's clock, where the outcome of a step is there when the step begins.

BLIS forms a step, computes what comes of it and gives back slots and KV blocks all at one instant, and then lets the time of
the step pass. So an observer during a step sees the instance as it will be afterwards, and a deadline within the last step of a
request comes too late. Tokens are timed at the end of their step all the same.

    enqueue, abort  <  start = commit (a step begins, and its outcome is there)  <  timeout

So the outcome of a run of k steps is there when its last step begins, and the next step begins when that one ends: until then
`EngineCore.next_start` lies in the future. If no sequence is left, though, the next step begins with the next arrival.

Example: steps of 100 µs. A request for 3 tokens arrives at t = 0, and its prompt is one chunk. The first step begins at t = 0,
and its outcome is there at once. The other two are a run from t = 100 to 300: its outcome is there at t = 200, when the slot is
free again, and the last token is timed at t = 300. A deadline at t = 250 comes too late.

A step begins when it is the instance's turn (`advance`), not when the driver asks what is next. So no input can come between a
beginning and its outcome: an arrival at this instant either joins the step or comes too late for it, in a run or not. A driver
of several instances, where what happens in one at t has consequences at t in another after the turn of that one, calls
`commit_ended_steps(t)` before `enqueue` and `abort`: that the other one had no events at t does not mean that no step began.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

from maitred.batching import PreemptionPolicy
from maitred.compat.blis.batch import BlisBatch
from maitred.compat.blis.block_manager import BlisBlockManager
from maitred.compat.blis.block_pool import BlisPool
from maitred.compat.blis.tiered_blocks import HostMemory, TieredBlockManager
from maitred.core.request import PrefixKeys, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.batch_former import EngineParts
from maitred.instance.config import InstanceConfig
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.instance import Instance


def blis_parts(config: InstanceConfig) -> EngineParts:
    """Return the parts that work by BLIS's rules. They always cache prefixes."""
    pool = BlisPool(config.kv_blocks, config.block_size_in_tokens)
    blocks = BlisBlockManager(pool)
    if config.kv_cpu_blocks:
        fetch_time = config.kv_transfer_base_latency + ceil(config.block_size_in_tokens / config.kv_transfer_bandwidth)
        blocks = TieredBlockManager(pool, HostMemory(config.kv_cpu_blocks, fetch_time))
    return EngineParts(pool, blocks, BlisBatch(config.batch_limits, blocks, PreemptionPolicy(config.preemption_policy)))


class BlisInstance(Instance):
    """An instance by BLIS's clock, which shows the outcome of a step before it has ended. See `Instance` for the methods."""

    def __init__(self, config: InstanceConfig, rng: Random) -> None:
        super().__init__(config, rng, blis_parts(config))
        self._now: Micros = 0

    def enqueue(
        self,
        request: Request,
        output_tokens: int,
        now: Micros,
        conversation_prefix: PrefixKeys | None = None,
        *,
        transferred: SequenceState | None = None,
    ) -> bool:
        core = self._core
        if request.id in core.sequences:
            raise ValueError(f"request {request.id} is here already")
        self._process_until(now, now - 1)
        if not core.batch.is_full:
            self._discard_after(now - 1)
        run = core.run
        if run is not None and run.partially_committed and run.starts_at == now:
            core.discard_rest(run)
            run = None
        added = core.add(request, output_tokens, now, conversation_prefix, transferred)
        if added and run is None and core.next_start < now and len(core.sequences) == 1:
            core.next_start = now
        return added

    def abort(self, request_id: RequestId, now: Micros) -> bool:
        self._process_until(now, now - 1)
        self._discard_after(now - 1)
        seq = self._core.sequences.get(request_id)
        if seq is None:
            return False
        self._remove(seq, now, EventKind.ABORTED)
        return True

    def advance(self, now: Micros) -> Sequence[InstanceEvent]:
        self._process_until(now, now)
        self.commit_ended_steps(now)
        return self.drain_events() if self._core.events else ()

    def next_event(self, quiet_until: Micros = 0) -> Micros | None:
        core = self._core
        if core.events:
            return self._now
        if core.run is None and not core.sequences:
            return None
        then, due = core.next_start if core.run is None else core.run.outcome_at, core.deadlines.next()
        return then if due is None else min(then, due)

    def commit_ended_steps(self, now: Micros, ended_by: Micros = -1) -> None:
        """Count the steps of the run in progress that began by `ended_by` (by default `now`), but not its last one."""
        core, now = self._core, now if ended_by < 0 else ended_by
        run = core.run
        if run is None or run.steps == 1 or run.starts_at > now:
            return
        # The first step has begun, since the run has. Each of the others begins when the one before it ends, and the last one
        # is left out.
        core.commit_part(run, 1 + core.latency.steps_within(run.shape, now - run.starts_at, run.steps - 2))

    def _process_until(self, now: Micros, last: Micros) -> None:
        """Do all that is due by `last`, which is `now` or just before."""
        core, self._now = self._core, now
        while True:
            run, due = core.run, core.deadlines.next()
            if due is not None and due > last:
                due = None
            then = last if due is None else due
            if run is not None and run.outcome_at <= then:
                self._commit()
            elif run is None and core.sequences and core.next_start <= then:
                self._start()
            elif due is not None:
                self._remove(core.deadlines.pop(), due, EventKind.TIMED_OUT)
            else:
                return

    def _start(self) -> None:
        core = self._core
        run = core.start_run()
        for seq in run.plan.preempted:  # its answer starts anew, its first token included
            seq.num_output_tokens = seq.num_accounted_output_tokens = seq.stall_time = 0
            seq.first_token_at = None
        if not (run.shape.num_decodes or run.shape.chunks):
            run.ends_at = run.starts_at + 1  # a step without work takes 1 µs
        run.ends_at += run.plan.fetch_time
        # The time of fetching is added to the end alone, and the outcome does not wait for it. A step with fetches never
        # repeats, so both are those of one step.
        run.outcome_at = run.starts_at
        if run.steps > 1:
            run.outcome_at += core.latency.run_time(run.shape, run.steps - 1)

    def _commit(self) -> None:
        core = self._core
        run = core.run
        assert run is not None
        core.commit_run(run)
        if not core.sequences:
            core.next_start = run.outcome_at  # nothing is left to do, so nothing waits for the end of the step

    def _remove(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        self._discard_after(now)
        self._core.withdraw(seq, now, kind)

    def _discard_after(self, now: Micros) -> None:
        """Count the steps of the run in progress that began by `now`, and plan the others anew."""
        core = self._core
        run = core.run
        if run is None:
            return
        self.commit_ended_steps(now)
        if not run.partially_committed:  # it began after `now`, and its first step with it
            core.commit_part(run, 1)
        core.discard_rest(run)
