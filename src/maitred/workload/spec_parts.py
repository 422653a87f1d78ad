"""The parts that clients and cohorts of a workload specification are made of, by BLIS's keys.

Each checks itself when it is made, and raises ValueError whose message begins with the key that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec

from maitred.units import Micros
from maitred.workload.arrivals import ARRIVALS, Arrivals, weibull_cv
from maitred.workload.spec_lengths import Tokens, lengths

LOWEST_RATE, HIGHEST_RATE = 1e-6, 1e9
"""Requests per second. Outside, no span of simulated time makes sense any more."""
LONGEST: Micros = 10**15
"""Thirty years."""
MOST_ROUNDS = 10_000


def within(name: str, value: float | None, low: float, high: float) -> None:
    """Raises ValueError unless `value` is nothing or from `low` to `high`."""
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name} must be from {low:,} to {high:,}, not {value}")


def check_rate(name: str, rate: float | None) -> None:
    """Raises ValueError unless `rate` is nothing or one that makes sense."""
    if rate is not None and not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise ValueError(f"{name} must be from {LOWEST_RATE:g} to {HIGHEST_RATE:g}, not {rate:g}")


def positive(name: str, value: float | None, high: float) -> None:
    """Raises ValueError unless `value` is nothing or above 0 and at most `high`."""
    if value is not None and not 0 < value <= high:
        raise ValueError(f"{name} must be above 0 and at most {high:,}, not {value}")


class Arrival(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests come: `process` and what shapes it."""

    process: Literal["poisson", "gamma", "weibull", "constant", "normalized"] = "poisson"
    cv: float | None = None
    """Standard deviation / mean of the gaps, for gamma and weibull. Default: 1."""
    shape: float | None = None
    """Gamma's α or Weibull's k, as fitted; then `cv` is only said."""
    scale: float | None = None
    """Gamma's θ or Weibull's λ in µs. With it the gaps have a mean of their own, and so the client a rate of its own."""

    def __post_init__(self) -> None:
        for name, value in (("cv", self.cv), ("shape", self.shape), ("scale", self.scale)):
            positive(name, value, LONGEST)
            if value is not None and not self._shaped and (name, value) != ("cv", 1.0):
                raise ValueError(f"{name} means nothing to {self.process} arrivals")
        if self.scale is not None and self.shape is None:
            raise ValueError("scale needs a shape")
        self.made()
        if self.own_rate is not None and not LOWEST_RATE <= self.own_rate <= HIGHEST_RATE:
            possible = f"from {LOWEST_RATE:g} to {HIGHEST_RATE:g}"
            raise ValueError(f"scale must make {possible} requests per second, not {self.own_rate:g}")

    @property
    def _shaped(self) -> bool:
        return self.process in ("gamma", "weibull")

    def made(self) -> Arrivals:
        """The process."""
        factory = ARRIVALS.find(self.process)
        if not self._shaped:
            return factory()
        if self.shape is None:
            return factory(1.0 if self.cv is None else self.cv)
        return factory(self.shape**-0.5 if self.process == "gamma" else weibull_cv(self.shape))

    @property
    def own_rate(self) -> float | None:
        """Requests per second, where the gaps are given in absolute terms; None: the rate is somebody else's affair."""
        if self.scale is None or self.shape is None:
            return None
        mean = self.shape if self.process == "gamma" else math.gamma(1.0 + 1.0 / self.shape)
        return 1e6 / (self.scale * mean)


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A span in which a client is active, and what differs in it. Instants in µs since the start of the run."""

    start_us: Micros
    end_us: Micros
    trace_rate: float | None = None
    """Its weight among the clients that share the aggregate rate; without an aggregate rate, requests per second."""
    arrival: Arrival | None = None
    input_distribution: Tokens | None = None
    output_distribution: Tokens | None = None

    def __post_init__(self) -> None:
        within("start_us", self.start_us, 0, LONGEST)
        within("end_us", self.end_us, self.start_us + 1, LONGEST)
        check_rate("trace_rate", self.trace_rate)
        if self.arrival is not None and self.arrival.process == "normalized":
            raise ValueError("arrival: normalized arrivals are for a whole client, not for one of its windows")
        for key in ("input_distribution", "output_distribution"):
            if getattr(self, key) is not None:
                lengths(key, getattr(self, key))


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a client is active."""

    windows: Sequence[Window]

    def __post_init__(self) -> None:
        if not self.windows:
            raise ValueError("windows are missing: a client without any never sends")
        for before, after in zip(self.windows, self.windows[1:], strict=False):
            if after.start_us < before.end_us:
                raise ValueError("windows must follow one another: one begins before the one above it ends")


class MultiTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of several rounds. Each round after the first asks when the answer to the one before has been read."""

    max_rounds: int
    think_time_us: Micros = 0
    """From the end of an answer to the next question."""
    context_growth: Literal["accumulate", ""] = ""
    """accumulate: a prompt is the one before, its answer, and something new; otherwise something new alone."""
    single_session: bool = False
    """The client has one session and no more."""

    def __post_init__(self) -> None:
        within("max_rounds", self.max_rounds, 1, MOST_ROUNDS)
        within("think_time_us", self.think_time_us, 0, LONGEST)


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """BLIS's section for reasoning models and sessions."""

    reason_ratio_distribution: Any = None
    """Which share of an answer is reasoning. It is read and changes nothing: an instance makes no difference between them."""
    multi_turn: MultiTurn | None = None


class Diurnal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A day of 24 steps, over and over: a cosine with its trough twelve hours from the peak."""

    peak_hour: int
    """0..23; the run begins at hour 0."""
    peak_to_trough_ratio: float

    def __post_init__(self) -> None:
        within("peak_hour", self.peak_hour, 0, 23)
        within("peak_to_trough_ratio", self.peak_to_trough_ratio, 1.0, 1e6)


class Spike(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Active from `start_time_us` for `duration_us`, and never else."""

    start_time_us: Micros
    duration_us: Micros
    trace_rate: float | None = None
    """Requests per second of the whole cohort, where there is no aggregate rate."""

    def __post_init__(self) -> None:
        within("start_time_us", self.start_time_us, 0, LONGEST)
        positive("duration_us", self.duration_us, LONGEST)
        check_rate("trace_rate", self.trace_rate)


class Drain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The full rate until `start_time_us`, then ten steps down to nothing within `ramp_duration_us`."""

    start_time_us: Micros
    ramp_duration_us: Micros

    def __post_init__(self) -> None:
        within("start_time_us", self.start_time_us, 0, LONGEST)
        positive("ramp_duration_us", self.ramp_duration_us, LONGEST)


class GoodputTargets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request must keep to count as good, in ms; what is left out does not matter."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    """Mean gap between its tokens."""
    e2e_ms: float | None = None

    _most: ClassVar[float] = LONGEST / 1000

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "itl_ms", "e2e_ms"):
            positive(name, getattr(self, name), self._most)
