"""Step times that grow with the context along straight lines, summed exactly without making the steps.

In a run of decode-only steps each of N sequences reads one token of KV more in every step, so step j reads C + N·j tokens.
The time of a step is the largest of a few lines in that context (what computes, what moves bytes, never less than 1 µs),
truncated to a whole µs:

    t(j) = floor(max over lines of (a + b·(C + N·j)))

Lines are kept as integers in units of 2^-48 µs. Truncation is a shift, comparison is exact, and where the largest line
changes is known beforehand, so a run is a few stretches on one line each. On one line the sum of the truncated times is a sum
of floors of an arithmetic progression, which Euclid's algorithm knows in O(log steps); for short stretches the plain sum is
faster. Nothing is rounded on the way: a run takes what its steps take, one by one, to the microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TypeAlias

import msgspec

from maitred.core.units import Micros

SHIFT = 48
"""Bits after the point. A slope is off by less than 2^-49 µs per token: 2e-8 µs over ten million tokens of context. """
_ONE = 1 << SHIFT
_FRACTION_MASK = _ONE - 1
_UNIT = 1 / _ONE
_PLAIN_SUM_STEPS = 4
"""Steps up to which nothing is faster than the plain sum, ..."""
_EUCLID_STEPS = 16
"""... and up to which it is faster than Euclid's algorithm."""


class AffineCost(msgspec.Struct, frozen=True, gc=False):
    """base + slope · context, in µs; neither is negative."""

    base: float
    slope: float = 0.0


class EnvelopeSegment(msgspec.Struct, frozen=True, gc=False):
    """The line that is the largest while the context is below `until` (None: from there on), in units of 2^-48 µs."""

    base: int
    slope: int
    until: int | None


Envelope: TypeAlias = tuple[EnvelopeSegment, ...]
"""The largest of some lines, in the order of the context: the slopes increase."""


def envelope(lines: Sequence[AffineCost]) -> Envelope:
    """The largest of `lines` and of 1 µs, for every context from 0."""
    fixed = [(_ONE, 0), *((round(line.base * _ONE), round(line.slope * _ONE)) for line in lines)]
    stretches: list[EnvelopeSegment] = []
    base, slope = max(fixed)
    while steeper := [(b, s) for b, s in fixed if s > slope]:
        until = min(_crossing_context(base, slope, b, s) for b, s in steeper)
        stretches.append(EnvelopeSegment(base, slope, until))
        base, slope = max(steeper, key=lambda line: (line[0] + line[1] * until, line[1]))
    return (*stretches, EnvelopeSegment(base, slope, None))


def _crossing_context(base: int, slope: int, other: int, steeper: int) -> int:
    """The first context at which the steeper line is at least as large."""
    return max(0, -((base - other) // -(steeper - slope)))


def step_time_at(line: Envelope, context: int) -> Micros:
    """Of one step."""
    stretch = line[0] if len(line) == 1 else _segment_at(line, context)
    return (stretch.base + stretch.slope * context) >> SHIFT


def run_time_from(line: Envelope, context: int, growth: int, steps: int) -> Micros:
    """Of `steps` steps, of which each has `growth` tokens of context more than the one before."""
    total = 0
    while steps:
        stretch = _segment_at(line, context)
        here = steps if stretch.until is None else _steps_below(stretch.until, context, growth, steps)
        total += sum_of_floors(stretch.base + stretch.slope * context, stretch.slope * growth, here)
        context += growth * here
        steps -= here
    return total


class RunPart(msgspec.Struct, frozen=True, gc=False):
    """The first steps of a run, and the time that they take."""

    steps: int
    time: Micros


def steps_within_span(line: Envelope, context: int, growth: int, span: Micros, limit: int) -> RunPart:
    """The most steps, at most `limit`, that together take no more than `span`."""
    made, left = 0, span
    while made < limit:
        stretch = line[0] if len(line) == 1 else _segment_at(line, context)
        here = limit - made
        if stretch.until is not None:
            here = _steps_below(stretch.until, context, growth, here)
        fit, left = _steps_on_line_within(stretch.base + stretch.slope * context, stretch.slope * growth, left, here)
        made += fit
        context += growth * fit
        if fit < here:
            break
    return RunPart(made, span - left)


def _segment_at(line: Envelope, context: int) -> EnvelopeSegment:
    """The one in which `context` is."""
    for stretch in line:
        if stretch.until is None or context < stretch.until:
            return stretch
    raise AssertionError("the last stretch has no end")


def _steps_below(until: int, context: int, growth: int, steps: int) -> int:
    """How many of the next `steps` steps have a context below `until`; the first one has."""
    return min(steps, -((context - until) // growth)) if growth else steps


def _steps_on_line_within(first: int, growth: int, span: Micros, limit: int) -> tuple[int, Micros]:
    """The most steps, at most `limit`, within `span`, and what is left of it. As many are made at once as are sure to fit, and
    that is half of them at least, so there are few rounds; mostly it is all of them, or all but one."""
    made = 0
    while made < limit and span >= (time := first >> SHIFT):
        steps = min(limit - made, span // time)
        last = (first + growth * (steps - 1)) >> SHIFT
        if last > 2 * time:
            steps = min(steps, _untruncated_steps(first * _UNIT, growth * _UNIT, span))
        elif last * steps > span:
            steps = span // last
        span -= sum_of_floors(first, growth, steps)
        first += growth * steps
        made += steps
    return made, span


def _untruncated_steps(first: float, growth: float, span: Micros) -> int:
    """How many steps fit if they are not truncated, by the quadratic of their sum; one less, since a root is not exact, and 1
    at least."""
    half = first - growth / 2
    return max(1, int(2 * span / (half + sqrt(half * half + 2 * growth * span))) - 1)


def sum_of_floors(first: int, growth: int, steps: int) -> int:
    """Σ floor((first + growth·j) / 2^48) for j from 0 below `steps`."""
    total = 0
    if steps > _PLAIN_SUM_STEPS:
        total = (first >> SHIFT) * steps + (growth >> SHIFT) * (steps * (steps - 1) >> 1)
        first &= _FRACTION_MASK
        growth &= _FRACTION_MASK
        if first + growth * (steps - 1) < _ONE:
            return total
        if steps > _EUCLID_STEPS:
            return total + _euclidean_sum_of_floors(steps, _ONE, growth, first)
    for _ in range(steps):
        total += first >> SHIFT
        first += growth
    return total


def _euclidean_sum_of_floors(steps: int, modulus: int, growth: int, first: int) -> int:
    """Σ floor((first + growth·j) / modulus) for j from 0 below `steps`, in O(log): the points under a line, counted by rows
    instead of columns, are those under a flatter one (Graham, Knuth, Patashnik, Concrete Mathematics, 3.32)."""
    total = 0
    while True:
        total += (growth // modulus) * (steps * (steps - 1) >> 1) + (first // modulus) * steps
        growth %= modulus
        last = growth * steps + first % modulus
        if last < modulus:
            return total
        steps, first = divmod(last, modulus)
        growth, modulus = modulus, growth
