"""EngineCore: the sequences of one engine, and what a run of steps does to them.

A *run* is one step and its repetitions: between two instants that matter nothing tells one step from the next, so the core
plans k steps at once, and the latency model says exactly how long they take. The life of a run:

    start_run      the batch former plans the step, which may repeat until the next completion of an answer or a prompt, or
                   until time alone could change the order of the wait queue (`WaitQueue.next_order_change`)
    truncate       an arrival ends the run at the next step boundary (`StepRun`)
    commit_part    the first steps are counted; the rest stays a run
    commit_run     the run has ended: prompts are complete, sequences end

When any of this happens is decided by the clock of the engine: `Instance`, or `compat.blis.BlisInstance`.

Example: a step takes 100 µs and 10 µs for each sequence that decodes. Two decode, and have 30 and 50 tokens to go. The run that
starts at t = 0 has 30 steps and ends at t = 3,600. A request arrives at t = 250, and the batch has room: the run is cut to the
3 steps that end by t = 360, and the step that starts then has a chunk of its prompt.

`PlainCore` has a shorter way for the usual runs. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from maitred.batching import StepPlan, context_spread
from maitred.core.contracts import BatchShape, WaitQueue
from maitred.core.errors import InvariantError
from maitred.core.request import PrefixKeys, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.batch_former import EngineParts
from maitred.instance.completions import Completions
from maitred.instance.config import InstanceConfig
from maitred.instance.deadlines import Deadlines
from maitred.instance.entry_limits import LengthLimits, QueueCaps
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.held_decodes import HeldDecodes
from maitred.instance.latency import SpreadAwareModel
from maitred.instance.mailbox import Mailbox
from maitred.instance.step_meter import ItlLog, StepMeter
from maitred.instance.step_run import StepRun
from maitred.kv import PrefixBlockManager
from maitred.queueing import is_overridden
from maitred.queueing.fcfs_queue import FcfsQueue

_FIRST_TOKEN: Final = EventKind.FIRST_TOKEN  # members of enums are slow to look up
_FINISHED: Final = EventKind.FINISHED


class EngineCore:
    """The state of one engine. Each method acts at the instant that it is given; see the module for their order."""

    def __init__(self, config: InstanceConfig, waiting: WaitQueue, parts: EngineParts) -> None:
        self.latency = config.latency_model()
        self._is_spread_aware = isinstance(self.latency, SpreadAwareModel)
        self.lengths = LengthLimits(config.model_len)
        self._max_repeats = 1 if config.step_by_step else 1 << 60
        self._prefix_blocks = parts.blocks if isinstance(parts.blocks, PrefixBlockManager) else None
        self.batch = parts.batch
        self.waiting = waiting
        self._fcfs = waiting if isinstance(waiting, FcfsQueue) else None
        """The wait queue if it is the usual one, which compiled code calls without looking it up."""
        self._order_changes = is_overridden(self.waiting, "next_order_change")  # most queues do nothing in most callbacks
        self.counts_service = is_overridden(self.waiting, "on_served")
        """Whether the wait queue is told of the work that is done."""
        self._learns = is_overridden(self.waiting, "on_finished")
        self.batch.announces_steps = is_overridden(self.waiting, "on_step_start")
        self._forgets = is_overridden(self.waiting, "on_sequence_end")
        self.sequences: dict[RequestId, SequenceState] = {}
        """Every sequence that waits or runs here."""
        self._mailbox = Mailbox(waiting, self.batch, self._prefix_blocks, self.sequences) if config.async_scheduling else None
        """What the scheduler does not know yet, or None if it does not plan one step ahead."""
        self._notes_ends = self._mailbox is not None or self.counts_service or self._learns
        """Whether the end of an answer is told to any other part than the batch."""
        self._completions, self._held = Completions(), HeldDecodes()
        self.deadlines = Deadlines(self.sequences)
        self.events: list[InstanceEvent] = []
        """Events that the driver has not fetched yet, in the order of time."""
        self.tells_first_tokens = True
        """Whether `events` has those of first tokens."""
        self.run: StepRun | None = None
        """The run in progress, or None between runs and when idle."""
        self._next_run = StepRun(self.latency)
        self.next_start: Micros = 0
        """The instant (µs) at which the next step begins, if no run is in progress and there is work."""
        self.queue_caps = QueueCaps(config.max_num_queued_reqs, config.max_num_queued_tokens)
        self._num_arrivals = self.num_preemptions = 0
        self.meter: StepMeter | None = None
        """The meter that receives every run, or None if nothing is measured."""
        self.itl_log: ItlLog | None = None
        """The log that is told which sequences decode, or None if nothing is logged."""

    @property
    def num_running(self) -> int:
        """Sequences in the running batch whose answers are not complete."""
        return len(self.batch.sequences) - (0 if self._mailbox is None else self._mailbox.num_departing)

    @property
    def has_work(self) -> bool:
        """Whether there is a step to be made, be it for the token in vain of a complete sequence."""
        return len(self.sequences) > 0 or self.batch.num_decodes > 0

    def check(self) -> None:
        """Raise InvariantError if the sums do not follow from the sequences."""
        self.batch.check()
        waiting, running = len(self.waiting), self.num_running
        if self._mailbox is not None:
            waiting += self._mailbox.num_unseen
        if waiting + running != len(self.sequences):
            raise InvariantError(f"{waiting} wait + {running} run, but {len(self.sequences)} sequences are here")

    def add(
        self,
        request: Request,
        output_tokens: int,
        now: Micros,
        conversation_prefix: PrefixKeys | None,
        transferred: SequenceState | None,
    ) -> bool:
        """Let `request` wait; see `Instance.enqueue`. Return False, with an event that says why, if it may not."""
        seq = SequenceState(request, self._num_arrivals, None, request.priority)
        if seq.request_id in self.sequences:
            raise ValueError(f"request {request.id} is here already")
        self._num_arrivals += 1
        seq.answer_length = self.lengths.output_length(request, output_tokens)
        if not seq.answer_length:
            self.events.append(InstanceEvent(now, EventKind.REFUSED, seq))
            return False
        if self.queue_caps.is_capped and self.queue_caps.overload_reason((seq.prompt_tokens,), self.sequences):
            self.events.append(InstanceEvent(now, EventKind.REJECTED, seq))
            return False
        if request.deadline is not None:
            if request.deadline <= now:
                self.events.append(InstanceEvent(now, EventKind.TIMED_OUT, seq))
                return False
            self.deadlines.add(request.deadline, seq)
        if transferred is not None:
            seq.resume_transferred(transferred)
        self.sequences[seq.request_id] = seq
        if conversation_prefix is not None and self._prefix_blocks is not None:
            self._prefix_blocks.expect_continuation(seq, conversation_prefix)
        if self._mailbox is not None:
            self._mailbox.announce_arrival(seq, self.run, now)
        elif self._fcfs is not None:
            self._fcfs.add(seq, now)
        else:
            self.waiting.add(seq, now)
        return True

    def reveal_arrivals(self) -> None:
        """Let the step that is planned next admit every request that waits, however late it came."""
        if self._mailbox is not None:
            self._mailbox.deliver_all()

    def start_run(self) -> StepRun:
        """Plan the step that begins at `next_start`, and find out how often it may repeat."""
        now, batch, mailbox, run = self.next_start, self.batch, self._mailbox, self._next_run
        if mailbox is not None:
            mailbox.deliver_before_plan()
        # A completion frees a slot and blocks, so the run goes on to the next one. After a preemption or an abort nothing may
        # complete there: a run is planned twice then. The first step of held decodes stands alone, as its gaps are longer.
        limit = self._max_repeats
        if batch.num_decodes:
            steps = 1 if self._held.count else self._completions.next_step - batch.step_index
            if steps < limit:
                limit = steps if steps > 1 else 1  # those that decode have completed, which the scheduler does not know
            is_usual = batch.num_decodes == len(self.sequences) and mailbox is None and not self._is_spread_aware
            if is_usual and (decodes := batch.plan_decodes(limit)) is not None:
                self.run = run
                run.begin(now, decodes, batch.num_decodes, batch.context_tokens)
                return run
        running = len(batch.sequences) if mailbox is None else self.num_running
        waiting = self.waiting if len(self.sequences) > running else None
        plan = batch.schedule(waiting, now, limit)
        if plan.chunks and plan.max_repeats > 1:
            # What has been served may change which sequence is next, if the step looks, and what the mailbox tells the queue.
            looks = self.counts_service and (mailbox is not None or not (waiting is None or plan.is_closed))
            if looks or self._max_repeats == 1:
                plan.max_repeats = 1
        if plan.is_plain and (batch.num_decodes or plan.chunks) and not self._is_spread_aware:
            run.begin(now, plan, batch.num_decodes, batch.context_tokens)
        else:
            plan = self._settle_plan(plan, waiting, now)
            shape = self._shape_of(plan)
            run.begin(now, plan, shape.num_decodes, shape.context_tokens, shape)
            if plan.load_time or plan.overlapped_load_time:
                run.prolong(plan.load_time + max(0, plan.overlapped_load_time - (run.ends_at - now)))
        self.run = run
        # A full batch admits nothing, whatever the order.
        if waiting is not None and self._order_changes and run.steps > 1 and not (plan.is_closed or batch.is_full):
            changes_at = waiting.next_order_change(now)
            if changes_at is not None:
                run.truncate(changes_at)
        if mailbox is not None:
            batch.begin_step(plan)  # a queue that is told of an arrival may look at the cache
            mailbox.deliver_after_plan(run)
        return run

    def _settle_plan(self, plan: StepPlan, waiting: WaitQueue | None, now: Micros) -> StepPlan:
        """Let the victims of `plan` wait, and return the plan: another one if nothing is in it."""
        if not (self.batch.num_decodes or plan.chunks):
            plan.max_repeats = 1
        if self._mailbox is not None and not (self.batch.num_decodes or plan.chunks or plan.preempted):
            self._mailbox.deliver_all()  # a plan with nothing in it takes no time: the next one knows what this one could not
            plan = self.batch.schedule(waiting, now, 1)
        if not (self.batch.num_decodes or plan.chunks or plan.preempted):
            raise InvariantError(f"{len(self.waiting)} sequences wait and none fits an empty instance")
        # Victims come in reverse order of admission by default: each goes to the front of the queue, which restores the order.
        for seq in plan.preempted:
            self._requeue_preempted(seq, now)
        return plan

    def commit_part(self, run: StepRun, steps: int) -> None:
        """Count the first `steps` steps of `run`, which have ended. The rest stays a run."""
        time = run.time_of(steps)  # a run takes exactly what its parts take
        if run.plan.holds_decodes:
            self._held.hold_all(self.batch.sequences.values(), self.batch.num_decodes, run.starts_at, self.itl_log)
        if self.meter is not None:
            self.meter.add_run(run, steps, time)
        if self.counts_service:
            self._account_chunks(run, steps)
        self.batch.run(run.plan, steps)
        run.plan.advance(steps)
        run.skip(steps, time)
        if not run.plan.is_plain or self._is_spread_aware:
            run.set_shape(self._shape_of(run.plan))

    def discard_rest(self, run: StepRun) -> None:
        """Plan anew the steps of `run` that are not counted yet, which have not begun."""
        self.run, self.next_start = None, run.starts_at

    def commit_run(self, run: StepRun) -> None:
        """Count the steps of `run`, which has ended: prompts may be complete, sequences may end."""
        now, batch, plan = run.ends_at, self.batch, run.plan
        if not plan.is_plain or run.departed_decodes or self._held.count:
            self._count_gaps(run)
        elif self.meter is not None:
            if run.step_time or run.steps == 1:
                self.meter.add_equal_steps(run.num_decodes, run.steps, run.step_time or now - run.starts_at)
            else:
                self.meter.add_run(run, run.steps, now - run.starts_at)
        self.run, self.next_start = None, now
        # Chunks come before completions: an answer of one token is complete in the step that completes its prompt.
        if plan.chunks:
            batch.run(plan, run.steps)
            self._commit_chunks(run, now)
        else:
            batch.run_steps(run.steps)  # as `run` does, without a call
        if batch.step_index >= self._completions.next_step:  # a run that an arrival truncated ends before that
            ends_silently = not (self._notes_ends or self.itl_log is not None or self._held.count)
            for seq in self._completions.pop_complete(batch.step_index):
                if ends_silently:
                    batch.finish(seq)
                    self._forget(seq, now, _FINISHED)
                else:
                    self._remove_running(seq, now, _FINISHED)
        if self._mailbox is not None and not self.has_work:
            self._mailbox.deliver_all()  # the next step has nothing in it, so it takes no time
        if plan.stalled and self.itl_log is not None and batch.discounts_stalls:
            self.itl_log.on_decode_starts([seq.request_id for seq in plan.stalled])

    def _count_gaps(self, run: StepRun) -> None:
        """Tell the meter of `run`, in which not every sequence that decodes emits a token after each step."""
        plan, held, silent = run.plan, self._held, self.batch.num_transferred + run.departed_decodes
        # Before the steps are counted: `run_steps` moves the origin steps of stalled sequences, so their old entries are stale.
        if plan.stalled:
            self._note_stalled(plan.stalled, run.starts_at, run.ends_at)
        if plan.holds_decodes:
            held.hold_all(self.batch.sequences.values(), self.batch.num_decodes, run.starts_at, self.itl_log)
            silent = 0
        elif held.count:
            silent += held.num_resuming(plan.stalled)
        if self.meter is not None:
            self.meter.add_run(run, run.steps, run.ends_at - run.starts_at, silent)
        if held.count and not plan.holds_decodes:
            held.end(run.ends_at, self.meter, self.itl_log, plan.stalled)

    def withdraw(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        """Remove `seq`, wherever it is, before its answer is complete."""
        if self._mailbox is not None:
            self._mailbox.deliver_queued(self.run)
        if self.batch.sequences.get(seq.request_id) is seq:
            if self._mailbox is not None and self.run is not None and self._prefix_blocks is not None:
                self._prefix_blocks.reserve_next_step()  # the step in progress has taken its blocks
            self._remove_running(seq, now, kind)
        else:
            self.waiting.remove(seq.request_id)
            self.batch.on_withdrawn()
            self._forget(seq, now, kind)

    def _shape_of(self, plan: StepPlan) -> BatchShape:
        """Return the work of `plan`, with the spread of its contexts if the latency model looks at it."""
        shape = self.batch.batch_shape(plan)
        if not self._is_spread_aware or shape.num_decodes < 2:
            return shape
        return replace(shape, context_spread=context_spread(self.batch.context_lengths(plan)))

    def _requeue_preempted(self, seq: SequenceState, now: Micros) -> None:
        self.num_preemptions += 1
        if self.sequences.get(seq.request_id) is not seq:
            if self._prefix_blocks is not None:
                self._prefix_blocks.forget(seq)
            return  # it has ended, which the scheduler did not know when it planned the step
        # A sequence that prefills emits nothing, so one with new tokens was decoding. (`is_decoding` is False by now.)
        if seq.num_output_tokens > seq.num_accounted_output_tokens:
            self._completions.remove(seq, self._end_step(seq))
            seq.preempted_at = self._stop_decoding(seq, now)
        self._account_decode(seq, now)
        self.waiting.add(seq, now, front=self.batch.requeues_at_front)
        self.events.append(InstanceEvent(now, EventKind.KV_PREEMPTED, seq))

    def _commit_chunks(self, run: StepRun, now: Micros) -> None:
        if self.counts_service:
            self._account_chunks(run, run.steps)
        for seq in self.batch.complete_chunks(run.plan):
            if seq.first_token_at is None:
                seq.first_token_at = now
                if self.tells_first_tokens:
                    self.events.append(InstanceEvent(now, _FIRST_TOKEN, seq))
            # The first token came before a preemption, or from the instance that computed the prompt.
            elif self.meter is not None:
                self.meter.add_single_gap(seq.request_id, now - seq.preempted_at)
            self._completions.add(seq, self._end_step(seq))
            if self.itl_log is not None:
                self.itl_log.on_decode_start(seq.request_id)
            elif self._held.count:
                self._held.on_decode_start(seq)

    def _end_step(self, seq: SequenceState) -> int:  # after which `seq`, which decodes or has just stopped, completes
        return seq.decode_origin_step + seq.answer_length

    def _account_chunks(self, run: StepRun, steps: int) -> None:
        """Tell the wait queue of the chunks of the first `steps` steps of `run`, those of withdrawn sequences included."""
        for step in range(steps if run.plan.chunks else 0):
            ended = run.starts_at + run.time_of(step + 1)
            for chunk in run.plan.chunks:
                self.waiting.on_served(chunk.seq, chunk.num_tokens, 0, ended)

    def _note_stalled(self, stalled: Sequence[SequenceState], since: Micros, now: Micros) -> None:
        """Note that decoding sequences have stood still in the step that has ended, so they complete a step later."""
        for seq in stalled:
            self._completions.postpone(seq, self._end_step(seq))  # the batch is about to move the origin step
            if self.batch.discounts_stalls:
                seq.stall_time += now - since
                if self.itl_log is not None:
                    self.itl_log.on_decode_end(seq.request_id)
        if not self.batch.discounts_stalls:
            self._held.hold(stalled, since, self.itl_log)

    def _remove_running(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        """Remove `seq` from the running batch for good."""
        if self._mailbox is not None:
            self._mailbox.deliver_queued(self.run)
        if seq.is_decoding and (self.itl_log is not None or self._held.count):
            self._stop_decoding(seq, now)
        if kind is _FINISHED:
            self.batch.finish(seq)
            if self._mailbox is not None:
                self._mailbox.announce_completion(seq)
        else:
            was_decoding = seq.is_decoding
            self.batch.remove(seq)
            if was_decoding:
                self._completions.remove(seq, self._end_step(seq))
                if self.run is not None:
                    self.run.departed_decodes += 1  # the shape of the run, which the meter reads, still counts it
        if self.counts_service:
            self._account_decode(seq, now)
        if kind is _FINISHED and self._learns:
            self.waiting.on_finished(seq, now)
        self._forget(seq, now, kind)

    def _forget(self, seq: SequenceState, now: Micros, kind: EventKind) -> None:
        del self.sequences[seq.request_id]
        if self._prefix_blocks is not None and not seq.is_complete:  # that of a complete one is forgotten when it departs
            self._prefix_blocks.forget(seq)
        if self._forgets:
            self.waiting.on_sequence_end(seq, now)
        if self.batch.keeps_notes:
            self.batch.forget(seq)
        if not self.sequences:
            self.batch.on_idle()
        self.events.append(InstanceEvent(now, kind, seq))

    def _stop_decoding(self, seq: SequenceState, now: Micros) -> Micros:
        """Note that `seq` decodes no more. Return the instant of its last token."""
        if self._held.count and (held_since := self._held.pop(seq)) is not None:
            return held_since
        if self.itl_log is not None:
            self.itl_log.on_decode_end(seq.request_id)
        return now

    def _account_decode(self, seq: SequenceState, now: Micros) -> None:
        """Tell the wait queue of the tokens of `seq`, which has stopped decoding."""
        if self.counts_service:
            self.waiting.on_served(seq, 0, seq.num_output_tokens - seq.num_accounted_output_tokens, now)
        seq.num_accounted_output_tokens = seq.num_output_tokens
