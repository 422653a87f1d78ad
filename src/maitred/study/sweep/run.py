"""`maitred.sweep`: every candidate of a grid or a search, and which of them is best.

from maitred import sweep

swept = sweep({
    "workload": {"rate": 30, "num_requests": 1000},
    "grid": {"cluster.num_instances": [1, 2, 4], "instance.scheduler": ["fcfs", "sjf"]},
    "constraints": ["ttft_p99_ms <= 500"],
})
print(swept.best)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from maitred.config import NOTHING
from maitred.errors import ConfigError
from maitred.study.sweep.criteria import Figures
from maitred.study.sweep.journal import Journal, Line, Memory
from maitred.study.sweep.points import Plan, Point, grid_values
from maitred.study.sweep.search import Search, bounds
from maitred.study.sweep.swept import Swept, Tried, rows, tried
from maitred.study.task import figures_of, work
from maitred.study.terms import seeds_of
from maitred.study.workers import Workers, hired

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many runs are done, and of how many at most."""


def sweep(
    spec: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = 1,
    ray: str | None = None,
    env: Mapping[str, str] = NOTHING,
    progress: Progress | None = None,
) -> Swept:
    """Run every candidate that `spec` (a file, or its keys) describes; `docs/studies.md` has the keys.

    `out` is a folder that keeps every run as soon as it is done; with `resume`, those that it holds of this very sweep are not
    made again. `jobs` processes (1: this one; None: one for each core), or the Ray cluster at `ray` (`auto`, HOST:PORT). A
    script that wants several processes calls this below `if __name__ == "__main__"`. `env`: variables that count as
    configuration (MAITRED_...). The result depends neither on how many processes there are, nor on interruptions.

    Raises ConfigError for what cannot be.
    """
    plan = Plan(spec, env)
    begun = _in_grid(plan) if plan.spec.grid is not None else None
    if plan.spec.search is not None:
        plan.points(0, bounds(plan.spec.search.parameters))
    journal = Memory() if out is None else Journal(Path(out), plan.said(), resume=resume)
    with journal, hired(work, jobs=jobs, ray=ray) as workers:
        made = _Made(plan, journal, workers, progress)
        return made.of_grid(begun) if begun is not None else made.of_search()


def _in_grid(plan: Plan) -> list[Point]:
    assert plan.spec.grid is not None
    points = plan.points(0, grid_values(plan.spec.grid, plan.place("grid")))
    if all(point.problem for point in points):
        raise ConfigError(f"none of the {len(points):,} candidates can be; the first: {points[0].problem}", where=plan.name)
    return points


class _Made:
    """A sweep under way."""

    def __init__(self, plan: Plan, journal: Memory, workers: Workers, progress: Progress | None) -> None:
        self._plan, self._journal, self._workers, self._progress = plan, journal, workers, progress

    def of_grid(self, points: Sequence[Point]) -> Swept:
        self._run(points, 0, sum(len(point.runs) for point in points))
        return self._swept(points)

    def of_search(self) -> Swept:
        said = self._plan.spec.search
        assert said is not None
        seeds = seeds_of(self._plan.spec.seeds)
        search, distinct = Search(said, self._plan.criteria, seeds[0]), dict[str, Point]()
        for first in range(0, said.trials, said.batch):
            proposed = self._plan.points(first, search.ask(min(said.batch, said.trials - first)))
            self._run(proposed, first * len(seeds), said.trials * len(seeds))
            search.tell([self._tried(point).figures if not point.problem else None for point in proposed])
            for point in proposed:
                distinct.setdefault(repr(point.values), point)
        return self._swept([*distinct.values()])

    def _run(self, points: Sequence[Point], before: int, total: int) -> None:
        """Whatever of them is not done. `before`: runs of earlier points."""
        done = before + sum(len(point.runs) for point in points)
        missing = {run.id: (point, run) for point in points for run in point.runs if run.id not in self._journal.done}
        waiting = [*missing.values()]
        self._report(done - len(waiting), total)
        for number, answered in enumerate(self._workers.answers([run.task for _, run in waiting]), 1):
            point, run = waiting[answered.index]
            figures = figures_of(answered.answer)
            self._journal.write(Line(run.id, point.values, run.seed, run.latency_scale, figures))
            self._report(done - len(waiting) + number, total)

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _figures(self, point: Point) -> list[Figures]:
        return [self._journal.done[run.id] for run in point.runs]

    def _tried(self, point: Point) -> Tried:
        return tried(point, self._figures(point), self._plan.criteria)

    def _swept(self, points: Sequence[Point]) -> Swept:
        return Swept(
            criteria=self._plan.criteria,
            tried=tuple(self._tried(point) for point in points),
            runs=tuple(row for point in points for row in rows(point, self._figures(point))),
        )
