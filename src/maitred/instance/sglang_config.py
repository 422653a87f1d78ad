"""SGLangConfig: the section `instance.sglang`, what SGLang's scheduler can be told beside the keys of every instance."""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class SGLangConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `flavour: sglang`. Names and defaults are SGLang's. `max_running_requests` is `max_num_seqs` here,
    `chunked_prefill_size` is `max_num_batched_tokens`, and `page_size` is `block_size_in_tokens`."""

    max_prefill_tokens: int = 16384
    """Tokens of prompts that one step begins to compute; a step that cuts prompts has less."""
    disable_chunked_prefill: bool = False
    """Compute prompts whole, as many as `max_prefill_tokens` holds, and do not cut them at `max_num_batched_tokens`."""
    prefill_max_requests: int | None = None
    """Most requests in one step of prefill. Null: any number."""
    enable_mixed_chunk: bool = False
    """Let running requests decode in the steps of prefill. False: they stand still meanwhile."""
    schedule_conservativeness: float = 1.0
    """Factor on the share of their answers that running requests are expected to generate yet; larger: fewer requests are
    admitted, and fewer are retracted."""
    init_new_token_ratio: float = 0.7
    """That share at first, before the factor."""
    min_new_token_ratio_factor: float = 0.14
    """What is left of that share in the end."""
    new_token_ratio_decay_steps: int = 600
    """Decode steps until then."""
    clip_max_new_tokens: int = 4096
    """Most tokens that are reserved for an answer."""
    ignore_eos: bool = False
    """Whether clients ask for answers that do not end by themselves, as benchmarks do: then all that they allow is expected."""
    retraction_policy: Literal["length", "priority"] = "length"
    """Which request is retracted when KV blocks run out: `length`, the one with the fewest tokens of output; `priority`, the
    least urgent one."""
    disable_priority_preemption: bool = False
    """With priorities, let no waiting request take the place of running ones."""
    priority_scheduling_preemption_threshold: float = 10
    """How much more urgent than a running request one must be to take its place: by more than this."""
    min_free_slots_delay: int | None = None
    """Free places in the batch for which prefill waits beside running requests, so that many begin together; at most
    `max_num_seqs` counts. Null or 1: it does not wait."""
    prefill_decode_interval: int = 0
    """Decode steps between two steps of prefill."""
    prefill_decode_interval_min_bs: int = 1
    """Fewer running requests than this wait for no `prefill_decode_interval`."""
    scheduler_recv_interval: int = 1
    """Decode steps between two looks at what has arrived; after a step of prefill, and while nothing runs, it looks at once."""
    enable_prefill_delayer: bool = False
    """Hold prefill back while few requests could join."""
    prefill_delayer_max_delay_passes: int = 30
    """Most passes for which prefill is held back."""
    prefill_delayer_max_delay_ms: float = 5000.0
    """Time after which a short queue holds nothing back any more, in ms."""
    prefill_delayer_token_usage_low_watermark: float | None = None
    """Used share of the KV memory, 0..1, below which nothing is held back. Null: however little is used."""
    prefill_delayer_queue_min_ratio: float | None = None
    """Fewer waiting requests than this share of the running ones are held back. Null: the queue does not matter."""

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} must be from {least} to {most:,}, not {value}")
        if self.enable_mixed_chunk and self.disable_chunked_prefill:
            raise ValueError("enable_mixed_chunk is not for disable_chunked_prefill: leave out one of the two")

    def unused_tokens(self, block_size: int) -> int:
        """Return how many tokens of the KV memory the longest prompt and answer must leave, or they could never be admitted.

        Admission asks for a block and a token more than they have; where answers do not end by themselves, for two blocks.
        """
        return (2 if self.ignore_eos else 1) * block_size + 1


_MOST: Final = 1_000_000_000
"""Far more than any engine has. A larger value is a slip of the keyboard."""
_RANGES: Final = {
    "max_prefill_tokens": (1, _MOST),
    "new_token_ratio_decay_steps": (1, _MOST),
    "clip_max_new_tokens": (1, _MOST),
    "prefill_decode_interval_min_bs": (1, _MOST),
    "prefill_delayer_max_delay_passes": (1, _MOST),
    "schedule_conservativeness": (0, _MOST),
    "priority_scheduling_preemption_threshold": (0, _MOST),
    "prefill_decode_interval": (0, _MOST),
    "scheduler_recv_interval": (1, _MOST),
    "prefill_delayer_max_delay_ms": (0, _MOST),
    "prefill_max_requests": (1, _MOST),
    "min_free_slots_delay": (1, _MOST),
    "init_new_token_ratio": (0, 1),
    "min_new_token_ratio_factor": (0, 1),
    "prefill_delayer_token_usage_low_watermark": (0, 1),
    "prefill_delayer_queue_min_ratio": (0, 1),
}
"""The least and the most of each number, checked in this order; null is always valid."""
