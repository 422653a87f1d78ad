"""The parts of a workload specification that clients and cohorts consist of, with BLIS's keys.

Each struct checks itself when it is made. A wrong value raises ValueError with a message that begins with the key.
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

MIN_RATE, MAX_RATE = 1e-6, 1e9
"""Requests per second. Outside this range no span of simulated time makes sense."""
MAX_DURATION: Micros = 10**15
"""About thirty years."""
MAX_ROUNDS = 10_000


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Raise ValueError unless `value` is None or from `low` to `high`."""
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name} must be from {low:,} to {high:,}, not {value}")


def check_rate(name: str, rate: float | None) -> None:
    """Raise ValueError unless `rate` is None or from `MIN_RATE` to `MAX_RATE`."""
    if rate is not None and not MIN_RATE <= rate <= MAX_RATE:
        raise ValueError(f"{name} must be from {MIN_RATE:g} to {MAX_RATE:g}, not {rate:g}")


def check_positive(name: str, value: float | None, high: float) -> None:
    """Raise ValueError unless `value` is None or above 0 and at most `high`."""
    if value is not None and not 0 < value <= high:
        raise ValueError(f"{name} must be above 0 and at most {high:,}, not {value}")


class _LengthParams(msgspec.Struct, frozen=True):
    """A distribution and the names of its parameters in a specification."""

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
    """A length distribution as a section of a file: a `type` and its `params`, in tokens.

    Raises ValueError for parameters that are missing, unknown or out of range.
    """

    type: str
    params: Mapping[str, float] = {}
    file: str | None = None

    def __post_init__(self) -> None:
        if self.file is not None:
            raise ValueError("file is not read: give the weights of the lengths as params")
        if self.type not in _LENGTH_PARAMS and self.type != "empirical":
            hint = nearest_name_hint(self.type, [*_LENGTH_PARAMS, "empirical"])
            raise ValueError(f"type {self.type!r} is no distribution: {hint}")
        self.build()

    def build(self) -> LengthDistribution:
        """Return the distribution that the section describes."""
        try:
            return EmpiricalLength(self.params) if self.type == "empirical" else self._build_by_params()
        except ValueError as error:
            raise ValueError(f"params: {error}") from error

    def _build_by_params(self) -> LengthDistribution:
        forms = _LENGTH_PARAMS[self.type]
        form = next((form for form in forms if {*form.names} == self.params.keys()), None)
        if form is None:
            raise ValueError(self._mismatch())
        return form.factory(*(self.params[name] for name in form.names))

    def _mismatch(self) -> str:
        """Return which parameter is unknown, or else which parameters are missing."""
        forms = _LENGTH_PARAMS[self.type]
        known = {name for form in forms for name in form.names}
        for name in self.params:
            if name not in known:
                return f"{name!r} means nothing to {self.type} lengths: {nearest_name_hint(name, known)}"
        closest = max(forms, key=lambda form: len(self.params.keys() & {*form.names}))
        return f"{self.type} lengths also need {', '.join(name for name in closest.names if name not in self.params)}"


LengthSpec: TypeAlias = Distribution | str | int
"""Lengths in a specification: a section, or the form of the command line (`500`, `normal:500,150`)."""


def build_lengths(key: str, spec: LengthSpec) -> LengthDistribution:
    """Return the distribution that `spec` describes. Raises ValueError with a message that begins with `key`."""
    if isinstance(spec, Distribution):
        return spec.build()
    try:
        return parse_lengths(spec)
    except ConfigError as error:
        raise ValueError(f"{key}: {error}") from error


