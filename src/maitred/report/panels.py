"""What there is to be seen of a run: panels of curves, drawn by whoever can draw (`figure` with matplotlib, `page` as HTML).

Curves are thinned to what an eye can tell apart, so that a million requests make no larger a picture than a thousand.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.report.breakdown import By, groups
from maitred.report.slo import Slo
from maitred.report.wording import number
from maitred.sim import Outcome, Results
from maitred.units import MILLISECOND, Micros

Floats: TypeAlias = NDArray[np.float64]

_RANKS = np.concatenate([np.linspace(0, 0.9, 110), np.linspace(0.9, 0.99, 30)[1:], np.linspace(0.99, 1, 22)[1:]])
"""At which the curve of a distribution is drawn: closely where the tail is."""
_ALL = "all"
_NEAR = 4
"""A target further off than so many times the largest value is not shown: there would be nothing else to see."""


class Curve(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A line through points, perhaps with a band around it."""

    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


class Panel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A chart."""

    title: str
    about: str
    """What it says, for those who do not see it."""
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    shares: bool = False
    """The values are shares from 0 to 1, to be shown in percent."""
    target: float | None = None
    """What the SLO asks of all, on the x axis."""


def latencies(results: Results, slo: Slo) -> list[Panel]:
    """How TTFT, TPOT and E2E are distributed in each class, as far as any request has one."""
    classes = [*groups(results, By.CLASS)]
    parts = classes if len(classes) > 1 else [(_ALL, results)]
    panels = []
    for name, about, of, target in (
        ("TTFT", "time to first token", _ttft, slo.ttft),
        ("TPOT", "time per output token", _tpot, slo.tpot),
        ("E2E", "time to last token", _e2e, slo.e2e),
    ):
        curves = tuple(_distribution(label, of(part)) for label, part in parts if len(of(part)))
        if curves:
            panels.append(
                Panel(
                    title=f"{name}, {about}",
                    about=f"Distribution of {name}. {'; '.join(map(_in_words, curves))}.",
                    x_label="ms",
                    y_label="requests within",
                    curves=curves,
                    log_x=True,
                    shares=True,
                    target=_near(target, curves),
                )
            )
    return panels


def _ttft(results: Results) -> Floats:
    return np.asarray((results.first_token - results.arrival)[results.first_token >= 0] / MILLISECOND)


def _tpot(results: Results) -> Floats:
    several = (results.outcome == Outcome.COMPLETED) & (results.output_tokens > 1)
    gaps = (results.output_tokens - 1)[several]
    return np.asarray((results.finished - results.first_token)[several] / gaps / MILLISECOND)


def _e2e(results: Results) -> Floats:
    return np.asarray((results.finished - results.arrival)[results.outcome == Outcome.COMPLETED] / MILLISECOND)


def _distribution(label: str, values: Floats) -> Curve:
    return Curve(label=label, x=np.quantile(values, _RANKS), y=_RANKS)


def _near(target: Micros | None, curves: tuple[Curve, ...]) -> float | None:
    """In ms."""
    if target is None or target / MILLISECOND > _NEAR * max(float(curve.x[-1]) for curve in curves):
        return None
    return max(target / MILLISECOND, 1 / MILLISECOND)


def _in_words(curve: Curve) -> str:
    return f"{curve.label}: half within {_within(curve, 0.5)}, 99 % within {_within(curve, 0.99)}"


def _within(curve: Curve, rank: float) -> str:
    return f"{number(float(np.interp(rank, curve.y, curve.x)))} ms"
