"""Instance: an inference engine, stepped by the owner of the clock, which skips the steps that nothing distinguishes.

Steps follow each other without a gap while there is work. Between two instants that matter (an arrival, the end of a
sequence or of a chunk, KV blocks running out) a step repeats itself, so the engine makes a *run* of it (`engine_core`): k steps
at once: the latency model knows their time exactly. The run ends at the first instant that matters. An input in between
truncates it at the next step boundary: an arrival joins the step that begins there; a sequence that is aborted leaves at once,
and the step in progress takes as long as it would have. Results are the same, to the microsecond, as of one step after the
other.

At equal times inputs precede the step that begins then, and completions precede cancellations:

    commit (a step has ended)  <  timeout, abort  <  enqueue  <  start (the next step)

So `advance(t)` commits the steps that ended by t and starts none at t. `next_event()` starts the step that is due, hence the
driver asks it when all inputs of this instant are in.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from maitred.core.request import PrefixKeys, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.batch_former import EngineParts, standard_parts
from maitred.instance.config import InstanceConfig
from maitred.instance.engine_core import EngineCore
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.plain_core import make_core
from maitred.instance.step_meter import ItlLog, StepMeter
from maitred.instance.step_run import StepRun


class Instance:
    """One inference instance. Inputs (`enqueue`, `abort`, `advance`) come in the order of time.

    A subclass has another clock: it decides when the runs of `_core` start and when their outcome is there.
    """

    def __init__(self, config: InstanceConfig, rng: Random, parts: EngineParts | None = None) -> None:
        """`parts` are by default those that work by vLLM's rules. Raises ConfigError for an unknown scheduler."""
        parts = parts or standard_parts(config)
        self.prefix_cache = parts.prefix_cache
        """What the KV memory remembers; None without prefix caching."""
        self._core: EngineCore = make_core(config, rng, parts)
        self.lengths = self._core.lengths
        """Which requests could never run here, and where answers end."""
        self._blocks = parts.blocks
        self._batch = parts.batch

    @property
    def waiting(self) -> int:
        """Sequences that wait."""
        return len(self._core.sequences) - self._core.num_running

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        return self._core.num_running

    @property
    def total_blocks(self) -> int:
        """All KV blocks."""
        return self._blocks.total

    @property
    def free_blocks(self) -> int:
        """Free KV blocks, as of the steps that had ended at the last `advance` or `commit_ended_steps`."""
        return self._blocks.free_committed

    @property
    def kv_usage(self) -> float:
        """Used share of the KV blocks, 0..1, as of the steps that `free_blocks` is about."""
        return (self._blocks.total - self._blocks.free_committed) / self._blocks.total

    @property
    def fetched_blocks(self) -> int:
        """KV blocks that were fetched from main memory so far."""
        return self._blocks.num_fetched_blocks

    @property
    def num_steps(self) -> int:
        """Steps made so far."""
        return self._batch.num_steps

    @property
    def num_preemptions(self) -> int:
        """Sequences that have lost their KV so far; one that loses it twice counts twice."""
        return self._core.num_preemptions

    def observe(self, meter: StepMeter, itl_log: ItlLog | None = None) -> None:
        """Tell `meter` of every run from now on, and `itl_log` which sequences decode."""
        self._core.meter, self._core.itl_log = meter, itl_log

    def omit_first_tokens(self) -> None:
        """Return no FIRST_TOKEN events from now on. `SequenceState.first_token_at` says the same in the end."""
        self._core.tells_first_tokens = False

    def overload_reason(self, prompts: Sequence[int]) -> str | None:
        """Return why requests with `prompts` (tokens of each), which came together now, would not all be let in; None if they
        would be."""
        core = self._core
        if not core.queue_caps.is_capped:
            return None
        return core.queue_caps.overload_reason(prompts, core.sequences)

    def enqueue(
        self,
        request: Request,
        output_tokens: int,
        now: Micros,
        conversation_prefix: PrefixKeys | None = None,
        *,
        transferred: SequenceState | None = None,
    ) -> bool:
        """Let `request` wait. Its answer ends after `output_tokens` tokens, or where the request or the model length limits it.
        Return False if it may not wait: an event of this instant says why.

        `conversation_prefix` is the content of prompt and answer together, if later requests may continue it
        (`workload.Job.conversation_prefix`). `transferred` is the sequence of this request in the instance that computed its
        prompt: its KV comes along, and the answer goes on after the tokens emitted there.

        Raises ValueError for an id that is here already.
        """
        core = self._core
        run = core.run
        # Most arrivals find a run that goes on, and no deadlines: nothing is due before `now`.
        if run is None or run.outcome_at < now or core.deadlines.heap:
            self._process_due(now, now - 1)
            run = core.run
        if run is not None and run.partially_committed:
            self._reopen_boundary(now)
            run = core.run
        if core.counts_service and run is not None and run.plan.chunks:
            self.commit_ended_steps(now, now - 1)  # the queue may weigh an arrival by what has been served
        if not core.add(request, output_tokens, now, conversation_prefix, transferred):
            return False
        if run is None:
            # The first sequence of an idle engine starts it. With others here, the step that is due begins where the last one
            # ended.
            if core.next_start < now and len(core.sequences) == 1:
                core.next_start = now
        elif run.steps > 1 and not (run.plan.is_closed or core.batch.is_full):
            run.truncate(now)
        return True

    def set_limit(self, max_num_seqs: int, now: Micros) -> None:
        """Run at most `max_num_seqs` sequences from the next step on; those that run go on. Raises ConfigError where the rules
        of the batch cannot follow."""
        self._process_due(now, now)
        self._commit_to_boundary(now)
        run = self._core.run
        if run is not None:  # A larger limit may let sequences in.
            run.truncate(now)
        self._core.batch.set_limit(max_num_seqs)

    def abort(self, request_id: RequestId, now: Micros) -> bool:
        """Remove a request, because its answer is not wanted any more. Return False if it is not here."""
        self._process_due(now, now)
        seq = self._core.sequences.get(request_id)
        if seq is None:
            return False
        self._withdraw(seq, now, EventKind.ABORTED)
        return True

    def advance(self, now: Micros) -> Sequence[InstanceEvent]:
        """Return the events up to `now`, in the order of time. Call it before looking at blocks or output tokens."""
        core = self._core
        run = core.run
        if core.deadlines.heap or (run.outcome_at if run is not None else core.next_start) != now:
            self._process_due(now, now)
            self._commit_to_boundary(now)
        elif run is not None:  # else `next_event` has looked ahead
            core.commit_run(run)
        events = core.events
        if not events:
            return ()
        core.events = []
        return events

    def drain_events(self) -> Sequence[InstanceEvent]:
        """Return the events of the calls so far that have not been returned yet."""
        core = self._core
        events, core.events = core.events, []
        return events

    def next_event(self, quiet_until: Micros = 0) -> Micros | None:
        """Return when to call `advance` next, or None if nothing will happen by itself.

        It starts the step that is due, so ask when all inputs of this instant are in. An instant that has come already means
        that there are events to be fetched first. If no input comes and nothing looks at the instance before `quiet_until`,
        runs that end before that are counted at once: most end because a prompt joins or is complete, which is no event.
        """
        core = self._core
        run = core.run
        if run is None:
            if core.events or not (core.sequences or core.has_work):
                return core.events[0].at if core.events else None
            run = core.start_run()
        while not core.events:
            due = run.outcome_at
            if core.deadlines.heap:
                deadline = core.deadlines.next()
                return due if deadline is None or due <= deadline else deadline
            if due >= quiet_until:
                return due
            core.commit_run(run)
            if core.events:
                break
            if not (core.sequences or core.has_work):
                return None
            run = core.start_run()
        return core.events[0].at

    def commit_ended_steps(self, now: Micros, ended_by: Micros = -1) -> None:
        """Count the steps of the run in progress that ended by `ended_by` (by default `now`), but not its last one.

        `free_blocks` and `num_output_tokens` are as of then. The rest stays a run, so an observer need not ask for the next
        event anew. The last step is counted, too, if the run was truncated to end at `now`: nothing comes of it.
        """
        core, last = self._core, now if ended_by < 0 else ended_by
        run = core.run
        if run is None or run.starts_at >= now:
            return
        if run.truncated and run.ends_at == last:
            core.commit_run(run)
            return
        if run.steps > 1 and run.starts_at < last:
            steps = run.steps_within(last - run.starts_at, run.steps - 1)
            if steps:
                core.commit_part(run, steps)
        if run.starts_at < now:
            core.batch.begin_step(run.plan)

    def num_output_tokens(self, request_id: RequestId) -> int:
        """Return the tokens that a request has emitted, as of the last `advance`. Raises KeyError if it is not here."""
        return self._batch.num_output_tokens(self._core.sequences[request_id])

    def sequence(self, request_id: RequestId) -> SequenceState:
        """Return the sequence of a request, to be read, as of the last `advance`. Raises KeyError if it is not here."""
        seq = self._core.sequences[request_id]
        seq.num_output_tokens = self._batch.num_output_tokens(seq)
        return seq

    def check(self) -> None:
        """Raise InvariantError if the sums do not follow from the sequences."""
        self._core.check()

    def _process_due(self, now: Micros, last: Micros) -> None:
        """Start the steps that begin before `now`, and do what ends or expires by `last`, which is `now` or just before."""
        core = self._core
        # A step that begins at `now`, or at the deadline that is next, is not started yet: inputs at `now` may join it, and a
        # sequence at its deadline must not.
        while True:
            run = core.run
            due = core.deadlines.next() if core.deadlines.heap else None
            if run is not None and run.outcome_at <= last and (due is None or run.outcome_at <= due):
                core.commit_run(run)
            elif run is None and core.has_work and core.next_start < (now if due is None or due > last else due):
                core.start_run()
            elif due is not None and due <= last:
                self._withdraw(core.deadlines.pop(), due, EventKind.TIMED_OUT)
            else:
                return

    def _withdraw(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        """Remove `seq` at `now`, wherever it is. The step in progress goes on and is the last of its run: the free room, or the
        free place at the head of the queue, may let another sequence in."""
        core = self._core
        self._commit_to_boundary(now)
        run: StepRun | None = core.run
        if run is not None:
            run.truncate(now)
        core.withdraw(seq, now, kind)

    def _commit_to_boundary(self, now: Micros) -> None:
        """Commit what has ended by `now`, and let inputs at this instant join the step that begins at `now`, if one does."""
        if self._core.run is not None:
            self.commit_ended_steps(now)
            self._reopen_boundary(now)

    def _reopen_boundary(self, now: Micros) -> None:
        """Plan anew the step of the run in progress that would begin at `now`: it has not begun yet, even if the steps before
        it have been counted for an observer."""
        run = self._core.run
        if run is not None and run.partially_committed and run.starts_at == now:
            self._core.discard_rest(run)
