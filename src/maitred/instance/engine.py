"""An instance, stepped by whoever owns the clock, which skips the steps that nobody would tell apart.

Steps follow each other without a gap while there is work. Between two instants that matter (an arrival, the end of a
sequence or of a chunk, KV blocks running out) a step repeats itself, so the instance makes a *run* of it: k steps at once,
whose time the latency model knows exactly. The run ends at the first instant that matters. What comes in meanwhile cuts it
at the next step boundary: an arrival joins the step that begins there; one that is aborted leaves at once, and the step in
progress takes as long as it would have. Results are the same, to the microsecond, as of one step after the other.

At equal times what came in precedes the step that begins then, and what ends precedes what is cancelled:

    commit (a step has ended)  <  timeout, abort  <  enqueue  <  begin (the next step)

So `advance(t)` commits steps that ended by t and begins none at t. `next_event()` begins the step that is due, hence the
driver asks it when all that happens at this instant has been said.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from maitred.batching import BatchLimits, BlisBatch, ContinuousBatch, PreemptionPolicy, StepPlan, context_spread
from maitred.core.contracts import BatchShape
from maitred.core.errors import InvariantError
from maitred.core.request import PrefixKeys, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.completion_heap import CompletionHeap
from maitred.instance.config import InstanceConfig
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.itl_log import ItlLog
from maitred.instance.latency import SpreadAwareModel
from maitred.instance.step_meter import StepMeter
from maitred.kv import BlisBlockManager, BlisPool, BlockManager, PrefixBlockManager, PrefixCache, TieredBlockManager

_FIRST_TOKEN: Final = EventKind.FIRST_TOKEN  # members of enums are slow to look up
_FINISHED: Final = EventKind.FINISHED


class StepRun:
    """The step in progress and its repetitions."""

    ends_at: Micros = 0
    """When its last step ends."""
    outcome_at: Micros = 0
    """When what it brings about is there."""
    departed_decodes: int = 0
    """How many decoded in it and have left: their tokens come out to nobody."""
    partially_committed: bool = False
    """Steps of it have been counted before the rest: at `start` itself, the first of these has not begun yet."""
    truncated: bool = False
    """It ends before anything comes of it."""

    def __init__(self, starts_at: Micros, steps: int, plan: StepPlan, shape: BatchShape) -> None:
        self.starts_at = starts_at
        self.steps = steps
        self.plan = plan
        self.shape = shape


class Instance:
    """One inference instance. Inputs (`enqueue`, `abort`, `advance`) come in the order of time."""

    def __init__(self, config: InstanceConfig, rng: Random) -> None:
        """Raises ConfigError for an unknown scheduler."""
        self._latency = config.latency_model()
        self._is_spread_aware = isinstance(self._latency, SpreadAwareModel)
        self._model_len = config.model_len
        self._step_limit = 1 if config.step_by_step else 1 << 60
        self.cache = config.new_prefix_cache()
        """What it remembers; None: nothing."""
        self._blocks = _new_block_manager(config, self.cache)
        self._prefix_blocks = self._blocks if isinstance(self._blocks, PrefixBlockManager) else None
        limits = BatchLimits(config.max_num_seqs, config.max_num_batched_tokens, config.long_prefill_token_threshold)
        self._batch = _new_batch(limits, self._blocks, PreemptionPolicy(config.preemption_policy))
        self._waiting = config.policy().make_queue(self.cache, rng)
        self._sequences: dict[RequestId, SequenceState] = {}
        self._output_lengths: dict[RequestId, int] = {}
        """How many tokens each answer will have: known here as an engine knows it, when it is over."""
        self._completions = CompletionHeap()
        self._next_completion_step = -1
        """No sequence ends before this step; -1: none decodes."""
        self._deadlines: list[tuple[Micros, int, SequenceState]] = []
        self._events: list[InstanceEvent] = []
        self._run: StepRun | None = None
        self._boundary: Micros = 0
        """Without a run: the instant at which the next step begins, if there is work."""
        self._num_arrivals = 0
        self.num_preemptions = 0
        self.meter: StepMeter | None = None
        """Who is told of every run; None: nobody."""
        self.itl_log: ItlLog | None = None
        """Who is told of who decodes; None: nobody."""

    @property
    def waiting(self) -> int:
        return len(self._sequences) - len(self._batch.sequences)

    @property
    def running(self) -> int:
        return len(self._batch.sequences)

    @property
    def total_blocks(self) -> int:
        return self._blocks.total

    @property
    def free_blocks(self) -> int:
        """As of the steps that were over at the last `advance` or `settle`."""
        return self._blocks.free_committed

    @property
    def kv_usage(self) -> float:
        """Used share of the KV blocks, 0..1, as of the last `advance`."""
        return (self._blocks.total - self._blocks.free_committed) / self._blocks.total

    @property
    def fetched_blocks(self) -> int:
        """KV blocks that came back from main memory so far."""
        return 0

    @property
    def num_steps(self) -> int:
        """Steps made so far."""
        return self._batch.step_index

    def rejection_reason(self, request: Request) -> str | None:
        """Why `request` could never run here; None: it can."""
        limit = self._model_len
        if request.prompt_tokens < 1:
            return "the prompt has no tokens"
        if request.prompt_tokens + (request.max_output_tokens or 1) > limit:
            asked = f"{request.prompt_tokens} prompt and {request.max_output_tokens or 1} output tokens"
            return f"{asked} are more than the model length of {limit} tokens"
        return None

    def enqueue(
        self,
        request: Request,
        output_tokens: int,
        now: Micros,
        conversation_prefix: PrefixKeys | None = None,
        *,
        transferred: SequenceState | None = None,
    ) -> None:
        """`request` arrives; its answer will end after `output_tokens` tokens, or where it or the model length limits it.
        `whole`: the content of prompt and answer together, if others may continue it (`workload.Job.whole`). `carried`: what it
        came to in the instance that computed its prompt, whose KV comes with it; it goes on after the tokens emitted there.

        Raises ValueError for an id that is here already.
        """
        if request.id in self._sequences:
            raise ValueError(f"request {request.id} is here already")
        run = self._run
        if run is None or run.outcome_at < now or self._deadlines:
            self._process_due(now)
            run = self._run
        if run is not None and run.partially_committed:
            self._reopen_boundary(now)
            run = self._run
        seq = SequenceState(request, self._num_arrivals, request.prompt_tokens, request.priority)
        self._num_arrivals += 1
        if self.rejection_reason(request) is not None:
            self._events.append(InstanceEvent(now, EventKind.REFUSED, seq))
            return
        if request.deadline is not None:
            if request.deadline <= now:
                self._events.append(InstanceEvent(now, EventKind.TIMED_OUT, seq))
                return
            heappush(self._deadlines, (request.deadline, seq.arrival_index, seq))
        if transferred is not None:
            _resume_transferred(seq, transferred)
        self._sequences[request.id] = seq
        self._output_lengths[request.id] = self.output_length(request, output_tokens)
        if conversation_prefix is not None and self._prefix_blocks is not None:
            self._prefix_blocks.expect_continuation(seq, conversation_prefix)
        self._add_waiting(seq, now)
        if run is None:
            if self._boundary < now and len(self._sequences) == 1:
                self._boundary = now
        elif run.steps > 1 and not self._batch.is_full:
            self._truncate(run, now)

    def _add_waiting(self, seq: SequenceState, now: Micros) -> None:
        """`seq` has arrived."""
        self._waiting.add(seq, now)

    def output_length(self, request: Request, output_tokens: int) -> int:
        """How many tokens come out, if the answer ends by itself after `output_tokens`."""
        longest = self._model_len - request.prompt_tokens
        if request.max_output_tokens is not None:
            longest = min(longest, request.max_output_tokens)
        return max(1, min(output_tokens, longest))

    def abort(self, request_id: RequestId, now: Micros) -> bool:
        """Nobody wants the answer any more. False: it is not here (any more)."""
        self._process_through(now)
        seq = self._sequences.get(request_id)
        if seq is None:
            return False
        self._withdraw(seq, now, EventKind.ABORTED)
        return True

    def advance(self, now: Micros) -> Sequence[InstanceEvent]:
        """What happened up to `now`, in the order of time. Call it before looking at blocks or `emitted`."""
        run = self._run
        if run is not None and run.outcome_at == now and not self._deadlines:
            self._commit_run(run)
        else:
            self._process_due(now, inclusive_until=now)
            self._commit_to_boundary(now)
        return self.drain_events() if self._events else ()

    def drain_events(self) -> Sequence[InstanceEvent]:
        """What happened by the last call and has not been told yet."""
        events, self._events = self._events, []
        return events

    def next_event(self) -> Micros | None:
        """When to call `advance` next; None: nothing will happen by itself. Begins the step that is due, so ask when all inputs
        of this instant are in. An instant that has come already: there are events to be fetched first."""
        run = self._run
        if run is None and self._sequences and not self._events:
            run = self._start_run(self._boundary)
        if self._events:
            return self._events[0].at
        if run is None:
            return None
        due = self._next_deadline() if self._deadlines else None
        return run.outcome_at if due is None or run.outcome_at <= due else due

    def num_output_tokens(self, request_id: RequestId) -> int:
        """Tokens that the request has emitted, as of the last `advance`. Raises KeyError if it is not here (any more)."""
        return self._batch.num_output_tokens(self._sequences[request_id])

    def sequence(self, request_id: RequestId) -> SequenceState:
        """Its sequence, to be read, settled as of the last `advance`. Raises KeyError if it is not here (any more)."""
        seq = self._sequences[request_id]
        seq.num_output_tokens = self._batch.num_output_tokens(seq)
        return seq

    def check(self) -> None:
        """Raises InvariantError if the books do not balance."""
        self._batch.check()
        if len(self._waiting) + self.running != len(self._sequences) or self._sequences.keys() != self._output_lengths.keys():
            raise InvariantError(
                f"{len(self._waiting)} wait + {self.running} run, but {len(self._sequences)} sequences are here"
            )

    def _process_through(self, now: Micros) -> None:
        """All is over that precedes an abort at `now`."""
        self._process_due(now, inclusive_until=now)

    def _process_due(self, now: Micros, *, inclusive_until: Micros = -1) -> None:
        """All that is due before `now`, and what ends or expires at `through`."""
        last = max(now - 1, inclusive_until)
        while True:
            run = self._run
            due = self._next_deadline() if self._deadlines else None
            if run is not None and run.outcome_at <= last and (due is None or run.outcome_at <= due):
                self._commit_run(run)
            elif run is None and self._sequences and self._boundary < (now if due is None or due > last else due):
                self._start_run(self._boundary)
            elif due is not None and due <= last:
                self._time_out_first(due)
            else:
                return

    def _start_run(self, now: Micros) -> StepRun:
        """Form the step that begins at `now`, and find out how often it may run."""
        batch = self._batch
        limit = self._next_completion_step - batch.step_index if batch.num_decodes else 1
        waiting = self._waiting if len(self._sequences) > len(batch.sequences) else None
        step = batch.schedule(waiting, now, limit if limit < self._step_limit else self._step_limit)
        for seq in step.preempted:
            self._requeue_preempted(seq, now)
        if not (step.chunks or batch.num_decodes or step.preempted):
            raise InvariantError(f"{self.waiting} sequences wait and none fits an empty instance")
        run = self._run = StepRun(now, step.max_repeats, step, self._batch_shape(step))
        self._set_run_end(run)
        if run.steps > 1 and waiting is not None and not batch.is_full:  # full, nobody asks who is next
            stable = waiting.next_order_change(now)
            if stable is not None:
                self._truncate(run, stable)
        return run

    def _batch_shape(self, step: StepPlan) -> BatchShape:
        """The work of `step`, as the latency model wants to see it."""
        shape = self._batch.batch_shape(step)
        if self._is_spread_aware and shape.num_decodes > 1:
            return replace(shape, context_spread=context_spread(self._batch.context_lengths(step)))
        return shape

    def _requeue_preempted(self, seq: SequenceState, now: Micros) -> None:
        self.num_preemptions += 1
        if seq.num_output_tokens > seq.num_accounted_output_tokens:  # it was decoding: prefill emits nothing
            self._completions.invalidate()
            seq.preempted_at = now
            if self.itl_log is not None:
                self.itl_log.on_decode_end(seq.request.id)
        self._account_decode(seq, now)
        self._waiting.add(seq, now, front=True)
        self._events.append(InstanceEvent(now, EventKind.KV_PREEMPTED, seq))

    def _truncate(self, run: StepRun, now: Micros) -> None:
        """End the run at the first step boundary at or after `now`, and not before its first step is over."""
        if run.steps == 1 or run.ends_at <= now:
            return
        steps = 1 + self._latency.steps_within(run.shape, max(now - run.starts_at, 1) - 1, run.steps - 1)
        if steps < run.steps:
            run.steps, run.truncated = steps, True
            self._set_run_end(run)

    def _set_run_end(self, run: StepRun) -> None:
        """Find out when `run` ends."""
        run.outcome_at = run.ends_at = run.starts_at + self._latency.run_time(run.shape, run.steps)

    def commit_ended_steps(self, now: Micros) -> None:
        """Count the steps of the run in progress that ended by `now`, but not its last: `free_blocks` and `emitted` are as of
        then. The rest stays a run, so whoever only looks need not ask for the next event anew. The last one is counted, too, if
        the run was cut to end at `now`: nothing comes of it."""
        run = self._run
        if run is None or run.starts_at >= now:
            return
        if run.truncated and run.ends_at == now:
            self._commit_run(run)
        elif run.steps > 1:
            steps = self._latency.steps_within(run.shape, now - run.starts_at, run.steps - 1)
            if steps:
                self._commit_part(run, steps)

    def _commit_to_boundary(self, now: Micros) -> None:
        """`settle`, and what comes in at this instant may join the step that begins at `now`, if one does."""
        if self._run is not None:
            self.commit_ended_steps(now)
            self._reopen_boundary(now)

    def _reopen_boundary(self, now: Micros) -> None:
        """If a step of the run in progress ends at `now`, the next one has not begun, whoever has looked: form it anew."""
        run = self._run
        if run is not None and run.partially_committed and run.starts_at == now:
            self._run, self._boundary = None, now

    def _commit_part(self, run: StepRun, steps: int) -> None:
        """The first `steps` steps of `run` are over. The rest stays a run."""
        span = self._latency.run_time(run.shape, steps)
        if self.meter is not None:
            self.meter.add_run(run.shape, steps, span)
        self._batch.run_steps(steps)
        run.starts_at += span
        run.steps -= steps
        run.partially_committed = True
        run.shape = self._batch_shape(run.plan)

    def _commit_run(self, run: StepRun) -> None:
        """The run is over: prompts may be complete, sequences may end."""
        now, batch = run.ends_at, self._batch
        if self.meter is not None:
            self.meter.add_run(run.shape, run.steps, now - run.starts_at, batch.num_transferred + run.departed_decodes)
        batch.run_steps(run.steps)
        self._run, self._boundary = None, now
        if run.plan.chunks:
            self._commit_chunks(run.plan, now)
        while (end := self._completions.first_step()) == batch.step_index:
            self._remove_running(self._completions.pop(), now, _FINISHED)
        self._next_completion_step = end

    def _commit_chunks(self, step: StepPlan, now: Micros) -> None:
        for chunk in step.chunks:
            self._waiting.on_served(chunk.seq, chunk.num_tokens, 0, now)
        for seq in self._batch.complete_chunks(step):
            if seq.first_token_at is None:
                seq.first_token_at = now
                self._events.append(InstanceEvent(now, _FIRST_TOKEN, seq))
            elif self.meter is not None:
                self.meter.add_pause(seq.request.id, now - seq.preempted_at)
            self._completions.add(seq, seq.decode_origin_step + self._output_lengths[seq.request.id])
            if self.itl_log is not None:
                self.itl_log.on_decode_start(seq.request.id)

    def _time_out_first(self, due: Micros) -> None:
        """The first of `_deadlines` is `due`."""
        self._withdraw(heappop(self._deadlines)[2], due, EventKind.TIMED_OUT)

    def _withdraw(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        """Take `seq` out at `now`, wherever it is. The step in progress goes on and is the last of its run: the room that is
        made, or the place at the head of the queue, may let another in."""
        self._end_after_current_step(now)
        if seq.request.id in self._batch.sequences:
            self._remove_running(seq, now, kind)
        else:
            self._waiting.remove(seq.request.id)
            self._forget(seq, now, kind)

    def _end_after_current_step(self, now: Micros) -> None:
        """The run in progress ends with its present step."""
        self._commit_to_boundary(now)
        if self._run is not None:
            self._truncate(self._run, now)

    def _remove_running(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        """`seq` leaves the running batch for good."""
        if self.itl_log is not None and seq.is_decoding:
            self.itl_log.on_decode_end(seq.request.id)
        if kind is _FINISHED:
            self._batch.finish(seq)
        else:
            if seq.is_decoding:
                self._completions.invalidate()
                if self._run is not None:
                    self._run.departed_decodes += 1
            self._batch.remove(seq)
        self._account_decode(seq, now)
        if kind is _FINISHED:
            self._waiting.on_finished(seq, now)
        self._forget(seq, now, kind)

    def _forget(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        del self._sequences[seq.request.id], self._output_lengths[seq.request.id]
        if self._prefix_blocks is not None:
            self._prefix_blocks.forget(seq)
        self._waiting.on_sequence_end(seq, now)
        self._events.append(InstanceEvent(now, kind, seq))

    def _account_decode(self, seq: SequenceState, now: Micros) -> None:
        """`seq` decodes no more: the wait queue is told of what it was given."""
        self._waiting.on_served(seq, 0, seq.num_output_tokens - seq.num_accounted_output_tokens, now)
        seq.num_accounted_output_tokens = seq.num_output_tokens

    def _next_deadline(self) -> Micros | None:
        """The first deadline of a sequence that is still here."""
        deadlines = self._deadlines
        while deadlines:
            due, _, seq = deadlines[0]
            if self._sequences.get(seq.request.id) is seq:
                return due
            heappop(deadlines)
        return None


def _resume_transferred(seq: SequenceState, transferred: SequenceState) -> None:
    """`seq` is what was `before` elsewhere."""
    seq.transferred_kv_tokens = seq.request.prompt_tokens
    seq.num_output_tokens = seq.num_accounted_output_tokens = transferred.num_output_tokens
    seq.num_tokens_to_prefill += transferred.num_output_tokens
    seq.first_token_at = transferred.first_token_at
    seq.preempted_at = transferred.first_token_at or 0


def _new_block_manager(config: InstanceConfig, cache: PrefixCache[Any] | None) -> BlockManager:
    if cache is None:
        return BlockManager(config.kv_blocks, config.block_size_in_tokens)
    if isinstance(cache, BlisPool):
        host = config.new_host_memory()
        return BlisBlockManager(cache) if host is None else TieredBlockManager(cache, host)
    return PrefixBlockManager(cache)


def _new_batch(limits: BatchLimits, blocks: BlockManager, victims: PreemptionPolicy) -> ContinuousBatch:
    if isinstance(blocks, BlisBlockManager):
        return BlisBatch(limits, blocks, victims)
    return ContinuousBatch(limits, blocks, victims)
