"""How far the latency model of an instance is off, by what others have published."""

from __future__ import annotations

from math import pi, sqrt

from maitred.catalogue.resolving import deployment
from maitred.instance import InstanceConfig
from maitred.instance.latency import TrainedPhysicsLatency

_SPREAD = sqrt(pi / 2)
"""Standard deviation of a normal error, by its mean size."""


def published_error(config: InstanceConfig) -> float | None:
    """For `latency_error`, where it does not say; None where nothing is published.

    Known of `trained-physics` alone, with the coefficients that are shipped, on the GPUs for which BLIS reports the error of
    E2E latency: what a run as a whole is off by, as one draw of `latency_error` is. Raises ConfigError for unknown names.
    """
    if not (config.model or config.model_config_folder):
        return None
    latency = TrainedPhysicsLatency() if config.latency is None else config.latency
    if not isinstance(latency, TrainedPhysicsLatency) or not latency.shipped:
        return None
    return round(_SPREAD * deployment(config).hardware.trained_physics_error, 4) or None
