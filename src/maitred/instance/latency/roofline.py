"""The latency model `roofline`: a step takes as long as its arithmetic or its memory traffic, whichever is longer (BLIS).

Per sequence, with T new tokens after s that are in KV (a decode: T = 1), e = s + (T-1)/2 the context they see on average:

    flops  = T·(2·projections + 2·feed-forward) per layer + (4·H·dh + 5·H)·T·e + 2·T·d     (attention, softmax, rotation)
    bytes  = T·(KV written + activations) + s·(KV read)                                    and once per step the weights
    step   = max(Σ flops / (peak · MFU), (weights + Σ bytes) / bandwidth), both / TP

MFU is that of prefill or of decode, per sequence. As BLIS has it, a feed-forward layer counts two of its three matrices, and a
mixture of N experts loads N·(1 - ((N-k)/N)^T) of them for T tokens in all: those that some token is routed to.

Example: Llama-3.1-8B on one H100, where 32 sequences decode over 32,000 tokens of KV. Memory takes 3,044.9 µs for the weights,
1,252.0 for reading the KV and 3.8 for writing it, arithmetic takes 1,156.7 µs: the step takes 4,300 µs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from maitred.core.contracts import BatchShape, LatencyModel, Overheads
from maitred.core.errors import ConfigError
from maitred.instance.latency.affine import AffineCost, MaxOfLinesModel
from maitred.instance.latency.base import LATENCY_MODELS, LatencyConfig
from maitred.instance.latency.deployment import Deployment, ModelSpec


@LATENCY_MODELS.register("roofline")
class RooflineLatency(LatencyConfig, frozen=True, tag="roofline"):
    """A step takes as long as its arithmetic or its memory traffic, whichever is longer; nothing is fitted (BLIS)."""

    deployment: Deployment | None = None
    """The figures themselves (`model`, `hardware`, `tensor_parallel_size`, `data_parallel_size`), instead of names in the
    catalogue."""

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, in which each step takes `scale` times as long. Raises ConfigError without a deployment."""
        if self.deployment is None:
            raise ConfigError("the latency model roofline needs a model", hint="say which: --model meta-llama/llama-3.1-8b")
        return _compiled(self.deployment, scale)


class _RooflineModel(MaxOfLinesModel):
    def __init__(self, on: Deployment, scale: float) -> None:
        super().__init__(Overheads())
        model, hardware, tp = on.model, on.hardware, on.tensor_parallel_size
        d, layers, heads = model.hidden_size, model.num_layers, model.num_heads
        self._model = model
        width = model.bytes_per_element

        per_token = layers * (2 * model.attention_params + 2 * d) + 4 * d * _active_ffn_elements(model)
        per_pair = layers * heads * (4 * model.head_width + 5)
        prefill = tp * on.flops_per_us * hardware.mfu_prefill / scale
        decode = tp * on.flops_per_us * hardware.mfu_decode / scale
        self._prefill_token, self._prefill_pair = per_token / prefill, per_pair / prefill
        self._decode_token, self._decode_pair = per_token / decode, per_pair / decode

        memory = tp * on.bytes_per_us / scale
        kv = layers * model.kv_width * width * tp / model.kv_shards(tp)
        self._kv_read = kv / memory
        self._written = (kv + layers * d * width) / memory
        always = layers * model.attention_params + 2 * d * _always_loaded_ffn_elements(model)
        self._weights = always * model.weight_width / memory
        self._experts = model.moe_layers * 2 * d * model.expert_width * model.weight_width / memory

    def decode_lines(self, decodes: int) -> Sequence[AffineCost]:
        compute = AffineCost(decodes * self._decode_token, self._decode_pair)
        memory = AffineCost(self._weights_time(decodes) + decodes * self._written, self._kv_read)
        return compute, memory

    def prefill_step_time(self, batch: BatchShape) -> float:
        tokens = pairs = history = 0.0
        for chunk in batch.chunks:
            tokens += chunk.num_tokens
            pairs += chunk.num_tokens * (chunk.num_computed_tokens + (chunk.num_tokens - 1) / 2)
            history += chunk.num_computed_tokens
        prefill = tokens * self._prefill_token + pairs * self._prefill_pair
        compute = prefill + batch.num_decodes * self._decode_token + batch.context_tokens * self._decode_pair
        tokens += batch.num_decodes
        memory = self._weights_time(tokens) + tokens * self._written + (history + batch.context_tokens) * self._kv_read
        return max(compute, memory)

    def _weights_time(self, tokens: float) -> float:
        """Return the µs to load the weights that a step of `tokens` tokens needs."""
        experts = self._model.num_experts
        if not self._experts:
            return self._weights
        idle = (experts - self._model.experts_per_token) / experts
        return self._weights + self._experts * experts * (1 - math.pow(idle, tokens))


def _active_ffn_elements(model: ModelSpec) -> int:
    """Return the intermediate elements that a token passes, summed over the layers."""
    routed = model.experts_per_token * model.expert_width + model.shared_intermediate_size
    return model.dense_layers * model.intermediate_size + model.moe_layers * routed


def _always_loaded_ffn_elements(model: ModelSpec) -> int:
    """Return the intermediate elements with weights that every step needs, summed over the layers."""
    return model.dense_layers * model.intermediate_size + model.moe_layers * model.shared_intermediate_size


@lru_cache(maxsize=64)
def _compiled(on: Deployment, scale: float) -> LatencyModel:
    return _RooflineModel(on, scale)
