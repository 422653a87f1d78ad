"""Length distributions: how many tokens a prompt or an answer has.

Users write them as `500`, `normal:500,150`, `lognormal:250,200`, ... All parameters are in tokens and describe the lengths
themselves: `lognormal:MEAN,SD` takes the mean and the standard deviation of the lengths, not of their logarithms. A draw is
rounded to the nearest whole number and clamped to 1..`MAX_TOKENS`.

Draws use `Random.random()` alone, because it is the only method of the generator with a stream that Python promises to keep. So
a seed gives the same workload with every version of Python.

Example: `normal:500,150` takes two draws u and v. For u = 0.5 and v = 0 Box and Muller's z is sqrt(2 ln 2) · cos 0 = 1.177, and
the length 500 + 1.177 · 150 = 677 tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from statistics import NormalDist
from typing import ClassVar, Final, Protocol, TypeAlias

from maitred.core.errors import ConfigError
from maitred.core.registry import Registry

UnitDraw: TypeAlias = Callable[[], float]
"""A function that draws from [0, 1): the `random` method of a `random.Random`."""

MAX_TOKENS = 100_000_000
"""The longest length. It is far beyond any model and guards against typing errors and infinite tails."""

_MAX_LOG: Final = 50.0
"""The largest logarithm of a length: e⁵⁰ tokens are far beyond any model."""


class LengthDistribution(Protocol):
    """A distribution of lengths in tokens."""

    syntax: ClassVar[str]
    """How users write the distribution."""

    def draw(self, uniform: UnitDraw) -> int:
        """Return a length of at least 1."""
        ...


LENGTHS: Registry[LengthDistribution] = Registry(
    "length distribution",
    LengthDistribution,
    group="maitred.lengths",
    packages=["maitred.workload"],
    methods=["draw"],
    flag="--input-tokens",
)
"""Constructors take the numbers after the colon. They raise ValueError for numbers out of range."""


def parse_lengths(text: str | float | None, *, where: str = "") -> LengthDistribution:
    """Return the distribution that `500`, `normal:500,150`, ... describes. Raises ConfigError that names the correct form."""
    name, colon, values = str(text).strip().partition(":")
    if not colon:
        name, values = "constant", name
    if name not in LENGTHS:
        raise ConfigError(f"unknown length distribution {name!r}", where=where, hint=f"write {_all_syntaxes()}")
    factory = LENGTHS.find(name)
    syntax = getattr(factory, "syntax", name)
    hint = f"write {syntax}" if colon else f"write {_all_syntaxes()}"
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a length in tokens", where=where, hint=hint) from error
    if len(numbers) != syntax.count(",") + 1:
        count = "1 number" if len(numbers) == 1 else f"{len(numbers)} numbers"
        raise ConfigError(f"{text!r} has {count}", where=where, hint=hint)
    try:
        return factory(*numbers)
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}", where=where, hint=hint) from error


def _all_syntaxes() -> str:
    syntaxes = (getattr(LENGTHS.find(name), "syntax", name) for name in LENGTHS if name != "constant")
    return f"a number of tokens, such as 500, or {', '.join(syntaxes)}"


def round_length(length: float) -> int:
    """Return the drawn number `length` as a length in tokens."""
    return min(max(1, round(length)), MAX_TOKENS)


def check_token_count(value: float, low: float, name: str) -> float:
    """Return `value`. Raises ValueError unless it is from `low` to `MAX_TOKENS`."""
    if not low <= value <= MAX_TOKENS:
        raise ValueError(f"{name} must be between {low:g} and {MAX_TOKENS}")
    return value


def standard_normal(uniform: UnitDraw) -> float:
    """Return a draw from the normal distribution with mean 0 and standard deviation 1. Box and Muller (1958), with two uniform
    draws. The second normal variate that they give is not used, so that no state is kept between draws."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform()))
    return radius * math.cos(math.tau * uniform())


