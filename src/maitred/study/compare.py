"""`maitred.compare`: two or more candidates, each on the same workloads.

    from maitred import Candidate, InstanceConfig, Load, compare

    fcfs = Candidate(instance=InstanceConfig(scheduler="fcfs"))
    sjf = Candidate(instance=InstanceConfig(scheduler="sjf"))
    print(compare(fcfs, sjf, workload=Load(rate=9, num_requests=500)))

The first candidate is compared with each of the others, seed by seed. Each seed gives one pair of runs with the same workload,
so the chance that both share cancels out (`comparison.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from maitred.core.errors import ConfigError, located
from maitred.core.units import Micros
from maitred.instance.catalogue import published_latency_error
from maitred.report import Result, Slo
from maitred.report.arguments import horizon_of
from maitred.report.table import format_slo
from maitred.study.candidate import Candidate, latency_identity
from maitred.study.comparison import Comparison, make_pairings, side_label
from maitred.study.metrics import find_metric, metric_values
from maitred.study.runs import Progress, RunSettings, StudyRun, as_load, decode_figures, parse_seeds, run_task, stated_slo
from maitred.study.workers import make_workers
from maitred.workload import Workload
from maitred.workload.load import Load, as_key, describe, make_self_contained

DEFAULT_METRICS: Final = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "tpot_p99_ms",
    "e2e_mean_ms",
    "e2e_p99_ms",
    "goodput_rps",
    "slo_attainment",
    "responses_per_sec",
    "preemption_count",
    "total_wasted_tokens",
    "cache_hit_rate",
)


def compare(
    *candidates: Candidate | str | Path,
    workload: Load | Workload | str,
    seeds: int | Sequence[int] = 10,
    metrics: Sequence[str] = DEFAULT_METRICS,
    slo: Slo | None = None,
    horizon_secs: float | None = None,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Run every candidate on the same workloads, and compare each with the first.

    A candidate is a `Candidate`, or the path of a configuration file. `workload` is a `Load` or `Workload`, or a trace as the
    command line names it. A seed drives all random draws of the workload and of the runs. `seeds` is the number of seeds, from
    42 on, or the seeds themselves. `metrics` are names of `study.metrics`. If `slo` is None, the targets of the workload apply,
    or else the default SLO. Runs end after `horizon_secs`. `jobs` is the number of processes (1: this one; None: one for each
    core). A script that uses several calls this below `if __name__ == "__main__"`. The result does not depend on `jobs`.

    Raises ConfigError for impossible arguments.
    """
    sides = {
        side_label(number) if isinstance(each, Candidate) else str(each): _candidate(each)
        for number, each in enumerate(candidates)
    }
    if len(sides) != len(candidates):
        raise ConfigError("one file is given twice", hint="a candidate against itself is no comparison")
    load = as_load(workload)
    return compare_candidates(
        sides,
        make_self_contained(load, as_key),
        parse_seeds(seeds),
        workload=describe(load),
        metrics=metrics,
        slo=slo,
        horizon=horizon_of(horizon_secs),
        jobs=jobs,
        progress=progress,
    )


def compare_results(
    *sides: Result | Sequence[Result],
    names: Sequence[str] = (),
    metrics: Sequence[str] = DEFAULT_METRICS,
    slo: Slo | None = None,
) -> Comparison:
    """Compare runs that are there already, measured ones (`maitred.bench`) or simulated ones, each side with the first.

    A side is a run, or several runs: then the n-th runs of all sides belong together, as those of one workload. `names` are A,
    B and so on if they are not given. If `slo` is None, that of the very first run applies.

    Raises ConfigError for fewer than two sides, or for different numbers of runs.
    """
    runs = [[side] if isinstance(side, Result) else [*side] for side in sides]
    if len(runs) < 2 or not runs[0] or any(len(side) != len(runs[0]) for side in runs):
        raise ConfigError("each side needs as many runs as the others", hint="compare_results([a1, a2], [b1, b2])")
    wanted = tuple(dict.fromkeys(metrics))
    targets = runs[0][0].slo if slo is None else slo
    figures = tuple(tuple(metric_values(run.summary(targets), wanted, ()) for run in side) for side in runs)
    labels = tuple(names) or tuple(map(side_label, range(len(runs))))
    return Comparison(
        names=labels,
        simulated=tuple(side[0].setup.in_one_line() for side in runs),
        workload=runs[0][0].setup.workload or f"{len(runs[0][0].rows):,} requests",
        slo=format_slo(targets),
        seeds=tuple(range(len(runs[0]))),
        latency_errors=(),
        same_residuals=(),
        pairings=make_pairings(labels, figures, wanted, 0),
        figures=figures,
        of="run",
    )


