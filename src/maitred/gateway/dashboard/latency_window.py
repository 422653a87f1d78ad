"""TTFT by class over the last ten minutes, from the histograms that requests are counted in anyway (`request_metrics`).

Every ten seconds the counts of all classes are kept, 61 times. The difference of two is what came between them, and has a
percentile, interpolated within the bucket in which it lies. So a request costs nothing for this, and the window is there as
soon as somebody looks. It is as exact as the buckets are: a p99 of 700 ms lies anywhere from 500 to 1,000 ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from maitred.core.histogram import DURATION_BOUNDS
from maitred.core.units import Micros, from_seconds, to_ms, to_seconds

INTERVAL: Final = from_seconds(10)
"""Between two looks at the counts."""
_LOOKS: Final = 61


class LatencyPoint(msgspec.Struct, frozen=True):
    """The requests of one class whose first token came within one interval."""

    count: int
    p50_ms: float
    p99_ms: float


class LatencyWindow:
    """Keeps the counts of the last ten minutes."""

    def __init__(self, counts: Callable[[], Mapping[str, Sequence[int]]]) -> None:
        """`counts` returns for each class how many values each bucket of `DURATION_BOUNDS` has, and the one beyond."""
        self._counts = counts
        self._looks: deque[tuple[Micros, Mapping[str, Sequence[int]]]] = deque(maxlen=_LOOKS)

    def look(self, now: Micros) -> None:
        """Keep the counts of `now`."""
        self._looks.append((now, self._counts()))

    def points(self) -> dict[str, dict[str, LatencyPoint]]:
        """Return the points of each class, by the second at which their interval ended; those without requests are left out."""
        found: dict[str, dict[str, LatencyPoint]] = {}
        looks = list(self._looks)
        for (_, before), (at, after) in pairwise(looks):
            for label, counts in after.items():
                former = before.get(label, (0,) * len(counts))
                new = [max(0, n - earlier) for n, earlier in zip(counts, former, strict=True)]
                if any(new):
                    point = LatencyPoint(sum(new), percentile_ms(new, 0.5), percentile_ms(new, 0.99))
                    found.setdefault(label, {})[f"{to_seconds(at):.0f}"] = point
        return found


def percentile_ms(counts: Sequence[int], share: float) -> float:
    """Return the value below which this share of the counted values lies, in ms, as if those of a bucket were spread evenly
    over it. The bucket beyond the last bound ends at twice that. Raises ValueError without values."""
    wanted, so_far, lower = share * sum(counts), 0, 0
    for bound, count in zip((*DURATION_BOUNDS, 2 * DURATION_BOUNDS[-1]), counts, strict=True):
        if count and so_far + count >= wanted:
            return round(to_ms(lower + (bound - lower) * (wanted - so_far) / count), 1)
        so_far, lower = so_far + count, bound
    raise ValueError("of no values there is no percentile")
