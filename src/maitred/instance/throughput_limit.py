"""The most that one instance can take of a traffic: an estimate from its latency model, without a simulation.

An instance that never runs out of requests decodes B sequences at a time, as many as its limits allow:

    B ≤ max_num_seqs,   B · (p + o/2) ≤ tokens of KV,   B + prefill tokens of a step ≤ max_num_batched_tokens

for requests of p prompt tokens, q of them not in the prefix cache, and o output tokens on average (half of the output is there
on average). The first token of an answer comes with its prompt, so a request decodes in o - 1 steps. In each step B/(o - 1)
requests end, others take their places, and their prompts are u = q·B/(o - 1) tokens of prefill per step. These come prompt by
prompt: one step in c/u has c tokens of prefill, and the others only decode.

    time of a step = (1 - u/c) · t(B decodes) + u/c · t(B decodes, c tokens of prefill)
    requests/s     = B/(o - 1) / time of a step

Example: linear with 5,000 µs per step, 17.5 per prefill token and 60 per decode, 256 sequences, p = q = 512, o = 513. Half a
request ends per step, u = 256 tokens: 5,000 + 256·60 + 256·17.5 = 24,840 µs, so 0.5 / 24.84 ms = 20.1 requests/s.

It knows nothing of the spread of lengths, of the way in and out of the engine, nor of policies. In saturated simulations with
drawn lengths instances reached 88 to 102 % of it, and 82 % where sequences lost their KV all the time. Where all answers are
equally long, sequences end in the same step, and instances reach no more than 79 %.
"""

from __future__ import annotations

from math import ceil

import msgspec

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel
from maitred.core.units import SECOND
from maitred.instance.config import InstanceConfig


class RequestMix(msgspec.Struct, frozen=True, kw_only=True):
    """The mean request of a traffic, in tokens."""

    prompt: float
    output: float
    cached: float = 0.0
    """Prompt tokens that are in the prefix cache."""

    @property
    def computed(self) -> float:
        """Prompt tokens that an instance computes, at least 1."""
        return max(self.prompt - self.cached, 1.0)

    @property
    def decodes(self) -> float:
        """Steps in which a request decodes."""
        return max(self.output - 1, 0.0)


class ThroughputLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one instance can take of a traffic."""

    rate: float
    """Requests per second."""
    batch: float
    """Sequences that decode at a time."""
    bound: str
    """The limit that stops the batch from growing, a key of the instance."""


def find_throughput_limit(instance: InstanceConfig, mix: RequestMix) -> ThroughputLimit:
    """Return the most that one instance can take of this traffic. `instance` is resolved (`catalogue.resolve_instance`)."""
    latency, budget = instance.latency_model(), instance.max_num_batched_tokens
    if mix.decodes < 1:
        rate = budget / mix.computed / _step_time(latency, 0.0, mix, float(budget)) * SECOND
        return ThroughputLimit(rate=rate, batch=0.0, bound="max_num_batched_tokens")
    context = mix.prompt + mix.output / 2
    limits = {
        "max_num_seqs": float(instance.max_num_seqs),
        "total_kv_blocks": instance.kv_blocks * instance.block_size_in_tokens / context,
        "max_num_batched_tokens": budget / (1 + mix.computed / mix.decodes),
    }
    bound = min(limits, key=lambda key: limits[key])
    batch = max(limits[bound], 1.0)
    prefill = batch * mix.computed / mix.decodes
    chunk = max(prefill, min(mix.computed, budget - batch))
    share = prefill / chunk
    step = (1 - share) * _step_time(latency, batch, mix, 0.0) + share * _step_time(latency, batch, mix, chunk)
    return ThroughputLimit(rate=batch / mix.decodes / step * SECOND, batch=batch, bound=bound)


def _step_time(latency: LatencyModel, batch: float, mix: RequestMix, chunk: float) -> float:
    """Return the µs of a step with `batch` decodes and `chunk` tokens of prefill."""
    decodes, tokens = round(batch), round(chunk)
    context = round(batch * (mix.prompt + mix.output / 2))
    if not tokens:
        return latency.step_time(BatchShape(decodes, context))
    prompts = ceil(chunk / mix.computed)
    before = round(mix.cached + max(mix.computed - chunk, 0.0) / 2)
    chunks = (ChunkShape(round(chunk / prompts), before, round(mix.prompt)),) * prompts
    return latency.step_time(BatchShape(decodes, context, tokens, chunks))
