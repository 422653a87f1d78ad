"""Deployment: a model on GPUs. Latency models and KV capacities are computed from its figures. The catalogue holds many."""

from __future__ import annotations

from math import isfinite

import msgspec

_MAX_COUNT = 1 << 31
"""Upper limit of every count: far more than any model has."""


class AttentionRanks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek): keys and values are kept as one compressed vector per token, for all heads."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0
    """Rank of the compressed queries, or 0 if queries are not compressed."""

    def __post_init__(self) -> None:
        _check_range(self, 1, "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        _check_range(self, 0, "q_lora_rank")


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder-only transformer with gated (SwiGLU) feed-forward layers. Dimensions are elements, as in a Hugging Face
    config.json. Raises ValueError for what cannot be."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    """Width of a dense feed-forward layer."""
    vocab_size: int
    head_dim: int = 0
    """Elements of one head, or 0 for hidden_size / num_heads."""
    max_position_embeddings: int = 0
    """Longest context, in tokens, or 0 if it is not known."""
    bytes_per_element: float = 2.0
    """Bytes of an element of activations and of KV."""
    weight_bytes: float = 0.0
    """Bytes of a parameter, where weights are quantised, or 0 for bytes_per_element."""
    tied_embeddings: bool = False
    num_experts: int = 0
    """Experts of each layer of a mixture, or 0 for a dense model."""
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    """Width of one routed expert, or 0 for intermediate_size."""
    shared_intermediate_size: int = 0
    """Width of all shared experts together, which every token passes."""
    first_dense_layers: int = 0
    """Layers at the beginning that have no experts."""
    interleave_moe_layer_step: int = 0
    """Distance n of the layers that have experts, if only every n-th has (Llama 4); 0: they are not interleaved."""
    latent_attention: AttentionRanks | None = None

    def __post_init__(self) -> None:
        _check_range(self, 1, "num_layers", "hidden_size", "num_heads", "num_kv_heads", "intermediate_size", "vocab_size")
        _check_range(
            self, 0, "head_dim", "num_experts", "experts_per_token", "expert_intermediate_size", "shared_intermediate_size"
        )
        _check_range(self, 0, "interleave_moe_layer_step", "first_dense_layers", "max_position_embeddings")
        if not self.head_dim and self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}: say head_dim")
        if not (isfinite(self.bytes_per_element) and self.bytes_per_element > 0):
            raise ValueError(f"bytes_per_element must be above 0, not {self.bytes_per_element}")
        if not (isfinite(self.weight_bytes) and self.weight_bytes >= 0):
            raise ValueError(f"weight_bytes must be at least 0, not {self.weight_bytes}")
        if self.num_experts > 1 and not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token must be from 1 to num_experts {self.num_experts}, not {self.experts_per_token}"
            )
        if self.num_experts > 1 and self.expert_layers < 1:
            raise ValueError(f"with first_dense_layers {self.first_dense_layers} no layer has experts")

    @property
    def weight_width(self) -> float:
        """Bytes per parameter."""
        return self.weight_bytes or self.bytes_per_element

    @property
    def head_width(self) -> int:
        """Elements of one head, for the work of attention."""
        if self.latent_attention is None:
            return self.head_dim or self.hidden_size // self.num_heads
        ranks = self.latent_attention
        return (ranks.qk_nope_head_dim + ranks.qk_rope_head_dim + ranks.v_head_dim) // 2

    @property
    def kv_width(self) -> int:
        """Elements of KV per token and layer, keys and values together."""
        if self.latent_attention is None:
            return 2 * self.num_kv_heads * self.head_width
        return self.latent_attention.kv_lora_rank + self.latent_attention.qk_rope_head_dim

    def kv_shards(self, tensor_parallel_size: int) -> int:
        """Return the number of GPUs over which the KV of a token is spread. Compressed KV is on each of them, and where there
        are more GPUs than KV heads, a head is on several."""
        return min(tensor_parallel_size, self.num_kv_heads) if self.latent_attention is None else 1

    @property
    def attention_params(self) -> int:
        """Weights of the projections of one layer: queries, keys, values and output."""
        d, heads = self.hidden_size, self.num_heads
        if self.latent_attention is None:
            return d * (2 * heads * self.head_width + self.kv_width)
        ranks = self.latent_attention
        query_width = heads * (ranks.qk_nope_head_dim + ranks.qk_rope_head_dim)
        queries = ranks.q_lora_rank * (d + query_width) if ranks.q_lora_rank else d * query_width
        expansion = ranks.kv_lora_rank * heads * (ranks.qk_nope_head_dim + ranks.v_head_dim)
        return queries + d * self.kv_width + expansion + heads * ranks.v_head_dim * d

    @property
    def expert_width(self) -> int:
        return self.expert_intermediate_size or self.intermediate_size

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        if self.num_experts < 2:
            return 0
        return self.num_layers // (self.interleave_moe_layer_step or 1) - self.first_dense_layers

    @property
    def moe_layers(self) -> int:
        """Layers with experts as BLIS counts them, because the coefficients of trained-physics were fitted so: where they are
        interleaved, one of n + 1."""
        if self.num_experts > 1 and self.interleave_moe_layer_step:
            return self.num_layers // (self.interleave_moe_layer_step + 1)
        return self.expert_layers

    @property
    def dense_layers(self) -> int:
        return self.num_layers - self.moe_layers

    @property
    def params(self) -> int:
        """Weights in all: embeddings, layers with their norms, the head unless it is tied."""
        d = self.hidden_size
        dense = 3 * d * self.intermediate_size
        experts = 3 * d * (self.num_experts * self.expert_width + self.shared_intermediate_size) + self.num_experts * d
        layers = self.num_layers * (self.attention_params + 2 * d)
        layers += (self.num_layers - self.expert_layers) * dense + self.expert_layers * experts
        return self.vocab_size * d * (1 if self.tied_embeddings else 2) + layers + d


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU reaches of its peaks, and its links to others. Raises ValueError for what cannot be."""

    flops: float
    """Share of the peak arithmetic that a long prompt reaches."""
    bandwidth: float
    """Share of the memory bandwidth."""
    link_gb_s: float
    """Bandwidth to the other GPUs of the server in one direction, in GB/s (10^9 bytes)."""
    link_latency_us: float
    """Time of a message between two GPUs, however short."""
    source: str
    """Source of the figures."""

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        if not (
            isfinite(self.link_gb_s) and self.link_gb_s > 0 and isfinite(self.link_latency_us) and self.link_latency_us >= 0
        ):
            raise ValueError(
                f"link_gb_s must be above 0 and link_latency_us at least 0, not {self.link_gb_s}, {self.link_latency_us}"
            )


class HardwareSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU. Raises ValueError for what cannot be."""

    name: str
    peak_tflops: float
    """Dense 16-bit matrix arithmetic, without sparsity."""
    bandwidth_tb_s: float
    """Bandwidth of its memory, in TB/s."""
    memory_gib: float = 0.0
    """Memory of one GPU in GiB, or 0 if it is not known, and KV blocks cannot be derived."""
    peak_tflops_fp8: float = 0.0
    """Dense 8-bit matrix arithmetic, or 0 if the GPU has none."""
    efficiency: Efficiency | None = None
    """What it reaches of its peaks (`roofline`). Null: `roofline` is BLIS's, with the two shares that follow."""
    mfu_prefill: float = 0.45
    """Share of the peak that prefill reaches in BLIS's `roofline`."""
    mfu_decode: float = 0.30
    """Share of the peak that decode reaches in BLIS's `roofline`."""
    trained_physics_error: float = 0.0
    """Mean absolute error of E2E latency that is published of `trained-physics` with its shipped coefficients, or 0."""
    aiconfigurator: str = ""
    """Name of the system in AIConfigurator, or empty if it knows none with this GPU."""
    source: str = ""
    """Source of the figures."""
    tdp_watts: float = 0.0
    """Published power limit in W, or 0 if it is not known."""
    power_source: str = ""
    """Source of the power limit."""

    def __post_init__(self) -> None:
        for name in ("peak_tflops", "bandwidth_tb_s", "mfu_prefill", "mfu_decode"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("memory_gib", "peak_tflops_fp8", "tdp_watts"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on GPUs: what the analytic latency models compute with. Raises ValueError for what cannot be."""

    model: ModelSpec
    hardware: HardwareSpec
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    """Ranks that share the experts of one engine, each with its own part of the requests."""

    def __post_init__(self) -> None:
        heads, tp = self.model.num_heads, self.tensor_parallel_size
        if tp < 1 or heads % tp:
            raise ValueError(f"tensor_parallel_size must divide the {heads} heads of {self.model.name}, not {tp}")
        kv_heads, shards = self.model.num_kv_heads, self.model.kv_shards(tp)
        if tp % shards or kv_heads % shards:
            what = f"divide the {kv_heads} KV heads of {self.model.name}, or be a multiple of them"
            raise ValueError(f"tensor_parallel_size must {what}, not {tp}")
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size must be at least 1, not {self.data_parallel_size}")

    @property
    def flops_per_us(self) -> float:
        """Peak rate, at 8 bits where weights have one byte and the GPU has such arithmetic."""
        eight_bits = self.model.weight_width == 1.0 and self.hardware.peak_tflops_fp8
        return (eight_bits or self.hardware.peak_tflops) * 1e6

    @property
    def bytes_per_us(self) -> float:
        return self.hardware.bandwidth_tb_s * 1e6


def _check_range(spec: ModelSpec | AttentionRanks, least: int, *names: str) -> None:
    for name in names:
        if not least <= getattr(spec, name) <= _MAX_COUNT:
            raise ValueError(f"{name} must be from {least} to {_MAX_COUNT:,}, not {getattr(spec, name)}")
