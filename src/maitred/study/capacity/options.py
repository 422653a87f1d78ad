"""An option under search: a kind of GPU and a tensor parallelism. First the smallest size that holds, then the highest rate.

A probe is a size and a rate: a run for each seed. It holds if the means over the seeds meet all constraints. Rates are today's
rate times (1 + tolerance)^k for whole k, so that a search ends when its interval is narrow, and its answer is one that a grid
of these rates would have, too. `BoundarySearch` looks for the largest number that holds, and of sizes the smallest is wanted:
so a size n is searched as -n.

    size:   -n, from the estimate today / (0.9 · limit of one instance); n instances have a limit of at least today's rate
    rate:   k, from the estimate at which the instances have 0.95 of their limit, to 1.00 of it; k = 0 holds, by the search for
            the size

No rate above the limit of the latency model (`instance/throughput_limit.py`) is taken to hold: a run of some hundred requests
would end before its queue shows, and a longer one would not hold it. So none is tried. With prefix caching the limit depends on
the hits, which only a run can tell: smaller sizes and higher rates are tried, and held against the limit with their own hits.

Example: one instance takes 10 requests/s without hits and 16 if half of the prompt tokens are hits, and today's rate is 30. The
search begins at 4 instances; 2 of them meet all constraints in a run in which half of the tokens hit. They hold: 2 · 16 ≥ 30.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import ceil, floor, log
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.units import SECOND
from maitred.instance.catalogue import find_deployment, resolve_instance
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.study.candidate import Candidate
from maitred.study.capacity.result import CapacityOption, KneePoint
from maitred.study.metrics import Constraint, Figures, mean_figures
from maitred.study.runs import RunSettings
from maitred.workload import Job, ReactiveWorkload
from maitred.workload.load import Load

_SIZE_LOAD: Final = 0.9
_RATE_LOAD: Final = 0.95
_LARGEST_FACTOR: Final = 100.0
_FEWEST: Final = 2


class Traffic(msgspec.Struct, frozen=True):
    """The workload as it is today."""

    rate: float
    """Requests per second."""
    mix: RequestMix


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all options have in common."""

    load: Load
    """Self-contained."""
    traffic: Traffic
    settings: RunSettings
    constraints: tuple[Constraint, ...]
    tolerance: float
    max_instances: int
    num_instances: int | None


class Probe(msgspec.Struct, frozen=True):
    """A size and a rate to be tried."""

    name: str
    size: int
    step: int
    """k: the rate is today's times (1 + tolerance)^k."""
    tasks: tuple[bytes, ...]


def measure_traffic(load: Load, seed: int) -> Traffic:
    """Return the rate and the mean request of a workload. Raises ConfigError if its requests do not arrive at a rate."""
    with load.jobs(seed) as jobs:
        if isinstance(jobs, ReactiveWorkload):
            what = "its users wait for answers, so it has no rate of its own"
            raise ConfigError(what, where="workload", hint="a trace in open mode, a specification, or --rate")
        return _traffic(jobs)


def _traffic(jobs: Iterable[Job]) -> Traffic:
    count = prompts = outputs = last = 0
    for job in jobs:
        count += 1
        prompts += job.request.prompt_tokens
        outputs += job.output_tokens
        last = job.request.arrival
    if count < _FEWEST or not last:
        raise ConfigError(f"it has {count} requests", where="workload", hint="hundreds at least, at different times")
    return Traffic(count / last * SECOND, RequestMix(prompt=prompts / count, output=outputs / count))


def option_candidates(
    base: Candidate, model: str | None, hardware: Sequence[str], tensor_parallel_sizes: Sequence[int]
) -> list[Candidate]:
    """Return a candidate for each kind of GPU and each tensor parallelism. Raises ConfigError for values that cannot be, and
    for a model or a kind of GPU that is not known."""
    instance = base.instance if model is None else replace(base.instance, model=model)
    if (hardware or tensor_parallel_sizes) and not instance.has_model:
        raise ConfigError("without a model all GPUs are alike", where="--model", hint="say which: --model llama-3.1-8b")
    kinds, sizes = hardware or [instance.hardware], tensor_parallel_sizes or [instance.tensor_parallel_size]
    try:
        if instance.has_model:
            for gpu in kinds:  # A name that is not known is a mistake, whereas an option that does not fit is left out.
                find_deployment(replace(instance, hardware=gpu, tensor_parallel_size=1))
        instances = [replace(instance, hardware=gpu, tensor_parallel_size=tp) for gpu, tp in product(kinds, sizes)]
        return [replace(base, instance=each) for each in instances]
    except ValueError as error:
        raise ConfigError(str(error)) from error


