"""The latency model `linear`: a step takes a fixed time, and a time for each token."""

from __future__ import annotations

from math import isfinite

from maitred.core.contracts import LatencyModel, Overheads
from maitred.core.errors import ConfigError
from maitred.core.units import SECOND
from maitred.instance.latency.base import LATENCY_MODELS, LatencyConfig
from maitred.instance.latency.linear_steps import LinearSteps

_HOUR = 3600 * SECOND


@LATENCY_MODELS.register("linear")
class LinearLatency(LatencyConfig, frozen=True, tag="linear"):
    """β0 + β1 · prefill tokens + β2 · decode tokens, in µs. A step is truncated to whole µs, at least 1 (BLIS `blackbox`)."""

    beta: tuple[float, float, float] = (5000.0, 17.5, 60.0)
    """β0, β1 and β2 in β0 + β1 · prefill tokens + β2 · decode tokens, in µs."""
    alpha: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """α0, α1 and α2 in µs: a request takes α0 + α1 · prompt tokens to reach the wait queue, and each output token takes α2 to
    reach the client. The engine is not held up by either."""

    def __post_init__(self) -> None:
        for name in ("beta", "alpha"):
            numbers = getattr(self, name)
            if not all(isfinite(x) and 0 <= x <= _HOUR for x in numbers):
                raise ValueError(f"{name} must be three numbers from 0 to {_HOUR:g} (µs: an hour), not {numbers}")

    @property
    def overheads(self) -> Overheads:
        a0, a1, a2 = self.alpha
        return Overheads(queueing=a0, queueing_per_token=a1, per_output_token=int(a2))

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, in which each step takes `scale` times as long. Raises ConfigError for steps above an hour."""
        b0, b1, b2 = (b * scale for b in self.beta)
        if max(b0, b1, b2) > _HOUR:
            raise ConfigError(f"latency_scale {scale:g} makes of beta {self.beta} more than {_HOUR:g} µs, an hour")
        return LinearSteps(b0, b1, b2, self.overheads)


LATENCY_MODELS.register("blackbox")(LinearLatency)
