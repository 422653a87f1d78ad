"""SequenceState: a request inside an instance, for as long as it is there. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.core.request import Request, RequestId
from maitred.core.units import Micros


class SequenceState:
    """A request inside an instance. The instance owns it, and its policies read it.

    While a sequence decodes, `decode_origin_step` alone says how far it is: after step s of the instance it has emitted `s -
    decode_origin_step` tokens and holds `prompt + emitted - 1` tokens of KV. So a step costs nothing per running sequence.
    `num_output_tokens` and `num_computed_tokens` are settled when it stops decoding.

    Example: a prompt of 100 tokens emits its first token at the end of step 8, so its origin is step 7. After step 20 it has
    emitted 13 tokens and holds 112 tokens of KV.

    The fields have their defaults in the class, since most of them never change.
    """

    request: Request
    request_id: RequestId
    """Its `request.id`, which is asked for at every turn; so is the next one."""
    prompt_tokens: int
    arrival_index: int
    """Index among the requests of this instance, in the order of arrival. Breaks ties among equal arrivals."""
    num_tokens_to_prefill: int
    """Tokens of KV that are needed before the next token can come out: the prompt, and after a preemption the output."""
    priority: float
    """Urgency, larger is more urgent: what the request says, or its rank or score by a priority policy."""
    answer_length: int = 0
    """Tokens of its answer. Only the engine core may read it, to know when the answer ends: no policy knows it."""
    block_hashes: Sequence[int] | None = None
    """Hashes of the blocks of the prompt in the prefix cache of the instance, or None until they are asked for
    (`kv.sequence_block_hashes`)."""
    num_computed_tokens: int = 0
    """Tokens of KV that the sequence holds (valid while it does not decode)."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were in the prefix cache at the first admission."""
    num_scheduled_tokens: int = 0
    """Tokens of the prompt that the step in progress computes. Their blocks are reserved."""
    num_output_tokens: int = 0
    """Emitted tokens (valid while the sequence does not decode). They survive a preemption; their KV does not."""
    num_accounted_output_tokens: int = 0
    """Emitted tokens that `WaitQueue.on_served` has been told of."""
    is_decoding: bool = False
    is_complete: bool = False
    """Whether the answer is complete and the sequence has a slot still, because the scheduler does not know it yet."""
    decode_origin_step: int = 0
    """Step s0 of the instance such that `s - s0` tokens have been emitted after step s (valid while the sequence decodes)."""
    queued_at: Micros | None = None
    """Instant at which the sequence entered the wait queue, or None if that was its arrival."""
    scheduled_at: Micros | None = None
    """Instant of the last admission to the running batch, or None before the first."""
    first_token_at: Micros | None = None
    """Instant at which the first token came out, or None before: the end of TTFT, but for what the client waits outside the
    engine."""
    admission_index: int = 0
    """Index of the last admission of this sequence among all admissions to the running batch."""
    stall_time: Micros = 0
    """µs without progress between tokens because no block was free, where that is not counted as latency (BLIS)."""
    num_preemptions: int = 0
    transferred_kv_tokens: int = 0
    """Tokens of KV that another instance has computed and that come with it, until a preemption takes them."""
    preempted_kv_tokens: int = 0
    """Tokens of KV that the last preemption took, until the sequence is admitted again."""
    preempted_at: Micros = 0
    """Instant of that preemption: while decoding, the instant of its last token."""
    recomputed_tokens: int = 0
    """Tokens of KV that were computed again."""

    def __init__(
        self, request: Request, arrival_index: int, num_tokens_to_prefill: int | None = None, priority: float = 0.0
    ) -> None:
        """`num_tokens_to_prefill` is by default the prompt."""
        self.request = request
        self.request_id = request.id
        self.prompt_tokens = prompt = request.prompt_tokens
        self.arrival_index = arrival_index
        self.num_tokens_to_prefill = prompt if num_tokens_to_prefill is None else num_tokens_to_prefill
        self.priority = priority

    def resume_transferred(self, transferred: SequenceState) -> None:
        """Go on where `transferred` ended, which is the same request in the instance that computed its prompt."""
        self.transferred_kv_tokens = self.prompt_tokens
        self.num_output_tokens = self.num_accounted_output_tokens = transferred.num_output_tokens
        self.num_tokens_to_prefill += transferred.num_output_tokens
        self.first_token_at = transferred.first_token_at
        self.preempted_at = transferred.first_token_at or 0
