"""An option under search: a kind of GPU and a tensor parallelism. First the smallest size that holds, then the highest rate,
then how far chance and the latency model may be wrong.

A point is a size, a rate and a factor on all step times. It is tried with a run for each seed, and holds if the means over the
seeds meet all constraints. Rates are today's times (1 + tolerance)^k for whole k, and factors (1 + tolerance)^j, so a search
ends when its interval is narrow, and its answer is one that a grid would have, too. `BoundarySearch` looks for the largest
number that holds, and of sizes the smallest is wanted: so a size n is searched as -n.

    size:   -n, from the estimate today / (0.9 · limit of one instance); n instances have a limit of at least today's rate
    rate:   k, from the estimate at which the instances have 0.95 of their limit, to 1.00 of it

A queue that grows without end may violate nothing in a short run, and everything in a long one. So a point at which half of the
runs diverge (`report.verdicts.find_growth`) does not hold, nor does a rate above the limit of the latency model
(`instance/throughput_limit.py`), which a run of some hundred requests would not show. With prefix caching the limit is that
with the hits of each run. A run that is shorter than its answers shows neither, and the notes below the table say so.

**Chance.** For each point Student's t of the seeds says how probable it is that the true mean meets a constraint. The interval
of the rate goes from the highest one at which that is 97.5 % to the lowest one at which it is 2.5 %: the rates that the runs do
not rule out. That of the size is made in the same way. Where the interval of the rate is wider than ± `precision`, the search
is repeated with twice as many seeds, and begins at what it knows (Y. S. Chow and H. Robbins, On the asymptotic theory of
fixed-width sequential confidence intervals, 1965).

**The latency model.** The largest factor on all step times with which today's rate still holds is searched, too. If the error
of the model is known, a standard deviation e of the factor, then

    P(holds) = ∫ P(holds | factor 1 + e · z) φ(z) dz

of which the tried factors give the first term. If it is not known, P(holds) is that of the seeds alone.

Example: of two instances the runs hold up to 24.3/s, surely up to 23.4 and surely not from 25.8 on; today's 20/s hold as long
as steps take at most 1.17 times as long. With e = 0.1 that is P(z < 1.7) = 0.955.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from math import ceil, floor, inf, isinf, log
from statistics import NormalDist
from typing import Final, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.student_t import mean_interval, probability_at_most
from maitred.core.units import SECOND, to_ms
from maitred.sim.instance_groups import resolve_fleet
from maitred.study.candidate import Candidate
from maitred.study.capacity.boundary import BoundarySearch
from maitred.study.capacity.options import CapacityPlan, gpus_of, name_of, published_error
from maitred.study.capacity.points import CapacityOption, KneePoint
from maitred.study.capacity.shapes import Shape, find_limits
from maitred.study.metrics import DIVERGES, Figures, mean_figures

_SIZE_LOAD: Final = 0.9
_RATE_LOAD: Final = 0.95
_LARGEST_FACTOR: Final = 100.0
_SURE: Final = 0.975
_UNMET: Final = 1e9
"""The excess of a run that lacks the figure."""
_LARGEST_STRETCH: Final = 4.0
_KNEE_RATES: Final = (0.6, 1.1, 1.25)
"""Shares of the highest rate that are shown beside it: one in front of the knee, and two beyond it."""
_MILLIONS_PER_HOUR: Final = 3600 / 1e6
_DRAWS: Final = 400
_FEW_DIVERGE: Final = 0.5
"""Share of the seeds from which on a queue that grows without end is no chance of the draws."""


class Probe(msgspec.Struct, frozen=True):
    """Runs of one point, one for each seed that it lacks."""

    name: str
    tasks: tuple[bytes, ...]


class TriedRate(msgspec.Struct, frozen=True):
    """What is tried: today's rate times (1 + tolerance)^step, with steps that take (1 + tolerance)^stretch times as long."""

    size: int
    step: int = 0
    stretch: int = 0


Probing: TypeAlias = Generator[Probe, Sequence[Figures], None]
"""Yields probes, and is sent the figures of their runs, by seed."""


