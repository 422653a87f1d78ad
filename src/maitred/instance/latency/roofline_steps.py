"""RooflineSteps: what a step costs under the roofline model, whose formulas are those of `roofline`.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from maitred.core.contracts import ChunkShape
from maitred.instance.latency.deployment import Deployment, ModelSpec


class RooflineSteps:
    """The costs of one deployment, in µs for each token, each pair of tokens, and each step."""

    def __init__(self, on: Deployment, scale: float) -> None:
        """Each step takes `scale` times as long as it would."""
        model, hardware, tp = on.model, on.hardware, on.tensor_parallel_size
        d, layers, heads = model.hidden_size, model.num_layers, model.num_heads
        width, reached = model.bytes_per_element, hardware.efficiency
        # BLIS has two of the three matrices of a feed-forward layer, no head, and its own count of layers with experts.
        blis = reached is None
        matrices, head = (2, 0) if blis else (3, model.vocab_size * d)
        expert_layers = model.moe_layers if blis else model.expert_layers

        per_token = layers * (2 * model.attention_params + 2 * d) + 2 * matrices * d * _active_ffn_elements(
            model, expert_layers
        )
        per_pair = layers * heads * (4 * model.head_width + 5)
        prefill = tp * on.flops_per_us * (hardware.mfu_prefill if reached is None else reached.flops) / scale
        decode = tp * on.flops_per_us * (hardware.mfu_decode if reached is None else reached.flops) / scale
        self._prefill_token: float = per_token / prefill
        self._prefill_pair: float = per_pair / prefill
        self.decode_token: float = per_token / decode
        self.decode_pair: float = per_pair / decode

        memory = tp * on.bytes_per_us * (1.0 if reached is None else reached.bandwidth) / scale
        kv = layers * model.kv_width * width * tp / model.kv_shards(tp)
        self.kv_read: float = kv / memory
        self.written: float = (kv + layers * d * width) / memory
        always = layers * model.attention_params + matrices * d * _always_loaded_ffn_elements(model, expert_layers) + head
        self._weights: float = always * model.weight_width / memory
        self._experts: float = expert_layers * matrices * d * model.expert_width * model.weight_width / memory
        # Two all-reduces in each layer, in each of which a GPU sends every element twice but for the part that it keeps.
        self._reduce_token: float = 0.0
        self._reduce_step: float = 0.0
        if reached is not None and tp > 1:
            self._reduce_token = 2 * layers * 2 * (tp - 1) / tp * d * width / (reached.link_gb_s * 1e3) * scale
            self._reduce_step = 2 * layers * reached.link_latency_us * scale
        self._num_experts: int = model.num_experts
        self._experts_per_token: int = model.experts_per_token

    def time_of(self, chunks: Sequence[ChunkShape], decodes: int, context_tokens: int) -> float:
        """Return the µs of a step with these chunks of prefill, in which `decodes` sequences decode over `context_tokens`."""
        tokens = pairs = history = 0.0
        for chunk in chunks:
            new, computed = chunk.num_tokens, chunk.num_computed_tokens
            tokens += new
            pairs += new * (computed + (new - 1) / 2)
            history += computed
        return self._time(tokens, pairs, history, decodes, context_tokens)

    def prompt_time(self, tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the same for one chunk alone, which is a whole prompt."""
        return self._time(tokens, tokens * ((tokens - 1) / 2), 0.0, decodes, context_tokens)

    def _time(self, tokens: float, pairs: float, history: float, decodes: int, context_tokens: int) -> float:
        """Return the µs of a step that prefills `tokens` tokens after `history`, which attend to `pairs`."""
        prefill = tokens * self._prefill_token + pairs * self._prefill_pair
        compute = prefill + decodes * self.decode_token + context_tokens * self.decode_pair
        tokens += decodes
        weights = self.weights_time(tokens) if self._experts else self._weights
        memory = weights + tokens * self.written + (history + context_tokens) * self.kv_read
        # `reduce_time`, without its call
        return (compute if compute > memory else memory) + (self._reduce_step + tokens * self._reduce_token)

    def reduce_time(self, tokens: float) -> float:
        """Return the µs of the all-reduces of a step of `tokens` tokens."""
        return self._reduce_step + tokens * self._reduce_token

    def weights_time(self, tokens: float) -> float:
        """Return the µs to load the weights that a step of `tokens` tokens needs."""
        experts = self._num_experts
        if not self._experts:
            return self._weights
        idle = (experts - self._experts_per_token) / experts
        return self._weights + self._experts * experts * (1 - math.pow(idle, tokens))


def _active_ffn_elements(model: ModelSpec, expert_layers: int) -> int:
    """Return the intermediate elements that a token passes, summed over the layers."""
    routed = model.experts_per_token * model.expert_width + model.shared_intermediate_size
    return (model.num_layers - expert_layers) * model.intermediate_size + expert_layers * routed


def _always_loaded_ffn_elements(model: ModelSpec, expert_layers: int) -> int:
    """Return the intermediate elements with weights that every step needs, summed over the layers."""
    return (model.num_layers - expert_layers) * model.intermediate_size + expert_layers * model.shared_intermediate_size
