"""A task: one run of the simulator, as bytes, so that it is the same in every process and on every machine.

What comes of it is bytes too: the figures, or the mistake of the user that it ran into. A task is named by its content
(`Run.id`), so that a study which is stopped and begun again knows what it has.

The terms of a study: what all its runs have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError, MaitredError
from maitred.core.units import Micros
from maitred.report import Slo
from maitred.study.candidate import Candidate
from maitred.study.latency_error import draw_latency_scale
from maitred.workload import Workload
from maitred.workload.load import Load


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    candidate: Candidate
    """With all that it derives from the catalogue, and the `latency_scale` of this run."""
    load: Load
    """On its own: without files that are not named by their whole path."""
    seed: int
    horizon: Micros | None
    slo: Slo
    metrics: tuple[str, ...]


class StudyRun(msgspec.Struct, frozen=True):
    """A task, and what a reader of its results wants to know of it."""

    seed: int
    latency_scale: float
    task: bytes

    @property
    def id(self) -> str:
        """Equal for equal tasks."""
        return hashlib.sha256(self.task).hexdigest()[:20]


class TaskSucceeded(msgspec.Struct, frozen=True, tag=True):
    """What came of a run."""

    figures: dict[str, float | None]


class TaskFailed(msgspec.Struct, frozen=True, tag=True):
    """Why it could not be made: a mistake of the user."""

    what: str
    where: str
    hint: str


TaskResult: TypeAlias = TaskSucceeded | TaskFailed


def encode_task(task: Task) -> bytes:
    return _encoder.encode(task)


def run_task(task: bytes) -> bytes:
    """Make the run. The one function that workers call."""
    return _encoder.encode(_run(msgspec.msgpack.decode(task, type=Task)))


def decode_figures(result: bytes) -> dict[str, float | None]:
    """Raises ConfigError for the mistake that a run ran into."""
    said: TaskResult = msgspec.msgpack.decode(result, type=TaskResult)
    if isinstance(said, TaskFailed):
        raise ConfigError(said.what, where=said.where, hint=said.hint)
    return said.figures


def _encode_unknown(value: Any) -> Any:
    """For msgspec, which wants NotImplementedError of a hook that does not know a type."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_unknown)


def _run(task: Task) -> TaskResult:
    try:
        return TaskSucceeded(_figures(task))
    except ConfigError as error:
        return TaskFailed(error.problem, error.where, error.hint)
    except MaitredError as error:
        return TaskFailed(str(error), "", "")


def _figures(task: Task) -> dict[str, float | None]:
    from maitred.report import summarise
    from maitred.sim import simulate
    from maitred.study.metrics import metric_values, needed_breakdowns

    serving = task.candidate
    with task.load.jobs(task.seed) as jobs:
        results = simulate(
            jobs,
            serving.cluster,
            serving.instance,
            serving.routing,
            serving.admission,
            seed=task.seed,
            horizon=task.horizon,
            log_itl=any(".itl_" in name for name in task.metrics),
        )
    summary = summarise(results, task.slo, needed_breakdowns(task.metrics))
    return metric_values(summary, task.metrics, _named_groups(task.load))


def _named_groups(load: Load) -> Sequence[str]:
    """Those that a specification names, whether or not one of their requests has arrived."""
    workload = load.workload_spec
    if not isinstance(workload, Workload):
        return ()
    senders = (*workload.clients, *workload.cohorts)
    return [name for sender in senders for name in (sender.slo_class, sender.tenant_id) if name]


MAX_SEEDS = 1_000
FIRST_SEED = 42


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long runs last, what they are judged by, and which seeds they have."""

    seeds: tuple[int, ...]
    slo: Slo
    horizon: Micros | None
    metrics: tuple[str, ...]

    def make_runs(self, candidate: Candidate, load: Load) -> list[StudyRun]:
        """One for every seed: the same workload, the same draws, whoever serves. `load` is on its own.

        Raises ConfigError for a candidate that cannot be.
        """
        whole = candidate.resolved()
        return [self._make_run(candidate, whole, load, seed) for seed in self.seeds]

    def _make_run(self, said: Candidate, whole: Candidate, load: Load, seed: int) -> StudyRun:
        scale = draw_latency_scale(said.instance, seed)
        task = Task(
            candidate=replace(whole, instance=replace(whole.instance, latency_scale=scale)),
            load=load,
            seed=seed,
            horizon=self.horizon,
            slo=self.slo,
            metrics=self.metrics,
        )
        return StudyRun(seed, scale, encode_task(task))


def parse_seeds(said: int | Sequence[int], first: int = FIRST_SEED, *, where: str = "seeds") -> tuple[int, ...]:
    """So many, one after the other from `first` on, or these. Raises ConfigError for none, too many, and one given twice."""
    seeds = tuple(range(first, first + min(said, MAX_SEEDS + 1))) if isinstance(said, int) else tuple(said)
    if not 1 <= len(seeds) <= MAX_SEEDS:
        count = said if isinstance(said, int) else len(seeds)
        raise ConfigError(f"{count} seeds cannot be used", where=where, hint=f"from 1 to {MAX_SEEDS:,}")
    twice = next((seed for index, seed in enumerate(seeds) if seed in seeds[:index]), None)
    if twice is not None:
        raise ConfigError(f"the seed {twice} is given twice", where=where)
    return seeds


def as_load(workload: Load | Workload | str) -> Load:
    """A workload in any of the ways in which a program may say it; a string names a trace."""
    if isinstance(workload, Load):
        return workload
    return Load(workload_spec=workload) if isinstance(workload, Workload) else Load(trace=workload)
