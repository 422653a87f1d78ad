"""The specification of a sweep: the keys of its file (`docs/studies.md`), where the user wrote each of them, and the criteria
that they state: what a candidate costs, which constraints it meets, and which of two candidates is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.yaml_document import KeyPath, YamlDocument
from maitred.core.yaml_schema import dotted_key
from maitred.files import InputFile
from maitred.report import Slo
from maitred.study.candidate import Candidate
from maitred.study.metrics import COMPLETED_SHARE, Better, Constraint, Figures, find_metric, parse_constraint
from maitred.study.runs import MAX_SEEDS

_LONGEST_MS = 1e14
_MOST_TRIALS = 100_000
KeyLocator: TypeAlias = Callable[[str], str]
"""Returns the place in the user's file where a key of the sweep is written."""
COST: Final = "cost"
GPUS: Final = "gpus"


class SearchRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers from `low` to `high`, both included; integers if both are."""

    low: int | float
    high: int | float
    step: int | float | None = None
    scale: Literal["linear", "log"] = "linear"

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"high must be above low, not {self.high}")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(f"step must be above 0 and at most {self.high - self.low}, not {self.step}")
        if self.scale == "log" and (self.low <= 0 or self.step is not None):
            raise ValueError("scale log needs a low above 0, and no step")

    @property
    def is_integer(self) -> bool:
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))


class SearchSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search, which proposes candidates by the results of earlier ones."""

    parameters: Mapping[str, SearchRange | list[Any]]
    """A range or a list of choices by dotted key."""
    trials: int = 50
    batch: int = 8
    """Candidates proposed at once. More of them keep more processes busy; fewer use more results."""

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ValueError("parameters are missing: there is nothing to search for")
        for key, choices in self.parameters.items():
            if isinstance(choices, list) and not choices:
                raise ValueError(f"parameters: {key} has nothing to choose from")
            _check_coupled("parameters", key, choices if isinstance(choices, list) else [choices])
        for name, most in (("trials", _MOST_TRIALS), ("batch", 1_000)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 1 to {most:,}, not {getattr(self, name)}")


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep."""

    base: str | dict[str, Any] | None = None
    """A configuration file, or its sections, shared by all candidates."""
    workload: dict[str, Any] = {}
    """The keys of `maitred.Load`."""
    grid: Mapping[str, list[Any]] | None = None
    """Values by dotted key. Every combination is a candidate. Keys that change together stand side by side, `a.b, a.c`, and
    have lists of values."""
    search: SearchSpec | None = None
    """Used in place of a grid."""
    seeds: int | list[int] = 1
    """Seeds of each candidate: their number, from 42 on, or a list."""
    horizon_secs: float | None = None
    slo: Slo = Slo()
    metrics: Sequence[str] = ("ttft_mean_ms", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms", "goodput_rps", "slo_attainment")
    objective: str = "cost"
    """The metric that the best candidate optimises, among those that meet the constraints."""
    constraints: Sequence[str] = ()
    """Constraints such as `interactive.ttft_p99_ms <= 500`, on the mean over seeds."""
    pareto: Sequence[str] = ("cost", "ttft_p99_ms")
    """The two metrics of the Pareto front."""
    price_per_hour: float | None = None
    """The price of an instance."""
    price_per_gpu_hour: float | dict[str, float] | None = None
    """The price of a GPU, or of each kind of GPU."""

    def __post_init__(self) -> None:
        if self.grid is None and self.search is None:
            raise ValueError("grid is missing: it lists the values to try (or give search)")
        if self.grid is not None and self.search is not None:
            raise ValueError("search does not go with grid: give one of them")
        if self.grid is not None:
            self._check_grid(self.grid)
        if isinstance(self.seeds, int) and not 1 <= self.seeds <= MAX_SEEDS:
            raise ValueError(f"seeds must be from 1 to {MAX_SEEDS:,}, not {self.seeds}")
        if len(set(self.pareto)) != 2:
            raise ValueError("pareto must be two metrics")
        if self.horizon_secs is not None and not 0 < self.horizon_secs <= _LONGEST_MS:
            raise ValueError(f"horizon_secs must be above 0, not {self.horizon_secs}")
        self._check_prices()

    def _check_grid(self, grid: Mapping[str, list[Any]]) -> None:
        if not grid:
            raise ValueError("grid is empty: it takes dotted keys with lists of values")
        for key, values in grid.items():
            if not values:
                raise ValueError(f"grid: {key} has no values")
            _check_coupled("grid", key, values)

    def _check_prices(self) -> None:
        if self.price_per_hour is not None and self.price_per_gpu_hour is not None:
            raise ValueError("price_per_gpu_hour does not go with price_per_hour: give one of them")
        of_gpus = self.price_per_gpu_hour
        prices = [*of_gpus.values()] if isinstance(of_gpus, dict) else [of_gpus]
        if not all(price is None or price > 0 for price in (self.price_per_hour, *prices)):
            raise ValueError("a price must be above 0")


def coupled_keys(key: str) -> list[str]:
    """Return the keys that change together: those of `a.b, a.c`, or the key itself."""
    return [each.strip() for each in key.split(",")]


def uncoupled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each single key, where keys that change together (`a.b, a.c`) have a list of values."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        keys = coupled_keys(key)
        found |= {key: value} if len(keys) == 1 else dict(zip(keys, value, strict=True))
    return found


def _check_coupled(what: str, key: str, choices: Sequence[Any]) -> None:
    """Raise ValueError unless each choice of keys that change together has a value for each of them."""
    count = len(coupled_keys(key))
    for choice in choices if count > 1 else ():
        if not isinstance(choice, list) or len(choice) != count:
            raise ValueError(f"{what}: {key} takes lists of {count} values, one for each key, not {choice!r}")


def sweep_document(spec: str | Path | Mapping[str, Any]) -> YamlDocument:
    """Return a file, or the keys that a program gives, as a document.

    Raises ConfigError for what cannot be read, and for values that no file could hold.
    """
    if not isinstance(spec, Mapping):
        return YamlDocument.read(InputFile(Path(spec)))
    import yaml

    try:
        return _InlineDocument(yaml.safe_dump(msgspec.to_builtins(spec), sort_keys=False, allow_unicode=True), "sweep")
    except (TypeError, yaml.YAMLError) as error:
        raise ConfigError("it holds a value that no file could hold", where="sweep") from error


class CandidateDocument(YamlDocument):
    """The part of a sweep's file that applies to every candidate: `base`, if it is in the file itself, and `workload`."""

    def __init__(self, sweep: YamlDocument) -> None:
        self.name, self.section, self.value = sweep.name, None, sweep.value
        self._sweep = sweep

    @property
    def tree(self) -> Any:
        content = self.value or {}
        base = content.get("base")
        return {**(base if isinstance(base, dict) else {}), "workload": content.get("workload")}

    def where(self, path: KeyPath) -> str | None:
        return self._sweep.where(path if path[:1] == ("workload",) else ("base", *path))


class _InlineDocument(YamlDocument):
    """A document from a program. The user does not see its lines."""

    def where(self, path: KeyPath) -> str | None:
        return None if super().where(path) is None else ": ".join(filter(None, (self.name, dotted_key(path))))


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
        # A latency is of what was answered, so it is told beside how much that was.
        named = (*self.shown, self.objective, *self.pareto, *(each.metric for each in self.constraints), COMPLETED_SHARE)
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
    constraints = tuple(parse_constraint(text, locate("constraints")) for text in spec.constraints)
    return Criteria(spec.objective, constraints, (first, second), tuple(spec.metrics))


def candidate_costs(candidate: Candidate, spec: SweepSpec, locate: KeyLocator) -> dict[str, float]:
    """Return the cost per hour (the number of GPUs without prices) and the number of GPUs. Raises ConfigError for a GPU without
    a price."""
    gpus = float(candidate.num_gpus)
    return {COST: _price(candidate, spec, locate, gpus), GPUS: gpus}


def _price(candidate: Candidate, spec: SweepSpec, locate: KeyLocator, gpus: float) -> float:
    if spec.price_per_hour is not None:
        return candidate.cluster.num_instances * spec.price_per_hour
    prices = spec.price_per_gpu_hour
    if not isinstance(prices, dict):
        return gpus * (1.0 if prices is None else prices)
    known = {name.lower(): price for name, price in prices.items()}
    total = 0.0
    for each in candidate.cluster.instance_configs(candidate.instance):
        if each.hardware.lower() not in known:
            hint = nearest_name_hint(each.hardware, prices)
            raise ConfigError(f"{each.hardware} has no price", where=locate("price_per_gpu_hour"), hint=hint)
        total += each.tensor_parallel_size * each.data_parallel_size * known[each.hardware.lower()]
    return total
