"""`maitred.sweep`: every candidate of a grid or a search, and which of them is best, on this machine or on many.

    from maitred import sweep

    result = sweep(
        {
            "workload": {"rate": 30, "num_requests": 1000},
            "grid": {"cluster.num_instances": [1, 2, 4], "instance.scheduler": ["fcfs", "sjf"]},
            "constraints": ["ttft_p99_ms <= 500"],
        }
    )
    print(result.best)

The grid has six candidates, and each of them a run for every seed.

    spec.py     the file of a sweep: its keys, where the user wrote them; costs, constraints, the objective
    points.py   candidates from a grid, or proposed by Optuna, each with its runs
    journal.py  the completed runs, on disk
    result.py   SweepResult: the best candidate, the Pareto front, plot, table and files

A run is identified by its content, so a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from maitred.config import NO_VALUES
from maitred.core.errors import ConfigError
from maitred.study.metrics import Figures
from maitred.study.runs import Progress, decode_figures, parse_seeds, run_task
from maitred.study.sweep.journal import FileJournal, InMemoryJournal, JournalLine
from maitred.study.sweep.points import SweepPlan, SweepPoint, TpeSearch, boundary_values, grid_values
from maitred.study.sweep.result import CandidateResult, SweepResult, candidate_result, run_rows
from maitred.study.workers import Workers, make_workers

__all__ = ["CandidateResult", "SweepResult", "sweep"]


def sweep(
    spec: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = 1,
    ray: str | None = None,
    env: Mapping[str, str] = NO_VALUES,
    progress: Progress | None = None,
) -> SweepResult:
    """Run every candidate that `spec` (a file, or its keys) describes; `docs/studies.md` explains the keys.

    `out` is a folder that keeps every run as soon as it completes. With `resume`, the runs of this very sweep in that folder
    are not repeated. `jobs` is the number of processes (1: this one; None: one for each core), `ray` a Ray cluster (`auto`,
    HOST:PORT). A script that uses several processes calls this below `if __name__ == "__main__"`. `env` holds variables that
    count as configuration (MAITRED_...). The result depends neither on the number of processes, nor on interruptions.

    Raises ConfigError for an impossible sweep.
    """
    plan = SweepPlan(spec, env)
    grid = _grid_points(plan) if plan.spec.grid is not None else None
    if plan.spec.search is not None:
        plan.points(0, boundary_values(plan.spec.search.parameters))
    journal = InMemoryJournal() if out is None else FileJournal(Path(out), plan.content(), plan.traces(), resume=resume)
    with journal, make_workers(run_task, jobs=jobs, ray=ray) as workers:
        running = _RunningSweep(plan, journal, workers, progress)
        return running.run_grid(grid) if grid is not None else running.run_search()


def _grid_points(plan: SweepPlan) -> list[SweepPoint]:
    assert plan.spec.grid is not None
    points = plan.points(0, grid_values(plan.spec.grid, plan.locate("grid")))
    if all(point.problem for point in points):
        raise ConfigError(
            f"none of the {len(points):,} candidates can be simulated; the first: {points[0].problem}", where=plan.name
        )
    return points


class _RunningSweep:
    """A sweep under way."""

    def __init__(self, plan: SweepPlan, journal: InMemoryJournal, workers: Workers, progress: Progress | None) -> None:
        self._plan, self._journal, self._workers, self._progress = plan, journal, workers, progress

    def run_grid(self, points: Sequence[SweepPoint]) -> SweepResult:
        self._run_missing(points, 0, sum(len(point.runs) for point in points))
        return self._result(points)

    def run_search(self) -> SweepResult:
        spec = self._plan.spec.search
        assert spec is not None
        seeds = parse_seeds(self._plan.spec.seeds)
        search, distinct = TpeSearch(spec, self._plan.criteria, seeds[0]), dict[str, SweepPoint]()
        for first in range(0, spec.trials, spec.batch):
            proposed = self._plan.points(first, search.ask(min(spec.batch, spec.trials - first)))
            self._run_missing(proposed, first * len(seeds), spec.trials * len(seeds))
            search.tell([self._candidate_result(point).figures if not point.problem else None for point in proposed])
            # TPE may propose the same values again. Their runs are in the journal, and they count as one candidate.
            for point in proposed:
                distinct.setdefault(repr(point.values), point)
        return self._result([*distinct.values()])

    def _run_missing(self, points: Sequence[SweepPoint], before: int, total: int) -> None:
        """Make the runs of these points that the journal does not have. `before` is the number of runs of earlier points."""
        done = before + sum(len(point.runs) for point in points)
        missing = {run.id: (point, run) for point in points for run in point.runs if run.id not in self._journal.done}
        waiting = [*missing.values()]
        self._report(done - len(waiting), total)
        for number, completed in enumerate(self._workers.run([run.task for _, run in waiting]), 1):
            point, run = waiting[completed.index]
            figures = decode_figures(completed.result)
            self._journal.record(JournalLine(run.id, point.values, run.seed, run.latency_scale, figures))
            self._report(done - len(waiting) + number, total)

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _figures(self, point: SweepPoint) -> list[Figures]:
        return [self._journal.done[run.id] for run in point.runs]

    def _candidate_result(self, point: SweepPoint) -> CandidateResult:
        return candidate_result(point, self._figures(point), self._plan.criteria)

    def _result(self, points: Sequence[SweepPoint]) -> SweepResult:
        result = SweepResult(
            criteria=self._plan.criteria,
            candidates=tuple(self._candidate_result(point) for point in points),
            runs=tuple(row for point in points for row in run_rows(point, self._figures(point))),
        )
        shown = next((point for point in points if point.runs and point.number == result.best_or_first), None)
        if shown is None:
            return result
        return replace(result, simulated=shown.candidate.in_one_line([run.seed for run in shown.runs]))
