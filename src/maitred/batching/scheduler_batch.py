"""SchedulerBatch: the running batch of an instance with steps that a `RequestScheduler` decides.

Each step:

    1. The wait queue is served, head first, while fewer than `max_num_seqs` requests are active, and the scheduler has a use
       for more that wait (`RequestScheduler.max_num_pending`). An active request runs, or waits for memory in the order in
       which the scheduler serves it.
    2. The scheduler decides, over the active requests and a view of the KV blocks (`InstanceKvCache`).
    3. Paused requests lose their KV and go back to the front of the wait queue.
    4. The first chunk of a prompt takes the blocks of the whole prompt. A request whose KV comes from another instance takes
       the blocks, too, and computes one token.

**Requests that generate cost nothing to plan.** Which requests begin follows from sums over those that generate
(`InstanceKvCache`), so the scheduler is first asked without them (`RequestScheduler.schedule_beside`). A step with a chunk
costs the same however many requests generate beside it, and so however long answers are. Only a scheduler that cannot tell, or
has to pause one, is shown all of them, each with its progress.

A step that only generates repeats itself as long as the scheduler says that its answer stays the same
(`RequestScheduler.repeats_its_answer`), and the blocks last.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from maitred.batching.active_requests import ActiveRequests
from maitred.batching.instance_kv_cache import ActiveRequest, InstanceKvCache
from maitred.batching.limits import BatchLimits, PrefillChunk
from maitred.batching.running_batch import RunningBatch, StepPlan
from maitred.batching.trtllm.capacity import GuaranteedNoEvict
from maitred.batching.trtllm.context_chunking import reusable_tokens, reuse_adjusted_cost
from maitred.batching.trtllm.kv_cache_view import KvCacheView
from maitred.batching.trtllm.llm_request import LlmRequest, LlmRequestState
from maitred.batching.trtllm.schedulers import RequestScheduler, SchedulerOutput, SimpleScheduler
from maitred.core.contracts import WaitQueue
from maitred.core.errors import ConfigError, InvariantError, MaitredError
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv import NO_HIT, BlockManager, PrefixHit

_NO_IDS: frozenset[int] = frozenset()


class SchedulerBatch(RunningBatch):
    """The running batch of one instance, with steps that a scheduler decides."""

    follows_limit = False

    __slots__ = (
        *("_active", "_by_step", "_is_blocked", "_is_pausing", "_keeps_slots", "_kv_cache"),
        *("_max_model_len", "_name", "_never_evicts", "_puts_begun_first", "_scheduler"),
    )

    def __init__(
        self,
        limits: BatchLimits,
        blocks: BlockManager,
        max_model_len: int,
        name: str,
        make_scheduler: Callable[[KvCacheView], RequestScheduler],
        *,
        plans_ahead: bool,
        step_by_step: bool = False,
    ) -> None:
        """`name` is what messages call the scheduler. `max_model_len`, in tokens, limits the answers of requests that say
        nothing. With `plans_ahead` the slot of a complete sequence, and nothing else of it, is kept until `remove`. With
        `step_by_step` the scheduler is asked before every step, whatever it says of its answers (`check_batch_scheduler`)."""
        super().__init__(limits, blocks)
        self._by_step = step_by_step
        self._keeps_slots = plans_ahead
        self._max_model_len = max_model_len
        self._name = name
        self._active = ActiveRequests()
        self._is_blocked = False
        """Whether nothing can begin before a request ends, whatever comes."""
        self._is_pausing = False
        """Whether a sequence that is removed now comes back."""
        self._kv_cache = InstanceKvCache(blocks, self._active.by_id, self._decode_tokens)
        self._scheduler = scheduler = make_scheduler(self._kv_cache)
        # A request that waited for another one to compute its prefix stands before others that have begun meanwhile. If it does
        # not fit, a policy without eviction stops there: those would keep their blocks and never go on.
        no_evict = isinstance(scheduler, SimpleScheduler) and isinstance(scheduler.capacity_scheduler, GuaranteedNoEvict)
        self._puts_begun_first = no_evict and self._prefix_blocks is not None
        # What is free beside all that those that run may ever need does not change while they generate.
        self._never_evicts = no_evict

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        self.num_transferred = 0
        if waiting is not None and not self.is_full:
            if self._prefix_blocks is not None:
                self._prefix_blocks.apply_evictions()
            waiting.on_step_start(self, now)
            self._activate(waiting)
        if (self._is_blocked or not (self._prefilling or self._active.num_pending)) and self._serves_all_decodes:
            repeats = self._blocks.max_steps(max_repeats)
            if repeats:
                return StepPlan(repeats)
        (output, all_generate), plan = self._decide(), StepPlan(1)
        if all_generate:
            self._stall([])
            begins = bool(output.num_fitting_requests > self.num_decodes or self._prefilling)
            # If none can begin without eviction, none can until a request ends, so nothing is asked until then.
            self._is_blocked = self._never_evicts and self.num_decodes > 0 and not begins
        else:
            plan.preempted = [self._pause(request) for request in self._known(output.paused_requests)]
            self._stall(self._left_out(output))
        plan.stalled = self._stalled
        needed, free = self._blocks.decode_blocks(1), self._blocks.free_committed
        if needed > free:
            raise self._overcommitted(needed, free)
        if output.context_requests:
            goes_on = bool(self._prefilling)
            self._start_chunks(self._known(output.context_requests), plan, now)
            if goes_on and (waiting is None or self.is_full) and not (plan.preempted or self._stalled):
                plan.max_repeats = self._chunk_repeats(plan, max_repeats)
        elif not plan.preempted and not self._stalled:
            self._check_progress()
            # A request that fits and does not run, for want of tokens, claims blocks that may be missing in a later step.
            if self._scheduler.repeats_its_answer and output.num_fitting_requests == self.num_decodes:
                plan.max_repeats = self._max_repeats(self._scheduler.max_repeats(max_repeats))
        return plan

    def end_chunks(self, plan: StepPlan, steps: int) -> None:
        super().end_chunks(plan, steps)
        for chunk in plan.chunks:
            request = self._active.by_id.get(chunk.seq.request.id)
            if request is not None:
                request.context_current_position = min(chunk.seq.num_computed_tokens, request.prompt_len)
                if self._prefix_blocks is not None and self._scheduler.shares_each_chunk:
                    self._prefix_blocks.fill(chunk.seq, request.context_current_position)

    def _take_chunk_blocks(self, seq: SequenceState, tokens: int) -> None:
        pass  # the first chunk has taken those of the whole prompt

    def complete_chunks(self, plan: StepPlan) -> list[SequenceState]:
        complete = super().complete_chunks(plan)
        for seq in complete:
            request = self._active.by_id[seq.request.id]
            request.state = LlmRequestState.GENERATION_IN_PROGRESS
            self._active.start_generating(request)
            self._kv_cache.on_decode_start(request)
            if self._prefix_blocks is not None:
                self._prefix_blocks.fill(seq, seq.num_tokens_to_prefill)
        return complete

    def finish(self, seq: SequenceState) -> None:
        self._active.by_id[seq.request.id].state = LlmRequestState.GENERATION_COMPLETE
        self.remove(seq)
        if self._keeps_slots:
            seq.is_complete = True
            self.sequences[seq.request_id] = seq

    def remove(self, seq: SequenceState) -> None:
        if seq.is_complete:
            del self.sequences[seq.request_id]
            return
        request = self._active.pop(seq)
        self._is_blocked = False
        if not self._is_pausing:
            if seq.is_decoding:
                request.num_generated_tokens = self.step_index - seq.decode_origin_step - request.num_tokens_before
            self._scheduler.on_request_end(request, is_complete=request.state == LlmRequestState.GENERATION_COMPLETE)
        if seq.is_decoding:
            self._kv_cache.on_decode_end(request)
            super().remove(seq)
            return
        del self.sequences[seq.request.id]
        if request.has_blocks:
            self._prefilling.remove(seq)
            self._blocks.release_reserved(seq, seq.num_computed_tokens, seq.num_tokens_to_prefill)

    def check(self) -> None:
        held = 0
        for request in self._active.in_order:
            seq = request.seq
            if seq.is_decoding:
                held += self._blocks.blocks_held(seq, self._kv_tokens(seq))
            elif request.has_blocks:
                held += self._blocks.blocks_held(seq, seq.num_tokens_to_prefill)
        self._blocks.check(held)
        decoding = [seq for seq in self.sequences.values() if seq.is_decoding]
        if len(decoding) != self.num_decodes or sum([self._kv_tokens(seq) for seq in decoding]) != self.context_tokens:
            raise InvariantError(f"{self.num_decodes} decodes over {self.context_tokens} tokens are not the sequences")
        self._active.check()
        if [*self._active.by_id] != [each.request_id for each in self.sequences.values() if not each.is_complete]:
            raise InvariantError("the active requests are not the sequences of the batch")

    @property
    def _serves_all_decodes(self) -> bool:
        """Whether the scheduler would serve all sequences, which all decode, in every step for which there are blocks."""
        return (
            not self._by_step and self._scheduler.repeats_its_answer and self.num_decodes <= self._limits.max_num_batched_tokens
        )

    def _decode_tokens(self) -> int:
        return self.context_tokens

    def _activate(self, waiting: WaitQueue) -> None:
        """Make waiting sequences active, as many as may be."""
        while not self.is_full and (head := waiting.peek()) is not None and self._has_use_for(head):
            seq = waiting.pop()
            self.sequences[seq.request.id] = seq
            self._active.add(ActiveRequest(seq, self._max_model_len))

    def _has_use_for(self, head: SequenceState) -> bool:
        """Return whether the scheduler is to see `head`, which waits."""
        most = self._scheduler.max_num_pending
        active = self._active
        if most is None or active.num_pending < most or active.num_pending_tokens < self._limits.max_num_batched_tokens:
            return True
        return all(request.has_blocks or request.priority < head.priority for request in active.in_order)

    def _in_order(self) -> list[LlmRequest]:
        """Return the active requests in the order in which the scheduler is to see them."""
        if not self._puts_begun_first:
            return [*self._active.in_order]
        return [*sorted(self._active.in_order, key=lambda request: not request.has_blocks)]

    def _decide(self) -> tuple[SchedulerOutput, bool]:
        """Return the decision of the scheduler, and whether it took no look at the requests that generate: then all of them
        generate in this step. Otherwise the progress of the active requests has been settled."""
        try:
            if (beside := self._decide_beside()) is not None:
                return beside, True
            step = self.step_index
            for request in self._active.in_order:
                seq = request.seq
                if seq.is_decoding:
                    request.num_generated_tokens = step - seq.decode_origin_step - request.num_tokens_before
            output = self._scheduler.schedule_request(self._in_order(), _NO_IDS)
        except MaitredError:
            raise
        except Exception as error:  # a class of the user's own may raise anything
            raise self._failed(error) from error
        if not isinstance(output, SchedulerOutput):
            raise ConfigError(f"batch scheduler {self._name} answers with {type(output).__name__}, not a SchedulerOutput")
        return output, False

    def _decide_beside(self) -> SchedulerOutput | None:
        """Return the decision of the scheduler without a look at the requests that generate; None if it has to look, or if they
        do not come first, then those that have begun, and then the others."""
        active, others, num_begun = self._active.in_order, self._active.not_generating, len(self._prefilling)
        generating, begun, pending = active[: self.num_decodes], others[:num_begun], others[num_begun:]
        in_order = not others or active[self.num_decodes] is others[0]
        if not (in_order and all(request.has_blocks for request in begun)):
            if not self._puts_begun_first:
                return None
            generating = [request for request in active if request.seq.is_decoding]
            begun = [request for request in others if request.has_blocks]
            pending = [request for request in others if not request.has_blocks]
        return self._scheduler.schedule_beside([*generating], [*begun], [*pending])

    def _failed(self, error: Exception) -> ConfigError:
        """Return the error that an exception of the scheduler becomes. If it says that it cannot go on, what is lacking may
        help; the others are slips in its code."""
        who, kind = f"batch scheduler {self._name}", type(error).__name__
        if isinstance(error, (AssertionError, RuntimeError, ValueError)):
            return ConfigError(f"{who}: {str(error) or kind}", hint=self._kv_cache.shortage(self._active.in_order))
        return ConfigError(f"{who}: {kind}: {error}", hint="its own code raised this, or its answer is of another form")

    def _known(self, requests: Sequence[object]) -> list[ActiveRequest]:
        """Return `requests`, which the scheduler has named. Raises ConfigError for one that is not active, or named twice."""
        known = [request for request in requests if isinstance(request, ActiveRequest)]
        by_id = self._active.by_id
        if len({*known}) != len(requests) or any(by_id.get(request.request_id) is not request for request in known):
            raise ConfigError(f"batch scheduler {self._name} names a request that is not active, or one twice")
        return known

    def _pause(self, request: ActiveRequest) -> SequenceState:
        if not request.has_blocks:
            raise ConfigError(f"batch scheduler {self._name} pauses request {request.request_id}, which has not begun")
        self._is_pausing = True
        seq = self._preempt(request.seq)
        self._is_pausing = False
        return seq

    def _left_out(self, output: SchedulerOutput) -> list[SequenceState]:
        """Return the sequences that decode and are not scheduled."""
        scheduled = output.generation_requests
        if len(scheduled) == self.num_decodes == [request.state for request in scheduled].count(_GENERATING):
            return []
        ids = {request.request_id for request in self._known(scheduled)}
        if not all(self._active.by_id[request_id].seq.is_decoding for request_id in ids):
            raise ConfigError(f"batch scheduler {self._name} lets a request generate that is in its prompt, or paused")
        active = self._active.in_order
        return [request.seq for request in active if request.seq.is_decoding and request.request_id not in ids]

    def _start_chunks(self, requests: list[ActiveRequest], plan: StepPlan, now: Micros) -> None:
        """Plan the chunks of `requests`. First chunks take the blocks of the whole prompt."""
        prefixed = self._prefix_blocks
        if prefixed is not None:
            prefixed.reserve_next_step()
            prefixed.apply_evictions()
        spare = self._blocks.free - (self._blocks.decode_blocks(1) if prefixed is None else 0)
        chunks: list[PrefillChunk] = []
        for request in requests:
            seq = request.seq
            if seq.is_decoding:
                raise ConfigError(f"batch scheduler {self._name} lets request {request.request_id} compute its prompt again")
            if not request.has_blocks:
                hit = NO_HIT if prefixed is None else prefixed.find_cached(seq)
                needed = self._blocks.blocks_for(seq.num_tokens_to_prefill) - hit.num_blocks + hit.num_unreferenced
                if needed > spare and plan.preempted:
                    continue  # a request that is paused in this step held blocks that this one was to share
                if needed > spare:
                    raise self._overcommitted(needed, spare)
                self._begin(request, hit, now)
                spare -= needed
            tokens = min(request.context_chunk_size, seq.num_tokens_to_prefill - seq.num_computed_tokens)
            if tokens < 1:
                raise ConfigError(f"batch scheduler {self._name} schedules a chunk without tokens")
            seq.num_scheduled_tokens = tokens
            chunks.append(PrefillChunk(tokens, seq.num_computed_tokens, seq.num_tokens_to_prefill, seq))
        plan.chunks = chunks
        plan.prefill_tokens = sum([chunk.num_tokens for chunk in chunks])
        if plan.prefill_tokens + self.num_decodes - len(self._stalled) > self._limits.max_num_batched_tokens:
            raise ConfigError(f"batch scheduler {self._name} schedules more than {self._limits.max_num_batched_tokens} tokens")

    def _chunk_repeats(self, plan: StepPlan, limit: int) -> int:
        """Return how often, at most `limit` times, the step of `plan` may run, which goes on with prompts that have begun."""
        is_alone = len(self._active.not_generating) <= 1 and not self.num_transferred
        if self._by_step or not (is_alone and self._scheduler.repeats_lone_chunk):
            return 1
        # A chunk may be less than the tokens that were left, by less than a unit: the last one takes these, too.
        chunk, unit = plan.chunks[0], self._blocks.block_size
        others = (chunk.total_tokens - chunk.num_computed_tokens - chunk.num_tokens - unit) // chunk.num_tokens
        plan.takes_decode_blocks = self._prefix_blocks is not None
        return max(1, self._blocks.max_steps(min(limit, 1 + others)))

    def _begin(self, request: ActiveRequest, hit: PrefixHit, now: Micros) -> None:
        """Give `request` the blocks of its prompt, of which `hit` is cached."""
        seq, blocks = request.seq, self._blocks
        # It claims what is cached by now, which may be less than the scheduler expected to find, and still computes no more
        # tokens than were charged: the budget of the step is shared out already.
        charged = max(1, reuse_adjusted_cost(request.context_chunk_size, reusable_tokens(request), request.prompt_len))
        if self._prefix_blocks is not None:
            self._prefix_blocks.admit(seq, hit)
        blocks.reserve(blocks.blocks_for(seq.num_tokens_to_prefill) - hit.num_blocks)
        start = hit.num_blocks * blocks.block_size
        if seq.transferred_kv_tokens:
            start = seq.transferred_kv_tokens  # its KV is written into these blocks
            self.num_transferred += 1
        index = seq.admission_index
        self._add_running(seq, start, 0, now)
        if seq.num_preemptions:
            seq.admission_index = index  # its place among the active requests
        self._active.begin(request)
        request.context_current_position = request.prepopulated_prompt_len = start
        request.num_shared_blocks = hit.num_blocks - hit.num_unreferenced
        request.context_chunk_size = min(request.prompt_len - start, charged)

    def _max_repeats(self, limit: int) -> int:
        if self._prefix_blocks is not None and self._active.num_pending:
            # An eviction changes what is cached of a prompt, and so whether it fits.
            limit = self._prefix_blocks.max_unchanged_steps(limit)
        return max(1, self._blocks.max_steps(limit))

    def _check_progress(self) -> None:
        """Raise ConfigError if nothing is scheduled: the scheduler would say the same for ever. Slots that are about to be free
        may change that."""
        if self.num_decodes or len(self.sequences) > len(self._active.by_id):
            return
        problem = f"batch scheduler {self._name} schedules nothing, and {len(self._active.in_order)} requests are active"
        for request in self._active.in_order:
            reason = self._scheduler.why_waiting(request)
            if reason is not None:
                raise ConfigError(problem, hint=f"request {request.request_id}: {reason}")
        raise ConfigError(problem, hint=self._kv_cache.shortage(self._active.in_order))

    def _overcommitted(self, needed: int, free: int) -> ConfigError:
        problem = f"batch scheduler {self._name} schedules requests that need {needed} KV blocks, and {free} are free"
        return ConfigError(problem, hint="increase total_kv_blocks, or use a batch scheduler that counts blocks")


_GENERATING = LlmRequestState.GENERATION_IN_PROGRESS
