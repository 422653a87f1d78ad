"""Models on GPUs, and batches, for tests of latency models."""

from __future__ import annotations

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.instance.latency import AttentionRanks, Deployment, HardwareSpec, ModelSpec

LLAMA = ModelSpec(
    name="llama-3.1-8b",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    intermediate_size=14336,
    vocab_size=128256,
)
MIXTRAL = ModelSpec(
    name="mixtral-8x7b",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    intermediate_size=14336,
    vocab_size=32000,
    num_experts=8,
    experts_per_token=2,
)
LATENT = ModelSpec(
    name="small-mla",
    num_layers=4,
    hidden_size=512,
    num_heads=8,
    num_kv_heads=8,
    intermediate_size=1024,
    vocab_size=1000,
    latent_attention=AttentionRanks(kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, q_lora_rank=96),
)
H100 = HardwareSpec(name="H100", peak_tflops=989.5, peak_tflops_fp8=1979, bandwidth_tb_s=3.35, memory_gib=80)
ON_H100 = Deployment(model=LLAMA, hardware=H100)


def prefill(*prompts: int) -> BatchShape:
    """Whole prompts, alone in a step."""
    return BatchShape(0, 0, sum(prompts), tuple(ChunkShape(tokens, 0, tokens) for tokens in prompts))


def decode(sequences: int, context: int) -> BatchShape:
    return BatchShape(sequences, context)
