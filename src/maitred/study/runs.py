"""Runs: one simulation of a study as a task in bytes, so that it is the same in every process and on every machine.

The result of a task is also bytes: the figures, or the user's mistake that the run found. A run is named by the content of its
task (`StudyRun.id`), so a study that is stopped and resumed recognises the runs it has.

`RunSettings` holds what all runs of a study have in common, and makes the runs of a candidate: one for each seed.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError, MaitredError
from maitred.core.garbage import rare_collections
from maitred.core.units import Micros, from_ms
from maitred.report import DEFAULT_SLO, Slo, workload_targets
from maitred.report.arguments import check_slo
from maitred.study.candidate import Candidate, draw_latency_scale
from maitred.workload import Workload
from maitred.workload.load import DEFAULT_SEED, Load, check_load

MAX_SEEDS = 1_000
_SAMPLE_EVERY: Final = from_ms(5)
"""The first distance of the samples by which a queue is seen to grow."""
Progress: TypeAlias = Callable[[int, int], None]
"""A function that is told the number of completed runs, and the largest number that there can be."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. Its field names are part of the ids of runs, and so of the journals of sweeps."""

    candidate: Candidate
    """The candidate with everything that it derives from the catalogue, and with the `latency_scale` of this run."""
    load: Load
    """The workload without references to files, except traces by their absolute path."""
    seed: int
    horizon: Micros | None
    slo: Slo
    metrics: tuple[str, ...]


class StudyRun(msgspec.Struct, frozen=True):
    """A task, and what the results say of it."""

    seed: int
    latency_scale: float
    task: bytes

    @property
    def id(self) -> str:
        """Equal for equal tasks."""
        return hashlib.sha256(self.task).hexdigest()[:20]


class TaskSucceeded(msgspec.Struct, frozen=True, tag=True):
    """The figures of a run."""

    figures: dict[str, float | None]


class TaskFailed(msgspec.Struct, frozen=True, tag=True):
    """The user's mistake because of which a run could not be made."""

    what: str
    where: str
    hint: str


TaskResult: TypeAlias = TaskSucceeded | TaskFailed


def encode_task(task: Task) -> bytes:
    return _encoder.encode(task)


def run_task(task: bytes) -> bytes:
    """Run the simulation of a task. This is the function that workers call."""
    with rare_collections():
        result = _encoder.encode(_run(msgspec.msgpack.decode(task, type=Task)))
        gc.collect()  # what this run has left, or memory would grow with the runs of a process
    return result


def decode_figures(result: bytes) -> dict[str, float | None]:
    """Return the figures of a result. Raises ConfigError for the mistake that the run found."""
    outcome: TaskResult = msgspec.msgpack.decode(result, type=TaskResult)
    if isinstance(outcome, TaskFailed):
        raise ConfigError(outcome.what, where=outcome.where, hint=outcome.hint)
    return outcome.figures


def encode_unknown(value: Any) -> Any:
    """Encode a value that msgspec does not know. The hook raises NotImplementedError for unknown types, as msgspec requires."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_unknown)


def _run(task: Task) -> TaskResult:
    try:
        return TaskSucceeded(_figures(task))
    except ConfigError as error:
        return TaskFailed(error.problem, error.where, error.hint)
    except MaitredError as error:
        return TaskFailed(str(error), "", "")


def _figures(task: Task) -> dict[str, float | None]:
    from maitred.report import summarise
    from maitred.report.verdicts import find_growth
    from maitred.study.metrics import DIVERGES, metric_values, needed_breakdowns

    with task.load.jobs(task.seed) as jobs:
        log_itl = any(".itl_" in name for name in task.metrics)
        sample_every = _SAMPLE_EVERY if DIVERGES in task.metrics else None
        results = task.candidate.simulate(
            jobs, seed=task.seed, horizon=task.horizon, log_itl=log_itl, sample_every=sample_every
        )
    summary = summarise(results, task.slo, needed_breakdowns(task.metrics))
    values = metric_values(summary, task.metrics, _named_groups(task.load))
    if results.samples is not None:
        values[DIVERGES] = float(find_growth(results.samples) is not None)
    return values


def _named_groups(load: Load) -> Sequence[str]:
    """Return the classes and tenants that a specification names, whether or not one of their requests arrived."""
    workload = load.workload_spec
    if not isinstance(workload, Workload):
        return ()
    senders = (*workload.clients, *workload.cohorts)
    return [name for sender in senders for name in (sender.slo_class, sender.tenant_id) if name]


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a study have in common: seeds, horizon, SLO and metrics."""

    seeds: tuple[int, ...]
    slo: Slo
    horizon: Micros | None
    metrics: tuple[str, ...]

    def make_runs(self, candidate: Candidate, load: Load) -> list[StudyRun]:
        """Return a run for every seed: the same workload and the same draws for every candidate. `load` is self-contained.
        Raises ConfigError for an impossible candidate."""
        resolved = candidate.resolved()
        return [self._make_run(candidate, resolved, load, seed) for seed in self.seeds]

    def _make_run(self, candidate: Candidate, resolved: Candidate, load: Load, seed: int) -> StudyRun:
        scale = draw_latency_scale(candidate.instance, seed)
        task = Task(
            candidate=replace(resolved, instance=replace(resolved.instance, latency_scale=scale)),
            load=load,
            seed=seed,
            horizon=self.horizon,
            slo=self.slo,
            metrics=self.metrics,
        )
        return StudyRun(seed, scale, encode_task(task))


def parse_seeds(given: int | Sequence[int], first: int = DEFAULT_SEED, *, where: str = "seeds") -> tuple[int, ...]:
    """Return the given seeds, or as many as the given number from `first` on. Raises ConfigError for none, too many,
    duplicates."""
    # A range of a billion seeds is not built only to be refused.
    seeds = tuple(range(first, first + min(given, MAX_SEEDS + 1))) if isinstance(given, int) else tuple(given)
    if not 1 <= len(seeds) <= MAX_SEEDS:
        count = given if isinstance(given, int) else len(seeds)
        raise ConfigError(f"{count} seeds cannot be used", where=where, hint=f"from 1 to {MAX_SEEDS:,}")
    twice = next((seed for index, seed in enumerate(seeds) if seed in seeds[:index]), None)
    if twice is not None:
        raise ConfigError(f"the seed {twice} is given twice", where=where)
    return seeds


def as_load(workload: Load | Workload | str) -> Load:
    """Return a workload that a program gives in any form; a string names a trace."""
    if isinstance(workload, Workload):
        return Load(workload_spec=workload)
    load = workload if isinstance(workload, Load) else Load(trace=workload)
    check_load(load)
    return load


def stated_slo(given: Slo | None, load: Load) -> Slo:
    """Return the given SLO, or else the targets of the workload, or else the default. Raises ConfigError for another type."""
    if given is not None:
        return check_slo(given)
    stated = workload_targets(load.workload_spec if isinstance(load.workload_spec, Workload) else None)
    return Slo(classes=stated) if stated else DEFAULT_SLO
