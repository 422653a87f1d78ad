"""Layer profiles, compiled into a table of whole steps.

    step = layers · (dense parts + attention + experts) + embedding + last norm + per-sequence parts + communication + overhead

A step of up to `graph_limit` tokens runs in a CUDA graph, which has the next of a few sizes; above, matrix products come in
tiles, so that a step costs what the next measured number of tokens costs. What unequal lengths cost is left to the table, which
looks it up for the lengths of each batch.

Communication is a ring over links of a bandwidth and a latency: tensor parallelism reduces the activations twice a layer, data
parallelism with shared experts gathers the tokens of all ranks and scatters the sums, each once a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise, product

import msgspec

from maitred.calibration.layers import LayerProfile
from maitred.errors import ConfigError
from maitred.instance.latency import StepTable
from maitred.instance.latency.grids import Curve, Grid, on_curve

STEP_OVERHEAD_US = 3451.0
"""Of a step outside CUDA graphs, whose kernels the CPU launches one by one. The one constant fitted to a timeline, that of
Qwen3-32B on RTX PRO 6000 (mean latency); frozen for all others."""
_BYTES = 2
"""Of an activation."""
_ONCE = ("embedding", "final_layernorm")
"""Once a step; all others once a layer."""
_TWICE = ("layernorm", "qk_norm")
"""Twice a layer."""
_POWERS = tuple(2.0**n for n in range(4, 15))


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model and its deployment a step depends on, beside the profile."""

    layers: int
    hidden_size: int
    num_experts: int = 0
    experts_per_token: int = 0
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    max_num_seqs: int = 256
    """Of one rank."""
    link_bytes_per_us: float = 16e3
    link_latency_us: float = 20.0

    @property
    def graph_limit(self) -> int:
        """vLLM's max_cudagraph_capture_size."""
        return min(2 * self.max_num_seqs, 512)


def compiled(profile: LayerProfile, on: Serving, *, overhead_us: float = STEP_OVERHEAD_US, source: str = "") -> StepTable:
    """Raises ConfigError if the profile lacks what the model needs."""
    if on.num_experts and not profile.experts:
        raise ConfigError("a model with experts needs a moe.csv in its profile", where=source)
    try:
        return StepTable(
            tokens=_tokens(profile, on, overhead_us),
            sequences=_sum(profile.per_sequence.values()),
            all_tokens=_all_tokens(profile, on),
            decode=_decode(profile, on.layers),
            mixed=_mixed(profile, on.layers),
            data_parallel_size=on.data_parallel_size,
            skew=profile.skew,
            source=source,
        )
    except ValueError as error:
        raise ConfigError(f"its layer profile is no full one: {error}", where=source) from error


