"""Seq: a request inside an instance, in all its life there."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.core.request import Request
from maitred.core.units import Micros


class SequenceState:
    """A request inside an instance: what its life there has come to. Owned by the instance, read by its policies.

    While a sequence decodes, `origin` alone tells how far it is: after instance step s it has emitted `s - origin` tokens
    and holds `prompt + emitted - 1` tokens of KV. So a step costs nothing per running sequence. `emitted` and `computed`
    are settled when it stops decoding.

    Its fields have their defaults in the class, since most of them never change.
    """

    request: Request
    arrival_index: int
    """The how-manieth request of this instance it is: breaks ties among equal arrivals."""
    num_tokens_to_prefill: int
    """Tokens of KV it needs before its next token can come out: the prompt, and after a preemption what it emitted."""
    priority: float
    block_hashes: Sequence[int] | None = None
    """The keys of its prompt in the prefix cache of its instance, once somebody has asked for them
    (`kv.sequence_block_hashes`)."""
    num_computed_tokens: int = 0
    """Tokens of KV it holds (valid while not decoding)."""
    num_cached_tokens: int = 0
    """Tokens of its prompt that were in the prefix cache when it was first admitted."""
    num_scheduled_tokens: int = 0
    """Tokens of its prompt that the step in progress computes; their blocks are taken."""
    num_output_tokens: int = 0
    """Output tokens so far (valid while not decoding). They survive a preemption; their KV does not."""
    num_accounted_output_tokens: int = 0
    """Output tokens of which `WaitQueue.on_served` has been told."""
    is_decoding: bool = False
    decode_origin_step: int = 0
    queued_at: Micros | None = None
    """When it stood in the wait queue; None: as soon as it was there."""
    scheduled_at: Micros | None = None
    """When it last entered the running batch."""
    first_token_at: Micros | None = None
    admission_index: int = 0
    """The how-manieth sequence it was that entered the running batch, when it last did."""
    stall_time: Micros = 0
    """How long it stood still between tokens, where BLIS does not count that."""
    num_preemptions: int = 0
    transferred_kv_tokens: int = 0
    """Tokens of KV that another instance computed and that come with it, until a preemption takes them."""
    preempted_kv_tokens: int = 0
    """Tokens of KV that the last preemption took, until it enters again."""
    preempted_at: Micros = 0
    """When that was: while decoding, the instant of its last token."""
    recomputed_tokens: int = 0
    """Tokens of KV that it had to compute again."""

    def __init__(self, request: Request, arrival_index: int, num_tokens_to_prefill: int, priority: float = 0.0) -> None:
        self.request = request
        self.arrival_index = arrival_index
        self.num_tokens_to_prefill = num_tokens_to_prefill
        self.priority = priority
