"""ContinuousBatch: how vLLM plans its steps.

    1. Running sequences first, in the order in which they were admitted: one token for each that decodes, a chunk for each that
       prefills, at most `long_prefill_token_threshold`, as far as the token budget goes.
    2. If their KV blocks do not all fit, a victim is preempted, usually the last admitted: it loses its KV, keeps the tokens
       that it has emitted, and goes back to the front of the wait queue. Then no sequence is admitted in this step.
    3. Otherwise the wait queue is admitted, head first, until the budget, the sequence limit or the blocks are used up. A
       sequence is admitted only when its whole prompt fits, and one that does not fit blocks those behind it.

A step without chunks or victims repeats itself until a sequence completes, one arrives or the blocks run out, so
`StepPlan.max_repeats` says how often it may run. Sequences that decode are never touched on the way: their number and their
context are kept as sums, and the progress of each follows from the step counter (`SequenceState.decode_origin_step`). Every
decoding sequence finds room in the token budget of every step: it was admitted when the budget held it beside all before it,
and what those take never grows.

Example: a budget of 512 tokens, blocks of 16, 60 of them free. One sequence decodes and holds 31 tokens; a prompt of 700 tokens
waits. The decode takes 1 token and opens no block (its 32nd token fits). The prompt needs 44 blocks in all, which are free, so
it is admitted with a chunk of 511 tokens in 32 blocks. The next step has the other 189 tokens in 12 blocks.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from maitred.batching.limits import BatchLimits, PreemptionPolicy, PrefillChunk
from maitred.batching.step_plan import StepPlan
from maitred.core.contracts import BatchShape, WaitQueue
from maitred.core.errors import InvariantError
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv import NO_HIT, BlockManager, PrefixBlockManager


class ContinuousBatch:
    """The running batch of one instance. It is the `StepView` of the step about to be planned."""

    requeues_at_front: bool = True
    """Whether a preempted sequence goes back to the front of the wait queue, and not to its end."""

    __slots__ = (
        "_blocks",
        "_limits",
        "_max_chunk_tokens",
        "_num_admissions",
        "_preemption_policy",
        "_prefilling",
        "_prefix_blocks",
        "_stalled",
        "context_tokens",
        "num_decodes",
        "num_transferred",
        "pending_free_slots",
        "sequences",
        "step_index",
    )

    def __init__(
        self, limits: BatchLimits, blocks: BlockManager, preemption_policy: PreemptionPolicy = PreemptionPolicy.LAST_ADMITTED
    ) -> None:
        self._limits = limits
        self._preemption_policy = preemption_policy
        self._num_admissions = 0
        self._max_chunk_tokens = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self._blocks = blocks
        self._prefix_blocks = blocks if isinstance(blocks, PrefixBlockManager) else None
        self.sequences: dict[RequestId, SequenceState] = {}
        """Running sequences, in the order of admission."""
        self.pending_free_slots = 0
        """Slots of sequences that have completed, which are not free yet if the next step was planned while they ran."""
        self._prefilling: list[SequenceState] = []
        self._stalled: list[SequenceState] = []
        """Sequences that decode and are left out of the step. Their progress and their blocks stand still."""
        self.num_transferred = 0
        """Sequences admitted in this step with KV from another instance: each computes one token, as if it decoded."""
        self.step_index = 0
        """Steps of the sequences that decode, made so far."""
        self.num_decodes = 0
        self.context_tokens = 0
        """Tokens of KV that the decoding sequences hold, summed."""

    @property
    def running(self) -> int:
        return len(self.sequences)

    @property
    def num_steps(self) -> int:
        """Steps made so far."""
        return self.step_index

    @property
    def free_blocks(self) -> int:
        return self._blocks.free

    def running_routing_keys(self) -> Mapping[str, int]:
        return Counter(seq.request.routing_key for seq in self.sequences.values() if seq.request.routing_key)

    @property
    def is_full(self) -> bool:
        """Whether no sequence can be admitted, for want of a slot."""
        return len(self.sequences) + self.pending_free_slots >= self._limits.max_num_seqs

    def num_output_tokens(self, seq: SequenceState) -> int:
        """Return the tokens that `seq` has emitted by now."""
        return self.step_index - seq.decode_origin_step if seq.is_decoding else seq.num_output_tokens

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        """Plan the step that begins at `now` and runs at most `max_repeats` times. `waiting` is None if no sequence waits.

        The blocks of its chunks are reserved; those of the decodes are taken as the step runs. Preempted sequences have left
        the batch, and the caller puts them back into the wait queue.
        """
        blocks, self.num_transferred = self._blocks, 0
        open_to = None if waiting is None or self.is_full else waiting
        # The usual step: nothing prefills and nothing can be admitted, so only the free blocks limit the run, and planning it
        # costs O(block size) at most, however many sequences decode.
        if open_to is None and not self._prefilling:
            repeat = blocks.max_steps(max_repeats)
            return StepPlan(repeat) if repeat else self._preempt_until_fits(())
        budget = room = self._limits.max_num_batched_tokens - self.num_decodes
        chunks, needed = self._plan_running_chunks(budget), 0
        if chunks:
            needed = sum([self._chunk_blocks(chunk) for chunk in chunks])
            budget -= sum([chunk.num_tokens for chunk in chunks])
        # All running sequences are checked by their sum. The order in which they take blocks matters only if the sum does not
        # fit, so the walk over the batch is left to `_preempt_until_fits`.
        spare = blocks.free - blocks.decode_blocks(1) - needed
        if spare < 0:
            return self._preempt_until_fits(chunks)
        if chunks:
            self._reserve_chunks(chunks, needed)
        if open_to is not None:
            budget = self._admit_waiting(open_to, chunks, spare, budget, now)
        if chunks:
            return StepPlan(1, chunks, room - budget)
        if self._prefix_blocks is not None:
            # An eviction changes what is cached of a waiting prompt, and so which sequence is next and whether it fits.
            max_repeats = self._prefix_blocks.max_unchanged_steps(max_repeats)
        return StepPlan(blocks.max_steps(max_repeats))

    def batch_shape(self, plan: StepPlan) -> BatchShape:
        """Return the work of `plan`, which has just been made."""
        decodes, context = self.num_decodes, self.context_tokens
        if self._stalled:
            decodes, context = self._serving_decodes()
        if not plan.chunks:
            return BatchShape(decodes, context)
        if not self.num_transferred:
            return BatchShape(decodes, context, plan.prefill_tokens, tuple(plan.chunks))
        # A sequence that comes with its KV computes one token over its whole context. That costs what a decode costs, so
        # latency models see it as one.
        decode = [chunk for chunk in plan.chunks if chunk.num_computed_tokens == chunk.seq.transferred_kv_tokens > 0]
        chunks = tuple(chunk for chunk in plan.chunks if chunk not in decode)
        context += sum(chunk.num_computed_tokens for chunk in decode)
        return BatchShape(decodes + len(decode), context, plan.prefill_tokens - len(decode), chunks)

    def context_lengths(self, plan: StepPlan) -> list[int]:
        """Return the tokens of KV of each sequence that decodes in `plan`, in no particular order."""
        ahead, stalled = self.step_index - 1, set(self._stalled)
        contexts = [
            seq.request.prompt_tokens - seq.decode_origin_step + ahead
            for seq in self.sequences.values()
            if seq.is_decoding and seq not in stalled
        ]
        if self.num_transferred:
            contexts += [
                chunk.num_computed_tokens
                for chunk in plan.chunks
                if chunk.num_computed_tokens == chunk.seq.transferred_kv_tokens > 0
            ]
        return contexts

    def run_steps(self, steps: int) -> None:
        """Advance the decoding sequences by `steps` steps, which have ended."""
        self._blocks.run_steps(steps)
        self.step_index += steps
        self.context_tokens += self.num_decodes * steps
        if self._stalled:
            self._settle_stalled()

    def _settle_stalled(self) -> None:
        """Take the token back that a step has counted for the sequences that stood still in it."""
        # The origin step moves by one, the context stays, and the next block is opened a step later.
        for seq in self._stalled:
            seq.decode_origin_step += 1
            self.context_tokens -= 1
            self._blocks.start_decode(self._owned_tokens(seq))
        self._stalled = []

    def complete_chunks(self, plan: StepPlan) -> list[SequenceState]:
        """Count the chunks of `plan`, which are computed. Return the sequences that have completed their prompt: each has
        emitted one token more, and decodes from now on."""
        complete: list[SequenceState] = []
        for chunk in plan.chunks:
            seq = chunk.seq
            if seq.request.id not in self.sequences:
                continue  # the sequence was withdrawn during the step
            seq.num_computed_tokens += chunk.num_tokens
            seq.num_scheduled_tokens = 0
            if seq.num_computed_tokens == seq.num_tokens_to_prefill:
                self._prefilling.remove(seq)
                self._start_decode(seq)
                complete.append(seq)
        return complete

    def finish(self, seq: SequenceState) -> None:
        """Remove `seq`, which is complete."""
        self.remove(seq)

    def remove(self, seq: SequenceState) -> None:
        """Remove `seq`, complete or not: free its blocks, and settle its progress."""
        del self.sequences[seq.request.id]
        if not seq.is_decoding:
            self._prefilling.remove(seq)
            self._blocks.release_prefilling(seq, seq.num_computed_tokens + seq.num_scheduled_tokens)
            return
        seq.is_decoding = False
        seq.num_output_tokens = emitted = self.step_index - seq.decode_origin_step
        # The token that was emitted last has no KV yet: the next step would have computed it.
        seq.num_computed_tokens = held = seq.request.prompt_tokens + emitted - 1
        self.num_decodes -= 1
        self.context_tokens -= held
        if self._stalled and seq in self._stalled:
            self._stalled.remove(seq)
            self._blocks.release_prefilling(seq, held)  # in this step it is not among those that open blocks
        else:
            self._blocks.release_decoding(seq, held)

    def forget(self, seq: SequenceState) -> None:
        """Drop what is known of `seq`, which has left the instance for good."""

    def on_idle(self) -> None:
        """Note that no sequence is here any more, running or waiting."""

    def check(self) -> None:
        """Raise InvariantError if the sums do not follow from the sequences."""
        held = {seq: self._kv_tokens(seq) for seq in self.sequences.values()}
        self._blocks.check(sum(self._blocks.blocks_held(seq, kv + seq.num_scheduled_tokens) for seq, kv in held.items()))
        decoding = [seq for seq in held if seq.is_decoding]
        if len(decoding) != self.num_decodes or sum(held[seq] for seq in decoding) != self.context_tokens:
            raise InvariantError(
                f"{self.num_decodes} decodes over {self.context_tokens} tokens, but {len(decoding)} sequences decode"
            )
        if [seq for seq in held if not seq.is_decoding] != self._prefilling or len(held) > self._limits.max_num_seqs:
            raise InvariantError("the prefilling sequences are not the running ones that do not decode")

    def _stall(self, seqs: list[SequenceState]) -> None:
        """Let `seqs`, which decode, stand still in this step."""
        self._stalled = seqs
        for seq in seqs:
            self._blocks.pause_decode(self._owned_tokens(seq))

    def _serving_decodes(self) -> tuple[int, int]:
        """Return how many sequences decode in this step, and the tokens of KV that they hold."""
        stalled = self._stalled
        return self.num_decodes - len(stalled), self.context_tokens - sum([self._kv_tokens(seq) for seq in stalled])

    def _plan_running_chunks(self, budget: int) -> list[PrefillChunk]:
        """Return the chunks of the running sequences that prefill, at most `budget` tokens in all."""
        chunks: list[PrefillChunk] = []
        for seq in self._prefilling:
            tokens = min(seq.num_tokens_to_prefill - seq.num_computed_tokens, self._max_chunk_tokens, budget)
            budget -= tokens
            chunks.append(PrefillChunk(tokens, seq.num_computed_tokens, seq.num_tokens_to_prefill, seq))
        return chunks

    def _reserve_chunks(self, chunks: list[PrefillChunk], blocks: int) -> None:
        """Reserve `blocks` blocks for the chunks of running sequences."""
        self._blocks.reserve(blocks)
        for chunk in chunks:
            chunk.seq.num_scheduled_tokens = chunk.num_tokens
            if self._prefix_blocks is not None:
                self._prefix_blocks.fill(chunk.seq, chunk.num_computed_tokens + chunk.num_tokens)

    def _admit_waiting(self, waiting: WaitQueue, chunks: list[PrefillChunk], spare: int, budget: int, now: Micros) -> int:
        """Admit waiting sequences within `spare` blocks and `budget` tokens, and add a chunk for each to `chunks`. Return what
        is left of the budget."""
        sequences, size, prefixed = self.sequences, self._blocks.block_size, self._prefix_blocks
        most = self._limits.max_num_seqs - self.pending_free_slots
        if prefixed is not None:
            prefixed.reserve_next_step()  # decodes take their blocks before prompts do, so they evict first
            prefixed.apply_evictions()
        waiting.on_step_start(self, now)
        while budget > 0 and len(sequences) < most:
            seq = waiting.peek()
            if seq is None:
                break
            hit = NO_HIT if prefixed is None else prefixed.find_cached(seq)
            # A cached block that no lock holds is one of the free blocks, and is so no more once it is locked.
            start = cached = hit.num_blocks * size
            if seq.num_tokens_to_prefill - cached > (spare - hit.num_unreferenced) * size:
                # The whole prompt must fit, and not only its first chunk: otherwise it could be preempted before it is
                # complete, and what was computed of it would be wasted.
                break
            waiting.pop()
            if seq.transferred_kv_tokens:
                # The KV that comes along is written into blocks of this instance, so `taken` counts from `cached` and not
                # from `start`.
                start = seq.transferred_kv_tokens
                self.num_transferred += 1
            tokens = min(seq.num_tokens_to_prefill - start, self._max_chunk_tokens, budget)
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

    def _add_running(self, seq: SequenceState, computed: int, pending: int, now: Micros) -> None:
        seq.num_computed_tokens, seq.num_scheduled_tokens = computed, pending
        if seq.preempted_kv_tokens:
            # What the prefix cache has kept of the lost KV need not be computed again.
            seq.recomputed_tokens += max(0, seq.preempted_kv_tokens - computed)
            seq.preempted_kv_tokens = 0
        seq.scheduled_at = now
        seq.admission_index = self._num_admissions
        self._num_admissions += 1
        self.sequences[seq.request.id] = seq
        self._prefilling.append(seq)

    def _preempt_until_fits(self, chunks: Sequence[PrefillChunk]) -> StepPlan:
        """Let the running sequences take blocks in their order, for their token or their chunk of `chunks`. While one does not
        find enough, preempt a victim."""
        order = list(self.sequences.values())
        ready = {chunk.seq: chunk for chunk in chunks}
        needs = {seq: self._chunk_blocks(ready[seq]) if seq in ready else self._next_token_blocks(seq) for seq in order}
        spare, preempted, served = self._blocks.free, [], 0
        while served < len(order):
            seq = order[served]
            while needs[seq] > spare:
                index = self._preemption_policy.choose_victim(order)
                victim = order.pop(index)
                free = self._blocks.free
                preempted.append(self._preempt(victim))
                spare += self._blocks.free - free
                if index < served:  # the victim has had its turn: what it was to take in this step is free again
                    served -= 1
                    spare += needs[victim]
                if victim is seq:
                    break  # `order[served]` is the next sequence by now
            else:
                spare -= needs[seq]
                served += 1
        # The chunks keep the size that they were planned with: the victims' share of the token budget stays unused in this
        # step.
        remaining = [ready[seq] for seq in self._prefilling]
        self._reserve_chunks(remaining, sum(self._chunk_blocks(chunk) for chunk in remaining))
        plan = StepPlan(1, remaining, sum(chunk.num_tokens for chunk in remaining))
        plan.preempted = preempted
        return plan

    def _next_token_blocks(self, seq: SequenceState) -> int:
        """Return the number of blocks that `seq`, which decodes, opens in the next step."""
        return int(self._kv_tokens(seq) % self._blocks.block_size == 0)

    def _preempt(self, seq: SequenceState) -> SequenceState:
        """Take the KV of `seq`, which will compute it again together with the tokens that it has emitted."""
        if self._prefix_blocks is not None:
            self._prefix_blocks.keep_for_return(seq)
        self.remove(seq)
        self._note_preemption(seq)
        return seq

    def _note_preemption(self, seq: SequenceState) -> None:
        """Let `seq`, which has lost its KV, compute it again when it comes back."""
        seq.num_tokens_to_prefill = seq.request.prompt_tokens + seq.num_output_tokens
        seq.preempted_kv_tokens, seq.num_computed_tokens, seq.transferred_kv_tokens = seq.num_computed_tokens, 0, 0
        seq.num_preemptions += 1

    def _chunk_blocks(self, chunk: PrefillChunk) -> int:
        blocks_for, computed = self._blocks.blocks_for, chunk.num_computed_tokens
        return blocks_for(computed + chunk.num_tokens) - blocks_for(computed)

    def _kv_tokens(self, seq: SequenceState) -> int:
        """Return the tokens of KV that `seq` holds."""
        if seq.is_decoding:
            return seq.request.prompt_tokens + self.step_index - seq.decode_origin_step - 1
        return seq.num_computed_tokens

    def _owned_tokens(self, seq: SequenceState) -> int:
        """Return the tokens of KV for which `seq` has blocks of its own."""
        return self._kv_tokens(seq)

    def _start_decode(self, seq: SequenceState) -> None:
        seq.is_decoding = True
        seq.decode_origin_step = self.step_index - seq.num_output_tokens - 1
        self.num_decodes += 1
        self.context_tokens += seq.num_computed_tokens
        self._blocks.start_decode(seq.num_computed_tokens)
