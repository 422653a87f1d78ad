"""Service level objectives: latency targets for all requests and for classes.

A request meets its SLO if it completed within every target that applies to it. A request without a TTFT, because none of its
tokens was seen, meets no TTFT target. A single token has no gap, so it meets any TPOT target, and so do tokens that come at
once. A target of a class replaces the target for all, each latency by itself. The class of a request is its SLO class if it
names one, and otherwise its priority class:

    Slo(ttft_ms=500, classes={"batch": Targets(ttft_ms=60_000)})    # a minute for batch, half a second for all others
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from maitred.core.request import PriorityClass
from maitred.core.units import Micros, from_ms
from maitred.report.latencies import Times, came_at_once, request_times
from maitred.sim import Outcome, Results
from maitred.workload import Trace, Workload

Mask = npt.NDArray[np.bool_]

_LONGEST_MS: Final = 1e14
_NO_CLASSES: Final[Mapping[str, Targets]] = MappingProxyType({})


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latency targets in ms; None means no target. Raises ValueError for one that is no time from 1 µs up."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int | float) or not 0 < value <= _LONGEST_MS or not from_ms(value):
                raise ValueError(f"{name} must be a number of milliseconds from 0.001 up, not {value!r}")

    @property
    def ttft(self) -> Micros | None:
        """The target for the TTFT in µs."""
        return _us(self.ttft_ms)

    @property
    def tpot(self) -> Micros | None:
        """The target for the TPOT in µs."""
        return _us(self.tpot_ms)

    @property
    def e2e(self) -> Micros | None:
        """The target for the E2E latency in µs."""
        return _us(self.e2e_ms)

    def __bool__(self) -> bool:
        return (self.ttft_ms, self.tpot_ms, self.e2e_ms) != (None, None, None)


class Slo(Targets, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets for all requests, and for classes that have their own."""

    classes: Mapping[str, Targets] = _NO_CLASSES

    def __bool__(self) -> bool:
        return super().__bool__() or any(self.classes.values())


DEFAULT_SLO = Slo(ttft_ms=2_000, tpot_ms=200)
"""The SLO if none is stated: what MLPerf Inference asks of its "server" scenario with Llama 2 70B."""


def workload_targets(workload: Workload | Trace | None) -> dict[str, Targets]:
    """Return the targets that the workload itself states, by class."""
    stated = {} if workload is None else workload.goodput_slo_targets
    return {name: Targets(ttft_ms=of.ttft_ms, tpot_ms=of.itl_ms, e2e_ms=of.e2e_ms) for name, of in stated.items()}


def _us(milliseconds: float | None) -> Micros | None:
    return None if milliseconds is None else from_ms(milliseconds)


def meets_slo(results: Results, slo: Slo) -> Mask:
    """Return which requests meet their SLO."""
    times = request_times(results)
    met: Mask = (
        (results.outcome == Outcome.COMPLETED)
        & _within(times.ttft, "ttft", results, slo)
        & _within(np.where(came_at_once(results), 0.0, times.tpot), "tpot", results, slo)
        & _within(times.e2e, "e2e", results, slo)
    )
    return met


def classes_without_requests(results: Results, slo: Slo) -> list[str]:
    """Return the classes that have targets and no request. Their names may be misspelled."""
    return [name for name in slo.classes if not _members(results, name).any()]


def _within(latency: Times, target: str, results: Results, slo: Slo) -> Mask:
    for_all: Micros | None = getattr(slo, target)
    limits = np.full(len(results), np.inf if for_all is None else for_all)
    # SLO classes come last, because the class that a request names itself counts more than its priority class.
    for name, targets in sorted(slo.classes.items(), key=lambda item: PriorityClass.from_label(item[0]) is None):
        of_class: Micros | None = getattr(targets, target)
        if of_class is not None:
            limits[_members(results, name)] = of_class
    within: Mask = (latency <= limits) | np.isinf(limits)  # No latency is NaN, which is within nothing.
    return within


def _members(results: Results, name: str) -> Mask:
    """Return which requests are of a class. A priority class has only those that name no SLO class."""
    of_slo = results.slo_class == results.slo_classes.index(name) if name in results.slo_classes else None
    priority_class = PriorityClass.from_label(name)
    if priority_class is None:
        return np.zeros(len(results), dtype=np.bool_) if of_slo is None else of_slo
    of_class = (results.priority_class == priority_class) & (results.slo_class == 0)
    both: Mask = of_class if of_slo is None else of_class | of_slo
    return both
