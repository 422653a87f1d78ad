"""Steps of recorded BLIS runs (f90a1e3a; Llama-3.1-8B on one H100, its shipped coefficients), where a request had the
instance for itself: what is left of its recorded TTFT without queueing and per-token overhead is the time of its prefill."""

from __future__ import annotations

import pytest
from latency_shapes import ON_H100, decode, prefill

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel
from maitred.instance.latency import LinearLatency, RooflineLatency, TrainedPhysicsLatency

WAY_IN, WAY_OUT, PER_TOKEN = 15563, 777, 45


@pytest.fixture
def physics() -> LatencyModel:
    return TrainedPhysicsLatency(deployment=ON_H100).compiled()


def test_roofline_prefill() -> None:
    assert RooflineLatency(ON_H100).compiled().step_time(prefill(450)) == 10429


@pytest.mark.parametrize(("prompt", "ttft"), [(450, 23433), (322, 23146), (898, 24467)])
def test_trained_physics_prefill(physics: LatencyModel, prompt: int, ttft: int) -> None:
    assert physics.step_time(prefill(prompt)) == ttft - WAY_IN - PER_TOKEN


def test_trained_physics_prefill_in_chunks_pays_attention_to_the_whole_prompt_in_each(physics: LatencyModel) -> None:
    chunks = [min(512, 3673 - start) for start in range(0, 3673, 512)]
    steps = [BatchShape(0, 0, tokens, (ChunkShape(tokens, 512 * i, 3673),)) for i, tokens in enumerate(chunks)]

    assert sum(map(physics.step_time, steps)) == 79325 - WAY_IN - PER_TOKEN


@pytest.mark.parametrize(
    ("prompt", "answer", "ttft", "e2e"),
    [(322, 22, 23146, 168920), (3673, 20, 79325, 216140), (4871, 68, 102551, 589279)],
)
def test_trained_physics_decode(physics: LatencyModel, prompt: int, answer: int, ttft: int, e2e: int) -> None:
    steps = answer - 1

    assert physics.run_time(decode(1, prompt), steps) == e2e - ttft - steps * PER_TOKEN - WAY_OUT


def test_overheads_are_whole_microseconds(physics: LatencyModel) -> None:
    overheads = physics.overheads

    assert (overheads.queueing_delay(10), overheads.per_output_token, overheads.after_last_token) == (
        WAY_IN,
        PER_TOKEN,
        WAY_OUT,
    )


def test_trained_physics_may_be_purely_linear() -> None:
    config = TrainedPhysicsLatency((1000, 500, 20), (0, 0, 0, 0, 0, 50, 5000, 0, 0, 0), deployment=ON_H100)
    linear = config.compiled()

    assert linear.step_time(prefill(450)) == 6070 - 1000 - 20
    assert linear.step_time(BatchShape(3, 900, 100, (ChunkShape(100, 0, 100),))) == 5000 + 50 * 4
    assert linear.run_time(decode(7, 12345), 1000) == 1000 * 5350
    assert linear.steps_within(decode(7, 12345), 5350 * 9 - 1, 99) == 8


def test_blackbox_with_its_overheads() -> None:
    said = LinearLatency((5000.0, 17.5, 60.0), (500.0, 1.0, 100.0))
    linear = said.compiled()

    assert linear.step_time(prefill(451)) == 12892  # 5000 + 17.5 · 451 = 12892.5
    assert said.compiled(2.0).step_time(prefill(451)) == 25785
    assert said.compiled(2.0).overheads == linear.overheads
    assert linear.overheads.queueing_delay(451) == 951
    assert (linear.overheads.per_output_token, linear.overheads.after_last_token) == (100, 0)
