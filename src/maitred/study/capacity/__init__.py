"""`maitred.capacity`: how many of which GPU hold an SLO for a traffic, and what is the most that this cluster takes?

    from maitred import Load, capacity

    found = capacity(model="llama-3.1-8b", hardware=["H100", "L40S"], workload=Load(rate=40, num_requests=2_000))
    print(found)

Each GPU and tensor parallelism is an option. Its smallest size that holds the constraints at today's rate is searched, and
then, at this size, the highest rate that holds them. All options serve the same workload for each seed, with the same draws at
every rate (`rate_scale` moves the arrivals closer together, and nothing else), so chance does not decide between them.

    options.py    the traffic as it is, and the options
    boundary.py   bisection over whole numbers
    shapes.py     what a size can be: equal instances, or P prefill and D decode instances; the limits of each
    search.py     the search of an option: its size, its rate, their intervals, the latency model's part, and what came of it
    points.py     what was tried, and what came of an option
    result.py     CapacityResult: options and table
    knee.py       the plot of the figure that binds over the rate

The first guess comes from the latency model (`instance/throughput_limit.py`), so most searches need four or five probes for the
size and as many for the rate. The probes of all options run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.report import Slo
from maitred.report.arguments import horizon_of
from maitred.report.table import format_slo
from maitred.sim.fleet_config import InstanceGroup
from maitred.study.candidate import Candidate
from maitred.study.capacity.knee import bindings
from maitred.study.capacity.options import CapacityPlan, measure_traffic, option_candidates
from maitred.study.capacity.points import CapacityOption
from maitred.study.capacity.result import CapacityResult
from maitred.study.capacity.search import OptionSearch, Probe, Probing
from maitred.study.metrics import DIVERGES, Figures, parse_constraint
from maitred.study.runs import RunSettings, as_load, decode_figures, parse_seeds, run_task, stated_slo
from maitred.study.workers import Workers, make_workers
from maitred.workload import Workload
from maitred.workload.load import DEFAULT_SEED, Load, as_key, describe, make_self_contained

__all__ = ["CapacityOption", "CapacityResult", "capacity"]

CapacityProgress: TypeAlias = Callable[[int, str], None]
"""Called with the number of completed runs, and what is being tried."""
DEFAULT_CONSTRAINT: Final = "slo_attainment >= 0.99"
_SHOWN: Final = ("ttft_p99_ms", "tpot_p99_ms", "e2e_mean_ms", "slo_attainment", "cache_hit_rate", DIVERGES)
_MOST_SIZE: Final = 1024
DEFAULT_MAX_INSTANCES: Final = 64
_ROUNDS: Final = (3, 6, 12, 24)
"""Seeds of each round."""


def capacity(
    base: Candidate | None = None,
    *,
    model: str | None = None,
    hardware: Sequence[str] = (),
    tensor_parallel_sizes: Sequence[int] = (),
    groups: Sequence[Sequence[InstanceGroup]] = (),
    num_instances: int | None = None,
    workload: Load | Workload | str,
    slo: Slo | None = None,
    constraints: Sequence[str] = (DEFAULT_CONSTRAINT,),
    prices: Mapping[str, float] | None = None,
    seeds: int | Sequence[int] | None = None,
    first_seed: int = DEFAULT_SEED,
    precision: float = 0.05,
    latency_error: float | None = None,
    disaggregation: bool = False,
    tolerance: float = 0.02,
    max_instances: int | None = None,
    horizon_secs: float | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: CapacityProgress | None = None,
) -> CapacityResult:
    """Find the smallest cluster of each kind that holds the constraints, and the highest rate that it holds.

    `base` is what all options have in common; `model`, `hardware` and `tensor_parallel_sizes` replace what it says. Each of
    `groups` is an option of unequal instances, which grows by all its groups together (those of `base` are one, too). With
    `num_instances` the size is given, and only the rate is searched; groups are then as they are stated. `disaggregation`
    adds options with prefill and decode instances, whose split is searched. `constraints` are those of a sweep, for the mean
    over the seeds (by default, 99 % of the requests are within the SLO). `prices` are per GPU and hour, by kind of GPU.

    `seeds` is their number, from `first_seed` on, or the seeds themselves. By default there are 3, and twice as many again up
    to 24 until the interval of the highest rate is within ± the share `precision`; a trace is the same for every seed and has
    1. `latency_error` is the standard deviation of the factor by which step times are wrong; by default that of the
    configuration, or the published one. Rates are found within the share `tolerance`. Runs end after `horizon_secs`. `jobs` and
    `ray` are as in `sweep`; the result depends on neither.

    Raises ConfigError for impossible arguments, for a workload whose requests do not arrive at a rate, and if no option can be
    simulated at all.
    """
    _check_base(base)
    _check(tolerance, max_instances, num_instances, constraints)
    _check_shares(precision, latency_error)
    load, common = as_load(workload), _with_error(base or Candidate(), latency_error)
    candidates = option_candidates(common, model, hardware, tensor_parallel_sizes, groups, with_disaggregation=disaggregation)
    _check_prices(candidates, prices)
    parsed = tuple(parse_constraint(text, "--constraint") for text in constraints)
    targets, contained = stated_slo(slo, load), make_self_contained(load, as_key)
    rounds = _rounds(seeds, is_trace=load.trace is not None)
    numbers = parse_seeds(seeds if isinstance(seeds, Sequence) else rounds[-1], first_seed)
    metrics = (*(each.metric for each in parsed), *(each.metric for each in bindings(parsed, targets)), *_SHOWN)
    settings = RunSettings(seeds=numbers, slo=targets, horizon=horizon_of(horizon_secs), metrics=tuple(dict.fromkeys(metrics)))
    plan = CapacityPlan(
        load=contained,
        traffic=measure_traffic(contained, settings.seeds[: rounds[0]]),
        settings=settings,
        constraints=parsed,
        tolerance=tolerance,
        max_instances=max_instances or DEFAULT_MAX_INSTANCES,
        num_instances=num_instances,
        rounds=rounds,
        precision=precision,
    )
    searches = [OptionSearch(plan, candidate, prices) for candidate in candidates]
    with make_workers(run_task, jobs=jobs, ray=ray) as workers:
        runs = _run(searches, workers, progress)
    options = tuple(search.result() for search in searches)
    if not any(search.can_run for search in searches):
        which = "" if len(options) == 1 else f"none of the {len(options)} options can be simulated; the first: "
        raise ConfigError(f"{which}{options[0].problem}")
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
        targets=replace(plan.settings.slo, classes=dict(plan.settings.slo.classes)),
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
    probing = [search.probes() for search in searches]
    waiting = [(each, probe) for each in probing if (probe := next(each, None)) is not None]
    while waiting:
        tasks = [(number, task) for number, (_, probe) in enumerate(waiting) for task in probe.tasks]
        figures: dict[int, dict[int, Figures]] = {}
        for done in workers.run([task for _, task in tasks]):
            number = tasks[done.index][0]
            figures.setdefault(number, {})[done.index] = decode_figures(done.result)
            count += 1
            if progress is not None:
                progress(count, waiting[number][1].name)
        told = [(each, [of_run for _, of_run in sorted(figures[number].items())]) for number, (each, _) in enumerate(waiting)]
        waiting = [(each, probe) for each, found in told if (probe := _next_probe(each, found)) is not None]
    return count


def _next_probe(probing: Probing, found: Sequence[Figures]) -> Probe | None:
    """Tell a search the figures of its probe, and return its next one, or None if it has ended."""
    try:
        return probing.send(found)
    except StopIteration:
        return None


def _rounds(seeds: int | Sequence[int] | None, *, is_trace: bool) -> tuple[int, ...]:
    """Return how many seeds there are in each round: one round if their number is given."""
    if seeds is None:
        return (1,) if is_trace else _ROUNDS
    return (seeds if isinstance(seeds, int) else len(seeds),)


def _with_error(base: Candidate, latency_error: float | None) -> Candidate:
    return base if latency_error is None else replace(base, instance=replace(base.instance, latency_error=latency_error))


def _check_shares(precision: float, latency_error: float | None) -> None:
    for name, value, most in (("--precision", precision, 1.0), ("--latency-error", latency_error, 2.0)):
        if value is not None and not 0 <= value <= most:
            raise ConfigError(f"{value:g} cannot be used", where=name, hint=f"a share from 0 to {most:g}")


def _check_base(base: object) -> None:
    if base is not None and not isinstance(base, Candidate):
        hint = "Candidate(instance=...), and the rest by name"
        raise ConfigError(f"must be Candidate, not {type(base).__name__}", where="base", hint=hint)


def _check(tolerance: float, max_instances: int | None, num_instances: int | None, constraints: Sequence[str]) -> None:
    if not 0.001 <= tolerance <= 0.5:
        raise ConfigError(f"{tolerance:g} cannot be used", where="--tolerance", hint="a share from 0.001 to 0.5")
    for name, size in (("--max-instances", max_instances), ("--num-instances", num_instances)):
        if size is not None and not (type(size) is int and 1 <= size <= _MOST_SIZE):
            shown = f"{size:,}" if type(size) is int else repr(size)
            raise ConfigError(f"{shown} cannot be used", where=name, hint=f"from 1 to {_MOST_SIZE:,} instances")
    if num_instances is not None and max_instances is not None and num_instances > max_instances:
        what = f"{num_instances:,} are more than --max-instances, {max_instances:,}"
        raise ConfigError(what, where="--num-instances", hint="a fixed size needs no --max-instances")
    if not constraints:
        raise ConfigError("there is nothing to hold", where="--constraint", hint=f"as {DEFAULT_CONSTRAINT}")


def _check_prices(candidates: Sequence[Candidate], prices: Mapping[str, float] | None) -> None:
    if prices is None:
        return
    known = {name.lower() for name in prices}
    for candidate in candidates:
        for name in {group.hardware or candidate.instance.hardware for group in candidate.cluster.groups} or {
            candidate.instance.hardware
        }:
            if name.lower() not in known:
                raise ConfigError(f"{name} has no price", where="--price", hint=f"--price {name}=2.5, or none for any")
