"""The most that one instance can take of a traffic: an estimate from its latency model, without a simulation.

An instance that never runs out of requests holds as many sequences S as its limits allow, those in their prompts among them.
For requests of p prompt tokens, q of them not in the prefix cache, and o output tokens on average (half of the output is there
on average)

    S ≤ max_num_seqs,   S · (p + o/2) ≤ tokens of KV

The first token of an answer comes with its prompt, which takes k steps (one, or q/max_num_batched_tokens if it is longer than
that), so a request stays for k + o - 1 steps and decodes in o - 1 of them. In each step e requests end, others take their
places, B = e·(o - 1) decode, and u = e·q tokens of prompts are computed:

    e = S/(k + o - 1),   at most max_num_batched_tokens/(q + o - 1)

These come prompt by prompt: one step in c/u has c tokens of prefill, and the others only decode.

    time of a step = (1 - u/c) · t(B decodes) + u/c · t(B decodes, c tokens of prefill)
    requests/s     = e / time of a step

Example: linear with 5,000 µs per step, 17.5 per prefill token and 60 per decode, 256 sequences, p = q = 512, o = 512. Half a
request ends per step, u = 256 tokens, and 255.5 decode, which are 256: 5,000 + 256·60 + 256·17.5 = 24,840 µs, so
0.5 / 24.84 ms = 20.1 requests/s.

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
    steps = mix.decodes + max(mix.computed / budget, 1.0)
    seats = {
        "max_num_seqs": float(instance.max_num_seqs),
        "total_kv_blocks": instance.kv_blocks * instance.block_size_in_tokens / (mix.prompt + mix.output / 2),
    }
    ends = {key: max(number, 1.0) / steps for key, number in seats.items()}
    ends["max_num_batched_tokens"] = budget / (mix.decodes + mix.computed)
    bound = min(ends, key=lambda key: ends[key])
    batch, prefill = ends[bound] * mix.decodes, ends[bound] * mix.computed
    chunk = max(prefill, min(mix.computed, budget - batch))
    share = prefill / chunk
    step = share * _step_time(latency, batch, mix, chunk)
    if share < 1:
        step += (1 - share) * _step_time(latency, max(batch, 1.0), mix, 0.0)
    return ThroughputLimit(rate=ends[bound] / step * SECOND, batch=batch, bound=bound)


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
