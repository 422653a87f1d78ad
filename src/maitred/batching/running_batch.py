"""RunningBatch: the books of a running batch, whoever plans its steps; and StepPlan, what was decided about one step.

Sequences that decode are never touched on the way: their number and their context are kept as sums, and the progress of each
follows from the step counter (`SequenceState.decode_origin_step`). So a run of k steps is committed in one addition, however
many sequences decode. Two kinds of sequence need care:

    stalled     decodes, and gets no token in the step that is planned: its origin step moves by one, its context stays
    complete    its answer is, which a scheduler that plans one step ahead does not know yet: it keeps its slot until the next
                step is planned (`plan_ahead`)

Example: 3 sequences decode, which hold 40, 50 and 60 tokens: `num_decodes` is 3 and `context_tokens` is 150. After a run of 10
steps it is 180. Was one of them stalled in a step of its own after that, it is 182.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from maitred.batching.limits import BatchLimits, PrefillChunk, later_chunks
from maitred.core.contracts import BatchShape, WaitQueue
from maitred.core.errors import ConfigError, InvariantError
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv import BlockManager, PrefixBlockManager


class StepPlan:
    """The plan of one step: a token for every decoding sequence, and some chunks of prompts.

    In a repetition of it each sequence that decodes has a token more, and each chunk is the next one of its prompt, as large as
    the one before.
    """

    preempted: Sequence[SequenceState] = ()
    """Sequences that have lost their KV for it."""
    stalled: Sequence[SequenceState] = ()
    """Sequences that decode and emit nothing in this step."""
    holds_decodes: bool = False
    """Whether it is a step of prefill alone, while all sequences that decode stand still."""
    fetch_time: Micros = 0
    """µs that it takes longer because KV blocks are fetched for it. Then it does not repeat itself."""
    load_time: Micros = 0
    """µs that all of it takes longer because KV blocks are loaded from the host for it. Then it does not repeat itself."""
    overlapped_load_time: Micros = 0
    """µs that it takes at least, as KV blocks are loaded from the host while it computes. Then it does not repeat itself."""
    is_closed: bool = False
    """Whether no sequence that arrives could join a repetition of it: its chunks take all tokens that a step may have."""
    takes_decode_blocks: bool = False
    """Whether the blocks that its decodes open are taken as it begins, since a sequence that waited was tried after that."""
    is_plain: bool = False
    """Whether it is known that every decoding sequence emits a token, nothing is preempted and no KV was transferred or
    loaded: no care is needed when the step is counted."""

    def __init__(self, max_repeats: int, chunks: Sequence[PrefillChunk] = (), prefill_tokens: int = 0) -> None:
        """`max_repeats` is how often the step may run without being planned anew, `prefill_tokens` the sum over the chunks."""
        self.max_repeats = max_repeats
        self.chunks = chunks
        self.prefill_tokens = prefill_tokens

    def advance(self, steps: int) -> None:
        """Make it the plan of the step after its first `steps` steps, which have ended."""
        if self.chunks:
            self.chunks = later_chunks(self.chunks, steps)


class RunningBatch:
    """The running batch of one instance. It is the `StepView` of the step about to be planned."""

    follows_limit: bool = True
    """Whether its limit on sequences may change."""
    requeues_at_front: bool = True
    """Whether a preempted sequence goes back to the front of the wait queue, and not to its end."""
    keeps_notes: bool = False
    """Whether `forget` does anything."""
    discounts_stalls: bool = False
    """Whether the time that a sequence stands still is not counted as latency (BLIS)."""

    __slots__ = (
        "_blocks",
        "_limits",
        "_max_num_seqs",
        "_most_seqs",
        "_num_admissions",
        "_prefilling",
        "_prefix_blocks",
        "_stalled",
        "announces_steps",
        "context_tokens",
        "num_decodes",
        "num_transferred",
        "sequences",
        "step_index",
    )

    def __init__(self, limits: BatchLimits, blocks: BlockManager) -> None:
        self.announces_steps = True
        """Whether the wait queue is told that a step is about to be formed."""
        self._limits = limits
        self._max_num_seqs = self._most_seqs = limits.max_num_seqs
        self._num_admissions = 0
        self._blocks = blocks
        self._prefix_blocks = blocks if isinstance(blocks, PrefixBlockManager) else None
        self.sequences: dict[RequestId, SequenceState] = {}
        """The sequences that have a slot, in the order of admission; complete ones included."""
        self._prefilling: list[SequenceState] = []
        self._stalled: list[SequenceState] = []
        """Sequences that decode and are left out of the step. Their number of steps and their blocks stand still."""
        self.num_transferred = 0
        """Sequences admitted in this step with KV from another instance: each computes one token, as if it decoded."""
        self.step_index = 0
        """Steps of the sequences that decode, made so far."""
        self.num_decodes = 0
        self.context_tokens = 0
        """Tokens of KV that the decoding sequences hold, summed."""

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        """Plan the step that begins at `now` and runs at most `max_repeats` times. `waiting` is None if no sequence waits.

        The blocks of its chunks are reserved; those of the decodes are taken as the step runs. Preempted sequences have left
        the batch, and the caller puts them back into the wait queue.
        """
        raise NotImplementedError

    def plan_decodes(self, max_repeats: int) -> StepPlan | None:
        """Plan a step as `schedule` does, where every sequence of the instance decodes. None: ask `schedule`."""
        return None

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
        """Whether a sequence that arrives changes nothing: none can be admitted, for want of a slot."""
        return len(self.sequences) >= self._max_num_seqs

    def set_limit(self, max_num_seqs: int) -> None:
        """Admit sequences while fewer than `max_num_seqs` run, from now on; those that run go on. Raises ConfigError if its
        rules have the limit that they were made with."""
        if not self.follows_limit:
            hint = "an instance of flavour vllm, without `batching`"
            raise ConfigError("the batch of these instances keeps its limit", where="cluster.limit_changes", hint=hint)
        self._max_num_seqs = max_num_seqs
        self._most_seqs = max(self._most_seqs, max_num_seqs)

    def num_output_tokens(self, seq: SequenceState) -> int:
        """Return the tokens that `seq` has emitted by now."""
        return self.step_index - seq.decode_origin_step if seq.is_decoding else seq.num_output_tokens

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
        transferred = [chunk for chunk in plan.chunks if chunk.num_computed_tokens == chunk.seq.transferred_kv_tokens > 0]
        chunks = tuple(chunk for chunk in plan.chunks if chunk not in transferred)
        context += sum(chunk.num_computed_tokens for chunk in transferred)
        return BatchShape(decodes + len(transferred), context, plan.prefill_tokens - len(transferred), chunks)

    def context_lengths(self, plan: StepPlan) -> list[int]:
        """Return the tokens of KV of each sequence that decodes in `plan`, in no particular order."""
        ahead = self.step_index - 1
        contexts = [
            seq.prompt_tokens - seq.decode_origin_step + ahead
            for seq in self.sequences.values()
            if seq.is_decoding and seq not in self._stalled
        ]
        if self.num_transferred:
            contexts += [
                chunk.num_computed_tokens
                for chunk in plan.chunks
                if chunk.num_computed_tokens == chunk.seq.transferred_kv_tokens > 0
            ]
        return contexts

    def run(self, plan: StepPlan, steps: int) -> None:
        """Count the first `steps` steps of `plan`, which have ended."""
        if not plan.chunks:
            self.run_steps(steps)
        elif steps == 1 or self._counts_chunks_at_once(plan):
            self.begin_chunks(plan, steps)
            self.run_steps(steps)
            self.end_chunks(plan, steps)
        else:
            for _ in range(steps):
                self.begin_chunks(plan, 1)
                self.run_steps(1)
                self.end_chunks(plan, 1)

    def _counts_chunks_at_once(self, plan: StepPlan) -> bool:
        """Return whether several steps of `plan` may be counted at once. Where the order in which content is committed can be
        told afterwards, they are counted one by one."""
        prefixed = self._prefix_blocks
        return prefixed is None or (len(plan.chunks) == 1 and prefixed.cache.is_blockwise)

    def begin_step(self, plan: StepPlan) -> None:
        """Note that the next step of `plan` has begun: take its blocks, as far as they are not taken yet."""
        if plan.takes_decode_blocks and self._prefix_blocks is not None:
            self._prefix_blocks.reserve_next_step()
        self.begin_chunks(plan, 1)

    def begin_chunks(self, plan: StepPlan, steps: int) -> None:
        """Take the blocks of the chunks of the next `steps` steps of `plan`, as far as they are not taken yet."""
        for chunk in plan.chunks:
            tokens = chunk.num_tokens * steps
            if tokens > chunk.seq.num_scheduled_tokens:
                self._begin_chunk(chunk.seq, tokens)

    def _begin_chunk(self, seq: SequenceState, tokens: int) -> None:
        """Let `seq` compute the next `tokens` tokens of its prompt: take their blocks, as far as they are not taken yet."""
        if tokens > seq.num_scheduled_tokens and seq.request_id in self.sequences:
            self._take_chunk_blocks(seq, tokens)
            seq.num_scheduled_tokens = tokens

    def _take_chunk_blocks(self, seq: SequenceState, tokens: int) -> None:
        """Take the blocks for the next `tokens` tokens of the prompt of `seq`. It has those of its scheduled tokens."""
        computed, blocks_for = seq.num_computed_tokens, self._blocks.blocks_for
        self._blocks.reserve(blocks_for(computed + tokens) - blocks_for(computed + seq.num_scheduled_tokens))
        if self._prefix_blocks is not None:
            self._prefix_blocks.fill(seq, computed + tokens)

    def end_chunks(self, plan: StepPlan, steps: int) -> None:
        """Count the chunks of the next `steps` steps of `plan`, which are computed."""
        for chunk in plan.chunks:
            seq = chunk.seq
            if seq.request_id in self.sequences:  # else the sequence was withdrawn during the step
                seq.num_computed_tokens += chunk.num_tokens * steps
                seq.num_scheduled_tokens = 0

    def run_steps(self, steps: int) -> None:
        """Advance the decoding sequences by `steps` steps, which have ended."""
        self._blocks.run_steps(steps)
        self.step_index += steps
        self.context_tokens += self.num_decodes * steps
        if self._stalled:
            self._settle_stalled()

    def complete_chunks(self, plan: StepPlan) -> list[SequenceState]:
        """Return the sequences of `plan`, whose last step has been counted, that have completed their prompt: each has emitted
        one token more, and decodes from now on."""
        complete: list[SequenceState] = []
        for chunk in plan.chunks:
            seq = chunk.seq
            if seq.num_computed_tokens == seq.num_tokens_to_prefill and seq.request_id in self.sequences:
                self._prefilling.remove(seq)
                self._start_decode(seq)
                complete.append(seq)
        return complete

    def finish(self, seq: SequenceState) -> None:
        """Remove `seq`, whose answer is complete. A batch that is planned one step ahead keeps its slot until `remove`."""
        self.remove(seq)

    def remove(self, seq: SequenceState) -> None:
        """Remove `seq`, complete or not: free its slot and its blocks, and settle its progress."""
        del self.sequences[seq.request_id]
        if not seq.is_decoding:
            self._prefilling.remove(seq)
            self._blocks.release_prefilling(seq, seq.num_computed_tokens + seq.num_scheduled_tokens)
            return
        held = self._stop_decode(seq)
        if self._stalled and seq in self._stalled:
            self._stalled.remove(seq)
            self._blocks.release_prefilling(seq, held)  # in this step it is not among those that open blocks
        else:
            self._blocks.release_decoding(seq, held)

    def forget(self, seq: SequenceState) -> None:
        """Drop what is known of `seq`, which has left the instance for good."""

    def on_withdrawn(self) -> None:
        """Note that a sequence that waits was withdrawn."""

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
        prefilling = [seq for seq in held if not (seq.is_decoding or seq.is_complete)]
        if prefilling != self._prefilling or len(held) > self._most_seqs:
            raise InvariantError("the prefilling sequences are not the running ones that do not decode")

    def _add_running(self, seq: SequenceState, computed: int, pending: int, now: Micros) -> None:
        seq.num_computed_tokens, seq.num_scheduled_tokens = computed, pending
        if seq.preempted_kv_tokens:
            # What the prefix cache has kept of the lost KV need not be computed again.
            seq.recomputed_tokens += max(0, seq.preempted_kv_tokens - computed)
            seq.preempted_kv_tokens = 0
        seq.scheduled_at = now
        seq.admission_index = self._num_admissions
        self._num_admissions += 1
        self.sequences[seq.request_id] = seq
        self._prefilling.append(seq)

    def _stall(self, seqs: list[SequenceState]) -> None:
        """Let `seqs`, which decode, stand still in this step."""
        self._stalled = seqs
        for seq in seqs:
            self._blocks.stop_decode(self._owned_tokens(seq))

    def _serving_decodes(self) -> tuple[int, int]:
        """Return how many sequences decode in this step, and the tokens of KV that they hold."""
        stalled = self._stalled
        return self.num_decodes - len(stalled), self.context_tokens - sum([self._kv_tokens(seq) for seq in stalled])

    def _settle_stalled(self) -> None:
        """Take the token back that a step has counted for the sequences that stood still in it."""
        # The origin step moves by one, the context stays, and the next block is opened a step later.
        for seq in self._stalled:
            seq.decode_origin_step += 1
            self.context_tokens -= 1
            self._blocks.start_decode(self._owned_tokens(seq))
        self._stalled = []

    def _preempt(self, seq: SequenceState) -> SequenceState:
        """Take the KV of `seq`, which will compute it again together with the tokens that it has emitted."""
        if self._prefix_blocks is not None:
            self._prefix_blocks.keep_for_return(seq, self._num_unknown(seq))
        self.remove(seq)
        self._note_preemption(seq)
        return seq

    def _note_preemption(self, seq: SequenceState) -> None:
        """Let `seq`, which has lost its KV, compute it again when it comes back."""
        # The tokens that were emitted stand: their KV is computed again as if they were a part of the prompt.
        seq.num_tokens_to_prefill = seq.prompt_tokens + seq.num_output_tokens
        seq.preempted_kv_tokens, seq.num_computed_tokens, seq.transferred_kv_tokens = seq.num_computed_tokens, 0, 0
        seq.num_scheduled_tokens = 0
        seq.num_preemptions += 1

    def _num_unknown(self, seq: SequenceState) -> int:
        """Return how many of the last tokens of KV of `seq` have a content that the scheduler does not know."""
        return 0

    def _kv_tokens(self, seq: SequenceState) -> int:
        """Return the tokens of KV that `seq` holds."""
        if seq.is_decoding:
            return seq.prompt_tokens + self.step_index - seq.decode_origin_step - 1
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

    def _stop_decode(self, seq: SequenceState) -> int:
        """Take `seq`, which decodes, out of the sums, and settle its progress. Return the tokens of KV that it holds."""
        seq.is_decoding = False
        seq.num_output_tokens = emitted = self.step_index - seq.decode_origin_step
        # The token that was emitted last has no KV yet: the next step would have computed it.
        seq.num_computed_tokens = held = seq.prompt_tokens + emitted - 1
        self.num_decodes -= 1
        self.context_tokens -= held
        return held
