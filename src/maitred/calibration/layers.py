"""Layer profiles: how long each part of one layer takes on a GPU, as LLMServingSim's profiler measures it with vLLM.

A folder per degree of tensor parallelism (`profile/tp2`) holds CSV files of µs per call, each averaged over its calls:

    dense.csv         layer, tokens                                  matrix products, norms, embedding, ...
    per_sequence.csv  layer, sequences                               what is done once for each sequence: lm_head, sampler
    attention.csv     prefill_chunk, kv_prefill, n_decode, kv_decode attention of a chunk and of sequences that decode, together
    moe.csv           tokens, activated_experts                      the experts of a layer, if it has them
    skew_fit.csv      by size and spread of the batch: alpha         see `instance.latency.skew`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import TypeVar

import msgspec

from maitred.calibration.csv_file import rows_of
from maitred.errors import ConfigError
from maitred.instance.latency import Skew
from maitred.instance.latency.grids import Curve
from maitred.reading.document import Document

K = TypeVar("K", int, str)

_ENDLESS = 1e12

Attended = tuple[int, int, int, int]
"""Tokens of a chunk, tokens of KV before it, sequences that decode, tokens of KV of each."""


class LayerProfile(msgspec.Struct, frozen=True):
    """See the module; µs per call."""

    dense: Mapping[str, Curve]
    per_sequence: Mapping[str, Curve]
    attention: Mapping[Attended, float]
    experts: Mapping[int, Curve]
    """By activated experts, then by tokens; empty for a dense model."""
    skew: Skew | None
    """None: not measured, or measured and found unfit (`skew_fit: enabled: false` in meta.yaml)."""


def read_profile(folder: Path, tensor_parallel_size: int) -> LayerProfile:
    """From a folder `profile`. Raises ConfigError for what is missing or wrong."""
    part = folder / f"tp{tensor_parallel_size}"
    if not part.is_dir():
        there = ", ".join(sorted(path.name for path in folder.glob("tp*"))) or "no tpN at all"
        raise ConfigError(f"there is no profile for {tensor_parallel_size} GPUs", where=str(part), hint=f"there is {there}")
    attention = rows_of(_file(part, "attention"), ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"])
    experts: dict[int, Curve] = {}
    if (part / "moe.csv").exists() or (part / "moe.csv.gz").exists():
        moe = rows_of(_file(part, "moe"), ["activated_experts", "tokens", "time_us"])
        experts = _curves((int(active), tokens, us) for (active, tokens, us), _ in moe)
    return LayerProfile(
        dense=_by_name(_file(part, "dense"), "tokens"),
        per_sequence=_by_name(_file(part, "per_sequence"), "sequences"),
        attention={(int(p), int(s), int(n), int(kv)): us for (p, s, n, kv, us), _ in attention},
        experts=experts,
        skew=_skew(part) if _skew_fits(folder / "meta.yaml") else None,
    )


def _by_name(path: Path, column: str) -> dict[str, Curve]:
    return _curves((name, x, us) for (x, us), (name,) in rows_of(path, [column, "time_us"], ["layer"]))


def _curves(points: Iterable[tuple[K, float, float]]) -> dict[K, Curve]:
    found: defaultdict[K, list[tuple[float, float]]] = defaultdict(list)
    for key, x, us in points:
        found[key].append((x, us))
    return {key: tuple(sorted(curve)) for key, curve in found.items()}


def _skew_fits(meta: Path) -> bool:
    value = Document.read(meta).value if meta.exists() else None
    fit = value.get("skew_fit") if isinstance(value, dict) else None
    return isinstance(fit, dict) and fit.get("enabled") is True


def _skew(part: Path) -> Skew:
    """Of decode-only steps. An α outside 0 to 1 is noise (more work takes no less time, nor more than if all had the longest
    context), and taken for the nearer of the two. Raises ConfigError for rows that make no buckets."""
    path, found = _file(part, "skew_fit"), dict[tuple[float, float, float], float]()
    columns = ["n_label", "skew_rate_label", "kv_big_label"]
    for (chunk, alpha), labels in rows_of(path, ["pc", "alpha"], columns):
        if not chunk:
            sequences, rate, longest = (_bound(label) for label in labels)
            found[sequences, rate, longest] = min(1.0, max(0.0, alpha))
    counts, rates, most = (tuple(sorted({key[axis] for key in found})) for axis in range(3))
    try:
        return Skew(counts, rates, most, tuple(found.get(key, 0.0) for key in product(counts, rates, most)))
    except ValueError as error:
        raise ConfigError(f"no fit of unequal lengths: {error}", where=str(path)) from error


def _bound(label: str) -> float:
    """The upper end of a bucket: `n<=128`, `sr<=15%`, `kvB<=4k`; of `sr>70%` 1, of `kvB>16k` more than there is."""
    _, found, end = label.partition("<=")
    if not found:
        return 1.0 if label.endswith("%") else _ENDLESS
    for unit, factor in (("%", 0.01), ("k", 1024.0)):
        if end.endswith(unit):
            return float(end.removesuffix(unit)) * factor
    return float(end)


def _file(part: Path, name: str) -> Path:
    plain = part / f"{name}.csv"
    return plain if plain.exists() else part / f"{name}.csv.gz"
