"""Fitness: one score for a run, as BLIS weighs it (`--fitness-weights`).

    throughput      x / (x + 100),     x in completed requests per second
    tokens_per_sec  x / (x + 10,000),  x in output tokens per second
    p99_ttft, ...   1 / (1 + x),       x in ms: p99, p50 or mean of ttft or e2e

The score is the weighted sum. Latencies have little weight in it, because 1 / (1 + ms) is near 0 for any real latency.
Attainment and goodput say more about a cluster; the score is here for comparisons with BLIS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import msgspec

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.units import to_ms
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.summary import Summary

_LATENCIES = {f"{figure}_{name}": (name, figure) for name, figure in product(("ttft", "e2e"), ("p99", "p50", "mean"))}
COMPONENTS = ("throughput", "tokens_per_sec", *_LATENCIES)


class Fitness(msgspec.Struct, frozen=True):
    """A score and its components."""

    score: float
    components: Mapping[str, float]
    """By name, before weighting: 0..1, larger is better."""

    def in_words(self) -> str:
        """Return the score and its components in one line."""
        components = ", ".join(f"{name} {value:.4f}" for name, value in self.components.items())
        return f"fitness {self.score:.4f} ({components})"


def parse_weights(text: str, *, where: str = "") -> dict[str, float]:
    """Parse weights such as `throughput:0.5,p99_ttft:0.3`. Raises ConfigError."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition(":"))
        if name not in COMPONENTS:
            raise ConfigError(f"there is no component {name!r}", where=where, hint=nearest_name_hint(name, COMPONENTS))
        weight = _number(value)
        if not 0 <= weight < math.inf or name in weights:
            hint = "each once, with a number, as in throughput:0.5,p99_ttft:0.3"
            raise ConfigError(f"cannot read the weight {part.strip()!r}", where=where, hint=hint)
        weights[name] = weight
    return weights


def _number(text: str) -> float:
    """Return the number that `text` is, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def fitness(summary: Summary, weights: Mapping[str, float]) -> Fitness:
    """Return the score of a run by `weights`, with keys from `COMPONENTS`. A component without any request counts 0."""
    components = {name: _component(summary, name) for name in weights}
    return Fitness(sum(weights[name] * value for name, value in components.items()), components)


def _component(summary: Summary, name: str) -> float:
    if name in _LATENCIES:
        latency, figure = _LATENCIES[name]
        spread: LatencyStatistics | None = getattr(summary.total, latency)
        return 0.0 if spread is None else 1 / (1 + to_ms(getattr(spread, figure)))
    if name == "throughput":
        return _saturation(summary.per_second(summary.total.completed), 100)
    return _saturation(summary.per_second(summary.total.output_tokens), 10_000)


def _saturation(rate: float | None, half: float) -> float:
    return 0.0 if rate is None else rate / (rate + half)
