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

from maitred.batching import BatchLimits, BlisBatch, ContinuousBatch, Step, Victims, spread_of
from maitred.contracts import BatchShape
from maitred.errors import InvariantError
from maitred.instance.config import InstanceConfig
from maitred.instance.ends import Ends
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.gap_log import GapLog
from maitred.instance.latency import BySpread
from maitred.instance.meter import Meter
from maitred.kv import BlisBlocks, BlisPool, BlockCounts, PrefixCache, PrefixedBlocks, TieredBlocks
from maitred.request import PrefixKeys, Request, RequestId
from maitred.seq import Seq
from maitred.units import Micros

_FIRST_TOKEN: Final = EventKind.FIRST_TOKEN  # members of enums are slow to look up
_FINISHED: Final = EventKind.FINISHED


class Run:
    """The step in progress and its repetitions."""

    over: Micros = 0
    """When its last step ends."""
    end: Micros = 0
    """When what it brings about is there."""
    gone: int = 0
    """How many decoded in it and have left: their tokens come out to nobody."""
    parted: bool = False
    """Steps of it have been counted before the rest: at `start` itself, the first of these has not begun yet."""
    cut: bool = False
    """It ends before anything comes of it."""

    def __init__(self, start: Micros, steps: int, step: Step, shape: BatchShape) -> None:
        self.start = start
        self.steps = steps
        self.step = step
        self.shape = shape


