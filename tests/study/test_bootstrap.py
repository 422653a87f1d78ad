"""Confidence intervals, and the error of latency models."""

from __future__ import annotations

from statistics import NormalDist, mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred import InstanceConfig, LinearLatency
from maitred.study.candidate import draw_latency_scale
from maitred.study.comparison import bootstrap, make_difference


def test_two_differences_by_hand() -> None:
    """Resamples of (0, 4) average 0 with probability 1/4, 2 with 1/2 and 4 with 1/4."""
    sure = bootstrap([0.0, 4.0], seed=42)
    assert sure is not None
    assert (sure.low, sure.high) == (0.0, 4.0)
    assert sure.above == pytest.approx(3 / 4 + 1 / 4 / 2, abs=0.02)  # a mean of 0 counts by half


def test_of_many_differences_the_interval_is_that_of_their_mean() -> None:
    gains = [NormalDist(3, 2).inv_cdf((index + 0.5) / 40) for index in range(40)]
    sure = bootstrap(gains, seed=1)
    assert sure is not None
    spread = 1.96 * stdev(gains) / 40**0.5
    assert sure.low == pytest.approx(mean(gains) - spread, abs=0.1)
    assert sure.high == pytest.approx(mean(gains) + spread, abs=0.1)
    assert sure.above == 1


def test_of_one_difference_nothing_can_be_said() -> None:
    assert bootstrap([1.0], seed=42) is None
    assert bootstrap([], seed=42) is None


def test_where_lower_is_better_a_wins_by_being_lower() -> None:
    found = make_difference("ttft_p99_ms", [10.0, 20.0, 30.0], [15.0, 20.0, 45.0], seed=42)
    assert (found.a, found.b, found.difference) == (20.0, pytest.approx(80 / 3), pytest.approx(20 / 3))
    assert (found.wins, found.ties, found.seeds) == (2, 1, 3)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low < 20 / 3 < found.high <= 15
    assert found.probability is not None
    assert found.probability > 0.9


def test_where_higher_is_better_the_same_figures_say_the_contrary() -> None:
    lower = make_difference("ttft_p99_ms", [10.0, 20.0, 30.0], [15.0, 20.0, 45.0], seed=42)
    higher = make_difference("goodput_rps", [10.0, 20.0, 30.0], [15.0, 20.0, 45.0], seed=42)
    assert (higher.low, higher.high) == (pytest.approx(lower.low), pytest.approx(lower.high))
    assert higher.difference == lower.difference
    assert higher.probability == pytest.approx(1 - (lower.probability or 0))
    assert (higher.wins, higher.ties) == (0, 1)


def test_seeds_without_a_figure_are_left_out_and_counted() -> None:
    found = make_difference("ttft_p99_ms", [10.0, None, 30.0], [12.0, 20.0, None], seed=42)
    assert (found.seeds, found.a, found.b, found.low) == (1, 10.0, 12.0, None)
    assert make_difference("ttft_p99_ms", [None], [1.0], seed=42).difference is None


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12), st.integers(0, 5))
def test_intervals_lie_within_the_differences_and_turn_with_their_sign(gains: list[int], seed: int) -> None:
    sure, turned = bootstrap(gains, seed), bootstrap([-gain for gain in gains], seed)
    assert sure is not None
    assert turned is not None
    assert min(gains) <= sure.low <= sure.high <= max(gains)
    assert (turned.low, turned.high) == (pytest.approx(-sure.high), pytest.approx(-sure.low))
    assert turned.above == pytest.approx(1 - sure.above)


BUSY = InstanceConfig(latency_error=0.05)


def test_an_exact_model_has_the_scale_that_is_said() -> None:
    assert draw_latency_scale(InstanceConfig(latency_scale=1.5), seed=7) == 1.5


def test_draws_have_the_stated_standard_deviation() -> None:
    scales = [draw_latency_scale(BUSY, seed) for seed in range(2000)]
    assert mean(scales) == pytest.approx(1, abs=0.004)
    assert stdev(scales) == pytest.approx(0.05, rel=0.06)
    assert draw_latency_scale(InstanceConfig(latency_error=0.05, latency_scale=2), 7) == 2 * draw_latency_scale(BUSY, 7)


def test_the_same_latency_model_errs_alike_however_it_is_run() -> None:
    other = InstanceConfig(latency_error=0.05, scheduler="sjf", max_num_seqs=8, tensor_parallel_size=2)
    assert draw_latency_scale(other, 42) == draw_latency_scale(BUSY, 42)
    assert draw_latency_scale(BUSY, 43) != draw_latency_scale(BUSY, 42)


@pytest.mark.parametrize(
    "other", [{"latency": LinearLatency(beta=(1, 2, 3))}, {"hardware": "A100"}, {"model": "qwen/qwen3-8b"}]
)
def test_another_latency_model_errs_on_its_own(other: dict[str, object]) -> None:
    assert draw_latency_scale(InstanceConfig(latency_error=0.05, **other), 42) != draw_latency_scale(BUSY, 42)  # type: ignore[arg-type]


def test_an_error_as_large_as_the_model_never_turns_time_around() -> None:
    wild = InstanceConfig(latency_error=0.99)
    assert min(draw_latency_scale(wild, seed) for seed in range(500)) == 0.05
