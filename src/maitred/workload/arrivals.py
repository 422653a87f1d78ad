"""Arrival processes: how evenly or in what bursts requests come, whatever their rate.

A process is a stream of gaps whose mean is 1, in expected requests. The client that sends stretches them to its rate of the
moment (see `shapes`), so one process serves steady and changing rates alike, and a Poisson process under a changing rate is
exactly the inhomogeneous one.

Users write `poisson`, `constant`, `gamma:CV`, `weibull:CV` or `normalized`. CV, the coefficient of variation, is standard
deviation / mean of the gaps: 0 is a metronome, 1 is Poisson, above 1 come bursts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import repeat
from typing import ClassVar, Protocol, TypeAlias

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.registry import Registry
from maitred.workload.lengths import UnitDraw, standard_normal

MIN_CV, MAX_CV = 0.01, 10.4
"""BLIS's limits. Beyond them a sample of any sensible size says nothing of the distribution."""

Gaps: TypeAlias = Iterator[float]


class ArrivalProcess(Protocol):
    """A process."""

    syntax: ClassVar[str]
    """How users write it."""

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        """Gaps of mean 1, without end or until nothing arrives any more. `expected` requests arrive in the whole life of the
        client; inf: it does not end."""
        ...


ARRIVALS: Registry[ArrivalProcess] = Registry(
    "arrival process",
    ArrivalProcess,
    group="maitred.arrivals",
    packages=["maitred.workload"],
    methods=["gaps"],
    flag="--arrival",
)
"""Constructors take the numbers after the colon and raise ValueError for those that make no sense."""


def parse_arrival_process(text: str, *, where: str = "") -> ArrivalProcess:
    """`poisson`, `gamma:2.5`, ... to a process. Raises ConfigError that says what is right."""
    name, colon, value = text.strip().partition(":")
    if name not in ARRIVALS:
        raise ConfigError(f"unknown arrival process {name!r}", where=where, hint=nearest_name_hint(name, ARRIVALS))
    factory = ARRIVALS.find(name)
    hint = f"write {getattr(factory, 'form', name)}"
    try:
        numbers = [float(value)] if colon else []
    except ValueError as error:
        raise ConfigError(f"{value!r} in {text!r} is no number", where=where, hint=hint) from error
    try:
        return factory(*numbers)
    except TypeError as error:
        raise ConfigError(f"{text!r} has {'a' if colon else 'no'} number", where=where, hint=hint) from error
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}", where=where, hint=hint) from error


def _check_cv(cv: float) -> float:
    if not MIN_CV <= cv <= MAX_CV:
        raise ValueError(f"cv must be from {MIN_CV:g} to {MAX_CV:g}, not {cv:g}")
    return cv


@ARRIVALS.register("poisson")
class PoissonArrivals(ArrivalProcess):
    """Memoryless: exponential gaps, CV 1. Many independent users."""

    syntax = "poisson"

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        while True:
            yield -math.log(1.0 - uniform())


@ARRIVALS.register("constant")
class ConstantArrivals(ArrivalProcess):
    """A metronome."""

    syntax = "constant"

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        return repeat(1.0)


@ARRIVALS.register("gamma")
class GammaArrivals(ArrivalProcess):
    """Gamma gaps of shape 1/CV²; with CV above 1, bursts (the best fit of large models in ServeGen)."""

    syntax = "gamma:CV"

    def __init__(self, cv: float) -> None:
        self._shape = _check_cv(cv) ** -2.0

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        shape = self._shape
        if shape >= 1.0:
            while True:
                yield _gamma_variate(shape, uniform) / shape
        while True:
            # Gamma(a) = Gamma(a + 1) · U^(1/a) (Ahrens and Dieter, 1974)
            yield _gamma_variate(shape + 1.0, uniform) * (1.0 - uniform()) ** (1.0 / shape) / shape


def _gamma_variate(shape: float, uniform: UnitDraw) -> float:
    """A gamma variate of scale 1, for shapes of at least 1. Marsaglia and Tsang (2000)."""
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = standard_normal(uniform)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(1.0 - uniform()) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
            return d * v


@ARRIVALS.register("weibull")
class WeibullArrivals(ArrivalProcess):
    """Weibull gaps (the best fit of middling models in ServeGen)."""

    syntax = "weibull:CV"

    def __init__(self, cv: float) -> None:
        self._shape = weibull_shape(_check_cv(cv))

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        scale, power = 1.0 / math.gamma(1.0 + 1.0 / self._shape), 1.0 / self._shape
        while True:
            yield scale * (-math.log(1.0 - uniform())) ** power


def weibull_cv(shape: float) -> float:
    """√(Γ(1 + 2/k) / Γ(1 + 1/k)² - 1); inf for shapes below 0.05, where it is beyond all numbers."""
    if shape < 0.05:
        return math.inf
    return math.sqrt(math.expm1(math.lgamma(1.0 + 2.0 / shape) - 2.0 * math.lgamma(1.0 + 1.0 / shape)))


def weibull_shape(cv: float) -> float:
    """The shape k whose CV is `cv`, by bisection: the CV falls as k grows."""
    low, high = 0.05, 500.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if weibull_cv(middle) > cv else (low, middle)
    return low


@ARRIVALS.register("normalized")
class NormalizedArrivals(ArrivalProcess):
    """Exponential gaps of which exactly the expected number fill the client's life, the last one ending with it
    (inference-perf), which must be finite. For comparisons in which the number of requests must not vary.

    Given that n gaps are left to fill a span, the next one is the span times the least of n - 1 uniform draws.
    """

    syntax = "normalized"

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        span = expected
        for left in range(round(expected) - 1, -1, -1):
            gap = span * (1.0 - (1.0 - uniform()) ** (1.0 / left)) if left else span
            span -= gap
            yield gap
