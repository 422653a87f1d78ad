"""Arrival processes: how regular or how bursty arrivals are, whatever their rate.

A process is a stream of gaps with mean 1, measured in expected requests. The sender stretches the gaps to its current rate
(`rates`). So one process serves steady and changing rates alike, and a Poisson process under a changing rate is exactly the
inhomogeneous Poisson process.

Users write `poisson`, `constant`, `gamma:CV`, `weibull:CV` or `normalized`. CV, the coefficient of variation, is the standard
deviation of the gaps divided by their mean: 0 is a metronome, 1 is Poisson, above 1 arrivals are bursty.
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
"""BLIS's limits. Outside them a sample of any sensible size does not show the distribution."""

Gaps: TypeAlias = Iterator[float]
"""The gaps between arrivals, in expected requests."""


class ArrivalProcess(Protocol):
    """A stream of gaps between arrivals."""

    syntax: ClassVar[str]
    """How users write the process."""

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        """Yield gaps of mean 1, until nothing arrives any more. `expected` is the expected number of requests in the whole
        activity of the sender; inf if it has no end."""
        ...


ARRIVALS: Registry[ArrivalProcess] = Registry(
    "arrival process",
    ArrivalProcess,
    group="maitred.arrivals",
    packages=["maitred.workload"],
    methods=["gaps"],
    flag="--arrival",
)
"""Constructors take the numbers after the colon. They raise ValueError for numbers out of range."""


def parse_arrival_process(text: str, *, where: str = "") -> ArrivalProcess:
    """Return the process that `poisson`, `gamma:2.5`, ... describes. Raises ConfigError that names the correct form."""
    name, colon, value = text.strip().partition(":")
    if name not in ARRIVALS:
        raise ConfigError(f"unknown arrival process {name!r}", where=where, hint=nearest_name_hint(name, ARRIVALS))
    factory = ARRIVALS.find(name)
    hint = f"write {getattr(factory, 'syntax', name)}"
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
    """Memoryless: exponential gaps with CV 1, as from many independent users."""

    syntax = "poisson"

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        while True:
            yield -math.log(1.0 - uniform())


@ARRIVALS.register("constant")
class ConstantArrivals(ArrivalProcess):
    """Equal gaps."""

    syntax = "constant"

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        return repeat(1.0)


@ARRIVALS.register("gamma")
class GammaArrivals(ArrivalProcess):
    """Gamma gaps with shape 1/CV². A CV above 1 gives bursts; ServeGen fits it best to large models."""

    syntax = "gamma:CV"

    def __init__(self, cv: float) -> None:
        self._shape = _check_cv(cv) ** -2.0

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        shape = self._shape
        if shape >= 1.0:
            while True:
                yield _gamma_variate(shape, uniform) / shape
        while True:
            # The method below needs a shape of at least 1: Gamma(a) = Gamma(a + 1) · U^(1/a) (Ahrens and Dieter, 1974).
            yield _gamma_variate(shape + 1.0, uniform) * (1.0 - uniform()) ** (1.0 / shape) / shape


def _gamma_variate(shape: float, uniform: UnitDraw) -> float:
    """Return a gamma variate with scale 1, for a shape of at least 1. Marsaglia and Tsang (2000)."""
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = standard_normal(uniform)
        v = (1.0 + c * x) ** 3
        # One candidate in twenty is rejected at shape 1, and fewer above. `1 - uniform()` is never 0, which has no logarithm.
        if v > 0.0 and math.log(1.0 - uniform()) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
            return d * v


@ARRIVALS.register("weibull")
class WeibullArrivals(ArrivalProcess):
    """Weibull gaps; ServeGen fits them best to models of medium size."""

    syntax = "weibull:CV"

    def __init__(self, cv: float) -> None:
        self._shape = weibull_shape(_check_cv(cv))

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        scale, power = 1.0 / math.gamma(1.0 + 1.0 / self._shape), 1.0 / self._shape
        while True:
            yield scale * (-math.log(1.0 - uniform())) ** power


def weibull_cv(shape: float) -> float:
    """Return √(Γ(1 + 2/k) / Γ(1 + 1/k)² - 1) for the shape k; inf for shapes below 0.05, where it exceeds all floats."""
    if shape < 0.05:
        return math.inf
    return math.sqrt(math.expm1(math.lgamma(1.0 + 2.0 / shape) - 2.0 * math.lgamma(1.0 + 1.0 / shape)))


def weibull_shape(cv: float) -> float:
    """Return the shape k that has the CV `cv`, by bisection: the CV falls as k grows."""
    # From a CV of 370,000 down to one of 0.0026, so every CV that is allowed lies between. There is no closed form.
    low, high = 0.05, 500.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if weibull_cv(middle) > cv else (low, middle)
    return low


@ARRIVALS.register("normalized")
class NormalizedArrivals(ArrivalProcess):
    """Exponential gaps of which exactly the expected number fill the activity of the sender; the last one ends with it.

    The activity must be finite. From inference-perf, for comparisons in which the number of requests must not vary.

    Given that n gaps are left to fill a span, the next gap is the span times the smallest of n - 1 uniform draws.
    """

    syntax = "normalized"

    def gaps(self, uniform: UnitDraw, expected: float) -> Gaps:
        span = expected
        for left in range(round(expected) - 1, -1, -1):
            # The smallest of `left` uniform draws, from one draw: its distribution function is 1 - (1 - x)^left.
            gap = span * (1.0 - (1.0 - uniform()) ** (1.0 / left)) if left else span
            span -= gap
            yield gap