def compare_candidates(
    sides: Mapping[str, Candidate],
    load: Load,
    seeds: tuple[int, ...],
    *,
    workload: str,
    metrics: Sequence[str],
    slo: Slo | None,
    horizon: Micros | None,
    jobs: int | None,
    progress: Progress | None,
) -> Comparison:
    """Compare candidates by name. `load` is self-contained, and `workload` describes it in words."""
    if len(sides) < 2:
        raise ConfigError("one candidate is no comparison", hint="give two configuration files or more")
    sides = {name: _with_error(name, side) for name, side in sides.items()}
    names = tuple(dict.fromkeys(metrics))
    for name in names:
        find_metric(name, where="--metric")
    targets = stated_slo(slo, load)
    settings = RunSettings(seeds=seeds, slo=targets, horizon=horizon, metrics=names)
    # Side by side, seed by seed within a side; so the figures are cut into sides again by their position.
    tasks = [run.task for name, side in sides.items() for run in _runs(settings, name, side, load)]
    figures = _run(tasks, jobs, progress)
    by_side = [tuple(figures[start : start + len(seeds)]) for start in range(0, len(tasks), len(seeds))]
    labels, instances = tuple(sides), [side.instance for side in sides.values()]
    first = latency_identity(instances[0])
    return Comparison(
        names=labels,
        simulated=tuple(side.in_one_line(seeds) for side in sides.values()),
        workload=workload,
        slo=format_slo(targets),
        seeds=seeds,
        latency_errors=tuple(instance.latency_error for instance in instances),
        same_residuals=tuple(latency_identity(instance) == first for instance in instances),
        pairings=make_pairings(labels, by_side, names, seeds[0]),
        figures=tuple(by_side),
    )


def _run(tasks: Sequence[bytes], jobs: int | None, progress: Progress | None) -> list[dict[str, float | None]]:
    """Return the figures of every run, in the order of the tasks."""
    figures: dict[int, dict[str, float | None]] = {}
    with make_workers(run_task, jobs=jobs) as workers:
        for done in workers.run(tasks):
            figures[done.index] = decode_figures(done.result)
            if progress is not None:
                progress(len(figures), len(tasks))
    return [figures[index] for index in range(len(tasks))]


def _with_error(name: str, side: Candidate) -> Candidate:
    """Return the candidate with the published error of its latency model, unless it states one itself."""
    if side.instance.latency_error is not None:
        return side
    with _located_in(name):
        return replace(side, instance=replace(side.instance, latency_error=published_latency_error(side.instance)))


def _runs(settings: RunSettings, name: str, side: Candidate, load: Load) -> list[StudyRun]:
    with _located_in(name):
        return settings.make_runs(side, load)


def _located_in(side: str) -> AbstractContextManager[None]:
    """Let a ConfigError of the block name the side, too."""
    return located(lambda where: f"{side}: {where}".removesuffix(": "))


def _candidate(given: object) -> Candidate:
    if isinstance(given, Candidate):
        return given
    if not isinstance(given, str | Path):
        what = f"a {type(given).__name__} is no candidate"
        raise ConfigError(what, hint="compare(Candidate(...), Candidate(...), workload=...), or paths of configuration files")
    return Candidate.from_yaml(given)