class BoundarySearch:
    """Finds the largest whole number that holds, from `low` to `high`. Call `next_probe` and `tell` in turn.

    If a number holds, everything below is taken to hold. The search begins at an estimate, takes steps of 1, 2, 4, ... away
    from it until one number holds and one does not, and halves the interval between them. From a good estimate that is four or
    five numbers, however many there could be.

        estimate 10, truth 12:     10 holds, 11 holds, 13 does not, 12 holds     ->  12 in four numbers
    """

    def __init__(self, low: int, high: int, start: int) -> None:
        """`start` is the estimate."""
        self._low, self._high = low, high
        self._holds, self._fails = low - 1, high + 1
        self._start = min(max(start, low), high)
        self._step = 1

    @property
    def largest(self) -> int | None:
        """The largest number that holds, as far as it is known; None if none is known."""
        return self._holds if self._holds >= self._low else None

    def next_probe(self) -> int | None:
        """Return the number to be tried next, or None if the search has ended."""
        if self._fails - self._holds == 1:
            return None
        none_holds, none_fails = self._holds < self._low, self._fails > self._high
        if none_holds and none_fails:
            return self._start
        if none_fails or none_holds:
            away = self._holds + self._step if none_fails else self._fails - self._step
            self._step *= 2
            return min(max(away, self._low), self._high)
        return (self._holds + self._fails) // 2

    def tell(self, number: int, holds: bool) -> None:
        """Report whether a number holds."""
        if holds:
            self._holds = max(self._holds, number)
        else:
            self._fails = min(self._fails, number)


