"""Layer profiles: the time of each part of one layer on a GPU, and their compilation into a table of whole steps.

LLMServingSim's profiler measures them with vLLM. A folder per degree of tensor parallelism (`profile/tp2`) holds CSV files of
µs per call, averaged over all calls:

    dense.csv         layer, tokens                                  matrix products, norms, embedding, ...
    per_sequence.csv  layer, sequences                               once for each sequence: lm_head, sampler
    attention.csv     prefill_chunk, kv_prefill, n_decode, kv_decode attention of a chunk and of decoding sequences, together
    moe.csv           tokens, activated_experts                      the experts of a layer, if it has them
    skew_fit.csv      size and spread of the batch: alpha            see `instance.latency.skew`

The table follows from the sum

    step = layers · (dense parts + attention + experts) + embedding + last norm + per-sequence parts + communication + overhead

A step of at most `graph_limit` tokens runs in a CUDA graph of the next captured size. Above, matrix products come in tiles, so
a step costs as much as the next measured number of tokens: with 512 and 1,024 measured, a step of 600 tokens costs what one of
1,024 costs. The cost of unequal lengths is not compiled; the table looks it up for the lengths of each batch.

Communication is a ring over links with a bandwidth and a latency. Tensor parallelism reduces the activations twice per layer.
Data parallelism with shared experts gathers the tokens of all ranks and scatters the sums, each once per layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import TypeVar

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.yaml_document import YamlDocument
from maitred.files import InputFile
from maitred.instance.latency import Skew, StepTable
from maitred.instance.latency.step_table import Curve, Grid, curve_value
from maitred.study.calibration.measurements import read_rows

K = TypeVar("K", int, str)

_UNBOUNDED = 1e12

AttentionKey = tuple[int, int, int, int]
"""Tokens of a chunk, tokens of KV before it, decoding sequences, tokens of KV of each."""
STEP_OVERHEAD_US = 3451.0
"""Overhead of a step outside CUDA graphs: the CPU launches its kernels one by one. It is the one constant fitted to a timeline,
that of Qwen3-32B on RTX PRO 6000 (mean latency), and frozen for all others."""
_BYTES = 2
"""Bytes of an activation."""
_ONCE_PER_STEP = ("embedding", "final_layernorm")
"""Layers that run once per step; all others run once per layer."""
_TWICE_PER_LAYER = ("layernorm", "qk_norm")
"""Layers that run twice per layer."""
_POWERS = tuple(2.0**n for n in range(4, 15))


class LayerProfile(msgspec.Struct, frozen=True):
    """A layer profile, in µs per call."""

    dense: Mapping[str, Curve]
    per_sequence: Mapping[str, Curve]
    attention: Mapping[AttentionKey, float]
    experts: Mapping[int, Curve]
    """By activated experts, then by tokens; empty for a dense model."""
    skew: Skew | None
    """None if it was not measured, or found unfit (`skew_fit: enabled: false` in meta.yaml)."""


def read_profile(folder: Path, tensor_parallel_size: int) -> LayerProfile:
    """Read a folder `profile`. Raises ConfigError for missing or wrong files."""
    part = folder / f"tp{tensor_parallel_size}"
    if not part.is_dir():
        there = ", ".join(sorted(path.name for path in folder.glob("tp*"))) or "no tpN at all"
        raise ConfigError(f"there is no profile for {tensor_parallel_size} GPUs", where=str(part), hint=f"there is {there}")
    attention = read_rows(_file(part, "attention"), ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"])
    return LayerProfile(
        dense=_by_name(_file(part, "dense"), "tokens"),
        per_sequence=_by_name(_file(part, "per_sequence"), "sequences"),
        attention={(int(p), int(s), int(n), int(kv)): us for (p, s, n, kv, us), _ in attention},
        experts=_read_experts(part),
        skew=_skew(part) if _has_skew_fit(folder / "meta.yaml") else None,
    )


def _read_experts(part: Path) -> dict[int, Curve]:
    """Return the time of the experts by tokens, for each number of active ones; nothing of a model without experts."""
    if not ((part / "moe.csv").exists() or (part / "moe.csv.gz").exists()):
        return {}
    moe = read_rows(_file(part, "moe"), ["activated_experts", "tokens", "time_us"])
    return _curves((int(active), tokens, us) for (active, tokens, us), _ in moe)


def _by_name(path: Path, column: str) -> dict[str, Curve]:
    return _curves((name, x, us) for (x, us), (name,) in read_rows(path, [column, "time_us"], ["layer"]))


def _curves(points: Iterable[tuple[K, float, float]]) -> dict[K, Curve]:
    found: defaultdict[K, list[tuple[float, float]]] = defaultdict(list)
    for key, x, us in points:
        found[key].append((x, us))
    return {key: tuple(sorted(curve)) for key, curve in found.items()}


def _has_skew_fit(meta: Path) -> bool:
    value = YamlDocument.read(InputFile(meta)).value if meta.exists() else None
    fit = value.get("skew_fit") if isinstance(value, dict) else None
    return isinstance(fit, dict) and fit.get("enabled") is True


def _skew(part: Path) -> Skew:
    """Read the skew of decode-only steps. An α outside 0 to 1 is noise (more work takes no less time, and no more than if all
    had the longest context), and is clipped. Raises ConfigError for rows that make no buckets."""
    path, found = _file(part, "skew_fit"), dict[tuple[float, float, float], float]()
    columns = ["n_label", "skew_rate_label", "kv_big_label"]
    for (chunk, alpha), labels in read_rows(path, ["pc", "alpha"], columns):
        if not chunk:
            sequences, rate, longest = (_bucket_bound(label) for label in labels)
            found[sequences, rate, longest] = min(1.0, max(0.0, alpha))
    counts, rates, most = (tuple(sorted({key[axis] for key in found})) for axis in range(3))
    try:
        return Skew(counts, rates, most, tuple(found.get(key, 0.0) for key in product(counts, rates, most)))
    except ValueError as error:
        raise ConfigError(f"not a fit of unequal lengths: {error}", where=str(path)) from error


def _bucket_bound(label: str) -> float:
    """Return the upper end of a bucket: `n<=128`, `sr<=15%`, `kvB<=4k`; 1 for `sr>70%`, and no bound for `kvB>16k`."""
    _, found, end = label.partition("<=")
    if not found:
        return 1.0 if label.endswith("%") else _UNBOUNDED
    for unit, factor in (("%", 0.01), ("k", 1024.0)):
        if end.endswith(unit):
            return float(end.removesuffix(unit)) * factor
    return float(end)


def _file(part: Path, name: str) -> Path:
    plain = part / f"{name}.csv"
    return plain if plain.exists() else part / f"{name}.csv.gz"


class ProfiledDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a model and its deployment on which a step depends, beside the profile."""

    layers: int
    hidden_size: int
    num_experts: int = 0
    experts_per_token: int = 0
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    max_num_seqs: int = 256
    """Most sequences of one rank."""
    link_bytes_per_us: float = 16e3
    link_latency_us: float = 20.0

    @property
    def graph_limit(self) -> int:
        """vLLM's max_cudagraph_capture_size."""
        return min(2 * self.max_num_seqs, 512)


