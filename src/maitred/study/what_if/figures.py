"""Figures of a replayed run, by name: those of `study.metrics` that follow from when requests came, began and ended.

    ttft_p99_ms, e2e_mean_ms, ...     of all requests, of those that have one
    completed_requests, ...           counts by outcome
    makespan_s                        from the first arrival to the last end

In front of a name may stand a class or a tenant: `interactive.ttft_p99_ms`, `auth:acme.makespan_s`. Classes are those that the
requests had when they were recorded, so that a group has the same requests under all rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, SECOND
from maitred.sim import Outcome
from maitred.study.metrics import RUN_METRICS, Better, Metric
from maitred.study.what_if.recorded import RecordedRequest
from maitred.study.what_if.world import Floats, ReplayedRun, ReplayWorld

_QUANTILES: Final[Mapping[str, float | None]] = {"mean": None, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_COUNTS: Final[Mapping[str, frozenset[Outcome]]] = {
    "completed_requests": frozenset({Outcome.COMPLETED}),
    "rejected_requests": frozenset({Outcome.REJECTED, Outcome.PREEMPTED, Outcome.REFUSED}),
    "timed_out_requests": frozenset({Outcome.TIMED_OUT}),
    "failed_requests": frozenset({Outcome.FAILED, Outcome.ABORTED, Outcome.UNFINISHED}),
}
MAKESPAN: Final = "makespan_s"
_LATENCIES: Final = [f"{name}_{which}_ms" for name in ("ttft", "e2e") for which in _QUANTILES]
METRICS: Final[Mapping[str, Metric]] = {
    **{name: RUN_METRICS[name] for name in _LATENCIES},
    **{name: RUN_METRICS[name] for name in _COUNTS if name in RUN_METRICS},
    "failed_requests": Metric("failed", Better.LOWER),
    MAKESPAN: Metric("makespan s", Better.LOWER),
}
"""The figures that a replayed run has."""


class Figure(msgspec.Struct, frozen=True):
    """A figure by its parts."""

    name: str
    """As it was written."""
    group: str
    """A class or a tenant; empty: all requests."""
    plain: str
    """A key of `METRICS`."""

    @property
    def metric(self) -> Metric:
        return METRICS[self.plain]

    @property
    def quantile(self) -> float | None:
        """Which quantile of a latency it is; None for a mean, and for what is no latency."""
        return _QUANTILES.get(self.plain.split("_")[1])

    @property
    def is_latency(self) -> bool:
        return self.plain in _LATENCIES

    @property
    def is_count(self) -> bool:
        return self.plain in _COUNTS

    def values(self, run: ReplayedRun) -> Floats:
        """Return the figure's values by request: a latency in ms, or 1 for a request that counts. Not for the makespan."""
        if self.is_latency:
            return (run.ttft if self.plain.startswith("ttft") else run.e2e) / MILLISECOND
        return np.isin(run.outcome, [int(each) for each in _COUNTS[self.plain]]).astype(np.float64)

    def of(self, run: ReplayedRun, rows: NDArray[np.bool_]) -> float | None:
        """Return its value for the requests `rows`, or None if none has one. Percentiles interpolate between ranks."""
        if self.plain == MAKESPAN:
            arrival, ended = run.arrival[rows], run.ended[rows]
            return None if np.isnan(ended).all() else float(np.nanmax(ended) - np.nanmin(arrival)) / SECOND
        values = self.values(run)[rows]
        if not self.is_latency:
            return float(values.sum())
        values = values[~np.isnan(values)]
        if not len(values):
            return None
        return float(values.mean() if self.quantile is None else np.quantile(values, self.quantile))

    def of_several(self, runs: Sequence[ReplayedRun], rows: NDArray[np.bool_]) -> float | None:
        """Return the median of its values in the runs that have one, or None if none has."""
        values = [value for run in runs if (value := self.of(run, rows)) is not None]
        return median(values) if values else None


class Groups:
    """The classes and tenants of recorded requests."""

    def __init__(self, requests: Sequence[RecordedRequest]) -> None:
        given = np.array([each.given for each in requests], dtype=np.int8)
        self.classes = {kind.label: given == kind for kind in reversed(PriorityClass) if (given == kind).any()}
        names, codes = np.unique([each.tenant for each in requests], return_inverse=True)
        sizes = np.bincount(codes)
        order = sorted(range(len(names)), key=lambda i: -sizes[i])
        self.tenants = {str(names[i]): codes == i for i in order if names[i]}
        """The one with the most requests first."""
        self._all = np.ones(len(requests), dtype=bool)

    def rows(self, group: str) -> NDArray[np.bool_]:
        """Return which requests are of a class or tenant, or all for an empty name. Raises ConfigError for another name."""
        if not group:
            return self._all
        found: NDArray[np.bool_] | None = self.classes.get(group, self.tenants.get(group))
        if found is None:
            hint = nearest_name_hint(group, {*self.classes, *self.tenants})
            raise ConfigError(f"no recorded request is of the class or tenant {group!r}", hint=hint)
        return found


def find_figure(name: str, where: str = "") -> Figure:
    """Return the figure of this name. Raises ConfigError with the nearest one."""
    group, _, plain = name.rpartition(".")
    if plain not in METRICS:
        hint = nearest_name_hint(plain, METRICS)
        raise ConfigError(f"there is no figure {plain!r} of a replay", where=where, hint=hint)
    return Figure(name, group, plain)


def figures(run: ReplayedRun, world: ReplayWorld, names: Iterable[str]) -> dict[str, float | None]:
    """Return these figures of a run by name, None where no request has one. Raises ConfigError for a name that there is not."""
    groups = Groups(world.recorded.requests)
    return {name: (found := find_figure(name)).of(run, groups.rows(found.group)) for name in names}
