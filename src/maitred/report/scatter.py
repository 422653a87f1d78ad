"""Scatter: points in groups: candidates in a Pareto plot, rates on both sides of a knee, differences with their intervals.
`figure` draws it with matplotlib, `page` as HTML.

A point may have an interval along x, and a text that its tooltip shows. The points of a group may be joined by a line. Instead
of numbers the y axis may have names, one for each whole number from 0 on, downwards.

    Scatter("Pareto front", x="GPUs", y="TTFT p99 ms", groups=(Group(label="candidates", points=(Point(x=2, y=812.0),)),))
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_MAX_LINEAR_RATIO = 20
"""Largest ratio of the greatest to the least value on a linear y axis."""


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A point. `low` and `high` are the ends of its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    text: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one colour."""

    label: str
    points: tuple[Point, ...]
    line: str = ""
    """How they are joined: "straight", "steps" or not at all."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A line across the picture."""

    label: str
    axis: str
    """The axis on which it stands: "x" or "y"."""
    at: float


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """A picture."""

    title: str
    about: str
    """A description in words, for screen readers."""
    x: str
    y: str
    groups: tuple[Group, ...]
    limits: tuple[Limit, ...] = ()
    names: tuple[str, ...] = ()
    """The names on the y axis, if it has no numbers."""
    log_y: bool = False


def spans_decades(heights: Sequence[float]) -> bool:
    """Return whether the least of `heights` could not be seen beside the greatest on a linear axis."""
    return bool(heights) and min(heights) > 0 and max(heights) > _MAX_LINEAR_RATIO * min(heights)
