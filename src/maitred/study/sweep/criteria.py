"""Criteria: what a candidate costs, which constraints it meets, and which of two candidates is better."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.study.candidate import Candidate
from maitred.study.metrics import Better, find_metric
from maitred.study.sweep.spec import SweepSpec

Figures: TypeAlias = Mapping[str, float | None]
KeyLocator: TypeAlias = Callable[[str], str]
"""Returns the place in the user's file where a key of the sweep is written."""

COST: Final = "cost"
GPUS: Final = "gpus"
_FORM: Final = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=)\s*([-+0-9.eE_]+)\s*")


class Constraint(msgspec.Struct, frozen=True):
    """A bound on a metric."""

    metric: str
    better: Better
    """LOWER: at most `limit`. HIGHER: at least `limit`."""
    limit: float

    def excess(self, figures: Figures) -> float:
        """Return by which share of the limit it is violated; 0 or less if it is met. A missing figure violates every
        constraint."""
        value = figures[self.metric]
        if value is None:
            return math.inf
        over = value - self.limit if self.better is Better.LOWER else self.limit - value
        return over / (abs(self.limit) or 1.0)


class Criteria(msgspec.Struct, frozen=True):
    """The criteria of a sweep."""

    objective: str
    constraints: tuple[Constraint, ...]
    pareto: tuple[str, str]
    shown: tuple[str, ...]
    """The metrics that the results must contain."""

    @property
    def measured(self) -> tuple[str, ...]:
        """All metrics that a run must measure."""
        named = (*self.shown, self.objective, *self.pareto, *(each.metric for each in self.constraints))
        return tuple(name for name in dict.fromkeys(named) if name not in (COST, GPUS))

    def are_met(self, figures: Figures) -> bool:
        return all(each.excess(figures) <= 0 for each in self.constraints)

    def loss(self, name: str, figures: Figures) -> float:
        """Return the metric as a loss: the smaller, the better; infinite if there is no figure."""
        value = figures[name]
        if value is None:
            return math.inf
        return value if find_metric(name, costs=True).better is Better.LOWER else -value


def parse_criteria(spec: SweepSpec, locate: KeyLocator) -> Criteria:
    """Return the criteria. Raises ConfigError for an unknown metric, and for a constraint that cannot be read."""
    for key in ("metrics", "pareto"):
        for name in getattr(spec, key):
            find_metric(name, where=locate(key), costs=True)
    find_metric(spec.objective, where=locate("objective"), costs=True)
    first, second = spec.pareto
    constraints = tuple(_constraint(text, locate("constraints")) for text in spec.constraints)
    return Criteria(spec.objective, constraints, (first, second), tuple(spec.metrics))


def _constraint(text: str, where: str) -> Constraint:
    parts = _FORM.fullmatch(text)
    try:
        limit = float(parts[3]) if parts else math.nan
    except ValueError:
        limit = math.nan
    if parts is None or not math.isfinite(limit):
        raise ConfigError(f"cannot read {text!r}", where=where, hint="write it as interactive.ttft_p99_ms <= 500")
    find_metric(parts[1], where=where, costs=True)
    return Constraint(parts[1], Better.LOWER if parts[2] == "<=" else Better.HIGHER, limit)


def candidate_costs(candidate: Candidate, spec: SweepSpec, locate: KeyLocator) -> dict[str, float]:
    """Return the cost per hour (the number of GPUs without prices) and the number of GPUs.

    Raises ConfigError for a GPU without a price.
    """
    gpus = float(candidate.num_gpus)
    return {COST: _price(candidate, spec, locate, gpus), GPUS: gpus}


def _price(candidate: Candidate, spec: SweepSpec, locate: KeyLocator, gpus: float) -> float:
    if spec.price_per_hour is not None:
        return candidate.cluster.num_instances * spec.price_per_hour
    prices = spec.price_per_gpu_hour
    if not isinstance(prices, dict):
        return gpus * (1.0 if prices is None else prices)
    known = {name.lower(): price for name, price in prices.items()}
    hardware = candidate.instance.hardware
    if hardware.lower() not in known:
        raise ConfigError(
            f"{hardware} has no price", where=locate("price_per_gpu_hour"), hint=nearest_name_hint(hardware, prices)
        )
    return gpus * known[hardware.lower()]
