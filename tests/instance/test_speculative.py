"""Speculative decoding: tokens per step and speed-up by the formulas of Leviathan et al. (2023), and the same step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import resolve_instance
from maitred.instance.speculative import SpeculativeConfig
from maitred.sim import Results, simulate
from maitred.workload import Job


def engine(*, beta: tuple[float, float, float] = (10_000, 0, 0), tokens: int = 0, **keys: Any) -> InstanceConfig:
    spec = SpeculativeConfig(num_speculative_tokens=tokens, **keys)
    return InstanceConfig(latency=LinearLatency(beta), speculative=spec)


@pytest.mark.parametrize(
    ("accepted", "proposed", "exact"),
    [(0.8, 3, 2.952), (0.5, 1, 1.5), (0.0, 5, 1.0), (1.0, 4, 5.0), (0.9, 10, 6.8618940391)],
)
def test_tokens_per_step_are_the_sum_of_the_chances(accepted: float, proposed: int, exact: float) -> None:
    """1 + a + a^2 + ... + a^k."""
    found = SpeculativeConfig(num_speculative_tokens=proposed, acceptance_rate=accepted).tokens_per_step
    assert found == pytest.approx(exact)
    assert found == pytest.approx(sum(accepted**power for power in range(proposed + 1)))


@pytest.mark.parametrize(("accepted", "proposed", "cost"), [(0.8, 3, 0.1), (0.6, 5, 0.02), (0.3, 8, 0.2)])
def test_decoding_is_faster_by_their_theorem_where_verifying_costs_nothing(accepted: float, proposed: int, cost: float) -> None:
    """Theorem 3.8: (1 - a^(k+1)) / ((1 - a) (k c + 1)); the first token comes with the prompt, which is as slow as ever."""
    jobs = [Job(Request(id=0, arrival=0, prompt_tokens=50), 2001)]
    plain = simulate(jobs, None, engine())
    fast = simulate(jobs, None, engine(tokens=proposed, acceptance_rate=accepted, draft_cost=cost))
    assert plain.first_token[0] == fast.first_token[0] == 10_000
    took = [int(each.finished[0] - each.first_token[0]) for each in (plain, fast)]
    speed_up = (1 - accepted ** (proposed + 1)) / ((1 - accepted) * (proposed * cost + 1))
    assert took[0] / took[1] == pytest.approx(speed_up, rel=1e-3)


def test_a_step_by_hand() -> None:
    """1,000 µs, 10 per prefill token, 100 per decode; 4 sequences, 3 tokens each, a = 0.8, so E = 2.952; c = 0.1."""
    model = engine(beta=(1000, 10, 100), tokens=3, acceptance_rate=0.8, draft_cost=0.1).latency_model()
    verified = 1000 + 4 * 100 + 4 * 3 * 10 + 3 * 0.1 * 1400
    decodes = BatchShape(4, 400)
    assert model.step_time(decodes) == int(verified / 2.952)
    mixed = BatchShape(4, 400, 50, (ChunkShape(50, 0, 50),))
    assert model.step_time(mixed) == int(verified / 2.952 + 500)
    assert model.step_time(BatchShape(0, 0, 50, (ChunkShape(50, 0, 50),))) == 1500


def crowd() -> Iterator[Job]:
    draw = Random(5)
    for i in range(80):
        yield Job(Request(id=i, arrival=i * 20_000, prompt_tokens=draw.randrange(1, 600)), draw.randrange(1, 200))


@pytest.mark.parametrize("latency", ["linear", "roofline"])
def test_skipping_changes_nothing(latency: str) -> None:
    def run(**keys: Any) -> Results:
        model = {"model": "llama-3.1-8b", "latency": "roofline"} if latency == "roofline" else {}
        spec = SpeculativeConfig(num_speculative_tokens=4, acceptance_rate=0.7)
        config = InstanceConfig(max_num_seqs=9, speculative=spec, total_kv_blocks=300, max_model_len=4000, **model, **keys)
        return simulate(crowd(), None, config)

    skipped, stepped = run(), run(step_by_step=True)
    for name in ("first_token", "finished", "preemptions"):
        assert np.array_equal(getattr(skipped, name), getattr(stepped, name)), name


def test_on_a_gpu_small_batches_gain_and_large_ones_pay_for_what_is_verified() -> None:
    """At batch 1 the weights are read anyway; a large batch computes, and every proposed token costs."""
    spec = SpeculativeConfig(num_speculative_tokens=4, acceptance_rate=0.6, draft_cost=0.05)
    plain = resolve_instance(InstanceConfig(model="llama-3.1-8b", latency="roofline")).latency_model()
    fast = resolve_instance(InstanceConfig(model="llama-3.1-8b", latency="roofline", speculative=spec)).latency_model()
    gains = [plain.step_time(shape) / fast.step_time(shape) for shape in (BatchShape(1, 500), BatchShape(1000, 500_000))]
    assert 1.8 < gains[0] < spec.tokens_per_step
    assert gains[1] < 0.9 * gains[0]


def test_wrong_values_and_keys_without_effect() -> None:
    for keys, what in (
        ({"num_speculative_tokens": 65}, "num_speculative_tokens must be from 0 to 64"),
        ({"acceptance_rate": 1.1}, "acceptance_rate must be from 0 to 1"),
        ({"draft_cost": -0.1}, "draft_cost must be from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=what):
            SpeculativeConfig(**keys)
    assert InstanceConfig(speculative=SpeculativeConfig(draft_cost=0.3)).warnings(prefix_cache=False) == [
        "speculative.draft_cost has no effect without num_speculative_tokens"
    ]
