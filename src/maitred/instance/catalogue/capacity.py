"""Capacity: the number of KV blocks that fit on GPUs beside a model and its activations.

    room   = memory · utilisation · GPUs - weights - activations (5.5 GiB, 8 with experts; once per rank) - libraries of the
             engine (0.15 GiB, or with more than one GPU 0.6 GiB on each)
    blocks = room / (block size · 2 · layers · KV heads · head dim · bytes)

This is the formula of BLIS and of the capacity planner of llm-d. Llama-3.1-8B on one H100 gets 26,312 blocks, within about a
percent of what vLLM reports. Compressed KV (latent attention) is the same on every GPU of a rank. Each rank of data parallelism
has blocks of its own; here they count together, as one instance.
"""

from __future__ import annotations

from maitred.core.errors import ConfigError
from maitred.instance.latency import Deployment

_GIB = 1 << 30
DEFAULT_UTILISATION = 0.9
"""vLLM's default."""
_ACTIVATIONS_DENSE = 5.5 * _GIB
_ACTIVATIONS_EXPERTS = 8.0 * _GIB
_LIBRARIES_ALONE = 0.15 * _GIB
_LIBRARIES = 0.6 * _GIB


def num_kv_blocks(deployment: Deployment, block_size: int, utilisation: float = DEFAULT_UTILISATION) -> int:
    """Return the number of blocks of `block_size` tokens, if this share of the memory is used.

    Raises ConfigError if the model does not fit, or if the memory is not known.
    """
    model, hardware, tp, dp = (
        deployment.model,
        deployment.hardware,
        deployment.tensor_parallel_size,
        deployment.data_parallel_size,
    )
    if not hardware.memory_gib:
        hint = "give memory_gib (MemoryGiB) there, or --total-kv-blocks here"
        raise ConfigError(f"the memory of {hardware.name} is not known", hint=hint)
    gpus = tp * dp
    libraries = _LIBRARIES_ALONE if gpus == 1 else _LIBRARIES * gpus
    activations = (_ACTIVATIONS_EXPERTS if model.expert_layers else _ACTIVATIONS_DENSE) * dp
    weights = _weight_bytes(deployment)
    memory = hardware.memory_gib * _GIB * utilisation * gpus
    room = memory - weights - activations - libraries
    on_each = tp // model.kv_shards(tp)
    token = model.num_layers * model.kv_width * model.bytes_per_element * on_each
    blocks = int(room / (token * block_size))
    if blocks < 1:
        wants = (weights + activations + libraries) / _GIB
        what = f"{model.name} wants {wants:.0f} GiB before any KV, and {gpus} x {hardware.name} give it {memory / _GIB:.0f}"
        more = "" if utilisation >= DEFAULT_UTILISATION else "a larger --gpu-memory-utilization, "
        hint = f"{more}a larger --tensor-parallel-size, other --hardware, or give --total-kv-blocks"
        raise ConfigError(what, where="hardware", hint=hint)
    return blocks


def _weight_bytes(deployment: Deployment) -> float:
    """Return the bytes of the weights on all GPUs together: every rank has a copy of everything but the experts."""
    model = deployment.model
    experts = 3 * model.hidden_size * model.num_experts * model.expert_width * model.expert_layers
    return ((model.params - experts) * deployment.data_parallel_size + experts) * model.weight_width
