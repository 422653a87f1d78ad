"""What a latency model may be wrong by: a draw for each seed.

    latency_scale = stated scale · max(0.05, 1 + latency_error · z)          z ~ N(0, 1), by Box and Muller

`latency_error` is the relative standard deviation that `maitred calibrate` found. z comes from a stream that is named after the
seed, the latency model, the model and the hardware: candidates that share these are wrong together, and what they differ in
does not drown in it; others are wrong each on their own. How instances are run (parallelism, batches) does not change the
stream, for it is the same model that errs.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

import msgspec

from maitred.instance import InstanceConfig

_MIN_FACTOR: Final = 0.05
_IDENTITY_KEYS: Final = ("model", "model_config_folder", "hardware", "hardware_config", "latency")


def draw_latency_scale(instance: InstanceConfig, seed: int) -> float:
    """The `latency_scale` of one run. `instance` as it was said, before the catalogue has filled it."""
    if not instance.latency_error:
        return instance.latency_scale
    uniform = Random(f"{seed}/latency_error/{latency_identity(instance)}").random
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform()))
    z = radius * math.cos(2.0 * math.pi * uniform())
    return instance.latency_scale * max(_MIN_FACTOR, 1.0 + instance.latency_error * z)


def latency_identity(instance: InstanceConfig) -> str:
    """The same for instances whose step times come from the same latency model of the same model on the same hardware."""
    said = {name: getattr(instance, name) for name in _IDENTITY_KEYS}
    for name in ("model", "hardware"):
        said[name] = said[name].lower()
    return msgspec.json.encode(said).decode()
