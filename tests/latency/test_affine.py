"""Runs of steps along lines: hand-computed, and against one step after the other."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.instance.latency.affine import SHIFT, Envelope, Line, Part, envelope, floors, part_within, time_of, time_of_run

FINE = 1 / 2**40
LINES = st.lists(
    st.builds(
        Line,
        st.one_of(st.sampled_from([0.0, 1.0, 5000.0, 5000.5]), st.floats(0, 20_000)),
        st.one_of(st.sampled_from([0.0, FINE, 0.25, 3.0]), st.floats(0, 1), st.floats(0, 1_000)),
    ),
    min_size=1,
    max_size=4,
)
CONTEXTS, GROWTHS, STEPS = st.integers(0, 3_000_000), st.integers(0, 600), st.integers(0, 90)


def one_by_one(line: Envelope, context: int, growth: int, steps: int) -> list[int]:
    return [time_of(line, context + growth * j) for j in range(steps)]


def test_a_flat_line_is_truncated_and_lasts_1_us_at_least() -> None:
    assert time_of(envelope([Line(5017.99)]), 10**6) == 5017
    assert time_of(envelope([Line(0.0)]), 10**6) == 1


def test_a_run_is_the_sum_of_its_truncated_steps() -> None:
    line = envelope([Line(100.0, 0.25)])  # from 2 tokens on, 3 more each: 100.5, 101.25, 102.0, 102.75, 103.5

    assert time_of_run(line, 2, 3, 5) == 100 + 101 + 102 + 102 + 103


def test_the_largest_line_changes_within_a_run() -> None:
    line = envelope([Line(100.0), Line(10.0, 9.0)])  # equal at 10 tokens: 100, 100, then 10 + 9·12 = 118, 136

    assert one_by_one(line, 8, 2, 4) == [100, 100, 118, 136]
    assert time_of_run(line, 8, 2, 4) == 454


def test_only_lines_that_are_largest_somewhere_count() -> None:
    never = Line(50.0, 1.0)

    assert len(envelope([Line(100.0), never, Line(10.0, 90.0)])) == 2


def test_steps_within_a_span_to_the_microsecond() -> None:
    line = envelope([Line(100.0, 0.25)])

    assert part_within(line, 2, 3, 100 + 101 + 102 - 1, 99) == Part(2, 201)
    assert part_within(line, 2, 3, 100 + 101 + 102, 99) == Part(3, 303)
    assert part_within(line, 2, 3, 100 + 101 + 102, 1) == Part(1, 100)
    assert part_within(line, 2, 3, 99, 99) == Part(0, 0)


def test_steps_that_soon_take_several_times_as_long() -> None:
    line = envelope([Line(10.0, 30.0)])  # 10, 40, 70, ...: as many as there are of the first would end with one of 130

    assert part_within(line, 0, 1, 50, 99) == Part(2, 50)
    assert part_within(line, 0, 1, 49, 99) == Part(1, 10)


def test_steps_of_almost_2_us_are_1_us_each() -> None:
    line = envelope([Line(1.9, 1e-12)])  # without truncation hardly more than half of the steps would fit

    assert part_within(line, 0, 1, 10**6, 10**9) == Part(10**6, 10**6)


@given(LINES, CONTEXTS)
def test_a_step_is_the_largest_line_truncated(lines: list[Line], context: int) -> None:
    exact = max([Fraction(1), *(Fraction(line.base) + Fraction(line.slope) * context for line in lines)])

    slack = Fraction(1 + context, 2**SHIFT)
    assert int(exact - slack) <= time_of(envelope(lines), context) <= int(exact + slack)


@given(LINES, CONTEXTS, GROWTHS, STEPS)
def test_a_run_takes_what_its_steps_take(lines: list[Line], context: int, growth: int, steps: int) -> None:
    line = envelope(lines)

    assert time_of_run(line, context, growth, steps) == sum(one_by_one(line, context, growth, steps))


@given(LINES, CONTEXTS, GROWTHS, STEPS, st.floats(0, 1.2))
def test_steps_within_are_those_that_fit(lines: list[Line], context: int, growth: int, limit: int, share: float) -> None:
    line = envelope(lines)
    times = one_by_one(line, context, growth, limit)
    span = int(share * sum(times))

    found = part_within(line, context, growth, span, limit)

    assert found.time == sum(times[: found.steps]) <= span
    assert found.steps == limit or found.time + times[found.steps] > span


@given(st.integers(0, 2**60), st.integers(0, 2**56), st.integers(0, 300))
def test_floors_of_a_progression(first: int, growth: int, steps: int) -> None:
    assert floors(first, growth, steps) == sum((first + growth * j) >> SHIFT for j in range(steps))


@pytest.mark.parametrize("steps", [10**6, 10**12])
def test_a_run_may_be_long(steps: int) -> None:
    line = envelope([Line(7.0, 0.5)])  # 7, 7.5, 8, 8.5, ...: in pairs

    half = steps // 2
    assert time_of_run(line, 0, 1, steps) == 14 * half + half * (half - 1)
