"""Layer profiles: how long each part of one layer takes on a GPU, as LLMServingSim's profiler measures it with vLLM.

A folder per degree of tensor parallelism (`profile/tp2`) holds CSV files of µs per call, each averaged over its calls:

    dense.csv         layer, tokens                                  matrix products, norms, embedding, ...
    per_sequence.csv  layer, sequences                               what is done once for each sequence: lm_head, sampler
    attention.csv     prefill_chunk, kv_prefill, n_decode, kv_decode attention of a chunk and of sequences that decode, together
    moe.csv           tokens, activated_experts                      the experts of a layer, if it has them
    skew_fit.csv      by size and spread of the batch: alpha         see `Skew`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import TypeVar

import msgspec

from maitred.calibration.csv_file import rows_of
from maitred.errors import ConfigError
from maitred.instance.latency.table import Curve
from maitred.reading.document import Document

K = TypeVar("K", int, str)

Attended = tuple[int, int, int, int]
"""Tokens of a chunk, tokens of KV before it, sequences that decode, tokens of KV of each."""


class Skew(msgspec.Struct, frozen=True):
    """What unequal lengths cost: attention over sequences whose longest has `m` times the mean takes

        t(mean) + alpha · (t(longest) - t(mean))

    with alpha by (sequences, (mean - shortest) / (longest - shortest), longest), each the upper bound of a bucket.
    """

    alphas: Mapping[tuple[float, float, float], float]

    def alpha(self, sequences: int, rate: float, longest: float) -> float:
        """0 where nothing was measured."""
        bounds = [sorted({key[axis] for key in self.alphas}) for axis in range(3)]
        bucket = [
            next((bound for bound in bounds[axis] if x <= bound), inf) for axis, x in enumerate((sequences, rate, longest))
        ]
        return self.alphas.get((bucket[0], bucket[1], bucket[2]), 0.0)


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
    """Of decode-only steps."""
    alphas: dict[tuple[float, float, float], float] = {}
    columns = ["n_label", "skew_rate_label", "kv_big_label"]
    for (chunk, alpha), labels in rows_of(_file(part, "skew_fit"), ["pc", "alpha"], columns):
        if not chunk:
            sequences, rate, longest = (_bound(label) for label in labels)
            alphas[sequences, rate, longest] = alpha
    return Skew(alphas)


def _bound(label: str) -> float:
    """The upper end of a bucket: `n<=128`, `sr<=15%`, `kvB<=4k`, or `kvB>16k`, which has none."""
    _, found, end = label.partition("<=")
    if not found:
        return inf
    for unit, factor in (("%", 0.01), ("k", 1024.0)):
        if end.endswith(unit):
            return float(end.removesuffix(unit)) * factor
    return float(end)


def _file(part: Path, name: str) -> Path:
    plain = part / f"{name}.csv"
    return plain if plain.exists() else part / f"{name}.csv.gz"
