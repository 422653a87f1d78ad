"""By what candidates are judged: what they cost, which constraints they meet, which of two is better."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from maitred.errors import ConfigError, nearest
from maitred.study.candidate import Candidate
from maitred.study.metrics import Better, metric
from maitred.study.sweep.spec import Spec

Figures: TypeAlias = Mapping[str, float | None]
Place: TypeAlias = Callable[[str], str]
"""Where the user says a key of the sweep."""

COST: Final = "cost"
GPUS: Final = "gpus"
_FORM: Final = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=)\s*([-+0-9.eE_]+)\s*")


class Constraint(msgspec.Struct, frozen=True):
    """What must hold of a metric."""

    metric: str
    better: Better
    """LOWER: at most `limit`; HIGHER: at least."""
    limit: float

    def excess(self, figures: Figures) -> float:
        """By how much of the limit it is broken; 0 or less: it holds. A figure that is not there breaks any."""
        value = figures[self.metric]
        if value is None:
            return math.inf
        over = value - self.limit if self.better is Better.LOWER else self.limit - value
        return over / (abs(self.limit) or 1.0)


class Criteria(msgspec.Struct, frozen=True):
    """Of a sweep."""

    objective: str
    constraints: tuple[Constraint, ...]
    pareto: tuple[str, str]
    shown: tuple[str, ...]
    """Metrics that are asked for."""

    @property
    def measured(self) -> tuple[str, ...]:
        """All that a run must say."""
        named = (*self.shown, self.objective, *self.pareto, *(each.metric for each in self.constraints))
        return tuple(name for name in dict.fromkeys(named) if name not in (COST, GPUS))

    def met(self, figures: Figures) -> bool:
        return all(each.excess(figures) <= 0 for each in self.constraints)

    def loss(self, name: str, figures: Figures) -> float:
        """The smaller, the better; infinite where there is no figure."""
        value = figures[name]
        if value is None:
            return math.inf
        return value if metric(name, costs=True).better is Better.LOWER else -value


def criteria_of(spec: Spec, place: Place) -> Criteria:
    """Raises ConfigError for a metric that does not exist, and for a constraint that cannot be read."""
    for key in ("metrics", "pareto"):
        for name in getattr(spec, key):
            metric(name, where=place(key), costs=True)
    metric(spec.objective, where=place("objective"), costs=True)
    first, second = spec.pareto
    constraints = tuple(_constraint(said, place("constraints")) for said in spec.constraints)
    return Criteria(spec.objective, constraints, (first, second), tuple(spec.metrics))


def _constraint(said: str, where: str) -> Constraint:
    parts = _FORM.fullmatch(said)
    try:
        limit = float(parts[3]) if parts else math.nan
    except ValueError:
        limit = math.nan
    if parts is None or not math.isfinite(limit):
        raise ConfigError(f"cannot read {said!r}", where=where, hint="write it as interactive.ttft_p99_ms <= 500")
    metric(parts[1], where=where, costs=True)
    return Constraint(parts[1], Better.LOWER if parts[2] == "<=" else Better.HIGHER, limit)


def costs_of(candidate: Candidate, spec: Spec, place: Place) -> dict[str, float]:
    """What it costs per hour, or without prices how many GPUs it has. Raises ConfigError for a GPU without a price."""
    gpus = float(candidate.gpus)
    return {COST: _price(candidate, spec, place, gpus), GPUS: gpus}


def _price(candidate: Candidate, spec: Spec, place: Place, gpus: float) -> float:
    if spec.price_per_hour is not None:
        return candidate.cluster.num_instances * spec.price_per_hour
    prices = spec.price_per_gpu_hour
    if not isinstance(prices, dict):
        return gpus * (1.0 if prices is None else prices)
    known = {name.lower(): price for name, price in prices.items()}
    hardware = candidate.instance.hardware
    if hardware.lower() not in known:
        raise ConfigError(f"{hardware} has no price", where=place("price_per_gpu_hour"), hint=nearest(hardware, prices))
    return gpus * known[hardware.lower()]
