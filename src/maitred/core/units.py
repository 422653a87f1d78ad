"""Time is an integer number of microseconds inside; seconds and milliseconds exist only at the edge.

This is the one place where they become each other. Integers make two runs equal byte for byte, and let k equal steps be
added up exactly.
"""

from __future__ import annotations

from typing import TypeAlias

Micros: TypeAlias = int

SECOND: Micros = 1_000_000
MILLISECOND: Micros = 1_000


def from_seconds(seconds: float) -> Micros:
    """Seconds to the nearest microsecond. Raises OverflowError or ValueError for inf and nan."""
    return round(seconds * SECOND)


def to_seconds(span: Micros) -> float:
    return span / SECOND


def from_ms(milliseconds: float) -> Micros:
    """Milliseconds to the nearest microsecond. Raises OverflowError or ValueError for inf and nan."""
    return round(milliseconds * MILLISECOND)


def to_ms(span: Micros | float) -> float:
    return span / MILLISECOND
