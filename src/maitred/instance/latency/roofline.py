"""The latency model `roofline`: a step takes as long as its arithmetic or its memory traffic, whichever is longer, and as its
all-reduces.

Per sequence, with T new tokens after s that are in KV (a decode: T = 1), e = s + (T-1)/2 the context they see on average:

    flops   = T·(2·projections + 2·feed-forward) per layer + (4·H·dh + 5·H)·T·e + 2·T·d     (attention, softmax, rotation)
    bytes   = T·(KV written + activations) + s·(KV read)                                    and once per step the weights
    step    = max(Σ flops / (peak · share), (weights + Σ bytes) / (bandwidth · share)), both / TP, + reduce
    reduce  = 2 per layer · (latency of the link + Σ T · 2·(TP-1)/TP · d·b / link)                  with TP above 1

The shares and the link are `HardwareSpec.efficiency`. They make floors: what no step can beat by much, without the time of
launching kernels. A mixture of N experts loads N·(1 - ((N-k)/N)^T) of them for T tokens in all: those that some token is
routed to. Where a GPU states no efficiency (a hardware file as BLIS has it, and `flavour: blis`), the formula is BLIS's: the
shares are the MFU of prefill or of decode and 1, there is no reduce, and a feed-forward layer has two of its three matrices.

Example, by BLIS's formula: Llama-3.1-8B on one H100, where 32 sequences decode over 32,000 tokens of KV. Memory takes
3,044.9 µs for the weights, 1,252.0 for reading the KV and 3.8 for writing it, arithmetic takes 1,156.7 µs: the step takes
4,300 µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from maitred.core.contracts import BatchShape, LatencyModel, Overheads
from maitred.core.errors import ConfigError
from maitred.instance.latency.affine import AffineCost, MaxOfLinesModel
from maitred.instance.latency.base import LATENCY_MODELS, LatencyConfig
from maitred.instance.latency.deployment import Deployment
from maitred.instance.latency.roofline_steps import RooflineSteps


@LATENCY_MODELS.register("roofline")
class RooflineLatency(LatencyConfig, frozen=True, tag="roofline"):
    """A step takes as long as its arithmetic or its memory traffic, whichever is longer, and its all-reduces; nothing is
    fitted."""

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
        self._steps = RooflineSteps(on, scale)
        self.mixed_steps = self._steps

    def decode_lines(self, decodes: int) -> Sequence[AffineCost]:
        steps = self._steps
        reduced = steps.reduce_time(decodes)
        compute = AffineCost(decodes * steps.decode_token + reduced, steps.decode_pair)
        memory = AffineCost(steps.weights_time(decodes) + decodes * steps.written + reduced, steps.kv_read)
        return compute, memory

    def prefill_step_time(self, batch: BatchShape) -> float:
        return self._steps.time_of(batch.chunks, batch.num_decodes, batch.context_tokens)


@lru_cache(maxsize=64)
def _compiled(on: Deployment, scale: float) -> LatencyModel:
    return _RooflineModel(on, scale)
