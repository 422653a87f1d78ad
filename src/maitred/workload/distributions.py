"""The length distributions that BLIS has beside those of `lengths`, by its names and with its parameters.

Each draw is rounded to the nearest whole number and is at least 1.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

from maitred.workload.lengths import LENGTHS, MOST_TOKENS, Lengths, UnitDraw, standard_normal, whole, within

_MOST_LOG = 50.0
"""Of a logarithm: e⁵⁰ tokens are far beyond any model."""


@LENGTHS.register("gaussian")
class Gaussian(Lengths):
    """Normal, clamped to MIN..MAX and then rounded."""

    form = "gaussian:MEAN,SD,MIN,MAX"

    def __init__(self, mean: float, deviation: float, low: float, high: float) -> None:
        self._mean, self._deviation = within(mean, 0, "mean"), within(deviation, 0, "std_dev")
        self._low = within(low, 0, "min")
        self._high = within(high, low, "max")

    def draw(self, uniform: UnitDraw) -> int:
        return whole(min(max(self._mean + self._deviation * standard_normal(uniform), self._low), self._high))


@LENGTHS.register("exponential")
class Exponential(Lengths):
    """Exponential: most are short, one in e³ ≈ 20 is longer than three times the mean."""

    form = "exponential:MEAN"

    def __init__(self, mean: float) -> None:
        self._mean = within(mean, 1, "mean")

    def draw(self, uniform: UnitDraw) -> int:
        return whole(-self._mean * math.log(1.0 - uniform()))


class LogNormalOfLogs(Lengths):
    """Log-normal by mean and deviation of the logarithms of the lengths, where `lognormal:MEAN,SD` takes those of the
    lengths themselves; clamped to `low`..`high`."""

    form = "lognormal (mu, sigma)"

    def __init__(self, mu: float, sigma: float, low: float = 1, high: float = MOST_TOKENS) -> None:
        self._mu, self._sigma = _log(mu, "mu"), _log(sigma, "sigma")
        self._low = within(low, 0, "min")
        self._high = within(high, low, "max")

    def draw(self, uniform: UnitDraw) -> int:
        return whole(min(max(math.exp(self._mu + self._sigma * standard_normal(uniform)), self._low), self._high))


@LENGTHS.register("pareto_lognormal")
class ParetoLogNormal(Lengths):
    """With probability WEIGHT a Pareto tail that begins at XM and falls with power ALPHA, else log-normal (of MU and SIGMA,
    those of the logarithms): what ServeGen fits to prompts."""

    form = "pareto_lognormal:ALPHA,XM,MU,SIGMA,WEIGHT"

    def __init__(self, alpha: float, xm: float, mu: float, sigma: float, mix_weight: float) -> None:
        if not 0.1 <= alpha <= 1000.0:
            raise ValueError("alpha must be between 0.1 and 1000")
        if not 0.0 <= mix_weight <= 1.0:
            raise ValueError("mix_weight must be between 0 and 1")
        self._power, self._xm, self._weight = -1.0 / alpha, within(xm, 0, "xm"), mix_weight
        self._rest = LogNormalOfLogs(mu, sigma)

    def draw(self, uniform: UnitDraw) -> int:
        if uniform() < self._weight:
            return whole(self._xm * (1.0 - uniform()) ** self._power)
        return self._rest.draw(uniform)


class Empirical(Lengths):
    """As measured: each length as often as its weight says. The weights are relative."""

    form = "empirical"

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` by length, which is text as keys of a file are. Raises ValueError unless some weight is above 0."""
        bins = sorted((_length(text), weight) for text, weight in weights.items())
        if not all(0.0 <= weight < math.inf for _, weight in bins) or not 0.0 < sum(weight for _, weight in bins) < math.inf:
            raise ValueError("weights must be numbers of 0 or more, and not all of them 0")
        self._lengths = [length for length, weight in bins if weight]
        self._bounds = list(accumulate(weight for _, weight in bins if weight))

    def draw(self, uniform: UnitDraw) -> int:
        at = bisect_right(self._bounds, uniform() * self._bounds[-1])
        return self._lengths[min(at, len(self._lengths) - 1)]


def _length(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and 1 <= int(text) <= MOST_TOKENS):
        raise ValueError(f"{text!r} is no length in tokens, from 1 to {MOST_TOKENS}")
    return int(text)


def _log(value: float, name: str) -> float:
    if not 0.0 <= value <= _MOST_LOG:
        raise ValueError(f"{name} is one of logarithms, from 0 to {_MOST_LOG:g}")
    return value
