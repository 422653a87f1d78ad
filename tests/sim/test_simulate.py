"""The simulator. Steps last 100 µs + 1 µs per prefill token + 10 µs per decode, so sums are easy by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission import AdmissionConfig
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.replay import replay
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)))


def job(number: int, arrival: int = 0, prompt: int = 50, output: int = 2, **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **fields), output)


def outcomes(results: Results) -> list[Outcome]:
    return [Outcome(value) for value in results.outcome]


def test_requests_are_spread_over_the_instances_and_timed_to_the_microsecond() -> None:
    results = simulate([job(0), job(1), job(2, arrival=100)], ClusterConfig(num_instances=2), INSTANCE)
    # 0 and 1 each have an instance: prefill to 150, decode to 260. 2 joins the first of them at 150.
    assert results.instance.tolist() == [0, 1, 0]
    assert results.first_token.tolist() == [150, 150, 150 + 160]
    assert results.finished.tolist() == [310, 260, 420]
    assert results.scheduled.tolist() == [0, 0, 150]
    assert results.output_tokens.tolist() == [2, 2, 2]
    assert results.end == 420


def test_round_robin_is_a_name_away() -> None:
    jobs = [job(i, arrival=i * 1000) for i in range(4)]
    assert simulate(jobs, ClusterConfig(num_instances=2), INSTANCE, RoutingConfig(policy="round-robin")).instance.tolist() == [
        0,
        1,
        0,
        1,
    ]


def test_every_request_is_accounted_for() -> None:
    jobs = [
        job(0),
        job(1, prompt=10**9),
        job(2, arrival=1, deadline=5),
        job(3, arrival=2, output=10_000),
        job(4, arrival=10**9),
    ]
    results = simulate(jobs, ClusterConfig(), INSTANCE, horizon=50_000)
    assert outcomes(results) == [Outcome.COMPLETED, Outcome.REFUSED, Outcome.TIMED_OUT, Outcome.UNFINISHED]
    assert results.finished.tolist() == [310, 0, 5, -1]  # 150, then a step beside the prompt of 3: 100 + 10 + 50
    assert results.output_tokens[3] > 400  # what came out before the horizon
    assert results.end == 50_000


@pytest.mark.parametrize("capacity", [None, 1])
def test_what_can_never_run_ends_as_it_arrives_and_takes_no_slot(capacity: int | None) -> None:
    jobs = [job(0, prompt=10**9), job(1, arrival=1), job(2, arrival=5, deadline=5), job(3, arrival=9, prompt=0)]
    results = simulate(jobs, ClusterConfig(capacity=capacity), INSTANCE)
    assert outcomes(results) == [Outcome.REFUSED, Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.REFUSED]
    assert results.finished.tolist() == [0, 261, 5, 9]
    assert len(simulate([job(0, prompt=10**9)], ClusterConfig(capacity=capacity), INSTANCE, horizon=5)) == 1


def test_the_end_is_when_the_last_request_ended_and_not_an_unneeded_timer() -> None:
    results = simulate([job(0, deadline=10**9), job(1)], ClusterConfig(capacity=1), INSTANCE)
    assert results.finished.tolist() == [260, 520]
    assert results.end == 520
    assert simulate([job(0)], ClusterConfig(), INSTANCE, horizon=10**9).end == 260


def test_nothing_to_do() -> None:
    results = simulate([])
    assert len(results) == 0
    assert results.end == 0


def test_admission_holds_requests_back_until_a_slot_is_free() -> None:
    jobs = [
        job(0, priority_class=PriorityClass.BULK),
        job(1, priority_class=PriorityClass.BULK),
        job(2, arrival=10, priority_class=PriorityClass.INTERACTIVE),
    ]
    results = simulate(jobs, ClusterConfig(capacity=1), INSTANCE, admission=_admission({}))
    assert results.scheduled.tolist() == [0, 520, 260]  # the interactive one passes the bulk one that has waited longer
    assert outcomes(results) == [Outcome.COMPLETED] * 3


def test_admission_turns_away_what_waits_too_long_or_finds_the_queue_full() -> None:
    jobs = [job(0), job(1, arrival=1), job(2, arrival=2)]
    impatient = _admission({"default": {"queue_size": 1, "queue_timeout_secs": 0.0001}})
    results = simulate(jobs, ClusterConfig(capacity=1), INSTANCE, admission=impatient)
    assert outcomes(results) == [Outcome.COMPLETED, Outcome.REJECTED, Outcome.REJECTED]
    assert results.finished.tolist() == [260, 101, 2]
    assert results.instance.tolist() == [0, -1, -1]


def test_a_deadline_also_passes_for_one_that_waits_for_admission() -> None:
    results = simulate([job(0), job(1, deadline=200)], ClusterConfig(capacity=1), INSTANCE)
    assert outcomes(results) == [Outcome.COMPLETED, Outcome.TIMED_OUT]
    assert results.finished.tolist() == [260, 200]


def test_each_model_has_slots_of_its_own() -> None:
    jobs = [job(0, model="a"), job(1, model="a"), job(2, model="b")]
    results = simulate(jobs, ClusterConfig(num_instances=3, capacity=1), INSTANCE)
    assert results.scheduled.tolist() == [0, 260, 0]


def test_the_decision_log_replays_to_the_same_bytes() -> None:
    lines, again = list[bytes](), list[bytes]()
    jobs = list(burst(60))
    simulate(jobs, ClusterConfig(capacity=4), INSTANCE, log=DecisionLog(lines.append))
    replay(lines, DecisionLog(again.append))
    assert len(lines) > 60
    assert lines == again


def test_jobs_out_of_order_are_an_error() -> None:
    with pytest.raises(ConfigError, match="request 1 arrives at 5 µs, after one that arrived at 9 µs"):
        simulate([job(0, arrival=9), job(1, arrival=5)])
    with pytest.raises(ConfigError, match="request 0 arrives at -1 µs, before the run begins at 0"):
        simulate([job(0, arrival=-1)])
    with pytest.raises(ConfigError, match="two requests of the workload have the id 3"):
        simulate([job(3), job(3)])


def test_progress_is_told_of_all_arrivals() -> None:
    told: list[int] = []
    simulate((job(i, arrival=i) for i in range(2500)), ClusterConfig(), INSTANCE, progress=told.append)
    assert told == [0, 1000, 2000, 2500]


def burst(seed: int) -> Iterator[Job]:
    """Return a small crowded workload: three classes, bursts, long and short answers."""
    for i in range(60):
        mixed = (i * 7919 + seed * 104_729) % 997
        yield job(
            i,
            arrival=(i // 5) * 300,
            prompt=1 + mixed % 90,
            output=1 + mixed % 37,
            priority_class=PriorityClass(mixed % 4),
            deadline=None if mixed % 9 else (i // 5) * 300 + 50 * (mixed % 60) + 1,
        )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    instances=st.integers(1, 4),
    capacity=st.one_of(st.none(), st.integers(1, 12)),
    scheduler=st.sampled_from(["fcfs", "sjf"]),
    routing=st.sampled_from(["least-loaded", "round-robin"]),
    blocks=st.sampled_from([10, 30, 1000]),
)
def test_skipping_changes_nothing_in_a_cluster(
    seed: int, instances: int, capacity: int | None, scheduler: str, routing: str, blocks: int
) -> None:
    def results(step_by_step: bool) -> Results:
        instance = InstanceConfig(
            latency=LinearLatency((100, 1, 10)),
            scheduler=scheduler,
            total_kv_blocks=blocks,
            max_num_seqs=8,
            step_by_step=step_by_step,
        )
        cluster = ClusterConfig(num_instances=instances, capacity=capacity)
        return simulate(burst(seed), cluster, instance, RoutingConfig(policy=routing))

    skipping, stepping = results(False), results(True)
    for name in Results.__struct_fields__:
        np.testing.assert_array_equal(getattr(skipping, name), getattr(stepping, name), err_msg=name)
    assert len(skipping) == 60
    assert Outcome.UNFINISHED not in outcomes(skipping)


def test_two_requests_that_are_preempted_at_the_instant_of_their_first_tokens_get_none_of_them() -> None:
    instance = InstanceConfig(latency=LinearLatency((100, 1, 10)), total_kv_blocks=30, max_num_seqs=8)
    results = simulate(burst(468), ClusterConfig(capacity=4), instance)
    assert Outcome.UNFINISHED not in outcomes(results)


def _admission(classes: dict[str, Any]) -> AdmissionConfig:
    import msgspec

    peaceful = {name: {"reserved_per_slot": 0.0, "can_preempt": False} for name in ("system", "interactive")}
    return msgspec.convert({"mode": "priority", "classes": peaceful | classes}, AdmissionConfig)
