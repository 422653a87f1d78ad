"""Latency models: their registry, and the base classes of those with keys in files and of those that answer step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Protocol, Self

import msgspec
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, LatencyModel, Overheads
from maitred.core.registry import Registry
from maitred.core.units import Micros
from maitred.instance.latency.deployment import Deployment
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
    defaults={Deployment | None: None, StepTable | None: None},
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

    Its constructor takes what users write: `--latency-model "my_package:Mine(a=1)"`. A model whose steps are straight lines in
    the context need not make them: see `affine`.
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
