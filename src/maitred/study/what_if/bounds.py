"""Bounds that other rules must keep, for CI: absolute ones, and ones relative to the rules of the recording.

interactive.ttft_p99_ms <= 500        at most 500 ms
bulk.makespan_s <= 110%               at most 1.1 times as long as the same traffic takes under today's rules
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from maitred.core.errors import ConfigError
from maitred.study.metrics import Better
from maitred.study.what_if.figures import Figure, find_figure

_BOUND: Final = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=)\s*([0-9.]+)\s*(%?)\s*")
_WHERE: Final = "--constraint"


class Bound(msgspec.Struct, frozen=True):
    """A bound on a figure."""

    text: str
    figure: Figure
    better: Better
    """LOWER: at most `limit`."""
    limit: float
    """In the unit of the figure, or as a share of that of today."""
    is_relative: bool

    def holds(self, today: float | None, other: float | None) -> bool:
        """Return whether it is kept. A figure that is missing keeps none."""
        if other is None or (self.is_relative and today is None):
            return False
        limit = self.limit * (today or 0.0) if self.is_relative else self.limit
        return other <= limit if self.better is Better.LOWER else other >= limit


def parse_bound(text: str) -> Bound:
    """Return the bound that a text states. Raises ConfigError."""
    parts = _BOUND.fullmatch(text)
    try:
        limit = float(parts[3]) if parts else 0.0
    except ValueError:
        parts = None
    if parts is None:
        hint = "write it as interactive.ttft_p99_ms <= 500, or bulk.makespan_s <= 110%"
        raise ConfigError(f"cannot read {text!r}", where=_WHERE, hint=hint)
    better = Better.LOWER if parts[2] == "<=" else Better.HIGHER
    is_relative = bool(parts[4])
    return Bound(text, find_figure(parts[1], _WHERE), better, limit / 100 if is_relative else limit, is_relative)
