"""Latency models fitted to synthetic measurements with known coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel, Overheads
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import find_deployment
from maitred.instance.latency import TrainedPhysicsLatency
from maitred.instance.latency.linear_steps import LinearSteps
from maitred.sim import simulate
from maitred.study.calibration.fitting import (
    compute_residuals,
    fit_linear,
    fit_timeline,
    fit_trained_physics,
)
from maitred.study.calibration.least_squares import non_negative_least_squares
from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep
from maitred.study.calibration.table_fit import fit_table
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

    steps = measured(Bent(0, 0, 0, Overheads()), 1500)
    table, linear = fit_table(steps), fit_linear(steps)

    assert table.residuals.mape < 0.05 < linear.residuals.mape
    assert table.residuals.r_squared > 0.97


def test_where_a_table_has_no_measurements_it_is_the_plain_fit() -> None:
    steps = [step for step in measured(LinearLatency((5000, 17.5, 60)).compiled(), 400) if step.shape.num_decodes < 64]
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