@LENGTHS.register("constant")
class ConstantLength(LengthDistribution):
    """Always the same length."""

    syntax = "TOKENS"

    def __init__(self, tokens: float) -> None:
        self._tokens = round_length(check_token_count(tokens, 1, "a length"))

    def draw(self, uniform: UnitDraw) -> int:
        return self._tokens


@LENGTHS.register("uniform")
class UniformLength(LengthDistribution):
    """Every whole number from LOW to HIGH, both included, with the same probability."""

    syntax = "uniform:LOW,HIGH"

    def __init__(self, low: float, high: float) -> None:
        self._low = round_length(check_token_count(low, 1, "LOW"))
        self._span = round_length(check_token_count(high, low, "HIGH")) - self._low + 1

    def draw(self, uniform: UnitDraw) -> int:
        return self._low + int(uniform() * self._span)


@LENGTHS.register("normal")
class NormalLength(LengthDistribution):
    """Normal, clamped at 1. The mean of a wide distribution is therefore a little above MEAN."""

    syntax = "normal:MEAN,SD"

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = check_token_count(mean, 1, "MEAN"), check_token_count(deviation, 0, "SD")

    def draw(self, uniform: UnitDraw) -> int:
        return round_length(self.mean + self.deviation * standard_normal(uniform))


@LENGTHS.register("lognormal")
class LogNormalLength(LengthDistribution):
    """Log-normal: many short lengths, few very long ones.

    MEAN and SD are those of the lengths. With σ² = ln(1 + SD²/MEAN²) and μ = ln MEAN - σ²/2 a length is exp(μ + σz).
    """

    syntax = "lognormal:MEAN,SD"

    def __init__(self, mean: float, deviation: float) -> None:
        variance = math.log1p((check_token_count(deviation, 0, "SD") / check_token_count(mean, 1, "MEAN")) ** 2)
        self._location, self._scale = math.log(mean) - variance / 2, math.sqrt(variance)

    def draw(self, uniform: UnitDraw) -> int:
        return round_length(math.exp(min(self._location + self._scale * standard_normal(uniform), _MAX_LOG)))


@LENGTHS.register("gaussian")
class ClampedNormalLength(LengthDistribution):
    """Normal, clamped to MIN..MAX and then rounded (BLIS's `gaussian`)."""

    syntax = "gaussian:MEAN,SD,MIN,MAX"

    def __init__(self, mean: float, deviation: float, low: float, high: float) -> None:
        self.mean, self.deviation = check_token_count(mean, 0, "mean"), check_token_count(deviation, 0, "std_dev")
        self.low = check_token_count(low, 0, "min")
        self.high = check_token_count(high, low, "max")

    def draw(self, uniform: UnitDraw) -> int:
        return round_length(min(max(self.mean + self.deviation * standard_normal(uniform), self.low), self.high))


@LENGTHS.register("exponential")
class ExponentialLength(LengthDistribution):
    """Exponential: most lengths are short, one in e³ ≈ 20 is longer than three times the mean."""

    syntax = "exponential:MEAN"

    def __init__(self, mean: float) -> None:
        self._mean = check_token_count(mean, 1, "mean")

    def draw(self, uniform: UnitDraw) -> int:
        return round_length(-self._mean * math.log(1.0 - uniform()))


class LogNormalLengthByLogs(LengthDistribution):
    """Log-normal by the mean and the standard deviation of the logarithms of the lengths, clamped to `low`..`high`.

    `lognormal:MEAN,SD` takes those of the lengths themselves.
    """

    syntax = "lognormal (mu, sigma)"

    def __init__(self, mu: float, sigma: float, low: float = 1, high: float = MAX_TOKENS) -> None:
        self._mu, self._sigma = _check_log(mu, "mu"), _check_log(sigma, "sigma")
        self._low = check_token_count(low, 0, "min")
        self._high = check_token_count(high, low, "max")

    def draw(self, uniform: UnitDraw) -> int:
        return round_length(min(max(math.exp(self._mu + self._sigma * standard_normal(uniform)), self._low), self._high))


