"""The most that an instance can take, held against saturated simulations and against a figure worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from maitred.instance import InstanceConfig
from maitred.instance.catalogue import resolve_instance
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.sim import simulate
from maitred.workload import synthetic


def test_the_example_of_the_module() -> None:
    """Half a request ends per step: 5,000 + 256·60 + 256·17.5 = 24,840 µs, 0.5 / 24.84 ms = 20.13."""
    found = find_throughput_limit(InstanceConfig(max_num_batched_tokens=4096), RequestMix(prompt=512, output=512))
    assert found.rate == pytest.approx(20.13, abs=0.01)
    assert (found.batch, found.bound) == (255.5, "max_num_seqs")


@pytest.mark.parametrize(
    ("instance", "bound", "within"),
    [
        (InstanceConfig(max_num_seqs=32), "max_num_seqs", 0.1),
        (InstanceConfig(max_num_seqs=512, max_num_batched_tokens=256), "max_num_batched_tokens", 0.1),
        (InstanceConfig(model="llama-3.1-8b", latency="trained-physics"), "max_num_seqs", 0.1),
        (InstanceConfig(model="llama-3.1-8b", latency="roofline"), "max_num_seqs", 0.13),
        (InstanceConfig(model="llama-3.1-8b", latency="trained-physics", total_kv_blocks=8_000), "total_kv_blocks", 0.1),
    ],
)
def test_a_saturated_instance_reaches_it(instance: InstanceConfig, bound: str, within: float) -> None:
    resolved, jobs = resolve_instance(instance), list(synthetic(rate=2_000, num_requests=800))
    mix = RequestMix(
        prompt=float(np.mean([job.request.prompt_tokens for job in jobs])),
        output=float(np.mean([job.output_tokens for job in jobs])),
    )
    found = find_throughput_limit(resolved, mix)
    finished = np.sort(simulate(jobs, None, resolved).finished)
    first, last = int(0.35 * len(finished)), int(0.65 * len(finished))
    measured = (last - first) / ((finished[last] - finished[first]) / 1e6)
    assert measured == pytest.approx(found.rate, rel=within)
    assert found.bound == bound


def test_prompts_alone_fill_the_steps() -> None:
    """2,048 tokens are 2,048/900 prompts, in 5,000 + 2,048·17.5 µs."""
    found = find_throughput_limit(InstanceConfig(), RequestMix(prompt=900, output=1))
    assert found.rate == pytest.approx(2_048 / 900 / 0.040840, rel=1e-3)


@pytest.mark.parametrize(
    ("seats", "output", "blocks", "rate", "bound"),
    [
        (8, 1, None, 800, "max_num_seqs"),  # 8 prompts in each step of 10 ms
        (1, 2, None, 50, "max_num_seqs"),  # a step for the prompt, and one for the second token
        (4, 3, None, 400 / 3, "max_num_seqs"),
        (64, 1, 4, 400, "total_kv_blocks"),  # 4 blocks hold 4 prompts, in one block each
    ],
)
def test_a_prompt_holds_a_seat_while_it_is_computed(
    seats: int, output: int, blocks: int | None, rate: float, bound: str
) -> None:
    """Short answers, worked out by hand, and simulated: every step takes 10 ms."""
    instance = InstanceConfig(max_num_seqs=seats, total_kv_blocks=blocks, latency="linear:10000,0,0")
    found = find_throughput_limit(instance, RequestMix(prompt=15.5 if blocks else 10, output=output))
    assert (found.rate, found.bound) == (pytest.approx(rate), bound)
    jobs = synthetic(rate=50_000, num_requests=480, input_tokens=10, output_tokens=output)
    finished = simulate(jobs, None, instance).finished
    assert 480e6 / max(finished) == pytest.approx(rate, rel=0.03)


def test_cached_prompts_leave_room() -> None:
    cold = find_throughput_limit(InstanceConfig(), RequestMix(prompt=2_000, output=100))
    warm = find_throughput_limit(InstanceConfig(), RequestMix(prompt=2_000, output=100, cached=1_800))
    assert warm.rate > 2 * cold.rate