class Instance:
    """One inference instance. Inputs (`enqueue`, `abort`, `advance`) come in the order of time."""

    def __init__(self, config: InstanceConfig, rng: Random) -> None:
        """Raises ConfigError for an unknown scheduler."""
        self._latency = config.latency_model()
        self._by_spread = isinstance(self._latency, BySpread)
        self._model_len = config.model_len
        self._step_limit = 1 if config.step_by_step else 1 << 60
        self.cache = config.new_prefix_cache()
        """What it remembers; None: nothing."""
        self._blocks = _blocks(config, self.cache)
        self._memory = self._blocks if isinstance(self._blocks, PrefixedBlocks) else None
        limits = BatchLimits(config.max_num_seqs, config.max_num_batched_tokens, config.long_prefill_token_threshold)
        self._batch = _batch(limits, self._blocks, Victims(config.preemption_policy))
        self._waiting = config.policy().queue(self.cache, rng)
        self._seqs: dict[RequestId, Seq] = {}
        self._answers: dict[RequestId, int] = {}
        """How many tokens each answer will have: known here as an engine knows it, when it is over."""
        self._ends = Ends()
        self._end_step = -1
        """No sequence ends before this step; -1: none decodes."""
        self._deadlines: list[tuple[Micros, int, Seq]] = []
        self._events: list[InstanceEvent] = []
        self._run: Run | None = None
        self._boundary: Micros = 0
        """Without a run: the instant at which the next step begins, if there is work."""
        self._count = 0
        self.preemptions = 0
        self.meter: Meter | None = None
        """Who is told of every run; None: nobody."""
        self.gap_log: GapLog | None = None
        """Who is told of who decodes; None: nobody."""

    @property
    def waiting(self) -> int:
        return len(self._seqs) - len(self._batch.sequences)

    @property
    def running(self) -> int:
        return len(self._batch.sequences)

    @property
    def total_blocks(self) -> int:
        return self._blocks.total

    @property
    def free_blocks(self) -> int:
        """As of the steps that were over at the last `advance` or `settle`."""
        return self._blocks.free_so_far

    @property
    def kv_usage(self) -> float:
        """Used share of the KV blocks, 0..1, as of the last `advance`."""
        return (self._blocks.total - self._blocks.free_so_far) / self._blocks.total

    @property
    def fetched_blocks(self) -> int:
        """KV blocks that came back from main memory so far."""
        return 0

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return self._batch.number

    def refusal(self, request: Request) -> str | None:
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
        whole: PrefixKeys | None = None,
        *,
        carried: Seq | None = None,
    ) -> None:
        """`request` arrives; its answer will end after `output_tokens` tokens, or where it or the model length limits it.
        `whole`: the content of prompt and answer together, if others may continue it (`workload.Job.whole`). `carried`: what it
        came to in the instance that computed its prompt, whose KV comes with it; it goes on after the tokens emitted there.

        Raises ValueError for an id that is here already.
        """
        if request.id in self._seqs:
            raise ValueError(f"request {request.id} is here already")
        run = self._run
        if run is None or run.end < now or self._deadlines:
            self._catch_up(now)
            run = self._run
        if run is not None and run.parted:
            self._open_boundary(now)
            run = self._run
        seq = Seq(request, self._count, request.prompt_tokens, request.priority)
        self._count += 1
        if self.refusal(request) is not None:
            self._events.append(InstanceEvent(now, EventKind.REFUSED, seq))
            return
        if request.deadline is not None:
            if request.deadline <= now:
                self._events.append(InstanceEvent(now, EventKind.TIMED_OUT, seq))
                return
            heappush(self._deadlines, (request.deadline, seq.order, seq))
        if carried is not None:
            _carry_on(seq, carried)
        self._seqs[request.id] = seq
        self._answers[request.id] = self.answer(request, output_tokens)
        if whole is not None and self._memory is not None:
            self._memory.expect(seq, whole)
        self._line_up(seq, now)
        if run is None:
            if self._boundary < now and len(self._seqs) == 1:
                self._boundary = now
        elif run.steps > 1 and not self._batch.full:
            self._cut(run, now)

    def _line_up(self, seq: Seq, now: Micros) -> None:
        """`seq` has arrived."""
        self._waiting.add(seq, now)

    def answer(self, request: Request, output_tokens: int) -> int:
        """How many tokens come out, if the answer ends by itself after `output_tokens`."""
        longest = self._model_len - request.prompt_tokens
        if request.max_output_tokens is not None:
            longest = min(longest, request.max_output_tokens)
        return max(1, min(output_tokens, longest))

    def abort(self, request_id: RequestId, now: Micros) -> bool:
        """Nobody wants the answer any more. False: it is not here (any more)."""
        self._reach(now)
        seq = self._seqs.get(request_id)
        if seq is None:
            return False
        self._withdraw(seq, now, EventKind.ABORTED)
        return True

    def advance(self, now: Micros) -> Sequence[InstanceEvent]:
        """What happened up to `now`, in the order of time. Call it before looking at blocks or `emitted`."""
        run = self._run
        if run is not None and run.end == now and not self._deadlines:
            self._commit(run)
        else:
            self._catch_up(now, through=now)
            self._settle_to_boundary(now)
        return self.news() if self._events else ()

    def news(self) -> Sequence[InstanceEvent]:
        """What happened by the last call and has not been told yet."""
        events, self._events = self._events, []
        return events

    def next_event(self) -> Micros | None:
        """When to call `advance` next; None: nothing will happen by itself. Begins the step that is due, so ask when all inputs
        of this instant are in. An instant that has come already: there are events to be fetched first."""
        run = self._run
        if run is None and self._seqs and not self._events:
            run = self._begin(self._boundary)
        if self._events:
            return self._events[0].at
        if run is None:
            return None
        due = self._next_deadline() if self._deadlines else None
        return run.end if due is None or run.end <= due else due

    def emitted(self, request_id: RequestId) -> int:
        """Tokens that the request has emitted, as of the last `advance`. Raises KeyError if it is not here (any more)."""
        return self._batch.emitted(self._seqs[request_id])

    def look(self, request_id: RequestId) -> Seq:
        """Its sequence, to be read, settled as of the last `advance`. Raises KeyError if it is not here (any more)."""
        seq = self._seqs[request_id]
        seq.emitted = self._batch.emitted(seq)
        return seq

    def check(self) -> None:
        """Raises InvariantError if the books do not balance."""
        self._batch.check()
        if len(self._waiting) + self.running != len(self._seqs) or self._seqs.keys() != self._answers.keys():
            raise InvariantError(f"{len(self._waiting)} wait + {self.running} run, but {len(self._seqs)} sequences are here")

    def _reach(self, now: Micros) -> None:
        """All is over that precedes an abort at `now`."""
        self._catch_up(now, through=now)

    def _catch_up(self, now: Micros, *, through: Micros = -1) -> None:
        """All that is due before `now`, and what ends or expires at `through`."""
        last = max(now - 1, through)
        while True:
            run = self._run
            due = self._next_deadline() if self._deadlines else None
            if run is not None and run.end <= last and (due is None or run.end <= due):
                self._commit(run)
            elif run is None and self._seqs and self._boundary < (now if due is None or due > last else due):
                self._begin(self._boundary)
            elif due is not None and due <= last:
                self._expire(due)
            else:
                return

    def _begin(self, now: Micros) -> Run:
        """Form the step that begins at `now`, and find out how often it may run."""
        batch = self._batch
        limit = self._end_step - batch.number if batch.decodes else 1
        waiting = self._waiting if len(self._seqs) > len(batch.sequences) else None
        step = batch.form(waiting, now, limit if limit < self._step_limit else self._step_limit)
        for seq in step.preempted:
            self._preempted(seq, now)
        if not (step.chunks or batch.decodes or step.preempted):
            raise InvariantError(f"{self.waiting} sequences wait and none fits an empty instance")
        run = self._run = Run(now, step.repeat, step, self._shape(step))
        self._time(run)
        if run.steps > 1 and waiting is not None and not batch.full:  # full, nobody asks who is next
            stable = waiting.stable_until(now)
            if stable is not None:
                self._cut(run, stable)
        return run

    def _shape(self, step: Step) -> BatchShape:
        """The work of `step`, as the latency model wants to see it."""
        shape = self._batch.shape(step)
        if self._by_spread and shape.decodes > 1:
            return replace(shape, spread=spread_of(self._batch.contexts(step)))
        return shape

    def _preempted(self, seq: Seq, now: Micros) -> None:
        self.preemptions += 1
        if seq.emitted > seq.charged:  # it was decoding: prefill emits nothing
            self._ends.forsake()
            seq.lost_at = now
            if self.gap_log is not None:
                self.gap_log.ends(seq.request.id)
        self._charge(seq, now)
        self._waiting.add(seq, now, front=True)
        self._events.append(InstanceEvent(now, EventKind.PREEMPTED, seq))

    def _cut(self, run: Run, now: Micros) -> None:
        """End the run at the first step boundary at or after `now`, and not before its first step is over."""
        if run.steps == 1 or run.over <= now:
            return
        steps = 1 + self._latency.steps_within(run.shape, max(now - run.start, 1) - 1, run.steps - 1)
        if steps < run.steps:
            run.steps, run.cut = steps, True
            self._time(run)

    def _time(self, run: Run) -> None:
        """Find out when `run` ends."""
        run.end = run.over = run.start + self._latency.run_time(run.shape, run.steps)

    def settle(self, now: Micros) -> None:
        """Count the steps of the run in progress that ended by `now`, but not its last: `free_blocks` and `emitted` are as of
        then. The rest stays a run, so whoever only looks need not ask for the next event anew. The last one is counted, too, if
        the run was cut to end at `now`: nothing comes of it."""
        run = self._run
        if run is None or run.start >= now:
            return
        if run.cut and run.over == now:
            self._commit(run)
        elif run.steps > 1:
            steps = self._latency.steps_within(run.shape, now - run.start, run.steps - 1)
            if steps:
                self._part_over(run, steps)

    def _settle_to_boundary(self, now: Micros) -> None:
        """`settle`, and what comes in at this instant may join the step that begins at `now`, if one does."""
        if self._run is not None:
            self.settle(now)
            self._open_boundary(now)

    def _open_boundary(self, now: Micros) -> None:
        """If a step of the run in progress ends at `now`, the next one has not begun, whoever has looked: form it anew."""
        run = self._run
        if run is not None and run.parted and run.start == now:
            self._run, self._boundary = None, now

    def _part_over(self, run: Run, steps: int) -> None:
        """The first `steps` steps of `run` are over. The rest stays a run."""
        span = self._latency.run_time(run.shape, steps)
        if self.meter is not None:
            self.meter.ran(run.shape, steps, span)
        self._batch.run(steps)
        run.start += span
        run.steps -= steps
        run.parted = True
        run.shape = self._shape(run.step)

    def _commit(self, run: Run) -> None:
        """The run is over: prompts may be complete, sequences may end."""
        now, batch = run.over, self._batch
        if self.meter is not None:
            self.meter.ran(run.shape, run.steps, now - run.start, batch.resuming + run.gone)
        batch.run(run.steps)
        self._run, self._boundary = None, now
        if run.step.chunks:
            self._commit_chunks(run.step, now)
        while (end := self._ends.first()) == batch.number:
            self._leave(self._ends.pop(), now, _FINISHED)
        self._end_step = end

    def _commit_chunks(self, step: Step, now: Micros) -> None:
        for chunk in step.chunks:
            self._waiting.served(chunk.seq, chunk.tokens, 0, now)
        for seq in self._batch.prefilled(step):
            if seq.first_token_at is None:
                seq.first_token_at = now
                self._events.append(InstanceEvent(now, _FIRST_TOKEN, seq))
            elif self.meter is not None:
                self.meter.paused(seq.request.id, now - seq.lost_at)
            self._ends.add(seq, seq.origin + self._answers[seq.request.id])
            if self.gap_log is not None:
                self.gap_log.begins(seq.request.id)

    def _expire(self, due: Micros) -> None:
        """The first of `_deadlines` is `due`."""
        self._withdraw(heappop(self._deadlines)[2], due, EventKind.TIMED_OUT)

    def _withdraw(self, seq: Seq, now: Micros, kind: EventKind) -> None:
        """Take `seq` out at `now`, wherever it is. The step in progress goes on and is the last of its run: the room that is
        made, or the place at the head of the queue, may let another in."""
        self._interrupt(now)
        if seq.request.id in self._batch.sequences:
            self._leave(seq, now, kind)
        else:
            self._waiting.remove(seq.request.id)
            self._forget(seq, now, kind)

    def _interrupt(self, now: Micros) -> None:
        """The run in progress ends with its present step."""
        self._settle_to_boundary(now)
        if self._run is not None:
            self._cut(self._run, now)

    def _leave(self, seq: Seq, now: Micros, kind: EventKind) -> None:
        """`seq` leaves the running batch for good."""
        if self.gap_log is not None and seq.decoding:
            self.gap_log.ends(seq.request.id)
        if kind is _FINISHED:
            self._batch.finish(seq)
        else:
            if seq.decoding:
                self._ends.forsake()
                if self._run is not None:
                    self._run.gone += 1
            self._batch.drop(seq)
        self._charge(seq, now)
        if kind is _FINISHED:
            self._waiting.finished(seq, now)
        self._forget(seq, now, kind)

    def _forget(self, seq: Seq, now: Micros, kind: EventKind) -> None:
        del self._seqs[seq.request.id], self._answers[seq.request.id]
        if self._memory is not None:
            self._memory.forget(seq)
        self._waiting.left(seq, now)
        self._events.append(InstanceEvent(now, kind, seq))

    def _charge(self, seq: Seq, now: Micros) -> None:
        """`seq` decodes no more: the wait queue is told of what it was given."""
        self._waiting.served(seq, 0, seq.emitted - seq.charged, now)
        seq.charged = seq.emitted

    def _next_deadline(self) -> Micros | None:
        """The first deadline of a sequence that is still here."""
        deadlines = self._deadlines
        while deadlines:
            due, _, seq = deadlines[0]
            if self._seqs.get(seq.request.id) is seq:
                return due
            heappop(deadlines)
        return None


def _carry_on(seq: Seq, before: Seq) -> None:
    """`seq` is what was `before` elsewhere."""
    seq.carried = seq.request.prompt_tokens
    seq.emitted = seq.charged = before.emitted
    seq.target += before.emitted
    seq.first_token_at = before.first_token_at
    seq.lost_at = before.first_token_at or 0


def _blocks(config: InstanceConfig, cache: PrefixCache[Any] | None) -> BlockCounts:
    if cache is None:
        return BlockCounts(config.kv_blocks, config.block_size_in_tokens)
    if isinstance(cache, BlisPool):
        host = config.new_host_memory()
        return BlisBlocks(cache) if host is None else TieredBlocks(cache, host)
    return PrefixedBlocks(cache)


def _batch(limits: BatchLimits, blocks: BlockCounts, victims: Victims) -> ContinuousBatch:
    if isinstance(blocks, BlisBlocks):
        return BlisBatch(limits, blocks, victims)
    return ContinuousBatch(limits, blocks, victims)