@LENGTHS.register("quantiles")
class QuantileLength(LengthDistribution):
    """By its quantiles: a log-normal body up to P95, and a long tail up to MAX.

    95 % of the lengths are log-normal with the median P50 and the 95th percentile P95, cut off there. 4 % lie between P95 and
    P99, 1 % between P99 and MAX, their logarithms with equal probability. So tool times are described of which no more is
    published (ThunderAgent's).
    """

    syntax = "quantiles:P50,P95,P99,MAX"

    def __init__(self, p50: float, p95: float, p99: float, longest: float) -> None:
        self._p50 = check_token_count(p50, 1, "P50")
        self._p95 = check_token_count(p95, p50, "P95")
        self._p99 = check_token_count(p99, p95, "P99")
        self._longest = check_token_count(longest, p99, "MAX")
        self._scale = math.log(p95 / p50) / NormalDist().inv_cdf(0.95)

    def draw(self, uniform: UnitDraw) -> int:
        share = uniform()
        if share < 0.95:
            return round_length(self._p50 * math.exp(self._scale * NormalDist().inv_cdf(max(share, 1e-9))))
        if share < 0.99:
            return round_length(self._p95 * (self._p99 / self._p95) ** ((share - 0.95) / 0.04))
        return round_length(self._p99 * (self._longest / self._p99) ** ((share - 0.99) / 0.01))


@LENGTHS.register("pareto_lognormal")
class ParetoLogNormalLength(LengthDistribution):
    """With probability WEIGHT a Pareto tail that starts at XM and falls with power ALPHA, else log-normal.

    MU and SIGMA are those of the logarithms. ServeGen fits this distribution to prompts.
    """

    syntax = "pareto_lognormal:ALPHA,XM,MU,SIGMA,WEIGHT"

    def __init__(self, alpha: float, xm: float, mu: float, sigma: float, mix_weight: float) -> None:
        if not 0.1 <= alpha <= 1000.0:
            raise ValueError("alpha must be between 0.1 and 1000")
        if not 0.0 <= mix_weight <= 1.0:
            raise ValueError("mix_weight must be between 0 and 1")
        self._power, self._xm, self._weight = -1.0 / alpha, check_token_count(xm, 0, "xm"), mix_weight
        self._body = LogNormalLengthByLogs(mu, sigma)

    def draw(self, uniform: UnitDraw) -> int:
        if uniform() < self._weight:
            return round_length(self._xm * (1.0 - uniform()) ** self._power)
        return self._body.draw(uniform)


class EmpiricalLength(LengthDistribution):
    """Measured lengths, each with a relative weight."""

    syntax = "empirical"

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` maps lengths, as the text that keys of a file are, to weights. Raises ValueError unless a weight is above
        0."""
        bins = sorted((_parse_length(text), weight) for text, weight in weights.items())
        if not all(0.0 <= weight < math.inf for _, weight in bins) or not 0.0 < sum(weight for _, weight in bins) < math.inf:
            raise ValueError("weights must be numbers of 0 or more, and not all of them 0")
        self._lengths = [length for length, weight in bins if weight]
        self._bounds = list(accumulate(weight for _, weight in bins if weight))

    def draw(self, uniform: UnitDraw) -> int:
        index = bisect_right(self._bounds, uniform() * self._bounds[-1])
        return self._lengths[min(index, len(self._lengths) - 1)]


def _parse_length(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 1 <= int(text) <= MAX_TOKENS):
        raise ValueError(f"{text!r} is no length in tokens, from 1 to {MAX_TOKENS}")
    return int(text)


def _check_log(value: float, name: str) -> float:
    if not 0.0 <= value <= _MAX_LOG:
        raise ValueError(f"{name} is one of logarithms, from 0 to {_MAX_LOG:g}")
    return value