def compile_profile(
    profile: LayerProfile, deployment: ProfiledDeployment, *, overhead_us: float = STEP_OVERHEAD_US, source: str = ""
) -> StepTable:
    """Compile a layer profile into a step table. Raises ConfigError if the profile lacks a part that the model needs."""
    if deployment.num_experts and not profile.experts:
        raise ConfigError("a model with experts needs a moe.csv in its profile", where=source)
    try:
        return StepTable(
            tokens=_tokens(profile, deployment, overhead_us),
            sequences=_sum_curves(profile.per_sequence.values()),
            all_tokens=_all_tokens(profile, deployment),
            decode=_decode(profile, deployment.layers),
            mixed=_mixed(profile, deployment.layers),
            data_parallel_size=deployment.data_parallel_size,
            skew=profile.skew,
            source=source,
        )
    except ValueError as error:
        raise ConfigError(f"its layer profile is incomplete: {error}", where=source) from error


def graph_sizes(limit: int) -> list[int]:
    """Return vLLM's cudagraph_capture_sizes."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, 16)]
    return [size for size in sizes if size <= limit]


def _tokens(profile: LayerProfile, deployment: ProfiledDeployment, overhead_us: float) -> Curve:
    """Return the time of the dense parts, their all-reduce and the overhead, by tokens."""
    curves = {name: (curve, _calls_per_step(name, deployment.layers)) for name, curve in profile.dense.items()}
    limit = deployment.graph_limit
    measured = sorted({int(x) for curve, _ in curves.values() for x, _ in curve})
    steps = [*graph_sizes(limit), *(tokens for tokens in measured if tokens > limit)]

    def time(tokens: float, size: float) -> float:
        moved = size if size <= limit else tokens  # a CUDA graph also sends its padding
        dense = sum(calls * curve_value(curve, size) for curve, calls in curves.values())
        return dense + _all_reduce(deployment, moved) + (overhead_us if tokens > limit else 0.0)

    return tuple(_staircase(steps, time))


def _staircase(sizes: Sequence[int], time: Callable[[float, float], float]) -> Iterator[tuple[float, float]]:
    """Yield the points of a curve with steps at the sizes. `time` is given the tokens and the next size."""
    yield float(sizes[0]), time(sizes[0], sizes[0])
    for below, size in pairwise(sizes):
        if below + 1 < size:
            yield below + 1.0, time(below + 1, size)
        yield float(size), time(size, size)


def _all_tokens(profile: LayerProfile, deployment: ProfiledDeployment) -> Curve:
    """Return the time of the experts and of the communication with them, by the tokens of all ranks."""
    if not deployment.num_experts:
        return ((0.0, 0.0),)
    ranks, limit = deployment.data_parallel_size, deployment.graph_limit
    largest = int(max(x for curve in profile.experts.values() for x, _ in curve))
    sizes = [ranks * size for size in graph_sizes(limit)]
    sizes += [ranks * size for size in range(limit + 16, largest + 1, 16)]

    def time(tokens: float, size: float) -> float:
        all_tokens = size if size <= ranks * limit else tokens
        return deployment.layers * (_experts(profile, deployment, all_tokens) + _dispatch(deployment, all_tokens))

    return tuple(_staircase(sizes, time))


def _experts(profile: LayerProfile, deployment: ProfiledDeployment, tokens: float) -> float:
    """Return the µs of the experts of one rank, for evenly distributed choices: expected active experts, and its share of
    tokens."""
    # Of 128 experts, 8 per token, one is idle for 16 tokens with probability (1 - 8 / 128)^16 = 0.356, so 82 are active.
    here = deployment.num_experts / deployment.data_parallel_size
    active = here * (1 - (1 - deployment.experts_per_token / deployment.num_experts) ** tokens)
    by_active = tuple(
        (float(n), curve_value(curve, tokens * here / deployment.num_experts)) for n, curve in sorted(profile.experts.items())
    )
    return curve_value(by_active, active)


def _dispatch(deployment: ProfiledDeployment, tokens: float) -> float:
    """Return the µs per layer to send the activations and expert choices to all ranks, and the sums back."""
    ranks = deployment.data_parallel_size
    if ranks == 1:
        return 0.0
    others = tokens * (ranks - 1) / ranks * _BYTES / deployment.link_bytes_per_us
    return others * (2 * deployment.hidden_size + deployment.num_experts) + 2 * (ranks - 1) * deployment.link_latency_us


def _all_reduce(deployment: ProfiledDeployment, tokens: float) -> float:
    """Return the µs per step of two ring all-reduces per layer."""
    # A ring all-reduce is a reduce-scatter and an all-gather, each of gpus - 1 hops that carry 1 / gpus of the data.
    gpus = deployment.tensor_parallel_size
    moved = 2 * (gpus - 1) / gpus * tokens * deployment.hidden_size * _BYTES / deployment.link_bytes_per_us
    return 2 * deployment.layers * (moved + 2 * (gpus - 1) * deployment.link_latency_us)


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
    """Return the attention of mixed batches at powers of two. A cell that was not measured has the sum of its parts."""
    known = profile.attention
    most = [max(key[axis] for key in known) for axis in range(4)]
    chunks = [p for p in _POWERS if p <= most[0]]
    starts = [0.0, *(p for p in _POWERS if p <= most[1])]
    counts = [0.0, *(2.0**n for n in range(12) if 2**n <= most[2])]
    contexts = [p for p in _POWERS if p <= most[3]]

    def time(p: int, s: int, n: int, kv: int) -> float:
        if not n:
            return known[p, s, 0, 0]
        measured = known.get((p, s, n, kv))
        return known[p, s, 0, 0] + known[0, 0, n, kv] if measured is None else measured

    axes = (tuple(chunks), tuple(starts), tuple(counts), tuple(contexts))
    # Powers of two only: between them profiles have gaps, and a grid needs every combination.
    try:
        us = tuple(layers * time(int(p), int(s), int(n), int(kv)) for p, s, n, kv in product(*axes))
    except KeyError as error:
        raise ConfigError(f"attention.csv has no row for {error} (chunk, start, sequences, context)") from error
    return Grid(axes, us)


def _calls_per_step(name: str, layers: int) -> int:
    """Return how often a layer runs per step."""
    if name in _ONCE_PER_STEP:
        return 1
    return 2 * layers if name in _TWICE_PER_LAYER else layers


def _sum_curves(curves: Collection[Curve]) -> Curve:
    points = sorted({x for curve in curves for x, _ in curve})
    return tuple((x, sum(curve_value(curve, x) for curve in curves)) for x in points)
