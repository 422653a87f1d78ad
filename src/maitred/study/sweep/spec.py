"""What is swept, as a file says it. `docs/studies.md` explains every key.

The file of a sweep as documents: its own keys, and what it says of every candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.units import Micros, from_ms
from maitred.core.yaml_document import KeyPath, YamlDocument
from maitred.core.yaml_schema import dotted_key
from maitred.report import DEFAULT_SLO, Slo, Targets, workload_targets
from maitred.study.runs import MAX_SEEDS
from maitred.workload import Workload

_LONGEST_MS = 1e14
_MOST_TRIALS = 100_000


class TargetsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latency targets in ms; None: not one."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _LONGEST_MS:
                raise ValueError(f"{name} must be above 0, not {value}")

    def targets(self) -> dict[str, Micros | None]:
        said = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2e": self.e2e_ms}
        return {name: None if ms is None else from_ms(ms) for name, ms in said.items()}


class SloSpec(TargetsSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets for all, and for classes that have their own."""

    classes: Mapping[str, TargetsSpec] = {}

    def slo(self, workload: Workload | None) -> Slo:
        """With those that the workload states, where nothing is said of the class."""
        own = {name: Targets(**said.targets()) for name, said in self.classes.items()}
        return Slo(**self.targets(), classes={**workload_targets(workload), **own}) or DEFAULT_SLO


class SearchRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers from `low` to `high`, both included; whole ones if both are."""

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
    """Candidates that a search proposes, knowing what came of those before."""

    parameters: Mapping[str, SearchRange | list[Any]]
    """By dotted key: a range, or a choice."""
    trials: int = 50
    batch: int = 8
    """So many are proposed at once. More keep more processes busy; fewer know more."""

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ValueError("parameters are missing: there is nothing to search for")
        for key, choices in self.parameters.items():
            if isinstance(choices, list) and not choices:
                raise ValueError(f"parameters: {key} has nothing to choose from")
        for name, most in (("trials", _MOST_TRIALS), ("batch", 1_000)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 1 to {most:,}, not {getattr(self, name)}")


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep."""

    base: str | dict[str, Any] | None = None
    """A configuration file, or its sections: what all candidates have in common."""
    workload: dict[str, Any] = {}
    """The keys of `workload.load.Load`."""
    grid: Mapping[str, list[Any]] | None = None
    """Values by dotted key: every combination is a candidate."""
    search: SearchSpec | None = None
    """In place of a grid."""
    seeds: int | list[int] = 1
    """Runs of each candidate: so many from 42 on, or these."""
    horizon_secs: float | None = None
    slo: SloSpec = SloSpec()
    metrics: Sequence[str] = ("ttft_mean_ms", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms", "goodput_rps", "slo_attainment")
    objective: str = "cost"
    """The metric by which the best is best, among those that meet the constraints."""
    constraints: Sequence[str] = ()
    """As `interactive.ttft_p99_ms <= 500`; of the mean over seeds."""
    pareto: Sequence[str] = ("cost", "ttft_p99_ms")
    """Two metrics: which candidates cannot be bettered in one without losing in the other."""
    price_per_hour: float | None = None
    """Of an instance."""
    price_per_gpu_hour: float | dict[str, float] | None = None
    """Of a GPU, or of each kind of them."""

    def __post_init__(self) -> None:
        if self.grid is None and self.search is None:
            raise ValueError("grid is missing: nothing says what is to be tried (or search)")
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

    def _check_prices(self) -> None:
        if self.price_per_hour is not None and self.price_per_gpu_hour is not None:
            raise ValueError("price_per_gpu_hour does not go with price_per_hour: give one of them")
        of_gpus = self.price_per_gpu_hour
        prices = [*of_gpus.values()] if isinstance(of_gpus, dict) else [of_gpus]
        if not all(price is None or price > 0 for price in (self.price_per_hour, *prices)):
            raise ValueError("a price must be above 0")


def sweep_document(said: str | Path | Mapping[str, Any]) -> YamlDocument:
    """A file, or what a program says instead of one. Raises ConfigError for what cannot be read, or could stand in no file."""
    if not isinstance(said, Mapping):
        return YamlDocument.read(Path(said))
    import yaml

    try:
        return _InlineDocument(yaml.safe_dump(msgspec.to_builtins(said), sort_keys=False, allow_unicode=True), "sweep")
    except (TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"it holds what no file could say: {error}", where="sweep") from error


class CandidateDocument(YamlDocument):
    """What the file of a sweep says of every candidate: `base`, where it stands in the file itself, and `workload`."""

    def __init__(self, sweep: YamlDocument) -> None:
        self.name, self.section, self.value = sweep.name, None, sweep.value
        self._sweep = sweep

    @property
    def tree(self) -> Any:
        said = self.value or {}
        base = said.get("base")
        return {**(base if isinstance(base, dict) else {}), "workload": said.get("workload")}

    def where(self, path: KeyPath) -> str | None:
        return self._sweep.where(path if path[:1] == ("workload",) else ("base", *path))


class _InlineDocument(YamlDocument):
    """Nobody sees its lines."""

    def where(self, path: KeyPath) -> str | None:
        return None if super().where(path) is None else ": ".join(filter(None, (self.name, dotted_key(path))))
