"""What an instance is made of. The same section describes an emulated engine and the instances of a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from maitred.instance.latency import LinearLatency
from maitred.kv import EVICTIONS, BlisPool, BlockPool, PrefixCache, RadixCache
from maitred.queueing import QueueingConfig

_MOST = {
    "max_num_seqs": 1_000_000,
    "max_num_batched_tokens": 1_000_000_000,
    "total_kv_blocks": 1_000_000_000,
    "block_size_in_tokens": 65_536,
}
"""Far more than any engine has: what is above is a slip of the keyboard, and would only exhaust memory."""


class InstanceConfig(QueueingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names and meanings as vLLM's and BLIS's flags; defaults as theirs, KV as an 80 GB GPU has beside an 8B model."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    """The largest chunk of one prompt in one step, in tokens; 0: no limit but `max_num_batched_tokens`."""
    total_kv_blocks: int = 27_000
    block_size_in_tokens: int = 16
    enable_prefix_caching: bool = False
    """Whether the KV blocks of a prompt stay in memory for the next one that begins alike."""
    prefix_cache: Literal["blocks", "radix"] = "blocks"
    """How they are kept: block by block (vLLM), or in a radix tree (SGLang)."""
    radix_eviction_policy: str = "lru"
    """Which leaf of the radix tree goes first: a name registered in `kv.EVICTIONS`."""
    preemption_policy: Literal["fcfs", "priority"] = "fcfs"
    """Who is preempted when KV blocks run out: the last admitted, or the least urgent by `Seq.priority` (BLIS)."""
    flavour: Literal["maitred", "blis"] = "maitred"
    """Whose rules where systems differ: vLLM's, made right, or BLIS's, to compare with its results. BLIS always caches
    prefixes, block by block."""
    max_model_len: int | None = None
    """Prompt and output together, in tokens; None: what the KV blocks hold."""
    latency: LinearLatency = LinearLatency()
    step_by_step: bool = False
    """Make every step by itself. Slower, and the same results: for pacing in real time, and to check the skipping."""

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 1 to {most:,}, not {getattr(self, name)}")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(f"long_prefill_token_threshold must be at least 0, not {self.long_prefill_token_threshold}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"max_model_len must be at least 2 (a token in and a token out), not {self.max_model_len}")

    def warnings(self, *, prefix_cache: bool) -> list[str]:
        """Also what is said of a prefix cache that is another one, or none."""
        return [*super().warnings(prefix_cache=prefix_cache), *self._about_cache()]

    def _about_cache(self) -> Iterator[str]:
        if self.prefix_cache != "blocks" and not self.enable_prefix_caching:
            yield f"prefix_cache {self.prefix_cache} has no effect without enable_prefix_caching"
        if self.radix_eviction_policy != "lru" and self.prefix_cache != "radix":
            yield f"radix_eviction_policy {self.radix_eviction_policy} has no effect without prefix_cache radix"

    def new_prefix_cache(self) -> PrefixCache[Any] | None:
        """An empty one; None: without prefix caching. Raises ConfigError for an unknown eviction policy."""
        if self.flavour == "blis":
            return BlisPool(self.total_kv_blocks, self.block_size_in_tokens)
        if not self.enable_prefix_caching:
            return None
        if self.prefix_cache == "blocks":
            return BlockPool(self.total_kv_blocks, self.block_size_in_tokens)
        return RadixCache(self.block_size_in_tokens, self.total_kv_blocks, EVICTIONS.get(self.radix_eviction_policy)())

    @property
    def model_len(self) -> int:
        """The longest prompt and output together that fits, in tokens."""
        held = self.total_kv_blocks * self.block_size_in_tokens
        return held if self.max_model_len is None else min(held, self.max_model_len)