def graph_sizes(limit: int) -> list[int]:
    """vLLM's cudagraph_capture_sizes."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, 16)]
    return [size for size in sizes if size <= limit]


def _tokens(profile: LayerProfile, on: Serving, overhead_us: float) -> Curve:
    """Dense parts, their all-reduce, and the overhead."""
    curves = {name: (curve, _calls(name, on.layers)) for name, curve in profile.dense.items()}
    limit = on.graph_limit
    measured = sorted({int(x) for curve, _ in curves.values() for x, _ in curve})
    steps = [*graph_sizes(limit), *(tokens for tokens in measured if tokens > limit)]

    def dense(tokens: float) -> float:
        return sum(calls * on_curve(curve, tokens) for curve, calls in curves.values())

    def time(tokens: float, size: float) -> float:
        moved = size if size <= limit else tokens
        return dense(size) + _all_reduce(on, moved) + (overhead_us if tokens > limit else 0.0)

    return tuple(_stairs(steps, time))


def _stairs(sizes: Sequence[int], time: Callable[[float, float], float]) -> Iterator[tuple[float, float]]:
    """Points of a curve that goes up between the sizes: `time(tokens, the next size)`."""
    yield float(sizes[0]), time(sizes[0], sizes[0])
    for below, size in pairwise(sizes):
        if below + 1 < size:
            yield below + 1.0, time(below + 1, size)
        yield float(size), time(size, size)


def _all_tokens(profile: LayerProfile, on: Serving) -> Curve:
    """The experts, and the way of the tokens to them and back."""
    if not on.num_experts:
        return ((0.0, 0.0),)
    ranks, limit = on.data_parallel_size, on.graph_limit
    largest = int(max(x for curve in profile.experts.values() for x, _ in curve))
    sizes = [ranks * size for size in graph_sizes(limit)]
    sizes += [ranks * size for size in range(limit + 16, largest + 1, 16)]

    def time(tokens: float, size: float) -> float:
        all_tokens = size if size <= ranks * limit else tokens
        return on.layers * (_experts(profile, on, all_tokens) + _dispatch(on, all_tokens))

    return tuple(_stairs(sizes, time))


def _experts(profile: LayerProfile, on: Serving, tokens: float) -> float:
    """µs of the experts of one rank: those that some token chooses, if each chooses evenly, and its part of the tokens."""
    here = on.num_experts / on.data_parallel_size
    active = here * (1 - (1 - on.experts_per_token / on.num_experts) ** tokens)
    by_active = tuple(
        (float(n), on_curve(curve, tokens * here / on.num_experts)) for n, curve in sorted(profile.experts.items())
    )
    return on_curve(by_active, active)


def _dispatch(on: Serving, tokens: float) -> float:
    """µs per layer: what they are and how they choose to all ranks, and the sums back."""
    ranks = on.data_parallel_size
    if ranks == 1:
        return 0.0
    others = tokens * (ranks - 1) / ranks * _BYTES / on.link_bytes_per_us
    return others * (2 * on.hidden_size + on.num_experts) + 2 * (ranks - 1) * on.link_latency_us


def _all_reduce(on: Serving, tokens: float) -> float:
    """µs per step: a ring, twice a layer."""
    gpus = on.tensor_parallel_size
    moved = 2 * (gpus - 1) / gpus * tokens * on.hidden_size * _BYTES / on.link_bytes_per_us
    return 2 * on.layers * (moved + 2 * (gpus - 1) * on.link_latency_us)


def _decode(profile: LayerProfile, layers: int) -> Grid:
    counts = sorted({n for p, _, n, _ in profile.attention if n and not p})
    if not counts:
        raise ConfigError("attention.csv has no rows of decode-only steps", hint="prefill_chunk 0, n_decode above 0")
    contexts = sorted(set.intersection(*({kv for p, _, m, kv in profile.attention if m == n and not p} for n in counts)))
    us = []
    for n in counts:
        us += [layers * profile.attention[0, 0, n, kv] for kv in contexts]
    return Grid((tuple(map(float, counts)), tuple(map(float, contexts))), tuple(us))


def _mixed(profile: LayerProfile, layers: int) -> Grid:
    """At powers of two, where the profiles are complete; a cell that is missing has the sum of its parts."""
    known = profile.attention
    most = [max(key[axis] for key in known) for axis in range(4)]
    chunks = [p for p in _POWERS if p <= most[0]]
    starts = [0.0, *(p for p in _POWERS if p <= most[1])]
    counts = [0.0, *(2.0**n for n in range(12) if 2**n <= most[2])]
    contexts = [p for p in _POWERS if p <= most[3]]

    def time(p: int, s: int, n: int, kv: int) -> float:
        if not n:
            return known[p, s, 0, 0]
        whole = known.get((p, s, n, kv))
        return known[p, s, 0, 0] + known[0, 0, n, kv] if whole is None else whole

    axes = (tuple(chunks), tuple(starts), tuple(counts), tuple(contexts))
    try:
        us = tuple(layers * time(int(p), int(s), int(n), int(kv)) for p, s, n, kv in product(*axes))
    except KeyError as error:
        raise ConfigError(f"attention.csv has no row for {error} (chunk, start, sequences, context)") from error
    return Grid(axes, us)


def _calls(name: str, layers: int) -> int:
    """Per step."""
    if name in _ONCE:
        return 1
    return 2 * layers if name in _TWICE else layers


def _sum(curves: Collection[Curve]) -> Curve:
    points = sorted({x for curve in curves for x, _ in curve})
    return tuple((x, sum(on_curve(curve, x) for curve in curves)) for x in points)
