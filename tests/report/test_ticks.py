"""The ticks of axes are round numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.report.page.chart import linear_ticks, log_ticks, percent_label, tick_label


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 68.4, [0, 20, 40, 60]),
        (0, 0.9, [0, 0.2, 0.4, 0.6000000000000001, 0.8]),
        (5, 5, [5]),
    ],
)
def test_neat_steps(low: float, high: float, ticks: list[float]) -> None:
    assert linear_ticks(low, high, 5) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (8, 1_200, [10, 30, 100, 300, 1_000]),
        (80, 1_200, [100, 200, 500, 1_000]),
        (0.5, 2e6, [1, 100, 10_000, 1_000_000]),
        (5, 9, [5, 6, 7, 8, 9]),
    ],
)
def test_decades(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high, 5) == pytest.approx(ticks)


@given(st.floats(1e-3, 1e9), st.floats(1.0001, 1e9))
def test_there_are_always_some_and_never_many(low: float, ratio: float) -> None:
    high = low * ratio
    for ticks in (log_ticks(low, high, 5), linear_ticks(0, high, 5)):
        assert 1 <= len(ticks) <= 7
        assert all(low * 0.99 <= tick <= high * 1.01 for tick in ticks) or ticks[0] == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.25, "0.25"), (12, "12"), (999, "999"), (1_000, "1k"), (2_500, "2.5k"), (30_000, "30k"), (2e6, "2M")],
)
def test_labels_are_short(value: float, shown: str) -> None:
    assert tick_label(value) == shown


def test_shares_are_in_percent() -> None:
    assert [percent_label(share) for share in (0, 0.25, 1)] == ["0 %", "25 %", "100 %"]
