"""Points: the candidates of a sweep, each with the values that define it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from maitred.config import Config
from maitred.config.merged import MergedConfig
from maitred.config.root import POLICY_KEYS
from maitred.config.settings import Setting, environment_settings, flag_settings
from maitred.config.sources import with_simulation_defaults
from maitred.core.errors import ConfigError
from maitred.core.units import from_seconds
from maitred.core.yaml_document import YamlDocument
from maitred.core.yaml_schema import document_to_struct
from maitred.study.candidate import Candidate
from maitred.study.runs import RunSettings, StudyRun, parse_seeds
from maitred.study.sweep.criteria import Criteria, candidate_costs, parse_criteria
from maitred.study.sweep.spec import CandidateDocument, SweepSpec, sweep_document
from maitred.workload import Workload
from maitred.workload.load import Load, make_self_contained

MAX_POINTS: Final = 100_000
"""More points than any grid that ends."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and its runs."""

    number: int
    values: dict[str, Any]
    """The values that define it, by dotted key."""
    costs: dict[str, float]
    runs: tuple[StudyRun, ...]
    problem: str = ""
    """Why it cannot be simulated, such as a model that does not fit; it has no runs then."""


class _PointConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a candidate, and its workload."""

    workload: Load = Load()


class SweepPlan:
    """A sweep that has been read. It makes points of values."""

    def __init__(self, spec: str | Path | Mapping[str, Any], env: Mapping[str, str]) -> None:
        """Raises ConfigError for what is wrong with the sweep."""
        self._document = sweep_document(spec)
        self.spec = document_to_struct(self._document, SweepSpec)
        self.criteria: Criteria = parse_criteria(self.spec, self.locate)
        base = self.spec.base
        self._base = [YamlDocument.read(Path(base))] if isinstance(base, str) else []
        for document in self._base:
            document_to_struct(document, Config)
        self._env = [*environment_settings(Config, env)]
        self._layers = [*self._base, CandidateDocument(self._document)]
        self._loads: dict[bytes, Load] = {}

    @property
    def name(self) -> str:
        return self._document.name

    def content(self) -> list[Any]:
        """Return everything that the sweep is made of."""
        settings = [(setting.path, setting.value) for setting in self._env]
        return [self._document.value, *(document.value for document in self._base), settings]

    def locate(self, *path: str) -> str:
        """Return the place in the user's file where a key is written."""
        return self._document.where(path) or self.name

    def points(self, first: int, all_values: Iterable[Mapping[str, Any]]) -> list[SweepPoint]:
        """Return a point for each, numbered from `first` on. Raises ConfigError for values that no configuration takes."""
        return [self._point(number, values) for number, values in enumerate(all_values, first)]

    def _point(self, number: int, values: Mapping[str, Any]) -> SweepPoint:
        config = with_simulation_defaults(MergedConfig(_PointConfig, self._layers, self._settings(values), POLICY_KEYS))
        candidate = Candidate.from_config(config)
        load = self._load(config.workload)
        costs = candidate_costs(candidate, self.spec, self.locate)
        try:
            runs, problem = tuple(self._terms(load).make_runs(candidate, load)), ""
        except ConfigError as error:
            runs, problem = (), str(error)
        return SweepPoint(number=number, values=dict(values), costs=costs, runs=runs, problem=problem)

    def _settings(self, values: Mapping[str, Any]) -> list[Setting]:
        above = ("grid",) if self.spec.grid is not None else ("search", "parameters")
        return [*self._env, *flag_settings(values, {key: self.locate(*above, key) for key in values})]

    def _terms(self, load: Load) -> RunSettings:
        spec, workload = self.spec, load.workload_spec
        return RunSettings(
            seeds=parse_seeds(spec.seeds, where=self.locate("seeds")),
            slo=spec.slo.slo(workload if isinstance(workload, Workload) else None),
            horizon=None if spec.horizon_secs is None else from_seconds(spec.horizon_secs),
            metrics=self.criteria.measured,
        )

    def _load(self, load: Load) -> Load:
        """Return a self-contained workload. Its files are read once, however many points share it."""
        key = msgspec.msgpack.encode(load)
        if key not in self._loads:
            try:
                self._loads[key] = make_self_contained(load, lambda name: f"workload.{name}")
            except ConfigError as error:
                raise self._located(error) from error
        return self._loads[key]

    def _located(self, error: ConfigError) -> ConfigError:
        section, _, key = error.where.partition(".")
        if error.where and section != "workload":
            return error
        what = f"{error.where}: {error.problem}" if error.where else error.problem
        path = ("workload", key) if key and self._document.where(("workload", key)) else ("workload",)
        return ConfigError(what, where=self.locate(*path), hint=error.hint)


def grid_values(grid: Mapping[str, list[Any]], place: str) -> Iterator[dict[str, Any]]:
    """Return every combination, the last key changing fastest. Raises ConfigError for too many."""
    count = prod(map(len, grid.values()))
    if count > MAX_POINTS:
        raise ConfigError(f"{count:,} combinations are too many", where=place, hint=f"at most {MAX_POINTS:,}, or search")
    return (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
