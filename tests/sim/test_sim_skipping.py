"""Skipping steps changes nothing, down to the bytes of the decision log, whatever admission does: with victims and retries,
promotions, tenants and tokens; and whatever programs do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maitred.admission import Admission, AdmissionConfig, ReleaseReason
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.programs import ProgramsConfig
from maitred.replay import replay
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.sim.admission_driver import AdmissionDriver
from maitred.workload import Client, Job, Workload
from maitred.workload.spec_parts import Fork, MultiTurn, Reasoning

TENANTS = ("auth:acme", "auth:globex", "ip:::1", "")


def crowd(seed: int, size: int = 80) -> Iterator[Job]:
    """Return requests of all classes in bursts, with long and short answers, some with a deadline, of four tenants and two
    models."""
    for i in range(size):
        mixed = (i * 7919 + seed * 104_729) % 997
        arrival = (i // 4) * (150 + seed % 7 * 40)
        request = Request(
            id=i,
            arrival=arrival,
            prompt_tokens=1 + mixed % 90,
            max_output_tokens=None if mixed % 3 else 1 + mixed % 30,
            model="ab"[mixed % 5 == 0],
            priority_class=PriorityClass(mixed % 4),
            tenant=TENANTS[mixed % 4 - mixed % 3],
            stream=bool(mixed % 2),
            deadline=None if mixed % 9 else arrival + 50 * (mixed % 60) + 1,
        )
        yield Job(request, 1 + mixed % 37)


sections = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["priority", "priority", "priority", "legacy"]),
        "on_overcommit": st.just("clamp"),
        "on_preempt": st.sampled_from(["reject", "retry"]),
        "preemption_budget_ms": st.sampled_from([0, 0.05, 50]),
        "promotion_share": st.sampled_from([0.0, 0.25, 1.0]),
        "promotion_burst": st.integers(0, 2),
        "slot_cost": st.sampled_from(["requests", "tokens"]),
        "slot_tokens": st.sampled_from([20, 60, 500]),
        "tenant_policies": st.fixed_dictionaries(
            {},
            optional={
                "auth:acme": st.sampled_from(
                    [{"max_in_flight": 1}, {"weight": 3.0}, {"max_class": "interactive", "max_queued": 2}]
                ),
                "auth:globex": st.sampled_from([{"weight": 0.5}, {"max_class": "system"}]),
            },
        ),
        "classes": st.fixed_dictionaries(
            {
                "interactive": st.fixed_dictionaries({"can_preempt": st.booleans(), "reserved_per_slot": st.just(0.25)}),
                "default": st.fixed_dictionaries({"can_preempt": st.booleans(), "starvation_threshold_secs": st.just(1e-3)}),
                "bulk": st.fixed_dictionaries(
                    {
                        "starvation_threshold_secs": st.sampled_from([300e-6, 120]),
                        "queue_timeout_secs": st.sampled_from([2e-3, 300]),
                        "queue_size": st.sampled_from([3, 100]),
                    }
                ),
            }
        ),
        "legacy": st.just({"rate_limit_tokens_per_second": 20_000, "queue_size": 30}),
    }
)


def run(
    jobs: Iterator[Job], admission: AdmissionConfig, cluster: ClusterConfig, **instance: Any
) -> tuple[Results, list[bytes]]:
    lines: list[bytes] = []
    config = InstanceConfig(latency=LinearLatency((100, 1, 10)), max_num_seqs=6, **instance)
    log = DecisionLog(lines.append)
    return simulate(jobs, cluster, config, RoutingConfig(policy="least-loaded"), admission, log=log), lines


ENDS_TOGETHER = {
    "mode": "priority",
    "on_overcommit": "clamp",
    "on_preempt": "reject",
    "preemption_budget_ms": 0,
    "promotion_share": 0.0,
    "slot_cost": "tokens",
    "slot_tokens": 60,
    "classes": {
        "interactive": {"can_preempt": False, "reserved_per_slot": 0.25},
        "default": {"can_preempt": False, "starvation_threshold_secs": 0.001},
        "bulk": {"starvation_threshold_secs": 0.0003, "queue_timeout_secs": 0.002, "queue_size": 3},
    },
}
"""The end of a request makes a victim of another, which ends at the same instant."""


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    section=sections,
    instances=st.integers(1, 3),
    capacity=st.integers(1, 9),
    blocks=st.sampled_from([10, 30, 1000]),
)
@example(seed=1, section=ENDS_TOGETHER, instances=1, capacity=4, blocks=10)
def test_skipping_changes_nothing_whatever_admission_does(
    seed: int, section: dict[str, Any], instances: int, capacity: int, blocks: int
) -> None:
    admission = msgspec.convert(section, AdmissionConfig)
    cluster = ClusterConfig(num_instances=instances, capacity=capacity)
    skipping, said = run(crowd(seed), admission, cluster, total_kv_blocks=blocks)
    stepping, said_stepping = run(crowd(seed), admission, cluster, total_kv_blocks=blocks, step_by_step=True)
    for name in Results.__struct_fields__:
        np.testing.assert_array_equal(getattr(skipping, name), getattr(stepping, name), err_msg=name)
    assert said == said_stepping
    instants = [line["at"] for line in map(msgspec.json.decode, said) if "at" in line]
    assert instants == sorted(instants)
    again: list[bytes] = []
    replay(said, DecisionLog(again.append))
    assert again == said
    assert len(skipping) == 80
    assert Outcome.UNFINISHED not in set(skipping.outcome.tolist())


def test_the_crowd_is_one_in_which_all_of_this_happens() -> None:
    section = {
        "mode": "priority",
        "on_overcommit": "clamp",
        "on_preempt": "retry",
        "promotion_share": 0.5,
        "classes": {"bulk": {"starvation_threshold_secs": 300e-6, "queue_timeout_secs": 5e-3}},
        "tenant_policies": {"auth:acme": {"max_in_flight": 1, "weight": 2.0, "max_class": "system"}},
    }
    results, lines = run(crowd(3), msgspec.convert(section, AdmissionConfig), ClusterConfig(capacity=3))
    decided = [said["decision"] for said in map(msgspec.json.decode, lines) if "decision" in said]
    reasons = {decision["reason"] for decision in decided}
    assert {"higher_class", "victim_gone", "to_be_retried", "starved", "tenant_limit", "queue_timeout"} <= reasons
    assert {Outcome.COMPLETED, Outcome.REJECTED, Outcome.TIMED_OUT} <= {Outcome(value) for value in results.outcome}
    assert results.retries.sum() > 0


@pytest.mark.parametrize("on_preempt", ["reject", "retry"])
def test_the_outcomes_are_those_in_the_books_of_admission(on_preempt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AdmissionDriver] = []
    keep = AdmissionDriver.__init__

    def keeping(driver: AdmissionDriver, *arguments: Any) -> None:
        keep(driver, *arguments)
        made.append(driver)

    monkeypatch.setattr(AdmissionDriver, "__init__", keeping)
    config = msgspec.convert({"mode": "priority", "on_overcommit": "clamp", "on_preempt": on_preempt}, AdmissionConfig)
    results, _ = run(crowd(7, 2000), config, ClusterConfig(num_instances=2, capacity=5))
    core: Admission = made[0].core
    core.check()
    classes = [of for pool in core.pool_names for of in core.view(pool).classes.values()]
    assert sum(of.waiting + of.in_flight for of in classes) == 0

    def count(outcome: Outcome) -> int:
        return int((results.outcome == outcome).sum())

    assert sum(of.ended[ReleaseReason.DRAINED] for of in classes) == count(Outcome.COMPLETED) > 0
    assert sum(of.ended[ReleaseReason.SLOT_PREEMPTED] for of in classes) == count(Outcome.PREEMPTED)
    assert sum(of.retried for of in classes) == results.retries.sum()
    assert (count(Outcome.PREEMPTED) > 0, results.retries.sum() > 0) == (on_preempt == "reject", on_preempt == "retry")
    turned_away = sum(of.queue_full + of.tenant_queue_full + of.queue_timeout for of in classes)
    assert turned_away == count(Outcome.REJECTED) > 0
    timed_out = sum(of.cancelled + of.ended[ReleaseReason.FAILED] for of in classes)
    assert timed_out == count(Outcome.TIMED_OUT)


def agents(seed: int, programs: int, children: int) -> Workload:
    """Return programs of up to 6 rounds with a common prefix, of which some fork sub-agents; tools take up to seconds."""
    turns = MultiTurn(
        max_rounds=6,
        rounds_distribution="uniform:2,6",
        first_input_distribution="uniform:20,90",
        think_time_ms_distribution="quantiles:2,9,40,3000",
        context_growth="accumulate",
        fork=Fork(children=children, every_rounds=2, rounds_distribution="uniform:1,2") if children else None,
    )
    client = Client(
        id="a",
        concurrency=programs,
        sessions=3 * programs,
        input_distribution="uniform:1,60",
        output_distribution="uniform:1,40",
        prefix_group="system",
        prefix_length=50,
        timeout=20_000 * (seed % 3),
        reasoning=Reasoning(multi_turn=turns),
    )
    return Workload(clients=(client,), seed=seed)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    programs=st.integers(1, 9),
    children=st.integers(0, 2),
    section=st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["tr", "tr", "tr", "default"]),
            "flavour": st.sampled_from(["ours", "thunderagent"]),
            "acting_estimator": st.sampled_from([None, "fixed", "decay(half_life_secs=0.01)"]),
            "scheduler_interval_secs": st.sampled_from([0.004, 0.02, 5]),
            "displace_secs": st.sampled_from([0.01, 300]),
            "patience_secs": st.sampled_from([0, 0.01, 10]),
            # By ThunderAgent's rules parents that act can keep their children out until this time is over, tick after tick.
            "max_wait_secs": st.sampled_from([0.02, 2]),
            "program_ttl_secs": st.sampled_from([0.02, 3600]),
            "max_waiting": st.sampled_from([2, 10_000]),
            "buffer_tokens": st.sampled_from([0, 20]),
        }
    ),
    instances=st.integers(1, 3),
    capacity=st.sampled_from([None, 3]),
    blocks=st.sampled_from([30, 60, 1000]),
    caching=st.booleans(),
)
def test_skipping_changes_nothing_whatever_programs_do(
    seed: int,
    programs: int,
    children: int,
    section: dict[str, Any],
    instances: int,
    capacity: int | None,
    blocks: int,
    caching: bool,
) -> None:
    def outcome(*, step_by_step: bool) -> tuple[Results, list[bytes]]:
        lines: list[bytes] = []
        results = simulate(
            agents(seed, programs, children).jobs(),
            ClusterConfig(num_instances=instances, capacity=capacity),
            InstanceConfig(
                latency=LinearLatency((100, 1, 10)),
                max_num_seqs=6,
                total_kv_blocks=blocks,
                enable_prefix_caching=caching,
                step_by_step=step_by_step,
            ),
            programs=msgspec.convert(section, ProgramsConfig),
            log=DecisionLog(lines.append),
        )
        return results, lines

    (skipping, said), (stepping, said_stepping) = outcome(step_by_step=False), outcome(step_by_step=True)
    assert said == said_stepping
    for name in {*Results.__struct_fields__} - {"programs"}:
        np.testing.assert_array_equal(getattr(skipping, name), getattr(stepping, name), err_msg=name)
    assert skipping.programs is not None
    assert stepping.programs is not None
    for name in skipping.programs.__struct_fields__:
        np.testing.assert_array_equal(getattr(skipping.programs, name), getattr(stepping.programs, name), err_msg=name)
    assert skipping.programs.num_steps == (skipping.outcome == Outcome.COMPLETED).sum()
    assert Outcome.UNFINISHED not in set(skipping.outcome.tolist())
    again: list[bytes] = []
    replay(said, DecisionLog(again.append))
    assert again == said


def test_the_programs_are_ones_with_which_all_of_this_happens() -> None:
    lines: list[bytes] = []
    config = ProgramsConfig(mode="tr", scheduler_interval_secs=0.01, displace_secs=0.02, patience_secs=0.01, min_stay_secs=0)
    instance = InstanceConfig(
        latency=LinearLatency((100, 1, 10)), max_num_seqs=6, total_kv_blocks=40, enable_prefix_caching=True
    )
    jobs, cluster = agents(3, 8, 2).jobs(), ClusterConfig(num_instances=2)
    results = simulate(jobs, cluster, instance, programs=config, log=DecisionLog(lines.append))
    decided = [entry["decision"] for entry in map(msgspec.json.decode, lines) if "decision" in entry]
    assert {"grant", "wait", "pause", "resume", "end"} <= {decision["action"] for decision in decided}
    assert {"overflow", "made_room", "released"} <= {decision["reason"] for decision in decided}
    shared = [entry["shared_tokens"] for entry in map(msgspec.json.decode, lines) if entry.get("input") == "set_backend"]
    assert max(shared) > 100
    programs = results.programs
    assert programs is not None
    assert programs.is_over.all()
    assert programs.pauses.sum() > 0
    assert {name.count("/") for name in programs.names} == {1, 2}
    assert (programs.waited <= programs.paused).all()


@pytest.mark.parametrize(
    ("keys", "is_shared"), [({"enable_prefix_caching": True}, True), ({"flavour": "blis"}, True), ({}, False)]
)
def test_programs_share_memory_wherever_prefixes_are_cached(keys: dict[str, Any], is_shared: bool) -> None:
    lines: list[bytes] = []
    config = ProgramsConfig(mode="tr", scheduler_interval_secs=0.01)
    instance = InstanceConfig(latency=LinearLatency((100, 1, 10)), max_num_seqs=6, total_kv_blocks=40, **keys)
    simulate(agents(3, 8, 2).jobs(), ClusterConfig(num_instances=2), instance, programs=config, log=DecisionLog(lines.append))
    told = [entry["shared_tokens"] for entry in map(msgspec.json.decode, lines) if entry.get("shared_tokens")]
    assert bool(told) is is_shared


def test_instances_that_refuse_requests_at_one_instant_say_so_in_their_order() -> None:
    """Steps of instance 0 end at 100, 200, ... µs, and those of instance 1 at 150, 250, ...: so at 550 a step ends in one of
    them, and both refuse a request."""

    def log_of(*, step_by_step: bool) -> list[bytes]:
        lines: list[bytes] = []
        jobs = [Job(Request(id=i, arrival=at, prompt_tokens=1), 100) for i, at in enumerate((0, 50, 550, 550))]
        instance = InstanceConfig(latency=LinearLatency((100, 0, 0)), max_num_queued_reqs=1, step_by_step=step_by_step)
        routing, log = RoutingConfig(policy="round-robin"), DecisionLog(lines.append)
        results = simulate(jobs, ClusterConfig(num_instances=2), instance, routing, log=log)
        assert [Outcome(each) for each in results.outcome].count(Outcome.REJECTED) == 2
        return lines

    lines = log_of(step_by_step=False)
    ended = [msgspec.json.decode(line) for line in lines if b"request_end" in line]
    assert [(each["at"], each["instance"]) for each in ended[:2]] == [(550, 0), (550, 1)]
    assert log_of(step_by_step=True) == lines
