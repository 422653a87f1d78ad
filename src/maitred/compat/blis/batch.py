"""BlisBatch: continuous batching by BLIS's rules, where they differ from vLLM's.

* A waiting sequence is admitted when its first chunk fits, not its whole prompt: of 1,000 tokens in chunks of 256, with blocks
  of 16, 16 blocks must be free and not 63.
* A victim starts anew: what it has emitted is lost.
* When the sequence that needs a block is itself the victim, those admitted after it stand still in this step.
* A prompt that is cached as a whole computes nothing, and gets its first token nevertheless.
* The last token of an answer needs a block like the others.
* What a prompt finds in the cache does not count as history of its first chunk: no time is charged for reading it.

Blocks are taken sequence by sequence in the order of admission, since in BLIS's cache the order of evictions matters.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.batching import BatchLimits, PreemptionPolicy, PrefillChunk, RunningBatch, StepPlan
from maitred.compat.blis.block_manager import BlisBlockManager
from maitred.core.contracts import BatchShape, WaitQueue
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros


class BlisBatch(RunningBatch):
    """The running batch of one instance, as BLIS plans its steps."""

    discounts_stalls = True
    follows_limit = False

    __slots__ = ("_kv", "_max_chunk_tokens", "_preemption_policy")

    def __init__(self, limits: BatchLimits, blocks: BlisBlockManager, preemption_policy: PreemptionPolicy) -> None:
        super().__init__(limits, blocks)
        self._kv = blocks
        self._preemption_policy = preemption_policy
        budget = limits.max_num_batched_tokens
        self._max_chunk_tokens = limits.long_prefill_token_threshold or min(limits.max_chunk_tokens or budget, budget)

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        plan = self._plan(waiting, now, max_repeats)
        plan.fetch_time = self._kv.take_fetch_time()
        if plan.fetch_time:
            plan.max_repeats = 1
        return plan

    def _plan(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        """Plan the step, without the time for what is fetched for it."""
        kv, open_to = self._kv, None if self.is_full else waiting
        if open_to is None and not (self._prefilling or kv.must_form_step):
            repeats = kv.max_steps(max_repeats)
            if repeats:
                return StepPlan(repeats)
        plan = StepPlan(1)
        budget = self._schedule_running(plan)
        if plan.preempted or plan.stalled:
            return plan  # as in BLIS, a step that lacks blocks admits no sequence
        if open_to is not None:
            kv.apply_evictions()
            open_to.on_step_start(self, now)
            self._admit_first_chunks(open_to, plan, budget, now)
            # Waiting sequences may hold so many fetched blocks together that none could ever be admitted.
            if not self.sequences and kv.release_waiting():
                self._admit_first_chunks(open_to, plan, budget, now)
            max_repeats = kv.max_unchanged_steps(max_repeats)
        if not plan.chunks:
            plan.max_repeats = kv.max_steps(max_repeats)
        return plan

    def batch_shape(self, plan: StepPlan) -> BatchShape:
        decodes, context = self._serving_decodes()
        return BatchShape(decodes, context, plan.prefill_tokens, tuple(chunk for chunk in plan.chunks if chunk.num_tokens))

    def run_steps(self, steps: int) -> None:
        super().run_steps(steps)
        self._kv.on_step_end((seq, self._owned_tokens(seq) + seq.num_scheduled_tokens) for seq in self.sequences.values())

    def finish(self, seq: SequenceState) -> None:
        # BLIS takes a block for the last token, too. It is given back at once, but what was evicted for it is gone.
        self._kv.try_open_block(seq, self._owned_tokens(seq))
        self.remove(seq)

    def _schedule_running(self, plan: StepPlan) -> int:
        """Let the running sequences take their tokens and blocks in turn. What a preempted sequence had is free for those after
        it. Return what is left of the token budget."""
        budget = self._limits.max_num_batched_tokens
        if not self._prefilling and self.num_decodes <= budget and self._kv.try_open_all():
            self._stall([])
            plan.stalled = self._stalled
            return budget - self.num_decodes
        order, served = list(self.sequences.values()), 0
        scheduled: dict[SequenceState, PrefillChunk | None] = {}
        preempted: list[SequenceState] = []
        while served < len(order) and budget > 0:
            seq = order[served]
            chunk = None if seq.is_decoding else self._next_chunk(seq, budget)
            while seq not in preempted and not self._allocate(seq, chunk):
                if len(order) == 1 and self._kv.try_relieve():
                    continue
                victim = order.pop(self._preemption_policy.choose_victim(order))
                if victim in scheduled:  # the victim has had its turn: its tokens of the budget are free for others again
                    budget += _budget_tokens(scheduled.pop(victim))
                    served -= 1
                preempted.append(self._preempt(victim))
            if seq in preempted:
                break  # BLIS ends its loop here, so the sequences admitted after it stand still
            scheduled[seq] = chunk
            budget -= _budget_tokens(chunk)
            served += 1
        self._stall([seq for seq in order[served:] if seq.is_decoding])
        plan.chunks = [chunk for chunk in scheduled.values() if chunk is not None]
        plan.prefill_tokens = sum(chunk.num_tokens for chunk in plan.chunks)
        plan.preempted, plan.stalled = preempted, self._stalled
        return budget

    def _next_chunk(self, seq: SequenceState, budget: int) -> PrefillChunk:
        return PrefillChunk(
            min(seq.num_tokens_to_prefill - seq.num_computed_tokens, self._max_chunk_tokens, budget),
            seq.num_computed_tokens,
            seq.num_tokens_to_prefill,
            seq,
        )

    def _allocate(self, seq: SequenceState, chunk: PrefillChunk | None) -> bool:
        """Take the blocks of `seq` for this step; return False if they are not free."""
        if chunk is None:
            return self._kv.try_open_block(seq, self._owned_tokens(seq))
        allocated = self._kv.try_grow(seq, chunk.num_computed_tokens, chunk.num_tokens)
        if allocated:
            seq.num_scheduled_tokens = chunk.num_tokens
        return allocated

    def _admit_first_chunks(self, waiting: WaitQueue, plan: StepPlan, budget: int, now: Micros) -> None:
        """Admit waiting sequences while their first chunk fits, within `budget` tokens."""
        chunks = list(plan.chunks)
        while budget > 0 and not self.is_full and (seq := waiting.peek()) is not None:
            hit = self._kv.find_cached(seq)
            cached = hit.num_blocks * self._kv.block_size
            tokens = min(seq.num_tokens_to_prefill - cached, self._max_chunk_tokens, budget)
            if not self._kv.try_admit(seq, hit, tokens):
                break
            waiting.pop()
            self._add_running(seq, cached, tokens, now)
            # From 0 and not from `cached`: BLIS charges no time for reading what was found in the cache.
            chunks.append(PrefillChunk(tokens, 0, seq.num_tokens_to_prefill, seq))
            budget -= tokens
            plan.prefill_tokens += tokens
        plan.chunks = chunks

    def _start_decode(self, seq: SequenceState) -> None:
        super()._start_decode(seq)
        if self._kv.unowned_tokens(seq):
            self._kv.stop_decode(seq.num_computed_tokens)
            self._kv.start_decode(self._owned_tokens(seq))

    def _owned_tokens(self, seq: SequenceState) -> int:
        return self._kv_tokens(seq) - self._kv.unowned_tokens(seq)

    def _preempt(self, seq: SequenceState) -> SequenceState:
        super()._preempt(seq)
        seq.num_tokens_to_prefill = seq.request.prompt_tokens
        return seq


def _budget_tokens(chunk: PrefillChunk | None) -> int:
    """Return the tokens of the budget that a running sequence takes."""
    return 1 if chunk is None else chunk.num_tokens
