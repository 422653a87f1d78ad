"""How a latency is distributed: its mean and percentiles, exactly from all values, or nearly from a histogram.

Percentiles interpolate linearly between the two nearest ranks, as numpy and BLIS do.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

PERCENTILES = (50, 90, 95, 99)


class Spread(msgspec.Struct, frozen=True):
    """How a latency is distributed, in µs."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def spread(latencies: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Spread | None:
    """Of all these values, in µs; None: of none."""
    if not len(latencies):
        return None
    p50, p90, p95, p99 = np.percentile(latencies, PERCENTILES)
    return Spread(float(latencies.mean()), float(p50), float(p90), float(p95), float(p99))
