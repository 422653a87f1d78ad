"""Time is an integer number of microseconds inside; seconds and milliseconds exist only in input and output.

This module is the only place that converts between them. With integers, two runs are equal byte for byte, and k equal steps add
up exactly.
"""

from __future__ import annotations

from typing import TypeAlias

Micros: TypeAlias = int

SECOND: Micros = 1_000_000
MILLISECOND: Micros = 1_000


def from_seconds(seconds: float) -> Micros:
    """Return `seconds` as the nearest microsecond. Raises OverflowError or ValueError for inf and nan."""
    return round(seconds * SECOND)


def to_seconds(span: Micros) -> float:
    """Return `span` in seconds."""
    return span / SECOND


def from_ms(milliseconds: float) -> Micros:
    """Return `milliseconds` as the nearest microsecond. Raises OverflowError or ValueError for inf and nan."""
    return round(milliseconds * MILLISECOND)


def to_ms(span: Micros | float) -> float:
    """Return `span` in milliseconds."""
    return span / MILLISECOND
