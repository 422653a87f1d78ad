"""Linear interpolation between the points of grids: one flat sequence of values, of which the last axis varies fastest.

Two and three axes are written out, as every step with a prompt asks for one of each. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

Axis: TypeAlias = tuple[float, ...]
"""Points in increasing order."""


def locate(axis: Axis, x: float) -> tuple[int, float]:
    """Return the index of the point before `x`, and the share of the way to the next one; above 1 after the last point."""
    if x <= axis[0] or len(axis) == 1:
        return 0, 0.0
    index = min(bisect_right(axis, x), len(axis) - 1) - 1
    return index, (x - axis[index]) / (axis[index + 1] - axis[index])


def interpolate(axes: tuple[Axis, ...], values: tuple[float, ...], point: Sequence[float]) -> float:
    """Return the value at a point, which has one number for each axis."""
    if len(axes) == 2:
        return _on_plane(axes[0], axes[1], values, 0, point[0], point[1])
    if len(axes) == 3:
        index, share = locate(axes[0], point[0])
        stride = len(axes[1]) * len(axes[2])
        value = _on_plane(axes[1], axes[2], values, index * stride, point[1], point[2])
        if share == 0.0:
            return value
        return value * (1 - share) + share * _on_plane(axes[1], axes[2], values, (index + 1) * stride, point[1], point[2])
    terms, stride = [(0, 1.0)], len(values)
    for axis, x in zip(axes, point, strict=True):
        stride //= len(axis)
        index, share = locate(axis, x)
        upper = [(offset + (index + 1) * stride, weight * share) for offset, weight in terms] if share else []
        terms = [(offset + index * stride, weight * (1 - share)) for offset, weight in terms] + upper
    return sum([values[offset] * weight for offset, weight in terms])


def _on_plane(rows: Axis, columns: Axis, values: tuple[float, ...], offset: int, x: float, y: float) -> float:
    """Return the value at (`x`, `y`) of the plane whose values begin at `offset`."""
    row, down = locate(rows, x)
    column, right = locate(columns, y)
    width = len(columns)
    first = offset + row * width + column
    value = values[first]
    if right:
        value += (values[first + 1] - value) * right
    if not down:
        return value
    below = values[first + width]
    if right:
        below += (values[first + width + 1] - below) * right
    return value + (below - value) * down
