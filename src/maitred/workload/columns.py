"""Columns: arrivals and lengths drawn many at a time, the same numbers as one draw after the other gives.

A workload of a million requests draws five million numbers, and drawn one by one they take a fifth of the time of its run.
numpy computes what IEEE 754 prescribes to the last bit (+, ·, √, rounding). Logarithms and cosines come from `math` element by
element, since numpy's own differ from them in the last bit, and from one processor to another.

Only distributions that are known here are drawn in columns, by their exact type: a subclass may draw otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maitred.core.units import Micros
from maitred.workload.arrivals import ArrivalProcess, PoissonArrivals
from maitred.workload.lengths import MAX_TOKENS, ClampedNormalLength, LengthDistribution, NormalLength

Floats: TypeAlias = NDArray[np.float64]

ROWS: Final = 1024
"""Rows of a column. The jobs that are made of them fit into the second cache of a core."""
_LATEST: Final = float(1 << 62)
"""The latest arrival that a column holds, later than any that a simulation takes."""


def uniforms(rng: Random, count: int) -> Floats:
    """Return what the next `count` calls of `rng.random()` would, and leave `rng` as they would."""
    # Each call takes two words of the Mersenne Twister, 27 bits of the first and 26 of the second (genrand_res53). `randbytes`
    # gives the words in order.
    words = np.frombuffer(rng.randbytes(8 * count), dtype="<u4")
    return ((words[0::2] >> 5) * 67108864.0 + (words[1::2] >> 6)) / 9007199254740992.0


def standard_normals(rng: Random, count: int) -> Floats:
    """Return what the next `count` calls of `lengths.standard_normal` would."""
    draws = uniforms(rng, 2 * count)
    return np.sqrt(-2.0 * _map(math.log, 1.0 - draws[0::2])) * _map(math.cos, math.tau * draws[1::2])


def draw_lengths(lengths: LengthDistribution, rng: Random, count: int) -> list[int]:
    """Return what the next `count` calls of `lengths.draw` would."""
    if type(lengths) is NormalLength:
        return _rounded(lengths.mean + lengths.deviation * standard_normals(rng, count), 1, MAX_TOKENS)
    if type(lengths) is ClampedNormalLength:
        drawn = lengths.mean + lengths.deviation * standard_normals(rng, count)
        return _rounded(np.clip(drawn, lengths.low, lengths.high), 1, MAX_TOKENS)
    draw, uniform = lengths.draw, rng.random
    return [draw(uniform) for _ in range(count)]


def draw_arrivals(process: ArrivalProcess, rng: Random, mean_gap: float, count: int) -> Iterator[list[Micros]]:
    """Yield the instants of `count` arrivals, or of all that `process` has, by columns. `mean_gap` is in µs."""
    gaps, last = process.gaps(rng.random, count), 0.0
    for first in range(0, count, ROWS):
        rows = min(ROWS, count - first)
        if type(process) is PoissonArrivals:
            column = -_map(math.log, 1.0 - uniforms(rng, rows))
        else:
            column = np.fromiter(islice(gaps, rows), np.float64)
        # The sum is one of floats, and rounded only here: gaps below a microsecond keep their mean. numpy adds up in order.
        instants = np.add.accumulate(np.concatenate(([last], mean_gap * column)))
        last = float(instants[-1])
        # Instants before the run stay so: a process that gives negative gaps is to be refused.
        yield _rounded(instants[1:], -_LATEST, _LATEST)
        if len(column) < rows:
            return


def _map(function: Callable[[float], float], column: Floats) -> Floats:
    return np.fromiter(map(function, column.tolist()), np.float64, len(column))


def _rounded(column: Floats, low: float, high: float) -> list[int]:
    """Return whole numbers, ties to the even one as `round` has it."""
    rounded: list[int] = np.clip(np.rint(column), low, high).astype(np.int64).tolist()
    return rounded
