"""The terms of a study: what all its runs have in common."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from maitred.errors import ConfigError
from maitred.report import Slo
from maitred.study.candidate import Candidate
from maitred.study.residual import drawn_scale
from maitred.study.task import Run, Task, encoded
from maitred.units import Micros
from maitred.workload import Workload
from maitred.workload.load import Load

MOST_SEEDS = 1_000
FIRST_SEED = 42


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How long runs last, what they are judged by, and which seeds they have."""

    seeds: tuple[int, ...]
    slo: Slo
    horizon: Micros | None
    metrics: tuple[str, ...]

    def runs(self, said: Candidate, load: Load) -> list[Run]:
        """One for every seed: the same workload, the same draws, whoever serves. `load` is on its own.

        Raises ConfigError for a candidate that cannot be.
        """
        whole = said.checked()
        return [self._run(said, whole, load, seed) for seed in self.seeds]

    def _run(self, said: Candidate, whole: Candidate, load: Load, seed: int) -> Run:
        scale = drawn_scale(said.instance, seed)
        task = Task(
            candidate=replace(whole, instance=replace(whole.instance, latency_scale=scale)),
            load=load,
            seed=seed,
            horizon=self.horizon,
            slo=self.slo,
            metrics=self.metrics,
        )
        return Run(seed, scale, encoded(task))


def seeds_of(said: int | Sequence[int], first: int = FIRST_SEED, *, where: str = "seeds") -> tuple[int, ...]:
    """So many, one after the other from `first` on, or these. Raises ConfigError for none, too many, and one given twice."""
    seeds = tuple(range(first, first + min(said, MOST_SEEDS + 1))) if isinstance(said, int) else tuple(said)
    if not 1 <= len(seeds) <= MOST_SEEDS:
        count = said if isinstance(said, int) else len(seeds)
        raise ConfigError(f"{count} seeds cannot be used", where=where, hint=f"from 1 to {MOST_SEEDS:,}")
    twice = next((seed for index, seed in enumerate(seeds) if seed in seeds[:index]), None)
    if twice is not None:
        raise ConfigError(f"the seed {twice} is given twice", where=where)
    return seeds


def load_of(workload: Load | Workload | str) -> Load:
    """A workload in any of the ways in which a program may say it; a string names a trace."""
    if isinstance(workload, Load):
        return workload
    return Load(workload_spec=workload) if isinstance(workload, Workload) else Load(trace=workload)
