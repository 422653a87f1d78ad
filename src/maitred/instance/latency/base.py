"""Latency models: their registry, the base classes of those with keys in files and of those that answer step by step, and
the simplest model, `linear`: a step takes a fixed time, and a time for each token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from numbers import Real
from typing import Protocol, Self

import msgspec
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, LatencyModel, Overheads
from maitred.core.errors import ConfigError
from maitred.core.registry import Registry
from maitred.core.units import SECOND, Micros
from maitred.instance.latency.deployment import Deployment
from maitred.instance.latency.linear_steps import LinearSteps
from maitred.instance.latency.silicon_table import SiliconTable
from maitred.instance.latency.step_table import StepTable


class LatencySpec(Protocol):
    """The description of a latency model, with its parameters."""

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, in which each step takes `scale` times as long. Raises ConfigError if something that it needs is
        missing."""
        ...


LATENCY_MODELS: Registry[LatencySpec] = Registry(
    "latency model",
    LatencySpec,
    group="maitred.latency_models",
    packages=["maitred.instance.latency"],
    methods=["compiled"],
    flag="--latency-model",
    headings={"summary": "time of a step"},
    defaults={Deployment | None: None, StepTable | None: None, SiliconTable | None: None},
)
"""The catalogue fills in the deployment, and reads tables."""


class LatencyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model"):
    """A description with keys of its own in a configuration, `latency: {model: NAME, ...}`: its tag is its name.

    Where it has a key `deployment` that is left out, the catalogue fills in what `instance.model` and `instance.hardware` say.
    """

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, as `LatencySpec` says."""
        raise NotImplementedError


class StepTimes(ABC):
    """A latency model that knows how long one step takes, and makes the steps of a run one by one.

    Its constructor takes what users write: `--latency-model "my_package:Mine(a=1)"`. A model with steps that are straight lines
    in the context need not make them: see `affine`.
    """

    overheads: Overheads = Overheads()
    _scale = 1.0

    @abstractmethod
    def micros(self, batch: BatchShape) -> float:
        """Return how long the step takes, in µs. Less than 1 counts as 1."""

    def compiled(self, scale: float = 1.0) -> Self:
        scaled = copy(self)
        scaled._scale = scale
        return scaled

    def step_time(self, batch: BatchShape) -> Micros:
        return max(1, int(self.micros(batch) * self._scale))

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return sum(self.step_time(_later(batch, step)) for step in range(steps))

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        for step in range(limit):
            span -= self.step_time(_later(batch, step))
            if span < 0:
                return step
        return limit


def _later(batch: BatchShape, steps: int) -> BatchShape:
    """Return the batch `steps` steps later in its run: each sequence reads one token more in every step."""
    return replace(batch, context_tokens=batch.context_tokens + batch.num_decodes * steps) if steps else batch


HOUR = 3600 * SECOND


def _check_times(name: str, numbers: Sequence[object]) -> None:
    if len(numbers) != 3 or not all(isinstance(x, Real) and 0 <= float(x) <= HOUR for x in numbers):
        raise ValueError(f"{name} must be three numbers from 0 to {HOUR:g} (µs: an hour), not {numbers}")


NO_ALPHA = (0.0, 0.0, 0.0)


def check_alpha(alpha: tuple[float, float, float]) -> None:
    """Raise ValueError unless the α of a request are times of at most an hour."""
    _check_times("alpha", alpha)


def alpha_overheads(alpha: tuple[float, float, float]) -> Overheads:
    """Return α0, α1 and α2 as what a request pays beside its steps."""
    a0, a1, a2 = alpha
    return Overheads(queueing=a0, queueing_per_token=a1, per_output_token=int(a2))


@LATENCY_MODELS.register("linear")
class LinearLatency(LatencyConfig, frozen=True, tag="linear"):
    """β0 + β1 · prefill tokens + β2 · decode tokens, in µs. A step is truncated to whole µs, at least 1 (BLIS `blackbox`)."""

    beta: tuple[float, float, float] = (5000.0, 17.5, 60.0)
    """β0, β1 and β2 in β0 + β1 · prefill tokens + β2 · decode tokens, in µs."""
    alpha: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """α0, α1 and α2 in µs: a request takes α0 + α1 · prompt tokens to reach the wait queue, and each output token takes α2 to
    reach the client. The engine is not held up by either."""

    def __post_init__(self) -> None:
        _check_times("beta", self.beta)
        check_alpha(self.alpha)

    @property
    def overheads(self) -> Overheads:
        return alpha_overheads(self.alpha)

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, in which each step takes `scale` times as long. Raises ConfigError for steps above an hour."""
        b0, b1, b2 = (b * scale for b in self.beta)
        if max(b0, b1, b2) > HOUR:
            raise ConfigError(f"latency_scale {scale:g} makes of beta {self.beta} more than {HOUR:g} µs, an hour")
        return LinearSteps(b0, b1, b2, self.overheads)


LATENCY_MODELS.register("blackbox")(LinearLatency)
