"""Steps on one line, each of which takes longer than the one before by the same: their truncated times, summed.

Times are integers in units of 2^-48 µs, so step j takes floor((first + growth·j) / 2^48) µs, and a run of steps is a sum of
floors of an arithmetic progression. Its whole µs are a plain series. What is left are fractions: often they never add up to
another µs within the run; else they do so a few times, which are looked for one by one; else the sum of a short run is made
step by step, and that of a long one by Euclid's algorithm, in O(log steps).

Example: 5 steps, of which the first takes 175.0 µs and each other 0.5 µs more: the whole µs are 5 · 175, the fractions 0, 0.5,
1.0, 1.5 and 2.0 have 0 + 0 + 1 + 1 + 2 = 4 whole µs: 879 µs. Within 800 µs there is room for 4 of them, which take 702 µs.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt
from typing import Final

from maitred.core.units import Micros

SHIFT: Final = 48
"""Bits after the binary point. A slope is off by less than 2^-49 µs per token: 2e-8 µs over ten million tokens of context."""
_ONE: Final = 1 << 48
_FRACTION_MASK: Final = _ONE - 1
_UNIT: Final = 1 / _ONE
_HALF: Final = 1 << 47
_FEW_ROWS: Final = 12
_FEW_STEPS: Final = 48
"""Up to these numbers of rows or steps, the rows are added up one by one; with more of both Euclid's algorithm is faster."""
MOST_KEPT: Final = 32
"""Steps of the longest run for which a `Line` keeps something: 20 kB at most, for runs of every length."""
NO_END: Final = 1 << 60
"""More tokens than any context has."""


class Line:
    """The line of all decode-only steps of a number of sequences whose context is in some range.

    Runs on it have one growth, so what they have in common is kept by their number of steps: the fractions that they would
    have if the first step had none, sorted. Where it has one, those steps take 1 µs more whose own and this one make a whole,
    and a bisection counts them.

    Example: a growth of 0.4 and 4 steps give 0, 0.4, 0.8 and 1.2: 1 whole µs, and the fractions 0, 0.2, 0.4 and 0.8. If the
    first step takes 100.7 µs, they take 400 + 1 + 2 µs, since two of these are at least 0.3: 100, 101, 101 and 101.
    """

    __slots__ = ("_kept", "base", "growth", "slope", "start", "until")

    def __init__(self, base: int, slope: int, decodes: int, start: int = 0, until: int = NO_END) -> None:
        """`base` and `slope` are the time without context and for each token of it, in units of 2^-48 µs. It is the line of
        contexts from `start` on and below `until`."""
        self.start = start
        self.until = until
        self.base = base
        self.slope = slope
        self.growth = slope * decodes
        """How much longer each step takes than the one before it."""
        self._kept: list[tuple[int, list[int]] | None] = [None] * (MOST_KEPT + 1)

    def time_from(self, first: int, steps: int) -> Micros:
        """Return the µs of `steps` steps, the first of which takes `first`."""
        if steps > MOST_KEPT:
            return sum_of_floors(first, self.growth, steps)
        kept = self._kept[steps]
        if kept is None:
            kept = self._kept[steps] = self._fractions(steps)
        return (first >> SHIFT) * steps + kept[0] - bisect_left(kept[1], _ONE - (first & _FRACTION_MASK))

    def _fractions(self, steps: int) -> tuple[int, list[int]]:
        """Return the whole µs of `steps` steps of which the first takes none, plus `steps`, and their fractions, sorted."""
        times = [self.growth * step for step in range(steps)]
        return steps + sum([time >> SHIFT for time in times]), sorted([time & _FRACTION_MASK for time in times])


def steps_on_line_within(first: int, growth: int, span: Micros, limit: int, line: Line | None = None) -> tuple[int, Micros]:
    """Return the largest number of steps, at most `limit`, within `span`, and what is left of the span. `line` is theirs, if
    it is kept.

    Each round makes as many steps at once as are sure to fit, which is at least half of those that do. Mostly it is all of
    them, or all but one, so there are few rounds.
    """
    made = 0
    while made < limit and span >= (time := first >> SHIFT):
        steps = min(limit - made, span // time)
        last = (first + growth * (steps - 1)) >> SHIFT
        if last > 2 * time:
            steps = min(steps, _untruncated_steps(first * _UNIT, growth * _UNIT, span))
        elif last * steps > span:
            steps = span // last
        span -= sum_of_floors(first, growth, steps) if line is None else line.time_from(first, steps)
        first += growth * steps
        made += steps
    return made, span


def _untruncated_steps(first: float, growth: float, span: Micros) -> int:
    """Return how many steps would fit if their times were not truncated, by the root of the quadratic of their sum. It is one
    less, since a root in floating point is not exact, and at least 1."""
    half = first - growth / 2
    return max(1, int(2 * span / (half + sqrt(half * half + 2 * growth * span))) - 1)


def sum_of_floors(first: int, growth: int, steps: int) -> int:
    """Return Σ floor((first + growth·j) / 2^48) for j from 0 below `steps`."""
    # The whole µs of `first` and `growth` are an arithmetic series. What is left are fractions, which often never add up to
    # another µs within the run.
    total = (first >> SHIFT) * steps + (growth >> SHIFT) * (steps * (steps - 1) >> 1)
    first &= _FRACTION_MASK
    growth &= _FRACTION_MASK
    if first + growth * (steps - 1) < _ONE:
        return total
    if growth <= _HALF:
        return total + _sum_by_rows(first, growth, steps)
    # Growing by nearly 1 is growing by 1 less a little, and the floor of what falls is that of what grows, mirrored.
    return total + (steps * (steps - 1) >> 1) - _sum_by_rows(_FRACTION_MASK - first, _ONE - growth, steps)


def _sum_by_rows(first: int, growth: int, steps: int) -> int:
    """Return Σ floor((first + growth·j) / 2^48) for j from 0 below `steps`, where `first` is less than 2^48 and `growth` at
    most half of that. A row is a whole µs: with each, one is added to the steps from some step on."""
    rows = (first + growth * (steps - 1)) >> SHIFT
    if rows > _FEW_ROWS and steps > _FEW_STEPS:
        return _euclidean_sum_of_floors(steps, _ONE, growth, first)
    total = 0
    if 3 * rows < steps:  # a division costs as much as three additions and shifts
        total = rows * steps
        while rows > 0:
            total += (first - (rows << SHIFT)) // growth
            rows -= 1
        return total
    for _ in range(steps):
        total += first >> SHIFT
        first += growth
    return total


def _euclidean_sum_of_floors(steps: int, modulus: int, growth: int, first: int) -> int:
    """Return Σ floor((first + growth·j) / modulus) for j from 0 below `steps`, in O(log).

    The sum counts the points below a line. Counted by rows instead of columns they are the points below a flatter line, and so
    on, as in Euclid's algorithm (Graham, Knuth, Patashnik, Concrete Mathematics, 3.32).
    """
    total = 0
    while True:
        total += (growth // modulus) * (steps * (steps - 1) >> 1) + (first // modulus) * steps
        growth %= modulus
        last = growth * steps + first % modulus
        if last < modulus:
            return total
        steps, first = divmod(last, modulus)
        growth, modulus = modulus, growth
