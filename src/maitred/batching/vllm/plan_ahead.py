"""AheadBatch: continuous batching by a scheduler that plans one step ahead, as vLLM does with async scheduling (depth 2).

While step n runs, step n + 1 has been planned already, without what comes of step n. Here it is planned when step n has ended,
so what the scheduler could not know then is kept from it:

    a sequence that completes with step n       keeps its slot and its blocks until step n + 1 is planned
    one that reached max_output_tokens          computes nothing in step n + 1
    one that stopped by itself                  computes one token more in step n + 1, which is thrown away: a *ghost*
    a sequence that is preempted in step n + 1  caches no block that the token of step n has filled

(When the scheduler learns of a completion or an arrival is the matter of `instance.mailbox`.)

Example: blocks of 16, all taken. Sequence A reaches its limit with step 7. In step 8 B needs a block: A's are not free yet, so
a victim is preempted for it. If the victim is A itself, it loses nothing by that, for it has ended.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.batching.limits import BatchLimits, PreemptionPolicy
from maitred.batching.vllm.continuous import ContinuousBatch
from maitred.core.sequence import SequenceState
from maitred.kv import BlockManager


class AheadBatch(ContinuousBatch):
    """The running batch of one instance, planned one step ahead."""

    __slots__ = ("_max_model_len",)

    def __init__(
        self, limits: BatchLimits, blocks: BlockManager, preemption_policy: PreemptionPolicy, max_model_len: int
    ) -> None:
        """`max_model_len`, in tokens, limits prompt and answer together."""
        super().__init__(limits, blocks, preemption_policy)
        self._max_model_len = max_model_len

    def finish(self, seq: SequenceState) -> None:
        """Note that `seq` is complete. It goes with `remove`, when the scheduler knows."""
        seq.is_complete = True
        seq.num_output_tokens = emitted = self.step_index - seq.decode_origin_step
        longest = self._max_model_len - seq.prompt_tokens
        if seq.request.max_output_tokens is not None:
            longest = min(longest, seq.request.max_output_tokens)
        # That it reaches its limit can be foreseen. If it stopped by itself it stays among those that decode: the ghost takes a
        # block if it needs one, and another sequence may be preempted for it.
        if emitted >= longest:
            self._blocks.stop_decode(self._stop_decode(seq))

    def remove(self, seq: SequenceState) -> None:
        if seq.is_complete and not seq.is_decoding:
            del self.sequences[seq.request_id]
            self._blocks.release_reserved(seq, seq.num_computed_tokens, seq.num_computed_tokens)
        else:
            super().remove(seq)

    def _next_tokens(self, seq: SequenceState, budget: int) -> int:
        return 0 if seq.is_complete and not seq.is_decoding else super()._next_tokens(seq, budget)

    def _num_unknown(self, seq: SequenceState) -> int:
        # The last token of KV is that of the step in progress, so its content is not known when the block would be hashed.
        # After a prompt it is the last one of the prompt, which is known.
        held = self._kv_tokens(seq)
        return int((seq.is_decoding or seq.is_complete) and held != seq.num_tokens_to_prefill)
