"""Points: the candidates of a sweep, each with the values that make it what it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from maitred.config import Config
from maitred.config.merged import Merged
from maitred.config.root import REGISTERED
from maitred.config.simulated import simulated
from maitred.config.sources import Setting, from_environment, from_flags
from maitred.errors import ConfigError
from maitred.reading.document import Document
from maitred.reading.structs import struct_of
from maitred.study.candidate import Candidate
from maitred.study.sweep.criteria import Criteria, costs_of, criteria_of
from maitred.study.sweep.document import OfCandidates, sweep_document
from maitred.study.sweep.spec import Spec
from maitred.study.task import Run
from maitred.study.terms import Terms, seeds_of
from maitred.units import from_seconds
from maitred.workload import Workload
from maitred.workload.load import Load, on_its_own

MOST_POINTS: Final = 100_000
"""Of a grid: beyond any that ends."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, and the runs that are to be made of it."""

    number: int
    values: dict[str, Any]
    """By dotted key."""
    costs: dict[str, float]
    runs: tuple[Run, ...]
    problem: str = ""
    """Why it cannot be, such as a model that does not fit; then there are no runs."""


class _Whole(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate's configuration, and what it serves."""

    workload: Load = Load()


class Plan:
    """A sweep that has been read: makes points of values."""

    def __init__(self, said: str | Path | Mapping[str, Any], env: Mapping[str, str]) -> None:
        """Raises ConfigError for what is wrong with it."""
        self._document = sweep_document(said)
        self.spec = struct_of(self._document, Spec)
        self.criteria: Criteria = criteria_of(self.spec, self.place)
        base = self.spec.base
        self._base = [Document.read(Path(base))] if isinstance(base, str) else []
        for document in self._base:
            struct_of(document, Config)
        self._env = [*from_environment(Config, env)]
        self._said = [*self._base, OfCandidates(self._document)]
        self._loads: dict[bytes, Load] = {}

    @property
    def name(self) -> str:
        return self._document.name

    def said(self) -> list[Any]:
        """All that it is made of."""
        settings = [(setting.path, setting.value) for setting in self._env]
        return [self._document.value, *(document.value for document in self._base), settings]

    def place(self, *path: str) -> str:
        """Where the sweep says a key, as the user would point at it."""
        return self._document.where(path) or self.name

    def points(self, first: int, all_values: Iterable[Mapping[str, Any]]) -> list[Point]:
        """One for each, numbered from `first` on. Raises ConfigError for values that no configuration takes."""
        return [self._point(number, values) for number, values in enumerate(all_values, first)]

    def _point(self, number: int, values: Mapping[str, Any]) -> Point:
        whole = simulated(Merged(_Whole, self._said, self._settings(values), REGISTERED))
        candidate = Candidate.of(whole)
        load = self._load(whole.workload)
        costs = costs_of(candidate, self.spec, self.place)
        try:
            runs, problem = tuple(self._terms(load).runs(candidate, load)), ""
        except ConfigError as error:
            runs, problem = (), str(error)
        return Point(number=number, values=dict(values), costs=costs, runs=runs, problem=problem)

    def _settings(self, values: Mapping[str, Any]) -> list[Setting]:
        above = ("grid",) if self.spec.grid is not None else ("search", "parameters")
        return [*self._env, *from_flags(values, {key: self.place(*above, key) for key in values})]

    def _terms(self, load: Load) -> Terms:
        spec, workload = self.spec, load.workload_spec
        return Terms(
            seeds=seeds_of(spec.seeds, where=self.place("seeds")),
            slo=spec.slo.slo(workload if isinstance(workload, Workload) else None),
            horizon=None if spec.horizon_secs is None else from_seconds(spec.horizon_secs),
            metrics=self.criteria.measured,
        )

    def _load(self, said: Load) -> Load:
        """On its own: its files are read once, however many points share it."""
        key = msgspec.msgpack.encode(said)
        if key not in self._loads:
            try:
                self._loads[key] = on_its_own(said, lambda name: f"workload.{name}")
            except ConfigError as error:
                raise self._of_workload(error) from error
        return self._loads[key]

    def _of_workload(self, error: ConfigError) -> ConfigError:
        section, _, key = error.where.partition(".")
        if error.where and section != "workload":
            return error
        what = f"{error.where}: {error.what}" if error.where else error.what
        path = ("workload", key) if key and self._document.where(("workload", key)) else ("workload",)
        return ConfigError(what, where=self.place(*path), hint=error.hint)


def grid_values(grid: Mapping[str, list[Any]], place: str) -> Iterator[dict[str, Any]]:
    """Every combination, the last key changing fastest. Raises ConfigError for more than anybody waits for."""
    count = prod(map(len, grid.values()))
    if count > MOST_POINTS:
        raise ConfigError(f"{count:,} combinations are too many", where=place, hint=f"at most {MOST_POINTS:,}, or search")
    return (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
