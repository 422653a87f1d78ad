"""How a latency is distributed: its mean and percentiles, exactly from all values, or nearly from a sketch of them.

Percentiles interpolate linearly between the two nearest ranks, as numpy and BLIS do.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.sketch import Sketch

_PERCENTILES = (50, 90, 95, 99)


class Spread(msgspec.Struct, frozen=True):
    """How a latency is distributed, in µs."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def spread(latencies: NDArray[Any]) -> Spread | None:
    """Of all these values, in µs; None: of none."""
    if not len(latencies):
        return None
    return Spread(float(latencies.mean()), *np.percentile(latencies, _PERCENTILES).tolist())


def sketched(sketch: Sketch) -> Spread | None:
    """Of the values of `sketch`: the mean exactly, percentiles within half a percent."""
    if not sketch.count:
        return None
    return Spread(sketch.mean, *map(sketch.percentile, _PERCENTILES))
