"""Admission policies and flow control in virtual time. A request of 50 tokens and 2 of answer takes 150 + 110 µs alone."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from maitred.admission import AdmissionConfig
from maitred.core.decisions import DecisionLog
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.replay import replay
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job, synthetic

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)), max_num_seqs=4)
REJECTED = Outcome.REJECTED


def job(number: int, arrival: int = 0, slo: str = "", **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=50, slo_class=slo, **fields), 2)


def admission(mode: str, **keys: Any) -> AdmissionConfig:
    return msgspec.convert({"mode": mode, **keys}, AdmissionConfig)


def flow(**keys: Any) -> AdmissionConfig:
    return admission("flow-control", flow_control=keys)


def test_a_policy_alone_is_admission_enough() -> None:
    bucket = admission("off", policy="token-bucket", token_bucket_capacity=100, token_bucket_refill_rate=50_000)
    jobs = [job(0), job(1), job(2, 999), job(3, 1000)]  # 100 tokens are two prompts; a third one's come in a ms

    results = simulate(jobs, ClusterConfig(), INSTANCE, admission=bucket)

    assert [Outcome(o) is REJECTED for o in results.outcome] == [False, False, True, False]


def test_tier_shed_sees_the_instances_as_they_are_when_it_decides() -> None:
    """A request counts as in flight, and as waiting or running, from the step that admits it until its end at 260 µs."""
    shed = admission("off", policy="tier-shed", tier_shed_threshold=1)
    jobs = [job(0), job(1, 1, "batch"), job(2, 2, "critical"), job(3, 5000, "batch")]

    results = simulate(jobs, ClusterConfig(), INSTANCE, admission=shed)

    assert [Outcome(o) is REJECTED for o in results.outcome] == [False, True, False, False]


def test_one_in_flight_per_instance_and_the_urgent_first() -> None:
    jobs = [job(0), job(1, 1, "batch"), job(2, 2, "critical")]

    results = simulate(jobs, ClusterConfig(), INSTANCE, admission=flow(max_concurrency=1))

    assert results.scheduled.tolist() == [0, 520, 260]


def test_blis_lets_one_in_at_a_tick() -> None:
    """A slot is free from 260 µs on, and the next tick is at 1,000."""
    blis = admission("flow-control", flavour="blis", flow_control={"saturation_detector": "concurrency", "max_concurrency": 1})
    jobs = [job(0), job(1, 1, "batch"), job(2, 2, "critical")]

    results = simulate(jobs, ClusterConfig(), INSTANCE, admission=blis)

    assert results.scheduled.tolist() == [0, 2000, 1000]


def test_one_that_is_on_its_way_to_the_router_counts() -> None:
    """Otherwise each request would see an idle instance for 5 ms, and all three would enter at once."""
    results = simulate(
        [job(0), job(1, 1), job(2, 2)], ClusterConfig(routing_latency_ms=5), INSTANCE, admission=flow(max_concurrency=1)
    )

    assert results.scheduled.tolist() == [5000, 10_260, 15_520]


def test_eviction_ends_sheddable_work_that_has_shown_nothing() -> None:
    evicting = flow(max_concurrency=1, in_flight_eviction=True)
    jobs = [job(0, 0, "sheddable", stream=False), job(1, 200, "critical")]

    results = simulate(jobs, ClusterConfig(), INSTANCE, admission=evicting)

    assert [Outcome(o) for o in results.outcome] == [Outcome.PREEMPTED, Outcome.COMPLETED]
    assert results.scheduled.tolist()[1] == 260  # when the step that was under way has ended


@pytest.mark.parametrize("flavour", ["maitred", "blis"])
@pytest.mark.parametrize(
    "keys",
    [
        {"saturation_detector": "utilization", "queue_depth_threshold": 1.5, "usage_limit_threshold": 0.6},
        {"saturation_detector": "concurrency", "max_concurrency": 5, "request_ttl_us": 40_000, "in_flight_eviction": True},
    ],
)
def test_skipping_changes_nothing_and_the_log_runs_again(flavour: str, keys: dict[str, Any]) -> None:
    config = admission("flow-control", flavour=flavour, on_preempt="retry", flow_control=keys)
    cluster = ClusterConfig(num_instances=2)
    log: list[bytes] = []

    def run(instance: InstanceConfig, write: Any) -> Results:
        jobs = synthetic(1500, 300, seed=7, output_tokens="normal:40,20", class_mix="interactive:1,default:1,bulk:2")
        return simulate(jobs, cluster, instance, admission=config, log=DecisionLog(write))

    skipped = run(INSTANCE, log.append)
    stepped = run(msgspec.structs.replace(INSTANCE, step_by_step=True), lambda line: None)
    again: list[bytes] = []
    replay(log, DecisionLog(again.append))

    for column in ("scheduled", "first_token", "finished", "instance", "outcome"):
        assert np.array_equal(getattr(skipped, column), getattr(stepped, column)), column
    assert again == log
    assert any(b'"saturated"' in line for line in log)
