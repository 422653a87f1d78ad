"""Points: the candidates of a sweep, from a grid or a search, each with the values that define it.

A search proposes candidates by Optuna's TPE (tree-structured Parzen estimator), batch by batch. Proposals depend on the seed
and on the results of earlier batches, which are reported in the order in which they were proposed. So they do not depend on the
number of processes. A resumed sweep proposes the same candidates again and finds their runs in the journal.

Example: the grid `{cluster.num_instances: [1, 2], instance.scheduler: [fcfs, sjf]}` has the points 1 fcfs, 1 sjf, 2 fcfs and
2 sjf.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from maitred.config import Config
from maitred.config.merged import MergedConfig, environment_settings, flag_settings
from maitred.config.root import POLICY_KEYS
from maitred.config.sources import flavour_defaults, with_simulation_defaults
from maitred.core.errors import ConfigError, describe_os_error, missing_library
from maitred.core.units import from_seconds
from maitred.core.yaml_document import YamlDocument
from maitred.core.yaml_schema import document_to_struct
from maitred.files import InputFile, open_input
from maitred.report import DEFAULT_SLO, Slo, workload_targets
from maitred.study.candidate import Candidate
from maitred.study.metrics import Figures
from maitred.study.runs import RunSettings, StudyRun, parse_seeds
from maitred.study.sweep.spec import (
    CandidateDocument,
    Criteria,
    SearchRange,
    SearchSpec,
    SweepSpec,
    candidate_costs,
    coupled_keys,
    parse_criteria,
    sweep_document,
    uncoupled,
)
from maitred.workload import Workload
from maitred.workload.load import Load, make_self_contained, trace_files

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

_UNMET_EXCESS: Final = 1e9
"""The excess of a constraint for a candidate that cannot be simulated, or has no figure."""
MAX_POINTS: Final = 100_000
"""More points than any grid that ends."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and its runs."""

    number: int
    values: dict[str, Any]
    """The values that define it, by dotted key."""
    candidate: Candidate
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
        self._base = [YamlDocument.read(InputFile(Path(base)))] if isinstance(base, str) else []
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

    def traces(self) -> dict[str, str]:
        """Return the hash of each file of the traces of the points that were made, by its path. Raises ConfigError for a file
        that cannot be read."""
        return {str(path): _content_hash(path) for load in self._loads.values() for path in trace_files(load)}

    def locate(self, *path: str) -> str:
        """Return the place in the user's file where a key is written."""
        return self._document.where(path) or self.name

    def points(self, first: int, all_values: Iterable[Mapping[str, Any]]) -> list[SweepPoint]:
        """Return a point for each, numbered from `first` on. Raises ConfigError for values that no configuration takes."""
        return [self._point(number, values) for number, values in enumerate(all_values, first)]

    def _point(self, number: int, values: Mapping[str, Any]) -> SweepPoint:
        above = ("grid",) if self.spec.grid is not None else ("search", "parameters")
        settings = [*self._env, *flag_settings(values, {key: self._locate_value(above, key) for key in values})]
        config = with_simulation_defaults(MergedConfig(_PointConfig, self._layers, settings, POLICY_KEYS, flavour_defaults))
        candidate = Candidate.from_config(config)
        load = self._load(config.workload)
        costs = candidate_costs(candidate, self.spec, self.locate)
        try:
            runs, problem = tuple(self._run_settings(load).make_runs(candidate, load)), ""
        except ConfigError as error:
            runs, problem = (), str(error)
        return SweepPoint(number=number, values=dict(values), candidate=candidate, costs=costs, runs=runs, problem=problem)

    def _locate_value(self, above: tuple[str, ...], key: str) -> str:
        """Return the place where the values of a key are written, by itself or beside keys that change with it."""
        grid = self.spec.grid if self.spec.grid is not None else {} if self.spec.search is None else self.spec.search.parameters
        written = next((each for each in grid if key in coupled_keys(each)), key)
        return self.locate(*above, written)

    def _run_settings(self, load: Load) -> RunSettings:
        spec, workload = self.spec, load.workload_spec
        return RunSettings(
            seeds=parse_seeds(spec.seeds, where=self.locate("seeds")),
            slo=_objective(spec.slo, workload if isinstance(workload, Workload) else None),
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
    return (uncoupled(dict(zip(grid, values, strict=True))) for values in product(*grid.values()))


class TpeSearch:
    """A search: call `ask` and `tell` in turn."""

    def __init__(self, spec: SearchSpec, criteria: Criteria, seed: int) -> None:
        """Raises ConfigError without Optuna, and for a range that Optuna does not take."""
        try:
            import optuna
        except ImportError as error:
            raise missing_library("Optuna", "search", "search") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._criteria = criteria
        self._parameters = spec.parameters
        # A seed of numpy has 32 bits.
        self._space = {key: _distribution(parameter) for key, parameter in spec.parameters.items()}
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed % 2**32), direction="minimize")
        self._asked: list[Trial] = []

    def ask(self, count: int) -> list[dict[str, Any]]:
        """Return the values of `count` candidates."""
        self._asked = [self._study.ask(self._space) for _ in range(count)]
        return [
            uncoupled(
                {
                    key: of[trial.params[key]] if isinstance(of, list) else trial.params[key]
                    for key, of in self._parameters.items()
                }
            )
            for trial in self._asked
        ]

    def tell(self, figures: Sequence[Figures | None]) -> None:
        """Report the figures of the candidates in the order of their proposal, or None for one that cannot be simulated."""
        for trial, found in zip(self._asked, figures, strict=True):
            for number, constraint in enumerate(self._criteria.constraints):
                excess = math.inf if found is None else constraint.excess(found)
                trial.set_constraint(str(number), min(excess, _UNMET_EXCESS))
            loss = math.inf if found is None else self._criteria.loss(self._criteria.objective, found)
            self._study.tell(trial, loss)


def _content_hash(path: Path) -> str:
    try:
        with open_input(path) as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    except OSError as error:
        raise ConfigError(f"cannot be read: {describe_os_error(error)}", where=str(path)) from error


def _objective(slo: Slo, workload: Workload | None) -> Slo:
    """Return the objective of a sweep, with the targets of the workload for classes that have none in it."""
    return replace(slo, classes={**workload_targets(workload), **slo.classes}) or DEFAULT_SLO


def _distribution(parameter: SearchRange | list[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    # Choices are given by their index, because Optuna takes plain scalars only and a choice may be a list or a section.
    if isinstance(parameter, list):
        return CategoricalDistribution(range(len(parameter)))
    log = parameter.scale == "log"
    if parameter.is_integer:
        return IntDistribution(int(parameter.low), int(parameter.high), log=log, step=int(parameter.step or 1))
    return FloatDistribution(parameter.low, parameter.high, log=log, step=parameter.step)


def boundary_values(parameters: Mapping[str, SearchRange | list[Any]]) -> list[dict[str, Any]]:
    """Return values that use each parameter at both ends of its range, or in each of its choices, for checking them."""
    ends = {key: of if isinstance(of, list) else [of.low, of.high] for key, of in parameters.items()}
    longest = max(map(len, ends.values()))
    points = ({key: values[min(index, len(values) - 1)] for key, values in ends.items()} for index in range(longest))
    return [uncoupled(point) for point in points]
