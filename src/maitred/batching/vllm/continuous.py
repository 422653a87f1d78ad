"""ContinuousBatch: how vLLM plans its steps (the rules are those of vLLM 0.32, and of 0.33 where they differ).

    1. Running sequences first, in the order in which they were admitted: one token for each that decodes, a chunk for each that
       prefills, as far as the token budget goes. A chunk is at most `long_prefill_token_threshold`, unless no other request is
       here.
    2. If their KV blocks do not all fit, they take them in turn, and a victim is preempted for the one that finds none: the
       last admitted, or by priority. It loses its KV, keeps the tokens that it has emitted, and goes back to the front of the
       wait queue. No sequence is admitted in a step with a victim.
    3. Otherwise the wait queue is admitted, head first, until the budget, the sequence limit or the blocks are used up. A
       sequence that does not fit blocks those behind it.

vLLM 0.33 may leave 3., and the chunks of 1., out of most steps (`prefill_cadence`). A step without victims repeats
itself until an answer or a prompt is complete, a prompt has less than a whole chunk left, a sequence arrives that could join or
the blocks run out (`StepPlan.max_repeats`).

Example: a budget of 512 tokens, blocks of 16, 60 of them free. One sequence decodes and holds 31 tokens; a prompt of 700 tokens
waits. The decode takes 1 token and opens no block (its 32nd token fits). The prompt needs 44 blocks in all, which are free, so
it is admitted with a chunk of 511 tokens in 32 blocks. The next step has the other 189 tokens in 12 blocks.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from maitred.batching.limits import BatchLimits, PreemptionPolicy, PrefillChunk
from maitred.batching.running_batch import RunningBatch, StepPlan
from maitred.batching.vllm.prefill_cadence import PrefillCadence
from maitred.core.contracts import WaitQueue
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv import NO_HIT, BlockManager


class ContinuousBatch(RunningBatch):
    """The running batch of one instance, and what its next step holds."""

    __slots__ = (
        "_cadence",
        "_decode_plan",
        "_largest_chunk",
        "_limits_chunks",
        "_max_chunk_tokens",
        "_max_tokens",
        "_preemption_policy",
        "_reserves_prompt",
        "_stops_at_own_preemption",
        "_threshold",
        "_watermark_blocks",
    )

    def __init__(
        self, limits: BatchLimits, blocks: BlockManager, preemption_policy: PreemptionPolicy = PreemptionPolicy.LAST_ADMITTED
    ) -> None:
        super().__init__(limits, blocks)
        self._preemption_policy = preemption_policy
        self._reserves_prompt = limits.scheduler_reserve_full_isl
        self._watermark_blocks = limits.watermark_blocks
        self._stops_at_own_preemption = not limits.goes_on_after_own_preemption
        interval = limits.prefill_schedule_interval
        self._cadence = PrefillCadence(interval) if interval > 1 else None
        """When prefill is held back, or None if it never is."""
        self._threshold = limits.long_prefill_token_threshold
        self._max_tokens = limits.max_num_batched_tokens
        self._largest_chunk = min(limits.max_chunk_tokens or self._max_tokens, self._max_tokens)
        self._limits_chunks = self._threshold > 0 or self._largest_chunk < self._max_tokens
        """Whether a chunk may have less than all tokens of a step, though its prompt has more."""
        self._max_chunk_tokens = self._threshold or self._largest_chunk
        """Tokens of one chunk in the step about to be planned."""
        self._decode_plan = StepPlan(1)
        """The plan of the usual step, which only decodes: one object for all of them, since only its repetitions differ. So it
        is valid until the next step is planned."""
        self._decode_plan.is_plain = True

    @property
    def is_full(self) -> bool:
        # How many wait decides, with a threshold, how large the chunks of those that run are.
        return len(self.sequences) >= self._max_num_seqs and not (self._threshold and self._prefilling)

    @property
    def has_one_slot(self) -> bool:
        """Whether exactly one sequence more may run."""
        return len(self.sequences) + 1 == self._max_num_seqs

    @property
    def admits_whole(self) -> bool:
        """Whether `admit_whole` may be asked: what limits the chunk of a prompt does not change from step to step."""
        return self._prefix_blocks is None and self._cadence is None and not self._threshold

    def _schedule_in_cadence(self, cadence: PrefillCadence, waiting: WaitQueue | None, now: Micros) -> StepPlan:
        """Plan the step that begins at `now`, which runs once: the next one may have another part in the cadence."""
        cadence.begin_step(any_decodes=len(self.sequences) > len(self._prefilling))
        prefilling = set(self._prefilling)
        plan = ContinuousBatch.schedule(self, waiting, now, 1, in_cadence=True)
        if not plan.preempted:
            cadence.note_backlog(0 if waiting is None else len(waiting))
        # A prompt of which one token was left when it was admitted counts as a decode.
        if any(chunk.seq in prefilling or chunk.num_computed_tokens < chunk.total_tokens - 1 for chunk in plan.chunks):
            cadence.note_prefill()
        cadence.end_step(has_tokens=bool(plan.chunks) or self.num_decodes > len(plan.stalled))
        return plan

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int, *, in_cadence: bool = False) -> StepPlan:
        """Plan a step, as the base says. `in_cadence`: the cadence, if there is one, knows of this step."""
        if self._cadence is not None and not in_cadence:
            return self._schedule_in_cadence(self._cadence, waiting, now)
        self.num_transferred = 0
        open_to = waiting
        if waiting is not None and len(self.sequences) >= self._max_num_seqs:
            open_to = None  # the batch is full
        # The usual step: nothing prefills and nothing can be admitted, so only the free blocks limit the run, and planning it
        # costs O(block size) at most, however many sequences decode.
        if open_to is None and not self._prefilling:
            return self._repeat_decodes(max_repeats) or self._serve_in_turn()
        return self._schedule_prompts(waiting, open_to, now, max_repeats)

    def plan_decodes(self, max_repeats: int) -> StepPlan | None:
        return self._repeat_decodes(max_repeats) if self._cadence is None else None

    def admit_whole(self, seq: SequenceState, now: Micros) -> bool:
        """Admit `seq` to a step with its whole prompt, while no other one prefills and none could join beside it. Return False
        if that does not fit, or there is more to it: ask `schedule`, which would do the same. `admits_whole` must be true."""
        tokens, decodes, blocks = seq.prompt_tokens, self.num_decodes, self._blocks
        if seq.num_preemptions or seq.transferred_kv_tokens or decodes >= self._max_num_seqs:
            return False
        if tokens > self._max_tokens - decodes or tokens > self._max_chunk_tokens:
            return False
        taken = -(-tokens // blocks.block_size)
        # Decodes take their blocks before prompts do. The watermark is room for them to grow, and keeps nothing out of an empty
        # batch.
        if not blocks.has_room(taken + (self._watermark_blocks if decodes else 0), 1):
            return False
        blocks.reserve(taken)
        seq.num_scheduled_tokens, seq.scheduled_at = tokens, now
        seq.admission_index = self._num_admissions
        self._num_admissions += 1
        self.sequences[seq.request_id] = seq
        self._prefilling.append(seq)
        return True

    def whole_chunks(self) -> Sequence[PrefillChunk]:
        """Return the chunk of the sequence that `admit_whole` has admitted, or none if it was withdrawn."""
        return [PrefillChunk(seq.prompt_tokens, 0, seq.prompt_tokens, seq) for seq in self._prefilling]

    def complete_whole(self) -> SequenceState | None:
        """Let the sequence decode that `admit_whole` has admitted, after its step. Return it, or None if it was withdrawn."""
        if not self._prefilling:
            return None
        seq = self._prefilling.pop()
        seq.num_computed_tokens = tokens = seq.prompt_tokens
        seq.num_scheduled_tokens = 0
        seq.is_decoding = True
        seq.decode_origin_step = self.step_index - 1  # its first token came with the step that has just been counted
        self.num_decodes += 1
        self.context_tokens += tokens
        self._blocks.start_decode(tokens)
        return seq

    def finish(self, seq: SequenceState) -> None:
        """Remove `seq`, whose answer is complete: as `remove`, of a sequence that decodes while none stands still."""
        del self.sequences[seq.request_id]
        seq.is_decoding = False
        seq.num_output_tokens = emitted = self.step_index - seq.decode_origin_step
        seq.num_computed_tokens = held = seq.prompt_tokens + emitted - 1
        self.num_decodes -= 1
        self.context_tokens -= held
        self._blocks.release_decoding(seq, held)

    def _repeat_decodes(self, max_repeats: int) -> StepPlan | None:
        """Plan a step that only decodes, or return None if the blocks for it are not free."""
        self.num_transferred = 0
        repeats = self._blocks.max_steps(max_repeats)
        if not repeats:
            return None
        plan = self._decode_plan
        plan.max_repeats, plan.takes_decode_blocks = repeats, False
        return plan

    def _schedule_prompts(
        self, waiting: WaitQueue | None, open_to: WaitQueue | None, now: Micros, max_repeats: int
    ) -> StepPlan:
        """Plan a step of which prompts may be a part. `open_to` is `waiting`, or None if the batch is full."""
        blocks = self._blocks
        if self._threshold:
            self._set_max_chunk(len(self.sequences) + (0 if waiting is None else len(waiting)))
        # Each decode finds its token: it was admitted when the budget held it beside all before it, and what those take never
        # grows. (An adaptive threshold may grow, but not beyond an equal share of the budget.)
        budget = room = self._max_tokens - self.num_decodes
        chunks: list[PrefillChunk] = []
        needed = 0
        if self._prefilling and not (self._cadence is not None and self._cadence.holds):
            budget, needed = self._plan_running_chunks(chunks, budget)
        # All running sequences are checked by their sum. The order in which they take blocks matters only if the sum does not
        # fit, so the walk over the batch is left to `_serve_in_turn`.
        spare = blocks.free - blocks.decode_blocks(1) - needed
        if spare < 0:
            return self._serve_in_turn()
        # Not reached in a step with a victim: vLLM admits no sequence there, which would only take what the victim lacked.
        if open_to is not None and budget > 0:
            for chunk in chunks:  # else they take their blocks when the step is counted, as nothing looks before that
                self._begin_chunk(chunk.seq, chunk.num_tokens)
            budget = self._admit_waiting(open_to, chunks, spare, budget, now)
        if chunks:
            plan = StepPlan(1, chunks, room - budget)
            prefixed = self._prefix_blocks
            if prefixed is not None and prefixed.host is not None:
                plan.load_time = prefixed.host.take_load_time()
            plan.is_plain = not (self.num_transferred or plan.load_time)
            # If the tokens suffice for all, each chunk completes its prompt.
            if max_repeats > 1 and plan.is_plain and (self._limits_chunks or not budget):
                # What the chunks commit may be the beginning of the prompt at the head, which could be admitted then.
                may_admit = budget > 0 and open_to is not None and prefixed is not None
                plan.is_closed = not (budget or self._threshold)
                plan.max_repeats = 1 if may_admit else self._chunk_repeats(chunks, max_repeats)
            return plan
        if self._prefix_blocks is not None and (self.announces_steps or not self._prefix_blocks.cache.is_blockwise):
            # An eviction changes what is cached of waiting prompts, and so which sequence is next. If that does not depend on
            # it, the head fits no better than before: it has lost no more free blocks that it needs not lock than the decodes
            # have taken. Only an eviction of more than they need would let it in.
            max_repeats = self._prefix_blocks.max_unchanged_steps(max_repeats)
        plan = self._decode_plan
        plan.max_repeats, plan.takes_decode_blocks = blocks.max_steps(max_repeats), open_to is not None and budget > 0
        return plan

    def _set_max_chunk(self, num_requests: int) -> None:
        """Set the largest chunk of the next step, with `num_requests` requests that run or wait: vLLM's rule for
        `long_prefill_token_threshold`, which protects the others from a long prompt, so that one alone has no limit."""
        budget, threshold = self._limits.max_num_batched_tokens, self._threshold
        if num_requests <= 1:
            threshold = budget  # the only request keeps no other one waiting
        elif self._limits.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, budget // num_requests)
        self._max_chunk_tokens = min(threshold, self._largest_chunk)

    def _plan_running_chunks(self, chunks: list[PrefillChunk], budget: int) -> tuple[int, int]:
        """Add the chunks of the running sequences that prefill to `chunks`, at most `budget` tokens in all. Return what is left
        of the budget, and the blocks that the chunks open."""
        size, needed = self._blocks.block_size, 0
        for seq in self._prefilling:
            computed, total = seq.num_computed_tokens, seq.num_tokens_to_prefill
            tokens = min(total - computed, self._max_chunk_tokens, budget)
            budget -= tokens
            # The blocks of all tokens less those of the computed ones, both rounded up: without calls, for each prompt in each
            # step.
            needed += -(-(computed + tokens) // size) + (-computed // size)
            chunks.append(PrefillChunk(tokens, computed, total, seq))
        return budget, needed

    def _chunk_repeats(self, chunks: Sequence[PrefillChunk], limit: int) -> int:
        """Return how often, at most `limit` times, a step with `chunks` may run.

        Each sequence takes what those before it leave of the budget, and all but complete ones take the same again. So the step
        repeats itself while each prompt has a whole chunk left, and until one of them is complete.
        """
        for chunk in chunks:
            if chunk.num_tokens:
                limit = min(limit, (chunk.total_tokens - chunk.num_computed_tokens) // chunk.num_tokens)
        if limit <= 1 or self._has_blocks_for(chunks, limit):
            return limit
        return 1 + bisect_left(range(2, limit), True, key=lambda steps: not self._has_blocks_for(chunks, steps))

    def _has_blocks_for(self, chunks: Sequence[PrefillChunk], steps: int) -> bool:
        """Return whether the blocks of `steps` steps with `chunks` are free, or taken."""
        blocks, opened = self._blocks, self._blocks.decode_blocks(steps)
        for chunk in chunks:
            computed, taken = chunk.num_computed_tokens, chunk.seq.num_scheduled_tokens
            opened += blocks.blocks_for(computed + chunk.num_tokens * steps) - blocks.blocks_for(computed + taken)
        return opened <= blocks.free_committed

    def _admit_waiting(self, waiting: WaitQueue, chunks: list[PrefillChunk], spare: int, budget: int, now: Micros) -> int:
        """Admit waiting sequences within `spare` blocks and `budget` tokens, and add a chunk for each to `chunks`. Return what
        is left of the budget."""
        sequences, size, prefixed = self.sequences, self._blocks.block_size, self._prefix_blocks
        most, watermark, max_chunk = self._max_num_seqs, self._watermark_blocks, self._max_chunk_tokens
        holds_prefill = self._cadence is not None and self._cadence.holds
        if prefixed is not None:
            prefixed.reserve_next_step()  # decodes take their blocks before prompts do, so they evict first
        if self.announces_steps:
            self._announce_step(waiting, now)
        while budget > 0 and len(sequences) < most:
            seq = waiting.peek()
            if seq is None:
                break
            hit = NO_HIT if prefixed is None else prefixed.find_cached(seq)
            # A cached block that no lock holds is one of the free blocks, and is so no more once it is locked.
            room = spare - hit.num_unreferenced
            # The watermark is room for running sequences to grow. With none it would keep a large prompt out for ever.
            if watermark and sequences:
                room -= watermark
            cached = hit.num_blocks * size
            start = cached + hit.num_in_host * size  # blocks from the host are written into others of the GPU
            if seq.transferred_kv_tokens:
                # The KV that comes along is written into blocks of this instance, so `taken` counts from `cached` and not
                # from `start`.
                start = seq.transferred_kv_tokens
            tokens = seq.num_tokens_to_prefill - start
            tokens = tokens if tokens < max_chunk else max_chunk
            if tokens > budget:
                if not self._limits.enable_chunked_prefill:
                    break  # and no look past the head: behind a stream of short prompts a long one would never be admitted
                tokens = budget
            # The whole prompt must fit, and not only its first chunk: otherwise it could be preempted before it is complete,
            # and what was computed of it would be wasted.
            needed = (seq.num_tokens_to_prefill if self._reserves_prompt else start + tokens) - cached
            if needed > room * size or (holds_prefill and start < seq.num_tokens_to_prefill - 1):
                break
            waiting.pop()
            if seq.transferred_kv_tokens:
                self.num_transferred += 1
            taken = -(-(start + tokens - cached) // size)
            # The hit is locked before blocks are reserved, which could evict it. The content is committed at once, and not
            # when the step ends, so that the next sequence that is admitted in this step finds it.
            if prefixed is not None:
                prefixed.admit(seq, hit)
            self._blocks.reserve(taken)
            if prefixed is not None:
                prefixed.fill(seq, start + tokens)
            spare -= hit.num_unreferenced + taken
            budget -= tokens
            self._add_running(seq, start, tokens, now)
            chunks.append(PrefillChunk(tokens, start, seq.num_tokens_to_prefill, seq))
        return budget

    def _announce_step(self, waiting: WaitQueue, now: Micros) -> None:
        """Tell the wait queue, which may look at the cache, that a step is about to be formed."""
        if self._prefix_blocks is not None:
            self._prefix_blocks.apply_evictions()
        waiting.on_step_start(self, now)

    def _serve_in_turn(self) -> StepPlan:
        """Let the running sequences take tokens and blocks in their order, because these do not suffice for all. While one does
        not find its blocks, preempt a victim. What a victim was to compute in this step is free for those after it."""
        order, served, budget = list(self.sequences.values()), 0, self._limits.max_num_batched_tokens
        tokens_of: dict[SequenceState, int] = {}
        preempted: list[SequenceState] = []
        while served < len(order) and budget > 0:
            seq = order[served]
            tokens = self._next_tokens(seq, budget)
            needed = self._next_blocks(seq, tokens)
            while needed > self._blocks.free and seq not in preempted:
                index = self._preemption_policy.choose_victim(order)
                victim = order.pop(index)
                served -= index < served
                budget += tokens_of.pop(victim, 0)
                preempted.append(self._preempt(victim))
            if seq in preempted:
                # By priority, the sequence that lacks a block may be the victim itself. vLLM 0.32 ends its loop there, so those
                # after it stand still; vLLM 0.33 goes on. (The last admitted has none after it.)
                if self._preemption_policy is PreemptionPolicy.LEAST_URGENT_CLIENT and self._stops_at_own_preemption:
                    break
                continue
            if tokens:
                tokens_of[seq] = tokens
                self._take_blocks(seq, tokens, needed)
                if self._cadence is not None and not seq.is_decoding:
                    self._cadence.note_prefill()  # it counts as prefill in vLLM even if the sequence is preempted after that
            budget -= tokens
            served += 1
        self._stall([seq for seq in order[served:] if seq.is_decoding])
        chunks = [
            PrefillChunk(tokens_of[seq], seq.num_computed_tokens, seq.num_tokens_to_prefill, seq)
            for seq in self._prefilling
            if seq in tokens_of
        ]
        plan = StepPlan(1, chunks, sum(chunk.num_tokens for chunk in chunks))
        plan.preempted, plan.stalled = preempted, self._stalled
        return plan

    def _next_tokens(self, seq: SequenceState, budget: int) -> int:
        """Return how many tokens `seq`, which runs, computes in the next step if all before it leave it `budget`."""
        if seq.is_decoding:
            return 1
        if self._cadence is not None and self._cadence.holds:
            return 0
        return min(seq.num_tokens_to_prefill - seq.num_computed_tokens, self._max_chunk_tokens, budget)

    def _next_blocks(self, seq: SequenceState, tokens: int) -> int:
        """Return the number of blocks that `seq` opens for its next `tokens` tokens."""
        held, blocks_for = self._kv_tokens(seq), self._blocks.blocks_for
        return blocks_for(held + tokens) - blocks_for(held)

    def _take_blocks(self, seq: SequenceState, tokens: int, blocks: int) -> None:
        """Take `blocks` blocks for the next `tokens` tokens of `seq`."""
        if not seq.is_decoding:
            self._begin_chunk(seq, tokens)
        elif blocks:
            self._blocks.open_block(seq)