class Arrival(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arrival process of a client: `process` and the parameters of its gaps."""

    process: Literal["poisson", "gamma", "weibull", "constant", "normalized"] = "poisson"
    cv: float | None = None
    """Standard deviation of the gaps divided by their mean, for gamma and weibull. Default: 1."""
    shape: float | None = None
    """Gamma's α or Weibull's k, as fitted. It takes precedence over `cv`."""
    scale: float | None = None
    """Gamma's θ or Weibull's λ in µs. With it the gaps are absolute, so the client has a rate of its own."""

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
        """Return the process."""
        factory = ARRIVALS.find(self.process)
        if not self._has_shape:
            return factory()
        if self.shape is None:
            return factory(1.0 if self.cv is None else self.cv)
        return factory(self.shape**-0.5 if self.process == "gamma" else weibull_cv(self.shape))

    @property
    def own_rate(self) -> float | None:
        """Requests per second if the gaps are absolute, or None if the rate is given elsewhere."""
        if self.scale is None or self.shape is None:
            return None
        mean = self.shape if self.process == "gamma" else math.gamma(1.0 + 1.0 / self.shape)
        return 1e6 / (self.scale * mean)


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A span in which a client is active, and the values that differ in it. Instants are in µs since the start of the run."""

    start_us: Micros
    end_us: Micros
    trace_rate: float | None = None
    """The weight among the clients that share the aggregate rate; without an aggregate rate, requests per second."""
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
    """The windows in which a client is active."""

    windows: Sequence[Window]

    def __post_init__(self) -> None:
        if not self.windows:
            raise ValueError("windows are missing: a client without any never sends")
        for before, after in zip(self.windows, self.windows[1:], strict=False):
            if after.start_us < before.end_us:
                raise ValueError("windows must follow one another: one begins before the one above it ends")


class Fork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sub-agents of an agent program: programs of their own, which begin with the context of the program that forks them. It
    continues when the last of them has ended. (Not in BLIS.)"""

    children: int
    """How many at once."""
    every_rounds: int
    """After how many rounds of the program, again and again. The last round forks none."""
    rounds_distribution: LengthSpec = 1
    """Rounds of each child."""

    def __post_init__(self) -> None:
        check_range("children", self.children, 1, 1000)
        check_range("every_rounds", self.every_rounds, 1, MAX_ROUNDS)
        build_lengths("rounds_distribution", self.rounds_distribution)


class MultiTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of several rounds. Every round after the first follows the end of the previous answer.

    The keys that end in `_distribution`, and `fork`, are not in BLIS. They make a session an agent program."""

    max_rounds: int
    """Rounds of each session; with `rounds_distribution` the most that it may have."""
    rounds_distribution: LengthSpec | None = None
    """Rounds of a session, drawn for each."""
    first_input_distribution: LengthSpec | None = None
    """Prompt tokens of the first round, in place of the sender's `input_distribution`, which holds for those that follow."""
    think_time_us: Micros = 0
    """Time from the end of an answer to the next round."""
    think_time_ms_distribution: LengthSpec | None = None
    """Time from the end of an answer to the next round in ms, drawn for each round: for example how long a tool works."""
    fork: Fork | None = None
    context_growth: Literal["accumulate", ""] = ""
    """accumulate: a prompt is the previous prompt, its answer, and new tokens; otherwise new tokens only."""
    single_session: bool = False
    """Whether the client has one session only."""

    def __post_init__(self) -> None:
        check_range("max_rounds", self.max_rounds, 1, MAX_ROUNDS)
        check_range("think_time_us", self.think_time_us, 0, MAX_DURATION)
        for key in ("rounds_distribution", "first_input_distribution", "think_time_ms_distribution"):
            if getattr(self, key) is not None:
                build_lengths(key, getattr(self, key))
        if self.think_time_us and self.think_time_ms_distribution is not None:
            raise ValueError("think_time_us and think_time_ms_distribution are two ways to say one thing: give one of them")
        if self.fork is not None and self.context_growth != "accumulate":
            raise ValueError("fork needs context_growth: accumulate, because children begin with the context of their parent")


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """BLIS's section for reasoning models and sessions."""

    reason_ratio_distribution: Any = None
    """The share of reasoning tokens in an answer. It is read and has no effect: an instance treats all tokens alike."""
    multi_turn: MultiTurn | None = None


class Diurnal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A day of 24 steps on a cosine, repeated; the trough is twelve hours from the peak."""

    peak_hour: int
    """0 to 23; the run starts at hour 0."""
    peak_to_trough_ratio: float

    def __post_init__(self) -> None:
        check_range("peak_hour", self.peak_hour, 0, 23)
        check_range("peak_to_trough_ratio", self.peak_to_trough_ratio, 1.0, 1e6)


class Spike(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Activity from `start_time_us` for `duration_us` only."""

    start_time_us: Micros
    duration_us: Micros
    trace_rate: float | None = None
    """Requests per second of the whole cohort if there is no aggregate rate."""

    def __post_init__(self) -> None:
        check_range("start_time_us", self.start_time_us, 0, MAX_DURATION)
        check_positive("duration_us", self.duration_us, MAX_DURATION)
        check_rate("trace_rate", self.trace_rate)


class Drain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The full rate until `start_time_us`, then ten steps down to 0 within `ramp_duration_us`."""

    start_time_us: Micros
    ramp_duration_us: Micros

    def __post_init__(self) -> None:
        check_range("start_time_us", self.start_time_us, 0, MAX_DURATION)
        check_positive("ramp_duration_us", self.ramp_duration_us, MAX_DURATION)


class GoodputTargets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latencies in ms that a request must not exceed to count as good. None means no limit."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    """Mean gap between the tokens of the request."""
    e2e_ms: float | None = None

    _max_ms: ClassVar[float] = MAX_DURATION / 1000

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "itl_ms", "e2e_ms"):
            check_positive(name, getattr(self, name), self._max_ms)
