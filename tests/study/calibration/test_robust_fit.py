"""Fits that a few wrong measurements do not spoil, and what clients see beyond the steps."""

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.latency import Grid, TableLatency
from maitred.sim import simulate
from maitred.study.calibration.fitting import fit_linear
from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep
from maitred.study.calibration.outside import fit_outside
from maitred.study.calibration.robust import robust_fit, robust_line
from maitred.study.calibration.table_fit import fit_table
from maitred.study.calibration.validation import validate
from maitred.workload import Job


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
