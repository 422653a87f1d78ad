"""Measured step times, as tables: what the latency model `table` looks up."""

from __future__ import annotations

import msgspec

from maitred.instance.latency.grids import NOTHING, Curve, Grid, check_increasing, check_times
from maitred.instance.latency.skew import Skew


class StepTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the parts of a step take: see `table`. Raises ValueError for tables that cannot be."""

    tokens: Curve = NOTHING
    """By the tokens of one rank."""
    sequences: Curve = NOTHING
    """By the sequences of one rank."""
    all_tokens: Curve = NOTHING
    """By the tokens of all ranks."""
    decode: Grid = Grid(((0.0,), (0.0,)), (0.0,))
    """By sequences and context per sequence."""
    mixed: Grid = Grid(((0.0,), (0.0,), (0.0,), (0.0,)), (0.0,))
    """By tokens of prefill, tokens before them, sequences that decode, and context per sequence of these."""
    data_parallel_size: int = 1
    """Ranks among which the sequences of an instance are spread."""
    skew: Skew | None = None
    """What unequal contexts cost in `decode`; None: nothing."""
    source: str = ""
    """Where the measurements are from."""

    def __post_init__(self) -> None:
        for curve in (self.tokens, self.sequences, self.all_tokens):
            check_increasing([x for x, _ in curve], "a curve")
            check_times([us for _, us in curve])
        if len(self.decode.axes) != 2 or len(self.mixed.axes) != 4:
            raise ValueError(f"decode has 2 axes and mixed 4, not {len(self.decode.axes)} and {len(self.mixed.axes)}")
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size must be at least 1, not {self.data_parallel_size}")
