"""The latency model `trained-physics`: the parts of a roofline, times coefficients that were fitted to measurements (BLIS).

It is here to compare with BLIS, and the default of `flavour: blis` alone: its arithmetic counts 15 %, which suits the short
prompts that it was fitted to, and falls below what a GPU can do for long ones.

    step = P + D + β3·weights + β4·all-reduce + βEP·dispatch + β5·layers + β6·requests + β7 + β8·MoE layers, if interleaved
    P    = β1·compute + β1b·KV written   of the tokens that prefill    (7 or 8 β: β1·max of the two)
    D    = β2·compute + β2b·KV read      of those that decode          (up to 9 β: β2·max of the two)

in the order β1 β2 β3 β4 β5 β6 β7 β8 β1b β2b βEP; those left out are 0, βEP is β4. Compute is flops at the peak rate, the others
bytes at the memory's. Each sees the work of one GPU: of TP that share every layer, and of DP that share the requests and, with
TP, the experts. Attention of a chunk of t tokens is charged for the whole prompt and half the chunk, wherever the chunk
stands in it, because the coefficients were fitted so. α is the time of a request's way in, of its way out, and of the way out
of each token, in µs.

All of it is linear in tokens and in the pairs of tokens that attend to each other, of prefill and of decode. So the model
keeps only the cost of each.

Example, with the shipped coefficients: Llama-3.1-8B on one H100. A step takes 6,830.4 µs in any case, 4.493 µs for each
sequence that decodes, and 0.07618 µs for each token of their context: 9,412 µs for 32 sequences over 32,000 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isfinite
from typing import Literal

import msgspec

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel, Overheads
from maitred.core.errors import ConfigError
from maitred.instance.latency.affine import AffineCost, MaxOfLinesModel
from maitred.instance.latency.base import LATENCY_MODELS, LatencyConfig
from maitred.instance.latency.deployment import Deployment, ModelSpec

ALPHA = (15563.199579, 777.3455, 45.907545)
BETA = (0.152128, 0.0, 1.36252915, 0.752037, 32.09546717, 4.41684444, 126.024825, 481.8613888, 0.0, 1.94710771)
"""Shipped with BLIS (`trained_physics_coefficients` in its defaults.yaml): fitted to vLLM on H100, by its documentation within
5.5 % of measured E2E there, 16 % on A100 and 13 % on L40S."""
_KV_BYTES = 2.0
"""Bytes of an element of KV, and of what an all-reduce moves, however the weights are quantised."""
_MAX_COEFFICIENT = 1e12


@LATENCY_MODELS.register("trained-physics")
class TrainedPhysicsLatency(LatencyConfig, frozen=True, tag="trained-physics"):
    """The parts of a roofline, times coefficients that were fitted to measurements (BLIS `trained-physics`).

    Raises ValueError for coefficients that cannot be."""

    alpha: tuple[float, float, float] = ALPHA
    """Time in µs of a request's way in, of its way out, and of the way out of each token."""
    beta: tuple[float, ...] = BETA
    """7 to 11 coefficients, in the order of `--beta-coeffs`. The first four, the three after β8 and βEP correct a time; the
    others are in µs."""
    moe_communication: Literal["all-gather", "all-to-all"] = "all-gather"
    """How tokens reach the experts of other ranks if `data_parallel_size` is above 1: to all ranks (`all-gather`), or each to
    its experts (`all-to-all`)."""
    deployment: Deployment | None = None
    """The figures themselves, as in `roofline`."""

    def __post_init__(self) -> None:
        if not 7 <= len(self.beta) <= 11:
            raise ValueError(f"beta must have from 7 to 11 numbers (3 are for the model linear), not {len(self.beta)}")
        for name in ("alpha", "beta"):
            if not all(isfinite(x) and 0 <= x <= _MAX_COEFFICIENT for x in getattr(self, name)):
                raise ValueError(f"{name} must be numbers of at least 0, not {list(getattr(self, name))}")

    @property
    def shipped(self) -> bool:
        """Whether its coefficients are those that BLIS has published the accuracy of."""
        return (self.alpha, self.beta) == (ALPHA, BETA)

    @property
    def overheads(self) -> Overheads:
        way_in, way_out, per_token = (int(a) for a in self.alpha)
        return Overheads(queueing=way_in, per_output_token=per_token, after_last_token=way_out)

    def warnings(self, prefill_tokens: int) -> Iterator[str]:
        """Warn of what the shipped coefficients were not fitted to. `prefill_tokens` is the most that a step takes."""
        on = self.deployment
        if on is None or not self.shipped:
            return
        if not on.hardware.trained_physics_error:
            yield f"trained-physics was fitted to vLLM on H100, and nothing is published of its error on {on.hardware.name}"
        says = self.compiled().step_time(BatchShape(0, 0, prefill_tokens, (ChunkShape(prefill_tokens, 0, prefill_tokens),)))
        floor = _token_costs(on, self.moe_communication).compute * prefill_tokens
        if says < floor:
            yield (
                f"trained-physics says {says / 1000:,.0f} ms for a step of {prefill_tokens:,} prompt tokens, whose arithmetic "
                f"takes {floor / 1000:,.0f} ms at the peak of {on.hardware.name}: it was fitted to shorter prompts"
            )

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, in which each step takes `scale` times as long. Raises ConfigError without a deployment."""
        if self.deployment is None:
            raise ConfigError(
                "the latency model trained-physics needs a model", hint="say which: --model meta-llama/llama-3.1-8b"
            )
        return _compiled(self, scale)


class _TokenCosts(msgspec.Struct, frozen=True):
    """The cost of a token on one GPU, in µs at the peak rates."""

    compute: float
    """Everything but attention."""
    attention: float
    """Attention, for each pair of tokens of which one attends to the other."""
    kv: float
    """Reading or writing its KV."""
    all_reduce: float
    dispatch: float
    """The way to its experts and back."""
    weights: float
    """Loading the weights, once for each step."""


def _token_costs(on: Deployment, moe_communication: str) -> _TokenCosts:
    model, tp, dp = on.model, on.tensor_parallel_size, on.data_parallel_size
    d, layers, moe, dense = model.hidden_size, model.num_layers, model.moe_layers, model.dense_layers
    flops, bandwidth, gpus = on.flops_per_us, on.bytes_per_us, tp * dp
    routed = moe * model.experts_per_token * model.expert_width
    always = dense * model.intermediate_size + moe * model.shared_intermediate_size
    stored = layers * model.attention_params + 3 * d * always
    experts = 3 * d * moe * model.num_experts * model.expert_width
    # A ring all-reduce sends each element twice, but for the part that a GPU keeps.
    ring = d * _KV_BYTES * 2 * ((tp - 1) / tp) / bandwidth
    # One all-reduce after attention, and one after the feed-forward part. With data parallelism, the way to the experts and
    # back takes the place of the second one in layers with experts.
    reduced = (layers + dense) / dp + (moe if dp == 1 else 0)
    return _TokenCosts(
        compute=(2 * layers * model.attention_params + 6 * d * (routed + always)) / gpus / flops,
        attention=layers * 4 * (model.num_heads / tp) * model.head_width / dp / flops,
        kv=layers * model.kv_width / (model.kv_shards(tp) * dp) * _KV_BYTES / bandwidth,
        all_reduce=reduced * ring,
        dispatch=_dispatch(model, gpus, dp, moe_communication) / bandwidth,
        weights=(stored / tp + experts / gpus) * model.weight_width / bandwidth,
    )


def _dispatch(model: ModelSpec, gpus: int, dp: int, moe_communication: str) -> float:
    """Return the bytes of a token on its way to the experts and back."""
    if dp == 1:
        return 0.0
    copies = model.experts_per_token if moe_communication == "all-to-all" else 1
    return model.moe_layers * copies / dp * ((gpus - 1) / gpus) * 2 * model.hidden_size * model.bytes_per_element


class _TrainedPhysicsModel(MaxOfLinesModel):
    def __init__(self, config: TrainedPhysicsLatency, on: Deployment, scale: float) -> None:
        super().__init__(config.overheads)
        model, work = on.model, _token_costs(on, config.moe_communication)
        beta = [b * scale for b in config.beta]
        beta += [0.0] * (10 - len(beta))
        expert = beta[10] if len(beta) > 10 else beta[3]
        b1, b2, b3, b4, b5, b6, b7, b8, b1b, b2b = beta[:10]
        self._work = work
        interleaved = model.moe_layers if model.interleave_moe_layer_step else 0
        self._step = b3 * work.weights + b5 * model.num_layers + b7 + b8 * interleaved
        self._chunk = b6
        self._token = self._sequence = b4 * work.all_reduce + expert * work.dispatch
        self._sequence += b6
        self._pair = self._context = 0.0
        self._prefill_max, self._decode_max = b1, b2
        if len(config.beta) >= 9:
            self._prefill_max = 0.0
            self._token += b1 * work.compute + b1b * work.kv
            self._pair = b1 * work.attention
        if len(config.beta) >= 10:
            self._decode_max = 0.0
            self._sequence += b2 * work.compute + b2b * work.kv
            self._context = b2 * work.attention + b2b * work.kv

    def decode_lines(self, decodes: int) -> Sequence[AffineCost]:
        beta, work = self._decode_max, self._work
        rest = AffineCost(self._step + self._sequence * decodes, self._context)
        if not beta:
            return (rest,)
        compute = AffineCost(rest.base + beta * work.compute * decodes, beta * work.attention)
        return compute, AffineCost(rest.base + beta * work.kv * decodes, beta * work.kv)

    def prefill_step_time(self, batch: BatchShape) -> float:
        tokens, decodes, chunks, pairs = batch.prefill_tokens, batch.num_decodes, 0, 0.0
        for chunk in batch.chunks:
            if new := chunk.num_tokens:
                chunks += 1
                pairs += new * (chunk.total_tokens + new / 2)
        time = self._step + self._chunk * chunks + self._token * tokens + self._pair * pairs
        time += self._sequence * decodes + self._context * batch.context_tokens
        if self._prefill_max:
            compute = self._work.compute * tokens + self._work.attention * pairs
            time += self._prefill_max * max(compute, self._work.kv * tokens)
        if self._decode_max:
            compute = self._work.compute * decodes + self._work.attention * batch.context_tokens
            time += self._decode_max * max(compute, self._work.kv * (batch.context_tokens + decodes))
        return time


@lru_cache(maxsize=64)
def _compiled(config: TrainedPhysicsLatency, scale: float) -> LatencyModel:
    assert config.deployment is not None
    return _TrainedPhysicsModel(config, config.deployment, scale)
