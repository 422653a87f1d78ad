"""Lengths in a workload specification: a section with `type` and `params` by BLIS's names, or as on the command line.

The parts that clients and cohorts of a workload specification are made of, by BLIS's keys.

Each checks itself when it is made, and raises ValueError whose message begins with the key that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.units import Micros
from maitred.workload.arrivals import ARRIVALS, ArrivalProcess, weibull_cv
from maitred.workload.lengths import (
    ClampedNormalLength,
    ConstantLength,
    EmpiricalLength,
    ExponentialLength,
    LengthDistribution,
    LogNormalLength,
    LogNormalLengthByLogs,
    NormalLength,
    ParetoLogNormalLength,
    UniformLength,
    parse_lengths,
)


class _LengthParams(msgspec.Struct, frozen=True):
    """A distribution by the names of its parameters."""

    factory: Callable[..., LengthDistribution]
    names: Sequence[str]


_LENGTH_PARAMS: Mapping[str, Sequence[_LengthParams]] = {
    "gaussian": [_LengthParams(ClampedNormalLength, ("mean", "std_dev", "min", "max"))],
    "normal": [_LengthParams(NormalLength, ("mean", "std_dev"))],
    "exponential": [_LengthParams(ExponentialLength, ("mean",))],
    "lognormal": [
        _LengthParams(LogNormalLengthByLogs, ("mu", "sigma")),
        _LengthParams(LogNormalLengthByLogs, ("mu", "sigma", "min", "max")),
        _LengthParams(LogNormalLength, ("mean", "std_dev")),
    ],
    "pareto_lognormal": [_LengthParams(ParetoLogNormalLength, ("alpha", "xm", "mu", "sigma", "mix_weight"))],
    "uniform": [_LengthParams(UniformLength, ("min", "max"))],
    "constant": [_LengthParams(ConstantLength, ("value",))],
}


class Distribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `type` and its `params`, in tokens. Raises ValueError for those that make no sense."""

    type: str
    params: Mapping[str, float] = {}
    file: str | None = None

    def __post_init__(self) -> None:
        if self.file is not None:
            raise ValueError("file is not read: give the weights of the lengths as params")
        if self.type not in _LENGTH_PARAMS and self.type != "empirical":
            raise ValueError(
                f"type {self.type!r} is no distribution: {nearest_name_hint(self.type, [*_LENGTH_PARAMS, 'empirical'])}"
            )
        self.build()

    def build(self) -> LengthDistribution:
        """What it describes."""
        try:
            return EmpiricalLength(self.params) if self.type == "empirical" else self._build_by_params()
        except ValueError as error:
            raise ValueError(f"params: {error}") from error

    def _build_by_params(self) -> LengthDistribution:
        form = next((form for form in _LENGTH_PARAMS[self.type] if {*form.names} == self.params.keys()), None)
        if form is None:
            raise ValueError(self._mismatch())
        return form.factory(*(self.params[name] for name in form.names))

    def _mismatch(self) -> str:
        """What is too much, or else what is missing."""
        known = {name for form in _LENGTH_PARAMS[self.type] for name in form.names}
        for name in self.params:
            if name not in known:
                return f"{name!r} means nothing to {self.type} lengths: {nearest_name_hint(name, known)}"
        nearly = max(_LENGTH_PARAMS[self.type], key=lambda form: len(self.params.keys() & {*form.names}))
        return f"{self.type} lengths also need {', '.join(name for name in nearly.names if name not in self.params)}"


LengthSpec: TypeAlias = Distribution | str | int
"""Lengths as a file has them: a section, or as on the command line (`500`, `normal:500,150`)."""


def build_lengths(key: str, spec: LengthSpec) -> LengthDistribution:
    """Raises ValueError that begins with `key`."""
    if isinstance(spec, Distribution):
        return spec.build()
    try:
        return parse_lengths(spec)
    except ConfigError as error:
        raise ValueError(f"{key}: {error}") from error


MIN_RATE, MAX_RATE = 1e-6, 1e9
"""Requests per second. Outside, no span of simulated time makes sense any more."""
MAX_DURATION: Micros = 10**15
"""Thirty years."""
MAX_ROUNDS = 10_000


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Raises ValueError unless `value` is nothing or from `low` to `high`."""
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name} must be from {low:,} to {high:,}, not {value}")


def check_rate(name: str, rate: float | None) -> None:
    """Raises ValueError unless `rate` is nothing or one that makes sense."""
    if rate is not None and not MIN_RATE <= rate <= MAX_RATE:
        raise ValueError(f"{name} must be from {MIN_RATE:g} to {MAX_RATE:g}, not {rate:g}")


def check_positive(name: str, value: float | None, high: float) -> None:
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
            check_positive(name, value, MAX_DURATION)
            if value is not None and not self._has_shape and (name, value) != ("cv", 1.0):
                raise ValueError(f"{name} means nothing to {self.process} arrivals")
        if self.scale is not None and self.shape is None:
            raise ValueError("scale needs a shape")
        self.build()
        if self.own_rate is not None and not MIN_RATE <= self.own_rate <= MAX_RATE:
            possible = f"from {MIN_RATE:g} to {MAX_RATE:g}"
            raise ValueError(f"scale must make {possible} requests per second, not {self.own_rate:g}")

    @property
    def _has_shape(self) -> bool:
        return self.process in ("gamma", "weibull")

    def build(self) -> ArrivalProcess:
        """The process."""
        factory = ARRIVALS.find(self.process)
        if not self._has_shape:
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
    input_distribution: LengthSpec | None = None
    output_distribution: LengthSpec | None = None

    def __post_init__(self) -> None:
        check_range("start_us", self.start_us, 0, MAX_DURATION)
        check_range("end_us", self.end_us, self.start_us + 1, MAX_DURATION)
        check_rate("trace_rate", self.trace_rate)
        if self.arrival is not None and self.arrival.process == "normalized":
            raise ValueError("arrival: normalized arrivals are for a whole client, not for one of its windows")
        for key in ("input_distribution", "output_distribution"):
            if getattr(self, key) is not None:
                build_lengths(key, getattr(self, key))


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
        check_range("max_rounds", self.max_rounds, 1, MAX_ROUNDS)
        check_range("think_time_us", self.think_time_us, 0, MAX_DURATION)


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
        check_range("peak_hour", self.peak_hour, 0, 23)
        check_range("peak_to_trough_ratio", self.peak_to_trough_ratio, 1.0, 1e6)


class Spike(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Active from `start_time_us` for `duration_us`, and never else."""

    start_time_us: Micros
    duration_us: Micros
    trace_rate: float | None = None
    """Requests per second of the whole cohort, where there is no aggregate rate."""

    def __post_init__(self) -> None:
        check_range("start_time_us", self.start_time_us, 0, MAX_DURATION)
        check_positive("duration_us", self.duration_us, MAX_DURATION)
        check_rate("trace_rate", self.trace_rate)


class Drain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The full rate until `start_time_us`, then ten steps down to nothing within `ramp_duration_us`."""

    start_time_us: Micros
    ramp_duration_us: Micros

    def __post_init__(self) -> None:
        check_range("start_time_us", self.start_time_us, 0, MAX_DURATION)
        check_positive("ramp_duration_us", self.ramp_duration_us, MAX_DURATION)


class GoodputTargets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request must keep to count as good, in ms; what is left out does not matter."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    """Mean gap between its tokens."""
    e2e_ms: float | None = None

    _max_ms: ClassVar[float] = MAX_DURATION / 1000

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "itl_ms", "e2e_ms"):
            check_positive(name, getattr(self, name), self._max_ms)
