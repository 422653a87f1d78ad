"""How many KV blocks there is room for on GPUs, beside a model and what it computes with.

    room   = memory · utilisation · GPUs - weights - activations (5.5 GiB, 8 with experts; once per rank) - 0.15 GiB, or
             with more than one GPU 0.6 GiB on each, that the engine's libraries take
    blocks = room / (block size · 2 · layers · KV heads · head dim · bytes)

as BLIS and the capacity planner of llm-d have it; Llama-3.1-8B on one H100 gets 26,312, within a percent or so of what vLLM
reports. Compressed KV (latent attention) is the same on every GPU of a rank. Ranks of data parallelism have blocks each; here
they count together, as one instance.
"""

from __future__ import annotations

from maitred.core.errors import ConfigError
from maitred.instance.latency import Deployment

_GIB = 1 << 30
DEFAULT_UTILISATION = 0.9
"""vLLM's."""
_ACTIVATIONS_DENSE = 5.5 * _GIB
_ACTIVATIONS_EXPERTS = 8.0 * _GIB
_LIBRARIES_ALONE = 0.15 * _GIB
_LIBRARIES = 0.6 * _GIB


def num_kv_blocks(on: Deployment, block_size: int, utilisation: float = DEFAULT_UTILISATION) -> int:
    """Blocks of `block_size` tokens in all, where this share of the memory is used.

    Raises ConfigError if the model does not fit, or the memory is not known.
    """
    model, hardware, tp, dp = on.model, on.hardware, on.tensor_parallel_size, on.data_parallel_size
    if not hardware.memory_gib:
        hint = "say memory_gib (MemoryGiB) there, or --total-kv-blocks here"
        raise ConfigError(f"nobody says how much memory {hardware.name} has", hint=hint)
    gpus = tp * dp
    libraries = _LIBRARIES_ALONE if gpus == 1 else _LIBRARIES * gpus
    activations = (_ACTIVATIONS_EXPERTS if model.expert_layers else _ACTIVATIONS_DENSE) * dp
    weights = _weight_bytes(on)
    memory = hardware.memory_gib * _GIB * utilisation * gpus
    room = memory - weights - activations - libraries
    on_each = tp // model.kv_shards(tp)
    token = model.num_layers * model.kv_width * model.bytes_per_element * on_each
    blocks = int(room / (token * block_size))
    if blocks < 1:
        wants = (weights + activations + libraries) / _GIB
        what = f"{model.name} wants {wants:.0f} GiB before any KV, and {gpus} x {hardware.name} give it {memory / _GIB:.0f}"
        more = "" if utilisation >= DEFAULT_UTILISATION else "a larger --gpu-memory-utilization, "
        hint = f"{more}a larger --tensor-parallel-size, other --hardware, or say --total-kv-blocks"
        raise ConfigError(what, where="hardware", hint=hint)
    return blocks


def _weight_bytes(on: Deployment) -> float:
    """Bytes, on all GPUs together: every rank has a copy of all but the experts."""
    model = on.model
    experts = 3 * model.hidden_size * model.num_experts * model.expert_width * model.expert_layers
    return ((model.params - experts) * on.data_parallel_size + experts) * model.weight_width
