"""`maitred.capacity`: how many of which GPU hold an SLO for a traffic, and what is the most that this cluster takes?

    from maitred import Load, capacity

    found = capacity(model="llama-3.1-8b", hardware=["H100", "L40S"], workload=Load(rate=40, num_requests=2_000))
    print(found)

Each GPU and tensor parallelism is an option. Its smallest size that holds the constraints at today's rate is searched, and
then, at this size, the highest rate that holds them. All options serve the same workload for each seed, with the same draws at
every rate (`rate_scale` moves the arrivals closer together, and nothing else), so chance does not decide between them.

    options.py   an option under search: its probes, by bisection over whole numbers, and what came of them
    result.py    CapacityResult: table, plot of the knee

The first guess comes from the latency model (`instance/throughput_limit.py`), so most searches need four or five probes for the
size and as many for the rate. The probes of all options run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from maitred.core.errors import ConfigError
from maitred.report import Slo
from maitred.report.arguments import horizon_of
from maitred.report.table import format_slo
from maitred.study.candidate import Candidate
from maitred.study.capacity.options import CapacityPlan, OptionSearch, measure_traffic, option_candidates
from maitred.study.capacity.result import CapacityOption, CapacityResult
from maitred.study.metrics import Figures, parse_constraint
from maitred.study.runs import RunSettings, as_load, decode_figures, parse_seeds, run_task, stated_slo
from maitred.study.workers import Workers, make_workers
from maitred.workload import Workload
from maitred.workload.load import Load, as_key, describe, make_self_contained

__all__ = ["CapacityOption", "CapacityResult", "capacity"]

CapacityProgress: TypeAlias = Callable[[int, str], None]
"""Called with the number of completed runs, and what is being tried."""
DEFAULT_CONSTRAINT: Final = "slo_attainment >= 0.99"
_SHOWN: Final = ("ttft_p99_ms", "tpot_p99_ms", "slo_attainment", "cache_hit_rate")
_MOST_SIZE: Final = 1024


def capacity(
    base: Candidate | None = None,
    *,
    model: str | None = None,
    hardware: Sequence[str] = (),
    tensor_parallel_sizes: Sequence[int] = (),
    num_instances: int | None = None,
    workload: Load | Workload | str,
    slo: Slo | None = None,
    constraints: Sequence[str] = (DEFAULT_CONSTRAINT,),
    prices: Mapping[str, float] | None = None,
    seeds: int | Sequence[int] | None = None,
    tolerance: float = 0.02,
    max_instances: int = 64,
    horizon_secs: float | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: CapacityProgress | None = None,
) -> CapacityResult:
    """Find the smallest cluster of each kind that holds the constraints, and the highest rate that it holds.

    `base` is what all options have in common; `model`, `hardware` and `tensor_parallel_sizes` replace what it says. With
    `num_instances` the size is given, and only the rate is searched. `constraints` are those of a sweep, for the mean over the
    seeds (by default, 99 % of the requests are within the SLO). `prices` are per GPU and hour, by kind of GPU. `seeds` is their
    number, or the seeds themselves; by default 3, and 1 for a trace, which is the same for every seed. Rates are found within
    the share `tolerance`. Runs end after `horizon_secs`. `jobs` and `ray` are as in `sweep`; the result depends on neither.

    Raises ConfigError for impossible arguments, and for a workload whose requests do not arrive at a rate.
    """
    _check(tolerance, max_instances, num_instances, constraints)
    load, candidates = as_load(workload), option_candidates(base or Candidate(), model, hardware, tensor_parallel_sizes)
    _check_prices(candidates, prices)
    parsed = tuple(parse_constraint(text, "--constraint") for text in constraints)
    targets, contained = stated_slo(slo, load), make_self_contained(load, as_key)
    numbers, metrics = parse_seeds(seeds if seeds is not None else 1 if load.trace else 3), [each.metric for each in parsed]
    settings = RunSettings(
        seeds=numbers, slo=targets, horizon=horizon_of(horizon_secs), metrics=tuple(dict.fromkeys((*metrics, *_SHOWN)))
    )
    plan = CapacityPlan(
        load=contained,
        traffic=measure_traffic(contained, settings.seeds[0]),
        settings=settings,
        constraints=parsed,
        tolerance=tolerance,
        max_instances=max_instances,
        num_instances=num_instances,
    )
    searches = [OptionSearch(plan, candidate, prices) for candidate in candidates]
    with make_workers(run_task, jobs=jobs, ray=ray) as workers:
        runs = _run(searches, workers, progress)
    options = tuple(search.result() for search in searches)
    return _result(plan, describe(load), tuple(constraints), prices is not None, runs, options)


def _result(
    plan: CapacityPlan,
    workload: str,
    constraints: tuple[str, ...],
    has_prices: bool,
    runs: int,
    options: tuple[CapacityOption, ...],
) -> CapacityResult:
    return CapacityResult(
        workload=workload,
        slo=format_slo(plan.settings.slo),
        constraints=constraints,
        limits=plan.constraints,
        seeds=plan.settings.seeds,
        tolerance=plan.tolerance,
        today=plan.traffic.rate,
        has_prices=has_prices,
        runs=runs,
        options=options,
    )


def _run(searches: Sequence[OptionSearch], workers: Workers, progress: CapacityProgress | None) -> int:
    """Run the probes of all searches, side by side, until each search has ended. Returns the number of runs."""
    count = 0
    while open_probes := [(search, probe) for search in searches if (probe := search.next_probe()) is not None]:
        tasks = [(number, task) for number, (_, probe) in enumerate(open_probes) for task in probe.tasks]
        figures: dict[int, dict[int, Figures]] = {}
        for done in workers.run([task for _, task in tasks]):
            number = tasks[done.index][0]
            figures.setdefault(number, {})[done.index] = decode_figures(done.result)
            count += 1
            if progress is not None:
                progress(count, open_probes[number][1].name)
        for number, (search, probe) in enumerate(open_probes):
            search.tell(probe, [of_run for _, of_run in sorted(figures[number].items())])
    return count


def _check(tolerance: float, max_instances: int, num_instances: int | None, constraints: Sequence[str]) -> None:
    if not 0.001 <= tolerance <= 0.5:
        raise ConfigError(f"{tolerance:g} cannot be used", where="--tolerance", hint="a share from 0.001 to 0.5")
    for name, size in (("--max-instances", max_instances), ("--num-instances", num_instances)):
        if size is not None and not 1 <= size <= _MOST_SIZE:
            raise ConfigError(f"{size} instances cannot be used", where=name, hint=f"from 1 to {_MOST_SIZE:,}")
    if not constraints:
        raise ConfigError("there is nothing to hold", where="--constraint", hint=f"as {DEFAULT_CONSTRAINT}")


def _check_prices(candidates: Sequence[Candidate], prices: Mapping[str, float] | None) -> None:
    if prices is None:
        return
    known = {name.lower() for name in prices}
    for candidate in candidates:
        if candidate.instance.hardware.lower() not in known:
            hint = f"--price {candidate.instance.hardware}=2.5, or none for any"
            raise ConfigError(f"{candidate.instance.hardware} has no price", where="--price", hint=hint)
