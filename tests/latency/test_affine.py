"""Runs of steps along lines: hand-computed, and against one step after the other."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.instance.latency.affine import (
    AffineCost,
    Envelope,
    RunPart,
    envelope,
    run_time_from,
    step_time_at,
    steps_within_span,
)
from maitred.instance.latency.floor_sums import SHIFT, Line, steps_on_line_within, sum_of_floors

FINE = 1 / 2**40
LINES = st.lists(
    st.builds(
        AffineCost,
        st.one_of(st.sampled_from([0.0, 1.0, 5000.0, 5000.5]), st.floats(0, 20_000)),
        st.one_of(st.sampled_from([0.0, FINE, 0.25, 3.0]), st.floats(0, 1), st.floats(0, 1_000)),
    ),
    min_size=1,
    max_size=4,
)
CONTEXTS, GROWTHS, STEPS = st.integers(0, 3_000_000), st.integers(0, 600), st.integers(0, 90)


def one_by_one(line: Envelope, context: int, growth: int, steps: int) -> list[int]:
    return [step_time_at(line, context + growth * j) for j in range(steps)]


def test_a_flat_line_is_truncated_and_lasts_1_us_at_least() -> None:
    assert step_time_at(envelope([AffineCost(5017.99)]), 10**6) == 5017
    assert step_time_at(envelope([AffineCost(0.0)]), 10**6) == 1


def test_a_run_is_the_sum_of_its_truncated_steps() -> None:
    line = envelope([AffineCost(100.0, 0.25)])  # from 2 tokens on, 3 more each: 100.5, 101.25, 102.0, 102.75, 103.5

    assert run_time_from(line, 2, 3, 5) == 100 + 101 + 102 + 102 + 103


def test_the_largest_line_changes_within_a_run() -> None:
    line = envelope([AffineCost(100.0), AffineCost(10.0, 9.0)])  # equal at 10 tokens: 100, 100, then 10 + 9·12 = 118, 136

    assert one_by_one(line, 8, 2, 4) == [100, 100, 118, 136]
    assert run_time_from(line, 8, 2, 4) == 454


def test_only_lines_that_are_largest_somewhere_count() -> None:
    never = AffineCost(50.0, 1.0)

    assert len(envelope([AffineCost(100.0), never, AffineCost(10.0, 90.0)])) == 2


def test_steps_within_a_span_to_the_microsecond() -> None:
    line = envelope([AffineCost(100.0, 0.25)])

    assert steps_within_span(line, 2, 3, 100 + 101 + 102 - 1, 99) == RunPart(2, 201)
    assert steps_within_span(line, 2, 3, 100 + 101 + 102, 99) == RunPart(3, 303)
    assert steps_within_span(line, 2, 3, 100 + 101 + 102, 1) == RunPart(1, 100)
    assert steps_within_span(line, 2, 3, 99, 99) == RunPart(0, 0)


def test_steps_that_soon_take_several_times_as_long() -> None:
    line = envelope([AffineCost(10.0, 30.0)])  # 10, 40, 70, ...: as many as there are of the first would end with one of 130

    assert steps_within_span(line, 0, 1, 50, 99) == RunPart(2, 50)
    assert steps_within_span(line, 0, 1, 49, 99) == RunPart(1, 10)


def test_steps_of_almost_2_us_are_1_us_each() -> None:
    line = envelope([AffineCost(1.9, 1e-12)])  # without truncation hardly more than half of the steps would fit

    assert steps_within_span(line, 0, 1, 10**6, 10**9) == RunPart(10**6, 10**6)


@given(LINES, CONTEXTS)
def test_a_step_is_the_largest_line_truncated(lines: list[AffineCost], context: int) -> None:
    exact = max([Fraction(1), *(Fraction(line.base) + Fraction(line.slope) * context for line in lines)])

    slack = Fraction(1 + context, 2**SHIFT)
    assert int(exact - slack) <= step_time_at(envelope(lines), context) <= int(exact + slack)


@given(LINES, CONTEXTS, GROWTHS, STEPS)
def test_a_run_takes_what_its_steps_take(lines: list[AffineCost], context: int, growth: int, steps: int) -> None:
    line = envelope(lines)

    assert run_time_from(line, context, growth, steps) == sum(one_by_one(line, context, growth, steps))


@given(LINES, CONTEXTS, GROWTHS, STEPS, st.floats(0, 1.2))
def test_steps_within_are_those_that_fit(lines: list[AffineCost], context: int, growth: int, limit: int, share: float) -> None:
    line = envelope(lines)
    times = one_by_one(line, context, growth, limit)
    span = int(share * sum(times))

    found = steps_within_span(line, context, growth, span, limit)

    assert found.time == sum(times[: found.steps]) <= span
    assert found.steps == limit or found.time + times[found.steps] > span


@given(st.integers(0, 2**60), st.integers(0, 2**56), st.integers(0, 300))
def test_floors_of_a_progression(first: int, growth: int, steps: int) -> None:
    assert sum_of_floors(first, growth, steps) == sum((first + growth * j) >> SHIFT for j in range(steps))


@given(
    base=st.integers(1 << SHIFT, 2**60),
    slope=st.integers(0, 2**52),
    decodes=st.integers(1, 300),
    runs=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 80), st.floats(0, 1.2)), max_size=5),
)
def test_what_a_line_keeps_changes_no_sum(base: int, slope: int, decodes: int, runs: list[tuple[int, int, float]]) -> None:
    line = Line(base, slope, decodes)
    for context, steps, share in runs:
        first = base + slope * context
        total = line.time_from(first, steps)
        assert total == sum((first + line.growth * step) >> SHIFT for step in range(steps))
        span = int(share * total)
        within = steps_on_line_within(first, line.growth, span, steps, line)
        assert within == steps_on_line_within(first, line.growth, span, steps)


@pytest.mark.parametrize("steps", [10**6, 10**12])
def test_a_run_may_be_long(steps: int) -> None:
    line = envelope([AffineCost(7.0, 0.5)])  # 7, 7.5, 8, 8.5, ...: in pairs

    half = steps // 2
    assert run_time_from(line, 0, 1, steps) == 14 * half + half * (half - 1)