class OptionSearch:
    """The search of one option: call `next_probe` and `tell` in turn."""

    def __init__(self, plan: CapacityPlan, candidate: Candidate, prices: Mapping[str, float] | None) -> None:
        self._plan, self._candidate = plan, candidate
        self._price = next(
            (price for name, price in (prices or {}).items() if name.lower() == candidate.instance.hardware.lower()), None
        )
        self._problem = ""
        self._points: dict[tuple[int, int], KneePoint] = {}
        self._size: int | None = plan.num_instances
        self._sizes = self._rates = BoundarySearch(0, 0, 0)
        try:
            self._begin()
        except ConfigError as error:
            self._problem = str(error)

    def _begin(self) -> None:
        plan = self._plan
        self._resolved = resolve_instance(self._candidate.instance)
        self._limit = find_throughput_limit(self._resolved, plan.traffic.mix)
        least = 1 if self._has_hits else ceil(plan.traffic.rate / self._limit.rate)
        if self._size is not None:
            self._begin_rates(self._size)
        elif least > plan.max_instances:
            self._problem = self._too_small()
        else:
            estimate = ceil(plan.traffic.rate / (_SIZE_LOAD * self._limit.rate))
            self._sizes = BoundarySearch(-plan.max_instances, -least, -min(estimate, plan.max_instances))

    def _too_small(self) -> str:
        most = f"{self._limit.rate:.3g} requests/s at most, bound by {self._limit.bound}"
        return f"{self._plan.max_instances:,} instances do not hold today's rate (--max-instances): one takes {most}"

    def _begin_rates(self, size: int) -> None:
        """Begin to search the highest rate of this size; today's is known to hold if the size was searched."""
        base = 1 + self._plan.tolerance
        limit = self._limit.rate * size / self._plan.traffic.rate
        most = floor(log(_LARGEST_FACTOR if self._has_hits else min(_LARGEST_FACTOR, limit)) / log(base))
        least = floor(-log(_LARGEST_FACTOR) / log(base))
        estimate = floor(log(_RATE_LOAD * limit) / log(base))
        self._rates = BoundarySearch(least, max(most, least), estimate)
        known = self._points.get((size, 0))
        if known is not None:
            self._rates = BoundarySearch(0, max(most, 0), max(estimate, 1))
            self._rates.tell(0, known.holds)

    def next_probe(self) -> Probe | None:
        """Return the next probe, or None if the search has ended."""
        if self._problem:
            return None
        if self._size is None:
            probe = self._next_size()
            if self._size is None:
                return probe
        step = self._rates.next_probe()
        return None if step is None else self._probe(self._size, step)

    def _next_size(self) -> Probe | None:
        """Return the next probe for the size, or None if the size is known now, or no size is enough."""
        number = self._sizes.next_probe()
        if number is not None:
            return self._probe(-number, 0)
        if self._sizes.largest is None:
            self._problem = self._too_small()
        else:
            self._size = -self._sizes.largest
            self._begin_rates(self._size)
        return None

    def _probe(self, size: int, step: int) -> Probe | None:
        instance, load = self._candidate.instance, self._plan.load
        factor = (load.rate_scale or 1.0) * (1 + self._plan.tolerance) ** step
        try:
            runs = self._plan.settings.make_runs(self._of_size(size), replace(load, rate_scale=factor))
        except ConfigError as error:
            self._problem = str(error)
            return None
        name = f"{size} × {instance.hardware if instance.has_model else 'instance'} at {self._rate(step):.3g}/s"
        return Probe(name, size, step, tuple(run.task for run in runs))

    def _rate(self, step: int) -> float:
        return float(self._plan.traffic.rate * (1 + self._plan.tolerance) ** step)

    def tell(self, probe: Probe, figures: Sequence[Figures]) -> None:
        """Report the figures of the runs of a probe, by seed."""
        means = mean_figures(figures, self._plan.settings.metrics)
        holds = all(each.excess(means) <= 0 for each in self._plan.constraints) and self._can_last(probe, means)
        point = KneePoint(instances=probe.size, rate=self._rate(probe.step), holds=holds, figures=means)
        self._points[probe.size, probe.step] = point
        if self._size is None:
            self._sizes.tell(-probe.size, holds)
        else:
            self._rates.tell(probe.step, holds)

    @property
    def _has_hits(self) -> bool:
        """Whether the limit depends on what the runs find in their prefix caches."""
        return self._resolved.caches_prefixes

    def _can_last(self, probe: Probe, means: Figures) -> bool:
        """Return whether the rate of a probe is within the limit, with the hits that it had."""
        if not self._has_hits:
            return True  # Else it would not have been tried.
        mix = self._plan.traffic.mix
        hits = (means["cache_hit_rate"] or 0.0) * mix.prompt
        return self._rate(probe.step) <= probe.size * find_throughput_limit(self._resolved, replace(mix, cached=hits)).rate

    def result(self) -> CapacityOption:
        """Return the result of the search."""
        instance, size, step = self._candidate.instance, self._size, self._rates.largest
        found = size is not None and not self._problem
        problem = self._problem or ("" if step is not None else "it holds at no rate")
        gpus = None if size is None else size * instance.tensor_parallel_size * instance.data_parallel_size
        return CapacityOption(
            hardware=instance.hardware if instance.has_model else "",
            tensor_parallel_size=instance.tensor_parallel_size,
            instances=size,
            gpus=gpus,
            cost=None if self._price is None or gpus is None else gpus * self._price,
            highest_rate=self._rate(step) if found and step is not None else None,
            headroom=self._rate(step) / self._plan.traffic.rate if found and step is not None else None,
            today=self._points.get((size or 0, 0)),
            simulated=self._of_size(size).in_one_line(self._plan.settings.seeds) if found and size is not None else "",
            problem=problem,
            points=tuple(sorted(self._points.values(), key=lambda point: (point.instances, point.rate))),
        )

    def _of_size(self, size: int) -> Candidate:
        return replace(self._candidate, cluster=replace(self._candidate.cluster, num_instances=size))
