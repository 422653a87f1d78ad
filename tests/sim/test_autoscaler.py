"""Autoscaling: worked out by hand under constant load, with cold starts, delays and drains, and the same step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission import AdmissionConfig
from maitred.autoscaling import AUTOSCALERS, FleetState
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.core.units import SECOND
from maitred.instance import InstanceConfig, LinearLatency
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.sim.fleet_config import AutoscalingConfig, FailureConfig
from maitred.workload import Job

STEPS_OF_1_MS = InstanceConfig(latency=LinearLatency((1000, 0, 0)))
SLO = "slo-attainment(ttft_ms=1)"
TENTH = SECOND // 10


def requests(*phases: tuple[int, int]) -> Iterator[Job]:
    """Return requests of 1 s each: for each phase so many, at this distance (µs)."""
    at = number = 0
    for count, every in phases:
        for _ in range(count):
            yield Job(Request(id=number, arrival=at, prompt_tokens=1), 1000)
            number, at = number + 1, at + every


def scaled(**keys: Any) -> ClusterConfig:
    stated: dict[str, Any] = {"interval_secs": 5.0, "cold_start_secs": 10.0, "scale_down_delay_secs": 20.0, **keys}
    return ClusterConfig(autoscaling=AutoscalingConfig(policy="in-flight(target=2)", max_instances=8, **stated))


def held(results: Results) -> list[float]:
    return [(each.held or 0) / SECOND for each in results.instances]


def test_a_constant_load_by_hand() -> None:
    """Ten are in flight from t = 1 s on, so five instances are wanted at the first look, at 5 s, and never another number."""
    results = simulate(requests((1000, TENTH)), scaled(), STEPS_OF_1_MS)
    assert results.end == 100.9 * SECOND
    assert held(results) == [100.9, *[95.9] * 4, 0, 0, 0]
    assert [each.serving / SECOND for each in results.instances] == [100.9, *[85.9] * 4, 0, 0, 0]
    assert results.instance[results.arrival < 15 * SECOND].max() == 0
    assert set(results.instance[results.arrival > 16 * SECOND]) == {0, 1, 2, 3, 4}


def test_fewer_instances_only_after_the_delay() -> None:
    """One is in flight from 51 s on. The last look that wanted five was at 50 s, so four go at 70 s, when they are idle."""
    results = simulate(requests((501, TENTH), (100, SECOND)), scaled(), STEPS_OF_1_MS)
    assert results.end == 150.1 * SECOND
    # The last request arrived at instance 1.
    assert held(results) == [70, 145.1, 65, 65, 65, 0, 0, 0]


def test_an_instance_drains_before_it_goes() -> None:
    """Two long requests are at two instances, and one is wanted from 5 s on: the second gets no more and is held to its end."""
    long = [Job(Request(id=i, arrival=i, prompt_tokens=1), 60_000) for i in range(2)]
    late = [Job(Request(id=2 + i, arrival=(6 + i) * SECOND, prompt_tokens=1), 1_000) for i in range(3)]
    cluster = ClusterConfig(
        num_instances=2,
        autoscaling=AutoscalingConfig(
            policy="in-flight(target=10)", max_instances=2, interval_secs=5.0, scale_down_delay_secs=0.0
        ),
    )
    results = simulate([*long, *late], cluster, STEPS_OF_1_MS)
    assert results.instance.tolist() == [0, 1, 0, 0, 0]
    assert {Outcome(each) for each in results.outcome} == {Outcome.COMPLETED}
    assert results.instances[1].held == results.finished[1]
    assert results.instances[1].serving == 5 * SECOND


def test_the_delay_holds_from_the_beginning() -> None:
    """One is in flight throughout, and one instance is wanted from the first look on, at 5 s: the others go at 20 s."""
    cluster = ClusterConfig(
        num_instances=4,
        autoscaling=AutoscalingConfig(policy="in-flight(target=2)", interval_secs=5.0, scale_down_delay_secs=20.0),
    )
    results = simulate(requests((30, SECOND)), cluster, STEPS_OF_1_MS)
    assert sorted(held(results))[-4:] == [20, 20, 20, 30]


@pytest.mark.parametrize("policy", ["queue-depth(target=2)", "in-flight(target=4)"])
def test_what_waits_for_admission_counts(policy: str) -> None:
    """Slots follow the instances, so hardly any request waits in one: 10/s of 1 s each come to a batch of 4, and need three."""
    admission = AdmissionConfig(mode="priority", on_overcommit="clamp")
    jobs = [
        Job(Request(id=i, arrival=i * TENTH, prompt_tokens=1, priority_class=PriorityClass.SYSTEM), 1000) for i in range(600)
    ]
    scaling = AutoscalingConfig(policy=policy, interval_secs=5.0, cold_start_secs=10.0)
    four = InstanceConfig(latency=LinearLatency((1000, 0, 0)), max_num_seqs=4)
    results = simulate(jobs, ClusterConfig(autoscaling=scaling), four, None, admission)
    assert sum(each > 0 for each in held(results)) >= 3
    assert (results.outcome[300:] == Outcome.COMPLETED).all()


@pytest.mark.parametrize(
    ("policy", "state", "wanted"),
    [
        ("in-flight(target=10)", {"in_flight": 45}, 5),
        ("in-flight(target=10)", {"in_flight": 43}, 4),
        ("kv-usage(target=0.5)", {"kv_usage": 0.8}, 7),
        ("kv-usage(target=0.5)", {"kv_usage": 0.52}, 4),
        ("queue-depth(target=5)", {"waiting": 40}, 8),
        ("queue-depth(target=5)", {"waiting": 21}, 5),
        ("queue-depth(target=5)", {"waiting": 20, "running": 1}, 4),
        ("queue-depth(low=0.5)", {"running": 149}, 3),
        ("queue-depth(low=0.5)", {"running": 150}, 4),
        ("slo-attainment(ttft_ms=100)", {"ttfts": [99_999] * 18 + [100_001] * 2, "running": 400}, 5),
        ("slo-attainment(ttft_ms=100)", {"ttfts": [99_999] * 19 + [100_001], "running": 400}, 4),
        ("slo-attainment(ttft_ms=100)", {"ttfts": [], "running": 1}, 3),
        ("slo-attainment(low=0.5)", {"running": 1, "kv_usage": 0.37}, 3),
        ("slo-attainment(low=0.5)", {"running": 1, "kv_usage": 0.38}, 4),
        ("queue-depth(low=0.5)", {"running": 1, "kv_usage": 0.38}, 4),
    ],
)
def test_what_policies_want_of_four_instances(policy: str, state: dict[str, Any], wanted: int) -> None:
    """Four instances with batches of 100: three hold 300, of which half are 150, and half of their KV is 0.375 of all."""
    plain: dict[str, Any] = {"in_flight": 0, "waiting": 0, "running": 0, "kv_usage": 0.0, "ttfts": []}
    assert AUTOSCALERS.create(policy).desired(FleetState(serving=4, starting=0, slots=400, **{**plain, **state})) == wanted


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(
        ["in-flight(target=3)", "kv-usage(target=0.3)", "queue-depth(target=1)", "slo-attainment(ttft_ms=1)"]
    ),
    cold=st.sampled_from([0.0, 0.0013]),
    delay=st.sampled_from([0.0, 0.003]),
    slots=st.booleans(),
)
def test_skipping_changes_nothing(seed: int, policy: str, cold: float, delay: float, slots: bool) -> None:
    def run(**instance: Any) -> Results:
        config = InstanceConfig(
            latency=LinearLatency((100, 1, 10)), max_num_seqs=4, total_kv_blocks=40, enable_prefix_caching=True, **instance
        )
        scaling = AutoscalingConfig(
            policy=policy, max_instances=5, interval_secs=0.001, cold_start_secs=cold, scale_down_delay_secs=delay
        )
        admission = AdmissionConfig(mode="priority", on_overcommit="clamp") if slots else None
        return simulate(crowd(seed), ClusterConfig(num_instances=2, autoscaling=scaling), config, None, admission, seed=seed)

    skipped, stepped = run(), run(step_by_step=True)
    for name in ("arrival", "admitted", "first_token", "finished", "outcome", "instance", "output_tokens"):
        assert np.array_equal(getattr(skipped, name), getattr(stepped, name)), name
    assert [(each.serving, each.held, each.busy) for each in skipped.instances] == [
        (each.serving, each.held, each.busy) for each in stepped.instances
    ]


def crowd(seed: int) -> Iterator[Job]:
    draw, at = Random(seed), 0
    for i in range(60):
        at += draw.choice([0, 100, 300, 2000])
        yield Job(Request(id=i, arrival=at, prompt_tokens=draw.randrange(1, 90)), draw.randrange(1, 40))


@pytest.mark.parametrize("wanted", [2.5, float("nan"), "3", None])
def test_a_policy_that_wants_no_whole_number_is_named(monkeypatch: pytest.MonkeyPatch, wanted: Any) -> None:
    class Wrong:
        def desired(self, state: FleetState) -> Any:
            return wanted

    monkeypatch.setitem(AUTOSCALERS._known, "wrong", Wrong)
    cluster = ClusterConfig(autoscaling=AutoscalingConfig(policy="wrong", max_instances=2, interval_secs=1.0))
    with pytest.raises(ConfigError, match=r"wrong wants .* instances"):
        simulate(requests((2, 0)), cluster, InstanceConfig())


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="min_instances and max_instances must be in order"):
        AutoscalingConfig(min_instances=3, max_instances=2)
    with pytest.raises(ValueError, match="num_instances, with which autoscaling begins, must be from min_instances 2"):
        ClusterConfig(autoscaling=AutoscalingConfig(policy="in-flight", min_instances=2))
    with pytest.raises(ConfigError, match="unknown autoscaling policy 'inflight'"):
        simulate((), ClusterConfig(autoscaling=AutoscalingConfig(policy="inflight")))
    both = ClusterConfig(autoscaling=AutoscalingConfig(policy="in-flight"), failures=FailureConfig(mtbf_secs=1.0))
    with pytest.raises(ConfigError, match="autoscaling is not simulated with failures"):
        simulate((), both)
    assert [*AutoscalingConfig(max_instances=3).warnings()] == ["autoscaling.max_instances has no effect without policy"]
    slow = ClusterConfig(autoscaling=AutoscalingConfig(policy="in-flight"), failures=FailureConfig(slow_instances=1))
    with pytest.raises(ConfigError, match="autoscaling is not simulated with slow instances"):
        simulate((), slow)


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        ("in-flight(target=1e-320)", "target must be from 0.001 to 1,000,000,000"),
        ("kv-usage(target=1.5)", "target must be from 0.001 to 1,"),
        ("queue-depth(low=0)", "low must be from 0.001 to 1,"),
        ("slo-attainment(attainment=95)", "attainment must be from 0.001 to 1,"),
    ],
)
def test_targets_that_no_fleet_could_keep_are_an_error(policy: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        simulate(requests((100, TENTH)), ClusterConfig(autoscaling=AutoscalingConfig(policy=policy)))
