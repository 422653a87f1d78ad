"""Length distributions: how many tokens a prompt or an answer has, as users write it (`500`, `normal:500,150`).

Every parameter is in tokens and describes the lengths themselves; in particular `lognormal:MEAN,SD` means the mean and the
standard deviation of the lengths, not of their logarithms. A draw is rounded to the nearest whole number and clamped to
1..`MOST_TOKENS`.

Draws use `Random.random()` alone, the one generator method whose stream Python promises to keep, so a seed gives the same
workload under every version.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

from maitred.errors import ConfigError
from maitred.registry import Registry

UnitDraw: TypeAlias = Callable[[], float]
"""Draws from [0, 1): the `random` method of a `random.Random`."""

MOST_TOKENS = 100_000_000
"""No length is longer: a guard against slips of the keyboard and infinite tails, far beyond any model."""


class Lengths(Protocol):
    """A distribution of lengths, in tokens."""

    form: ClassVar[str]
    """How users write it."""

    def draw(self, uniform: UnitDraw) -> int:
        """At least 1."""
        ...


LENGTHS: Registry[Lengths] = Registry(
    "length distribution", Lengths, group="maitred.lengths", packages=["maitred.workload"], methods=["draw"]
)
"""Constructors take the numbers after the colon and raise ValueError for those that make no sense."""


def parse_lengths(text: str | int, *, where: str = "") -> Lengths:
    """`500`, `normal:500,150`, ... to a distribution. Raises ConfigError that says what is right."""
    name, colon, values = str(text).strip().partition(":")
    if not colon:
        name, values = "constant", name
    if name not in LENGTHS:
        raise ConfigError(f"unknown length distribution {name!r}", where=where, hint=f"write {_forms()}")
    factory = LENGTHS.find(name)
    form = getattr(factory, "form", name)
    hint = f"write {form}" if colon else f"write {_forms()}"
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a length in tokens", where=where, hint=hint) from error
    if len(numbers) != form.count(",") + 1:
        count = "1 number" if len(numbers) == 1 else f"{len(numbers)} numbers"
        raise ConfigError(f"{text!r} has {count}", where=where, hint=hint)
    try:
        return factory(*numbers)
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}", where=where, hint=hint) from error


def _forms() -> str:
    named = (getattr(LENGTHS.find(name), "form", name) for name in LENGTHS if name != "constant")
    return f"a number of tokens, such as 500, or {', '.join(named)}"


def whole(length: float) -> int:
    """A length that was drawn as a number, as a length."""
    return min(max(1, round(length)), MOST_TOKENS)


def within(value: float, low: float, name: str) -> float:
    """`value`. Raises ValueError unless it is from `low` to `MOST_TOKENS`."""
    if not low <= value <= MOST_TOKENS:
        raise ValueError(f"{name} must be between {low:g} and {MOST_TOKENS}")
    return value


def standard_normal(uniform: UnitDraw) -> float:
    """A draw from the normal distribution of mean 0 and deviation 1.

    Box and Muller (1958). Two draws each; the second normal they could give is left, so that no state is kept.
    """
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform()))
    return radius * math.cos(math.tau * uniform())


@LENGTHS.register("constant")
class Constant(Lengths):
    """Always the same."""

    form = "TOKENS"

    def __init__(self, tokens: float) -> None:
        self._tokens = whole(within(tokens, 1, "a length"))

    def draw(self, uniform: UnitDraw) -> int:
        return self._tokens


@LENGTHS.register("uniform")
class Uniform(Lengths):
    """Every whole number from LOW to HIGH, both included, equally often."""

    form = "uniform:LOW,HIGH"

    def __init__(self, low: float, high: float) -> None:
        self._low = whole(within(low, 1, "LOW"))
        self._span = whole(within(high, low, "HIGH")) - self._low + 1

    def draw(self, uniform: UnitDraw) -> int:
        return self._low + int(uniform() * self._span)


@LENGTHS.register("normal")
class Normal(Lengths):
    """Normal, clamped: what falls below 1 is 1, so the mean of a wide one is a little above MEAN."""

    form = "normal:MEAN,SD"

    def __init__(self, mean: float, deviation: float) -> None:
        self._mean, self._deviation = within(mean, 1, "MEAN"), within(deviation, 0, "SD")

    def draw(self, uniform: UnitDraw) -> int:
        return whole(self._mean + self._deviation * standard_normal(uniform))


@LENGTHS.register("lognormal")
class LogNormal(Lengths):
    """Many short, few very long. MEAN and SD are those of the lengths: with σ² = ln(1 + SD²/MEAN²) and
    μ = ln MEAN − σ²/2, a length is exp(μ + σz)."""

    form = "lognormal:MEAN,SD"

    def __init__(self, mean: float, deviation: float) -> None:
        variance = math.log1p((within(deviation, 0, "SD") / within(mean, 1, "MEAN")) ** 2)
        self._location, self._scale = math.log(mean) - variance / 2, math.sqrt(variance)

    def draw(self, uniform: UnitDraw) -> int:
        return whole(math.exp(min(self._location + self._scale * standard_normal(uniform), 50.0)))