class OptionSearch:
    """The search of one option: `probes` yields what is to be run, and `result` says what came of it."""

    def __init__(self, plan: CapacityPlan, candidate: Candidate, prices: Mapping[str, float] | None) -> None:
        self._plan = plan
        self._candidate = replace(candidate, instance=replace(candidate.instance, latency_error=0.0))
        self._error = candidate.instance.latency_error
        self._prices = {name.lower(): price for name, price in (prices or {}).items()}
        self._problem = ""
        self.can_run = True
        """Whether it can be simulated."""
        self._count = plan.rounds[0]
        self._figures: dict[tuple[TriedRate, Shape], list[Figures]] = {}
        self._points: dict[TriedRate, KneePoint] = {}
        self._groups = tuple((each.num_instances, name_of(each, candidate.instance)) for each in candidate.cluster.groups)
        self._unit_size = 1 if candidate.cluster.disaggregation else max(sum(count for count, _ in self._groups), 1)
        """Instances of the size 1."""
        self._grows_whole = bool(self._groups) and not candidate.cluster.disaggregation  # all groups together
        self._most = max(plan.max_instances // self._unit_size, 1)
        """The largest size that is tried."""
        self._size = 1 if self._grows_whole and plan.num_instances is not None else plan.num_instances
        self._sizes: tuple[int, int] | None = None
        self._step: int | None = None
        self._rates: tuple[int, float] | None = None
        self._stretch: int | None = None

    def probes(self) -> Probing:
        """Search, from the smallest size to what the latency model may be wrong by."""
        plan = self._plan
        try:
            cluster, self._instance = resolve_fleet(self._candidate.cluster, self._candidate.instance)
            self._unit = cluster.instance_configs(self._instance) if cluster.groups else [self._instance]
            if self._error is None:
                self._error = published_error(self._candidate)
            self._limits = find_limits(self._unit, plan.traffic.mix, is_split=bool(cluster.disaggregation), groups=self._groups)
            self._limits.check_size(plan.num_instances)
            for self._count in plan.rounds:
                yield from self._search_once()
                if self._problem or self._is_narrow:
                    break
            if self._size is not None and self._step is not None and not self._problem:
                yield from self._find_stretch(self._size)
                yield from self._show_knee(self._size, self._step)
        except ConfigError as error:
            self._problem, self.can_run = str(error), False

    def _search_once(self) -> Probing:
        """Search size, rate and their intervals with the seeds of this round."""
        plan = self._plan
        if plan.num_instances is None:
            self._size = yield from self._find_size()
        size = self._size
        if size is None:
            self._problem = self._too_small()
            return
        yield from self._measure(TriedRate(size))
        self._step = yield from self._find_rate(size, 0.5)
        if self._step is None or self._count < 2:
            return
        low = yield from self._find_rate(size, _SURE)
        high = yield from self._find_rate(size, 1 - _SURE)
        if low is not None and high is not None:
            self._rates = (low, self._beyond(size, high))
        if plan.num_instances is None:
            yield from self._find_sizes(size)

    @property
    def _is_narrow(self) -> bool:
        if self._rates is None:
            return self._step is None or self._count < 2
        low, high = self._rates
        if isinf(high):
            return True  # no further run would end the interval
        width = (high - low) * log(1 + self._plan.tolerance)
        return width <= max(2 * self._plan.precision, 2 * log(1 + self._plan.tolerance))

    def _find_size(self) -> Generator[Probe, Sequence[Figures], int | None]:
        """Return the smallest size that holds today's rate, or None."""
        today = self._plan.traffic.rate
        least = self._least_size()
        if least > self._most:
            return None
        known = self._size or ceil(today / (_SIZE_LOAD * self._limits.of_size(least) / least))
        search = BoundarySearch(-self._most, -least, -max(min(known, self._most), least))
        while (number := search.next_number()) is not None:
            search.tell(number, (yield from self._holds(TriedRate(-number), 0.5)))
        return None if search.largest is None else -search.largest

    def _least_size(self) -> int:
        """Return the smallest size whose limit is not below today's rate, or beyond the largest one that may be tried."""
        sizes = range(self._limits.least_size, self._most + 1)
        if self._has_hits:
            return self._limits.least_size
        today = self._plan.traffic.rate
        return next((size for size in sizes if self._limits.of_size(size) >= today), self._most + 1)

    def _find_sizes(self, size: int) -> Probing:
        """Find the smallest size that the runs do not rule out, and the smallest one that surely holds."""
        low = high = size
        while low > self._least_size() and (yield from self._holds(TriedRate(low - 1), 1 - _SURE)):
            low -= 1
        while high < self._most and not (yield from self._holds(TriedRate(high), _SURE)):
            high += 1
        self._sizes = (low, high)

    def _find_rate(self, size: int, certainty: float) -> Generator[Probe, Sequence[Figures], int | None]:
        """Return the largest step of the rate that holds with this probability (0.5: by the means), or None."""
        base = 1 + self._plan.tolerance
        limit = self._limits.of_size(size) / self._plan.traffic.rate
        most = floor(log(_LARGEST_FACTOR if self._has_hits else min(_LARGEST_FACTOR, limit)) / log(base))
        least = floor(-log(_LARGEST_FACTOR) / log(base))
        start = floor(log(_RATE_LOAD * limit) / log(base)) if self._step is None else self._step
        search = BoundarySearch(least, max(most, least), start)
        while (number := search.next_number()) is not None:
            search.tell(number, (yield from self._holds(TriedRate(size, number), certainty)))
        return search.largest

    def _beyond(self, size: int, step: int) -> float:
        """Return the lowest step that surely does not hold: the next one, or the limit of the latency model. It is not known
        beyond the largest one that is tried."""
        most = floor(log(self._limits.of_size(size) / self._plan.traffic.rate) / log(1 + self._plan.tolerance))
        tried = floor(log(_LARGEST_FACTOR) / log(1 + self._plan.tolerance))
        if step >= tried:
            return inf
        return step if step == most and not self._has_hits else step + 1

    def _find_stretch(self, size: int) -> Probing:
        """Find the largest factor on all step times with which today's rate holds."""
        most = floor(log(_LARGEST_STRETCH) / log(1 + self._plan.tolerance))
        start = floor(
            log(max(self._limits.of_size(size) * _RATE_LOAD / self._plan.traffic.rate, 1e-9)) / log(1 + self._plan.tolerance)
        )
        search = BoundarySearch(-most, most, start)
        while (number := search.next_number()) is not None:
            search.tell(number, (yield from self._holds(TriedRate(size, 0, number), 0.5)))
        self._stretch = search.largest

    def _show_knee(self, size: int, step: int) -> Probing:
        """Try rates in front of the knee and beyond it, with the seeds of the first round, so that the plot shows it."""
        self._count = self._plan.rounds[0]
        for share in _KNEE_RATES:
            yield from self._measure(TriedRate(size, step + round(log(share) / log(1 + self._plan.tolerance))))

    def _holds(self, place: TriedRate, certainty: float) -> Generator[Probe, Sequence[Figures], bool]:
        """Return whether a point holds with this probability; 0.5 means that the means over the seeds hold."""
        point = yield from self._measure(place)
        return point.holds if certainty == 0.5 else point.probability >= certainty

    def _measure(self, place: TriedRate) -> Generator[Probe, Sequence[Figures], KneePoint]:
        """Return a point with the seeds of this round; of several shapes the first one that holds, or the nearest to it."""
        known = self._points.get(place)
        if known is not None and known.seeds >= self._count:
            return known
        best: KneePoint | None = None
        for shape in self._limits.shapes(place.size):
            point = yield from self._measure_shape(place, shape)
            if best is None or (point.probability, -point.excess) > (best.probability, -best.excess):
                best = point
            if point.holds:
                break
        assert best is not None
        self._points[place] = best
        return best

    def _measure_shape(self, place: TriedRate, shape: Shape) -> Generator[Probe, Sequence[Figures], KneePoint]:
        runs = self._figures.setdefault((place, shape), [])
        seeds = self._plan.settings.seeds[len(runs) : self._count]
        if seeds:
            runs += yield self._probe(place, shape, seeds)
        return self._point(place, shape, runs)

    def _probe(self, place: TriedRate, shape: Shape, seeds: tuple[int, ...]) -> Probe:
        instance, load = self._candidate.instance, self._plan.load
        factor = (load.rate_scale or 1.0) * (1 + self._plan.tolerance) ** place.step
        slowed = replace(instance, latency_scale=instance.latency_scale * (1 + self._plan.tolerance) ** place.stretch)
        candidate = shape.cluster_of(replace(self._candidate, instance=slowed))
        settings = replace(self._plan.settings, seeds=seeds)
        tasks = tuple(run.task for run in settings.make_runs(candidate, replace(load, rate_scale=factor)))
        what = "" if shape.groups else f" × {instance.hardware if instance.has_model else 'instance'}"
        return Probe(f"{shape.in_words()}{what} at {self._rate(place.step):.3g}/s", tasks)

    def _point(self, place: TriedRate, shape: Shape, runs: Sequence[Figures]) -> KneePoint:
        means = mean_figures(runs, self._plan.settings.metrics)
        constraints = self._plan.constraints
        excess = min(max(each.excess(means) for each in constraints), _UNMET)
        steady = probability_at_most([of_run[DIVERGES] or 0.0 for of_run in runs], _FEW_DIVERGE)
        lasts = self._can_last(place, shape, means) and (means[DIVERGES] or 0.0) < _FEW_DIVERGE
        sure = min(probability_at_most([min(each.excess(of_run), _UNMET) for of_run in runs], 0.0) for each in constraints)
        measured = {each.metric: [value for run in runs if (value := run[each.metric]) is not None] for each in constraints}
        return KneePoint(
            instances=place.size,
            shape=shape.in_words(),
            rate=self._rate(place.step),
            stretch=(1 + self._plan.tolerance) ** place.stretch,
            holds=excess <= 0 and lasts,
            lasts=lasts,
            probability=min(sure, steady) if lasts else 0.0,
            excess=excess,
            seeds=len(runs),
            figures=means,
            intervals={name: mean_interval(values) for name, values in measured.items() if len(values) == len(runs)},
        )

    def _rate(self, step: float) -> float:
        return float(self._plan.traffic.rate * (1 + self._plan.tolerance) ** step)

    @property
    def _has_hits(self) -> bool:
        """Whether the limit depends on what the runs find in their prefix caches."""
        return any(each.caches_prefixes for each in self._unit)

    def _can_last(self, place: TriedRate, shape: Shape, means: Figures) -> bool:
        """Return whether the rate of a point is within the limit, with the hits that it had and its step times."""
        mix = self._plan.traffic.mix
        slower = (1 + self._plan.tolerance) ** place.stretch
        if not self._has_hits:
            return self._rate(place.step) * slower <= self._limits.of(shape) * (1 + 1e-9)
        if shape.prefill:
            return True  # The hits of prefill and of decode instances are not known apart.
        hits = (means["cache_hit_rate"] or 0.0) * mix.prompt
        limit = find_limits(self._unit, replace(mix, cached=hits), is_split=False).instance
        return self._rate(place.step) * slower <= place.size * limit

    def _too_small(self) -> str:
        plan, largest = self._plan, self._points.get(TriedRate(self._most))
        why = self._limits.most_in_words(self._most)
        if largest is not None and largest.lasts:
            worst = max(plan.constraints, key=lambda each: each.excess(largest.figures))
            value = largest.figures[worst.metric]
            why = f"{worst.metric} is {'not there' if value is None else f'{value:.4g}'}, and {worst.limit:g} is the limit"
        unit = "times the groups" if self._grows_whole else "instance" if self._most == 1 else "instances"
        return f"{self._most:,} {unit} {'does' if self._most == 1 else 'do'} not hold today's rate (--max-instances): {why}"

    def _count_of(self, size: int) -> int:
        """Return the seeds of today's point."""
        today = self._points.get(TriedRate(size))
        return 0 if today is None else today.seeds

    def _probability(self, size: int) -> float | None:
        """Return how probable it is that today's rate holds, by chance and by the error of the latency model."""
        tried = sorted(
            (point.stretch, point.probability)
            for place, point in self._points.items()
            if place == TriedRate(size, 0, place.stretch)
        )
        if not tried or (self._count_of(size) < 2 and not self._error):
            return None
        factors = [1.0]
        if self._error:
            ranks = ((draw + 0.5) / _DRAWS for draw in range(_DRAWS))
            factors = [max(1 + self._error * NormalDist().inv_cdf(rank), 1e-6) for rank in ranks]
        # What holds with some step times holds with shorter ones: chance aside, the probability falls with the factor.
        falling = np.minimum.accumulate([probability for _, probability in tried])
        return float(np.interp(np.log(factors), np.log([stretch for stretch, _ in tried]), falling).mean())

    def result(self) -> CapacityOption:
        """Return the result of the search."""
        instance, size, step, plan = self._candidate.instance, self._size, self._step, self._plan
        found = size is not None and not self._problem
        today = None if size is None else self._points.get(TriedRate(size))
        gpus = cost = None
        shape = None if size is None or not hasattr(self, "_limits") else self._shape(size)
        if size is not None:
            counts = gpus_of(self._candidate if shape is None else shape.cluster_of(self._candidate))
            gpus = sum(counts.values())
            cost = sum(count * self._prices[name] for name, count in counts.items()) if self._prices else None
        rate = self._rate(step) if found and step is not None else None
        tokens = plan.traffic.rate * plan.traffic.mix.output * _MILLIONS_PER_HOUR
        return CapacityOption(
            hardware=" + ".join(name for _, name in self._groups) or (instance.hardware if instance.has_model else ""),
            tensor_parallel_size=None if self._groups else instance.tensor_parallel_size,
            instances=None if size is None else size * self._unit_size,
            shape="" if today is None else today.shape,
            sizes=None if self._grows_whole or not found else self._sizes,
            size=size,
            gpus=gpus,
            cost=cost,
            cost_per_million=None if cost is None else cost / tokens,
            highest_rate=rate,
            rates=None if self._rates is None or rate is None else (self._rate(self._rates[0]), self._rate(self._rates[1])),
            headroom=rate / plan.traffic.rate if rate is not None else None,
            stretch=None if self._stretch is None else (1 + plan.tolerance) ** self._stretch,
            model_error=self._error,
            probability=self._probability(size) if found and size is not None else None,
            seeds=0 if size is None else self._count_of(size),
            today=today,
            answer_share=self._answer_share(size, step) if found and step is not None else None,
            simulated=self._in_one_line(shape) if found and shape is not None else "",
            problem=self._problem or ("" if step is not None else "it holds at no rate"),
            points=tuple(sorted(self._points.values(), key=lambda point: (point.instances, point.stretch, point.rate))),
        )

    def _answer_share(self, size: int | None, step: int) -> float | None:
        """Return the mean time of a request as a share of the time in which they arrive, at the highest rate or at today's."""
        shares = list[float]()
        for each in {0, step}:
            point = None if size is None else self._points.get(TriedRate(size, each))
            mean = None if point is None else point.figures["e2e_mean_ms"]
            if mean is not None:
                shares.append(mean / to_ms(SECOND) * self._rate(each) / self._plan.traffic.requests)
        return max(shares, default=None)

    def _shape(self, size: int) -> Shape:
        """Return the shape of today's point, or else the most promising one."""
        shapes = self._limits.shapes(size)
        today = self._points.get(TriedRate(size))
        return next((each for each in shapes if today is not None and each.in_words() == today.shape), shapes[0])

    def _in_one_line(self, shape: Shape) -> str:
        stated = replace(self._candidate, instance=replace(self._candidate.instance, latency_error=self._error))
        return shape.cluster_of(stated).in_one_line(self._plan.settings.seeds[: max(self._count_of(shape.size), 1)])
