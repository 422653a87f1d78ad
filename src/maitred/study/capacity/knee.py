"""The knee: the figure that binds, over the rate, at the size of each option.

The figure that binds is that of the constraint which is violated most at the lowest rate that does not hold. Of a share within
the SLO it is the latency whose percentile is farthest beyond its target there, the p99 for 99 %: the share itself stays at
100 % until the knee and does not show how near that is. The line across is the constraint, or the target of the SLO.

    slo_attainment >= 0.99, TTFT ≤ 500 ms, TPOT ≤ 50 ms: at 31/s the p99 of TTFT is 180 ms, that of TPOT 52 ms. TPOT p99 binds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import msgspec

from maitred.report.panels import Group, LimitLine, Point, Scatter, spans_decades
from maitred.report.slo import Slo, Targets
from maitred.study.capacity.points import CapacityOption, KneePoint
from maitred.study.metrics import Better, Constraint, find_metric, metric_label

_ATTAINMENT: Final = "slo_attainment"
_PERCENTILES: Final = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p999"}
_LATENCIES: Final = ("ttft", "tpot", "e2e")


class Binding(msgspec.Struct, frozen=True):
    """A figure that may bind, and the line that it must not cross."""

    metric: str
    limit: float
    line: str
    """What the line is called."""
    is_upper: bool

    def excess(self, point: KneePoint) -> float:
        """Return by which share of the limit a point is beyond it, or -inf without the figure."""
        value = point.figures.get(self.metric)
        if value is None:
            return -inf
        over = value - self.limit if self.is_upper else self.limit - value
        return over / (abs(self.limit) or 1.0)


def bindings(constraints: Sequence[Constraint], slo: Slo) -> list[Binding]:
    """Return the figures that may bind: those of the constraints, and for a share within the SLO its latencies."""
    return [found for each in constraints for found in _bindings(each, slo)]


def _bindings(constraint: Constraint, slo: Slo) -> Iterator[Binding]:
    group, _, plain = constraint.metric.rpartition(".")
    percentile = _PERCENTILES.get(constraint.limit)
    targets = [(name, target) for name in _LATENCIES if (target := _target(slo, group, name)) is not None]
    if plain != _ATTAINMENT or percentile is None or not targets:
        yield Binding(constraint.metric, constraint.limit, "constraint", constraint.better is Better.LOWER)
        return
    for name, target in targets:
        yield Binding(f"{group}{'.' if group else ''}{name}_{percentile}_ms", target, "SLO", is_upper=True)


def _target(slo: Slo, group: str, latency: str) -> float | None:
    own: Targets | None = slo.classes.get(group)
    of_class: float | None = None if own is None else getattr(own, f"{latency}_ms")
    for_all: float | None = getattr(slo, f"{latency}_ms")
    return for_all if of_class is None else of_class


def find_binding(options: Sequence[CapacityOption], best: CapacityOption | None, candidates: Sequence[Binding]) -> Binding:
    """Return the figure that binds the best option, or the first one that has points."""
    shown = [each for each in (best, *options) if each is not None and each.knee]
    points = shown[0].knee if shown else []
    failing = [point for point in points if not point.holds]
    at = (failing or points[-1:])[:1]
    return max(candidates, key=lambda each: max((each.excess(point) for point in at), default=-inf))


def knee_scatter(
    options: Sequence[CapacityOption], best: CapacityOption | None, candidates: Sequence[Binding], today: float
) -> Scatter:
    """Return the figure that binds over the rate of each option at the size that it needs today. Filled points hold.

    `candidates` are the figures that may bind, `today` is today's rate."""
    binding = find_binding(options, best, candidates)
    name = metric_label(binding.metric)
    groups = [
        Group(label=option_label(option), points=tuple(_points(option, binding)), line="straight")
        for option in options
        if any(binding.metric in point.figures for point in option.knee)
    ]
    factor = 100 if find_metric(binding.metric).is_share else 1
    return Scatter(
        title=f"{name} over the rate",
        about=f"{name} over the rate of {len(groups)} options. Filled points hold the constraints, hollow ones do not.",
        x="requests/s",
        y=f"{name} %" if factor > 1 else name,
        groups=tuple(groups),
        limits=(
            LimitLine(label=binding.line, axis="y", at=binding.limit * factor),
            LimitLine(label="today", axis="x", at=today),
        ),
        log_y=spans_decades([point.y for group in groups for point in group.points]),
    )


def option_label(option: CapacityOption) -> str:
    """Return the name of an option at its size."""
    return f"{option.shape or option.instances} × {option.hardware or 'instance'}, TP {option.tensor_parallel_size}"


def _points(option: CapacityOption, binding: Binding) -> Iterator[Point]:
    factor = 100 if find_metric(binding.metric).is_share else 1
    for each in option.knee:
        height = each.figures.get(binding.metric)
        if height is not None:
            why = (
                "holds"
                if each.holds
                else "does not hold"
                if each.lasts
                else "does not last: its queue grows, or it is beyond the limit of the latency model"
            )
            yield Point(x=each.rate, y=height * factor, hollow=not each.holds, text=why)
