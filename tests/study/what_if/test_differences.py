"""Intervals of differences, and the bounds that CI checks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.sim import Outcome
from maitred.study.metrics import Better
from maitred.study.what_if import result
from maitred.study.what_if.bounds import parse_bound
from maitred.study.what_if.differences import compare_runs
from maitred.study.what_if.figures import Groups, find_figure
from maitred.study.what_if.resampling import resampled_figure
from maitred.study.what_if.world import ReplayedRun


def run(ttft_ms: list[float], rejected: int = 0) -> ReplayedRun:
    """Return requests of which one comes each second and lasts 2 s; the last ones are `rejected`."""
    count = len(ttft_ms)
    arrival, ttft = 1e6 * np.arange(count, dtype=np.float64), np.array(ttft_ms) * 1e3
    lost = np.arange(count) >= count - rejected
    return ReplayedRun(
        ttft=np.where(lost, np.nan, ttft),
        e2e=np.where(lost, np.nan, 2e6),
        arrival=arrival,
        ended=arrival + 2e6 * ~lost,
        outcome=np.where(lost, Outcome.REJECTED, Outcome.COMPLETED).astype(np.int8),
        priority_class=np.zeros(count, dtype=np.int8),
    )


ALL = np.ones(200, dtype=bool)
VALUES = [float(100 + 7 * i % 50) for i in range(200)]


def test_a_difference_that_all_requests_share_has_an_interval_of_no_width() -> None:
    today, other = run(VALUES), run([value + 20 for value in VALUES])
    wanted = {find_figure(name): ALL for name in ("ttft_mean_ms", "ttft_p90_ms", "completed_requests", "makespan_s")}
    mean, p90, completed, makespan = compare_runs(wanted, today, [today] * 3, [other] * 3)
    assert mean.recorded == pytest.approx(np.mean(VALUES))
    assert mean.difference == pytest.approx(20)
    for each in (mean, p90):
        assert each.interval is not None
        assert each.interval.low == pytest.approx(20)
        assert each.interval.high == pytest.approx(20)
        assert each.probability == 0
        assert each.is_certain
    assert (completed.today, completed.other, completed.probability) == (200, 200, 0.5)
    assert makespan.today == makespan.other == 201
    assert not makespan.is_certain


def test_the_interval_has_what_chance_and_seeds_move() -> None:
    draw = np.random.default_rng(3)
    today = [run(list(draw.normal(100, 20, 200))) for _ in range(4)]
    other = [run(list(draw.normal(100 + shift, 20, 200)), rejected=50) for shift in (0, -3, 0, 3)]
    mean, rejected = compare_runs({find_figure(n): ALL for n in ("ttft_mean_ms", "rejected_requests")}, today[0], today, other)
    assert mean.interval is not None
    assert mean.interval.low < -3 < 3 < mean.interval.high
    assert 0.2 < (mean.probability or 0) < 0.8
    assert not mean.is_certain
    assert (rejected.today, rejected.other, rejected.change_interval) == (0, 50, None)
    assert rejected.interval is not None
    assert rejected.interval.low == rejected.interval.high == 50


def test_what_is_told_is_the_median_of_the_runs() -> None:
    today, other = ([run([value + more for value in VALUES]) for more in runs] for runs in ((0, 2, 900), (700, 30, 31)))
    (found,) = compare_runs({find_figure("ttft_p90_ms"): ALL}, today[0], today, other)
    assert found.today == pytest.approx(find_figure("ttft_p90_ms").of(run(VALUES), ALL) + 2)  # type: ignore[operator]
    assert found.difference == pytest.approx(29)


def test_a_run_without_an_answer_of_a_class_leaves_its_errors_to_the_others() -> None:
    kinds = (PriorityClass.INTERACTIVE, PriorityClass.BULK)
    requests = [SimpleNamespace(given=kind, tenant="") for kind in kinds for _ in range(10)]
    truth, good, slow = (run([value] * 20) for value in (100.0, 110.0, 150.0))
    world = SimpleNamespace(truth=truth)
    total, *by_class = result._accuracy(world, [run([130.0] * 20, rejected=10), good, slow], Groups(requests))  # type: ignore
    assert {line.predicted for line in total.lines if line.metric == "ttft"} == {130}
    predicted = [{line.predicted for line in each.lines if line.metric == "ttft"} for each in by_class]
    assert sorted(predicted, key=str) == [{130}, {130}]  # of 130, 110, 150; and of 110, 150


def test_requests_that_only_one_side_answers_are_told() -> None:
    today, other = run([100.0] * 20, rejected=2), run([100.0] * 20, rejected=5)
    (note,) = result._one_sided_note(today, other)
    assert "3 complete under the rules of the recording only, 0 under the other rules only" in note
    assert not [*result._one_sided_note(today, today)]


def test_a_resample_has_infinite_values_only_where_it_has_drawn_them() -> None:
    values, block = np.array([1.0, 3.0, np.inf]), np.array([0, 0, 1])
    weights = np.array([[2, 0], [1, 1], [0, 0]])
    assert resampled_figure(values, block, weights, None).tolist() == pytest.approx([2, np.inf, np.nan], nan_ok=True)
    assert resampled_figure(values, block, weights, 0.5).tolist() == pytest.approx([1, 3, np.nan], nan_ok=True)
    many = np.where(np.arange(5000) % 4 == 3, np.inf, np.arange(5000.0))
    p70, p80 = (resampled_figure(many, np.arange(5000) % 50, np.ones((1, 50)), quantile)[0] for quantile in (0.7, 0.8))
    assert p70 == pytest.approx(0.7 / 0.75 * 5000, rel=0.01)
    assert p80 == np.inf


def test_without_seeds_there_are_no_intervals() -> None:
    (found,) = compare_runs({find_figure("ttft_p50_ms"): ALL}, run(VALUES), [run(VALUES)], [run(VALUES)])
    assert (found.difference, found.interval, found.probability) == (0, None, None)


def test_a_figure_that_no_request_has_is_missing() -> None:
    nobody = run([1.0] * 200, rejected=200)
    (found,) = compare_runs({find_figure("ttft_p50_ms"): ALL}, nobody, [nobody] * 2, [nobody] * 2)
    assert (found.today, found.difference, found.interval) == (None, None, None)


def test_bounds_are_absolute_or_relative_to_today() -> None:
    bound = parse_bound("bulk.makespan_s <= 110%")
    assert (bound.figure.group, bound.figure.plain, bound.better) == ("bulk", "makespan_s", Better.LOWER)
    assert bound.holds(today=100, other=110)
    assert not bound.holds(today=100, other=111)
    assert parse_bound("completed_requests>=5").holds(today=None, other=5)
    assert not parse_bound("ttft_p99_ms <= 5").holds(today=5, other=None)
    for wrong in ("ttft_p99_ms", "ttft_p99_ms < 5", "ttft_p99_ms <= ten", "ttft_p99_ms <= 1.2.3", "ttft_p98_ms <= 5"):
        with pytest.raises(ConfigError, match="--constraint"):
            parse_bound(wrong)
