"""Latency models fitted to synthetic measurements with known coefficients, of which some are wrong; groups of equal steps,
whose means show the error of a model that the noise of single steps hides; and what clients see beyond the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel, Overheads
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import find_deployment
from maitred.instance.latency import Grid, TableLatency, TrainedPhysicsLatency
from maitred.instance.latency.linear_steps import LinearSteps
from maitred.sim import simulate
from maitred.study.calibration.fitting import (
    compute_residuals,
    fit_linear,
    fit_table,
    fit_timeline,
    fit_trained_physics,
)
from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep
from maitred.study.calibration.outside import fit_outside
from maitred.study.calibration.regression import non_negative_least_squares, robust_fit, robust_line
from maitred.study.calibration.residuals import compare_equal_steps, group_of
from maitred.study.calibration.validation import validate
from maitred.workload import Job


def shapes(count: int) -> list[BatchShape]:
    """Return decode-only steps and steps with a chunk, of all sizes."""
    rng = Random(1)
    found = []
    for _ in range(count):
        prefill = int(2 ** (11 * rng.random())) if rng.random() < 0.5 else 0
        decodes = int(2 ** (8 * rng.random()))
        chunks = (ChunkShape(prefill, 0, prefill),) if prefill else ()
        found.append(BatchShape(decodes, decodes * int(100 + 3000 * rng.random()), prefill, chunks))
    return found


def measured(model: LatencyModel, count: int, noise: float = 0.0) -> list[MeasuredStep]:
    rng = Random(2)
    return [MeasuredStep(shape, model.step_time(shape) * (1 + noise * (2 * rng.random() - 1))) for shape in shapes(count)]


def test_linear_coefficients_come_back() -> None:
    fit = fit_linear(measured(LinearLatency((5000, 17.5, 60)).compiled(), 200))

    assert isinstance(fit.latency, LinearLatency)
    assert fit.latency.beta == pytest.approx((5000, 17.5, 60), rel=1e-4)
    assert fit.residuals.mape < 1e-3
    assert fit.residuals.quality == "excellent"


def test_noise_is_found_in_the_residuals() -> None:
    fit = fit_linear(
        measured(LinearLatency((5000, 17.5, 60)).compiled(), 2000, noise=0.1)
    )  # evenly from -10 % to +10 %: sd 5.8 %

    assert isinstance(fit.latency, LinearLatency)
    assert fit.latency.beta == pytest.approx((5000, 17.5, 60), rel=0.03)
    assert fit.residuals.sd == pytest.approx(0.058, abs=0.004)
    assert fit.residuals.p50 == pytest.approx(0.05, abs=0.005)


def test_trained_physics_predicts_what_it_was_fitted_to() -> None:
    on = find_deployment(InstanceConfig(model="llama-3.1-8b", hardware="H100", tensor_parallel_size=2))
    truth = TrainedPhysicsLatency((0, 0, 0), (1.4, 0.6, 1.2, 0.8, 0, 5, 0, 0, 0.9, 1.3), deployment=on)
    fit = fit_trained_physics(measured(truth.compiled(), 300), on)

    assert isinstance(fit.latency, TrainedPhysicsLatency)
    assert fit.residuals.p99 < 0.002
    assert fit.latency.beta[0] == pytest.approx(1.4, rel=0.02)
    assert fit.latency.beta[9] == pytest.approx(1.3, rel=0.02)


def test_a_table_follows_what_is_not_linear() -> None:
    class Bent(LinearSteps):
        def step_time(self, batch: BatchShape) -> int:
            waves = -(-batch.prefill_tokens // 256)
            return int(
                4000 + 4000 * waves + 0.002 * batch.context_tokens * (1 + batch.num_decodes / 64) + 300 * batch.num_decodes**0.5
            )

    steps = measured(Bent(0, 0, 0, Overheads()), 500)
    table, linear = fit_table(steps), fit_linear(steps)

    assert table.residuals.mape < 0.05 < linear.residuals.mape
    assert table.residuals.r_squared > 0.97


def test_where_a_table_has_no_measurements_it_is_the_plain_fit() -> None:
    steps = [step for step in measured(LinearLatency((5000, 17.5, 60)).compiled(), 150) if step.shape.num_decodes < 64]
    model = fit_table(steps).latency.compiled()

    assert model.step_time(BatchShape(200, 200 * 900)) == pytest.approx(5000 + 60 * 200, rel=0.05)


def test_a_timeline_is_accounted_for() -> None:
    """A simulation with known coefficients served the requests; fitting recovers them up to what accounting leaves open."""
    rng, now, jobs = Random(3), 0, []
    for number in range(400):
        now += int(200_000 * rng.random())
        prompt, answer = int(100 + 1500 * rng.random()), int(50 + 300 * rng.random())
        jobs.append(Job(Request(id=number, arrival=now, prompt_tokens=prompt), answer))
    results = simulate(jobs, instance=InstanceConfig(latency=LinearLatency((8000, 25, 90))))
    rows = [
        MeasuredRequest(int(p), int(n), a / 1e6, q / 1e6, s / 1e6, f / 1e6, e / 1e6, 0)
        for p, n, a, q, s, f, e in zip(
            results.prompt_tokens,
            results.output_tokens,
            results.arrival,
            results.queued,
            results.scheduled,
            results.first_token,
            results.finished,
            strict=True,
        )
    ]
    fit = fit_timeline(rows)

    assert isinstance(fit.latency, LinearLatency)
    assert fit.latency.beta == pytest.approx((8000, 25, 90), rel=0.08)
    assert fit.residuals.mape < 0.01


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3))
def test_what_is_not_negative_is_found(truth: Sequence[float]) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((40, 3))

    assert non_negative_least_squares(features, features @ np.array(truth)) == pytest.approx(truth, abs=1e-6)


def test_nothing_becomes_negative() -> None:
    features = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    falling = np.array([3.0, 2.0, 1.0])  # 3 - x; the best that does not fall is its mean

    assert non_negative_least_squares(features, falling) == pytest.approx([2.0, 0.0])


def test_residuals_by_hand() -> None:
    found = compute_residuals([100, 200, 400], [110, 180, 400])  # +10 %, -10 %, 0

    assert (found.mean, found.p50) == pytest.approx((0.0, 0.1))
    assert found.mape == pytest.approx(0.2 / 3)
    assert found.sd == pytest.approx((0.02 / 3) ** 0.5)
    assert found.r_squared == pytest.approx(1 - 500 / (140_000 / 3))
    assert found.quality == "excellent"
    assert compute_residuals([100, 200, 400], [125, 250, 500]).quality == "fair"  # BLIS: 25 % off, perfectly correlated
    assert compute_residuals([100, 200, 400], [300, 200, 100]).quality == "poor"


def test_one_step_that_was_logged_with_a_tenth_of_its_time_changes_nothing():
    features, times = np.ones((11, 1)), np.array([10.0] * 10 + [1.0])
    assert robust_fit(features, times) == pytest.approx([10.0], rel=1e-3)


def with_short_outliers(steps, share=0.07):
    rng = Random(5)
    return [MeasuredStep(step.shape, step.us * 0.05) if rng.random() < share else step for step in steps]


def test_seven_in_a_hundred_short_outliers_leave_the_coefficients_where_they_are():
    rng, steps = Random(4), []
    for _ in range(600):
        decodes, prefill = rng.randrange(1, 64), rng.choice((0, 0, 0, rng.randrange(10, 500)))
        us = (3_000 + 20 * prefill + 150 * decodes) * rng.gauss(1, 0.02)
        steps.append(MeasuredStep(BatchShape(decodes, 0, prefill), us))
    fit = fit_linear(with_short_outliers(steps))
    assert fit.latency.beta == pytest.approx((3_000, 20, 150), rel=0.03)
    assert fit.residuals.quality == "excellent"
    assert 20 < fit.residuals.outliers < 70


def test_a_table_follows_a_concave_cost_through_outliers_where_a_line_cannot():
    def cost(decodes):
        return 3_000 + 1_600 * decodes**0.5

    rng = Random(6)
    steps = [MeasuredStep(BatchShape(n, 0), cost(n) * rng.gauss(1, 0.02)) for n in (rng.randrange(1, 33) for _ in range(800))]
    model = fit_table(with_short_outliers(steps)).latency.compiled()
    for decodes in (1, 2, 4, 8, 16, 32):
        assert model.step_time(BatchShape(decodes, 0)) == pytest.approx(cost(decodes), rel=0.04)
    line = fit_linear(with_short_outliers(steps)).latency.compiled()
    assert abs(line.step_time(BatchShape(1, 0)) / cost(1) - 1) > 0.04


def test_beyond_its_cells_a_fitted_table_is_bounded():
    falling = Grid(((1.0, 2.0, 4.0), (0.0,)), (10.0, 20.0, 15.0), bounded=True)
    assert falling.value_at(8, 0) == 15.0  # not 5
    steep = Grid(((1.0, 2.0), (0.0,)), (1.0, 20.0), bounded=True)
    assert steep.value_at(4, 0) == 40.0  # not 58
    assert Grid(((1.0, 2.0), (0.0,)), (1.0, 20.0)).value_at(4, 0) == 58.0
    between = Grid(((1.0, 2.0), (0.0, 100.0)), (10.0, 20.0, 12.0, 24.0), bounded=True)
    assert between.value_at(4, 200) == pytest.approx(48.0)  # the plane itself, which is within the bounds
    assert between.value_at(1.5, 50) == pytest.approx(16.5)


def test_a_table_that_may_be_asked_beyond_its_cells_says_so():
    steps = [MeasuredStep(BatchShape(n, 0), 1_000.0 + n) for n in range(1, 17)]
    latency = fit_table(steps).latency
    assert isinstance(latency, TableLatency)
    (warning, other) = InstanceConfig(latency=latency, max_num_seqs=64, max_num_batched_tokens=1_000).table_warnings()
    assert other.startswith("the table was measured up to 0 prompt tokens in a step")
    assert warning.startswith("the table was measured up to 16 sequences that decode in a step, and max_num_seqs allows 64")
    assert list(InstanceConfig(latency=latency, max_num_seqs=16, max_num_batched_tokens=1_000).table_warnings()) == [other]


def seen_by_clients(latency, *, rate_per_s, seed, requests=150, prompts=(20, 2_000)):
    """Return what clients of a simulated engine would see."""
    rng, now, jobs = Random(seed), 0, []
    for number in range(requests):
        now += round(rng.expovariate(rate_per_s) * 1e6)
        jobs.append(Job(Request(id=number, arrival=now, prompt_tokens=rng.randrange(*prompts)), rng.randrange(10, 60)))
    found = simulate(jobs, instance=InstanceConfig(latency=latency))
    columns = (found.prompt_tokens, found.output_tokens, found.arrival, found.first_token, found.finished)
    return [
        MeasuredRequest(p, n, a / 1e6, a / 1e6, a / 1e6, f / 1e6, e / 1e6, 0, seen_by_client=True)
        for p, n, a, f, e in zip(*(column.tolist() for column in columns), strict=True)
    ]


@pytest.mark.parametrize("per_sequence", [0, 200])
@pytest.mark.parametrize("kind", ["linear", "table"])
def test_what_clients_see_beyond_the_steps_comes_back(kind, per_sequence):
    inside, truth = LinearLatency((4_000, 10, 50)), LinearLatency((5_000, 10, 50 + per_sequence), (7_000, 2.0, 0))
    if kind == "table":
        shapes = [
            BatchShape(n, 0, p, (ChunkShape(p, 0, p),) if p else ()) for n in range(1, 40) for p in (0, 20, 100, 500, 2_000)
        ]
        inside = fit_table([MeasuredStep(shape, inside.compiled().step_time(shape)) for shape in shapes]).latency
    timelines = [seen_by_clients(truth, rate_per_s=rate, seed=rate) for rate in (2, 6)]
    latency, outside = fit_outside(inside, timelines, InstanceConfig())
    assert outside.per_step == pytest.approx(1_000, rel=0.1)
    assert outside.per_sequence == pytest.approx(per_sequence, rel=0.15, abs=10)
    assert outside.alpha == pytest.approx(7_000, rel=0.1)
    assert outside.alpha_per_token == pytest.approx(2.0, rel=0.25)
    other = seen_by_clients(truth, rate_per_s=4, seed=9)
    assert validate("other", other, InstanceConfig(latency=latency)).worst_error < 0.05
    assert validate("other", other, InstanceConfig(latency=inside)).worst_error > 0.15


def test_of_prompts_that_are_alike_nothing_is_concluded_about_others():
    truth, rng = LinearLatency((20_000, 1, 0), (3_000, 0, 0)), Random(5)
    rows = seen_by_clients(truth, rate_per_s=5, seed=8, prompts=(280, 320))
    rows = [replace(row, first_token=row.first_token + rng.expovariate(5_000)) for row in rows]
    _, outside = fit_outside(LinearLatency((20_000, 1, 0)), [rows], InstanceConfig())
    assert outside.alpha_per_token == 0
    assert outside.alpha == pytest.approx(3_150, abs=150)


def test_for_which_part_of_a_step_a_request_waits_is_chance_and_no_part_of_alpha():
    """Requests come up to 10 ms earlier or later than the clock of the clients says: a step takes 20."""
    truth, rng = LinearLatency((20_000, 1, 0), (3_000, 0, 0)), Random(9)
    rows = []
    for row in seen_by_clients(truth, rate_per_s=5, seed=8, requests=600):
        moved = max(0.0, row.sent + rng.uniform(-0.01, 0.01))
        rows.append(replace(row, sent=moved, queued=moved, scheduled=moved))
    rows.sort(key=lambda row: row.sent)
    _, outside = fit_outside(LinearLatency((20_000, 1, 0)), [rows], InstanceConfig())
    typical = outside.alpha + 1_000 * outside.alpha_per_token
    assert typical == pytest.approx(3_000, abs=1_500)


def test_a_line_through_most_points():
    x = np.arange(20.0)
    y = 3 + 2 * x
    y[5], y[11] = 500, 0
    assert robust_line(x, y) == pytest.approx((3, 2), rel=1e-3)
    assert robust_line(x, 3 - 2 * x) == pytest.approx((0, 0), abs=1e-6)


ONE, SIXTEEN = BatchShape(1, 100), BatchShape(16, 1_600)
GROUPS = np.array([group_of(ONE)] * 10 + [group_of(SIXTEEN)] * 10)
TIMES = np.array([1.0, 3.0] * 5 + [3.0, 5.0] * 5)


@pytest.mark.parametrize(
    ("predicted", "misfit"),
    [((2.0, 4.0), 0.0), ((3.0, 3.0), sqrt((0.5**2 + 0.25**2) / 2)), ((2.2, 4.4), 0.1)],
)
def test_the_misfit_is_that_of_the_means(predicted: tuple[float, float], misfit: float) -> None:
    found = compare_equal_steps(GROUPS, TIMES, np.repeat(predicted, 10))
    assert found is not None
    assert found.misfit == pytest.approx(misfit)
    assert found.noise == pytest.approx(sqrt((0.5**2 + 0.25**2) / 2))  # 1 of 2, and 1 of 4
    assert (found.groups, found.covered) == (2, 1.0)


def test_groups_of_few_steps_say_nothing() -> None:
    assert compare_equal_steps(GROUPS[1:], TIMES[1:], TIMES[1:]) is None  # 9 and 10: only half of the steps are in a group


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BatchShape(1, 100), BatchShape(2, 100)),
        (BatchShape(8, 1_000), BatchShape(8, 4_000)),
        (BatchShape(8, 1_000), BatchShape(8, 1_000, 64)),
        (BatchShape(8, 1_000, 64), BatchShape(8, 1_000, 128)),
    ],
)
def test_steps_of_other_sizes_are_of_other_groups(one: BatchShape, other: BatchShape) -> None:
    assert group_of(one) != group_of(other)
    assert group_of(BatchShape(9, 1_100)) == group_of(BatchShape(10, 1_200))


def steps(cost: dict[int, float]) -> list[MeasuredStep]:
    """Return 40 steps for each number of sequences, of which each takes a third to nine thirds of its cost."""
    rng = Random(3)
    return [
        MeasuredStep(BatchShape(n, 100 * n), us * rng.choice((1 / 3, 2 / 3, 1, 1, 1, 2)))
        for n, us in cost.items()
        for _ in range(40)
    ]


def test_a_fit_to_noisy_steps_is_not_poor_if_their_means_are_right() -> None:
    found = fit_linear(steps({1: 2_000.0, 4: 2_300.0, 16: 3_500.0})).residuals
    assert found.mape > 0.35  # poor by single steps
    assert found.equal is not None
    assert found.equal.misfit < 0.1
    assert found.quality in ("excellent", "good")
    assert found.model_error == found.equal.misfit < 0.2 * found.sd


def test_a_wrong_model_is_poor_however_its_errors_are_averaged() -> None:
    found = fit_linear(steps({1: 9_000.0, 4: 1_000.0, 16: 8_000.0, 64: 900.0})).residuals
    assert found.equal is not None
    assert found.equal.misfit > 0.5
    assert found.quality == "poor"
