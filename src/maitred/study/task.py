"""A task: one run of the simulator, as bytes, so that it is the same in every process and on every machine.

What comes of it is bytes too: the figures, or the mistake of the user that it ran into. A task is named by its content
(`Run.id`), so that a study which is stopped and begun again knows what it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from maitred.errors import ConfigError, MaitredError
from maitred.report import Slo
from maitred.study.candidate import Candidate
from maitred.units import Micros
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


class Run(msgspec.Struct, frozen=True):
    """A task, and what a reader of its results wants to know of it."""

    seed: int
    latency_scale: float
    task: bytes

    @property
    def id(self) -> str:
        """Equal for equal tasks."""
        return hashlib.sha256(self.task).hexdigest()[:20]


class Ran(msgspec.Struct, frozen=True, tag=True):
    """What came of a run."""

    figures: dict[str, float | None]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Why it could not be made: a mistake of the user."""

    what: str
    where: str
    hint: str


Answer: TypeAlias = Ran | Failed


def encoded(task: Task) -> bytes:
    return _encoder.encode(task)


def work(task: bytes) -> bytes:
    """Make the run. The one function that workers call."""
    return _encoder.encode(_made(msgspec.msgpack.decode(task, type=Task)))


def figures_of(answer: bytes) -> dict[str, float | None]:
    """Raises ConfigError for the mistake that a run ran into."""
    said: Answer = msgspec.msgpack.decode(answer, type=Answer)
    if isinstance(said, Failed):
        raise ConfigError(said.what, where=said.where, hint=said.hint)
    return said.figures


def _plain(value: Any) -> Any:
    """For msgspec, which wants NotImplementedError of a hook that does not know a type."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)


def _made(task: Task) -> Answer:
    try:
        return Ran(_figures(task))
    except ConfigError as error:
        return Failed(error.what, error.where, error.hint)
    except MaitredError as error:
        return Failed(str(error), "", "")


def _figures(task: Task) -> dict[str, float | None]:
    from maitred.report import summarise
    from maitred.sim import simulate
    from maitred.study.metrics import breakdowns, figures

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
            log_gaps=any(".itl_" in name for name in task.metrics),
        )
    summary = summarise(results, task.slo, breakdowns(task.metrics))
    return figures(summary, task.metrics, _groups(task.load))


def _groups(load: Load) -> Sequence[str]:
    """Those that a specification names, whether or not one of their requests has arrived."""
    workload = load.workload_spec
    if not isinstance(workload, Workload):
        return ()
    senders = (*workload.clients, *workload.cohorts)
    return [name for sender in senders for name in (sender.slo_class, sender.tenant_id) if name]
