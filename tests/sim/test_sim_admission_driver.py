"""Admission in front of the router: modes, capacity, tenants, costs. A default request, alone, takes 150 + 110 µs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maitred.admission import AdmissionConfig
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job
from maitred.workload.prefix_keys import PieceChain

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)))
ONE_SLOT = ClusterConfig(capacity=1)
COMPLETED, REJECTED = Outcome.COMPLETED, Outcome.REJECTED
BULK, DEFAULT, CHAT = PriorityClass.BULK, PriorityClass.DEFAULT, PriorityClass.INTERACTIVE


def job(number: int, arrival: int = 0, cls: PriorityClass = DEFAULT, output: int = 2, **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=50, priority_class=cls, **fields), output)


def admission(classes: dict[str, Any] | None = None, **keys: Any) -> AdmissionConfig:
    """Return a configuration with classes, without reservations and preemption."""
    peaceful = {c: {"reserved_per_slot": 0.0, "can_preempt": False} for c in ("system", "interactive")}
    return msgspec.convert({"mode": "priority", "classes": peaceful | (classes or {})} | keys, AdmissionConfig)


def outcomes(results: Results) -> list[Outcome]:
    return [Outcome(value) for value in results.outcome]


def test_without_a_word_on_admission_all_enter() -> None:
    results = simulate([job(i) for i in range(3)], ClusterConfig(), INSTANCE)
    assert results.scheduled.tolist() == [0, 0, 0]


def test_a_capacity_alone_means_classes_however_few_slots_there_are() -> None:
    jobs = [job(0, cls=DEFAULT), job(1, 1, cls=BULK), job(2, 200, cls=CHAT)]
    assert simulate(jobs, ONE_SLOT, INSTANCE).scheduled.tolist() == [0, 520, 260]


def test_off_lets_all_enter_whatever_the_capacity() -> None:
    results = simulate([job(0), job(1)], ONE_SLOT, INSTANCE, admission=AdmissionConfig(mode="off"))
    assert results.scheduled.tolist() == [0, 0]


@pytest.mark.parametrize("max_class", [None, "bulk"])
def test_a_class_cap_leaves_a_conversation_its_cached_answers(max_class: str | None) -> None:
    """Of the second prompt the cache has the first one, of 32 tokens, and its answer of 33, but for the last token of it."""
    first = PieceChain(()).append(1, 32)
    answered = first.extend_last(33)
    jobs = [
        Job(Request(id=0, arrival=0, prompt_tokens=32, tenant="auth:a", prefix=first), 33, answered),
        Job(Request(id=1, arrival=10_000, prompt_tokens=80, tenant="auth:a", prefix=answered.append(3, 15)), 2),
    ]
    config = admission(tenant_policies={"auth:a": {"max_class": max_class}})
    instance = msgspec.structs.replace(INSTANCE, enable_prefix_caching=True)
    results = simulate(jobs, ONE_SLOT, instance, admission=config)
    assert results.priority_class.tolist() == [BULK if max_class else DEFAULT] * 2
    assert results.cached_tokens.tolist() == [0, 64]


def test_legacy_is_one_queue_for_all_classes_and_models() -> None:
    jobs = [job(0), job(1, 1, cls=BULK), job(2, 2, cls=CHAT, model="another")]
    results = simulate(jobs, ONE_SLOT, INSTANCE, admission=AdmissionConfig())
    assert results.scheduled.tolist() == [0, 260, 520]


def test_legacy_takes_its_limits_from_its_own_keys_too() -> None:
    config = msgspec.convert({"legacy": {"max_concurrent_requests": 1, "queue_size": 1}}, AdmissionConfig)
    results = simulate([job(0), job(1, 1), job(2, 2)], ClusterConfig(), INSTANCE, admission=config)
    assert outcomes(results) == [COMPLETED, COMPLETED, REJECTED]
    assert results.scheduled.tolist() == [0, 260, -1]


def test_legacy_may_limit_the_rate_alone() -> None:
    config = msgspec.convert({"legacy": {"rate_limit_tokens_per_second": 4}}, AdmissionConfig)
    results = simulate([job(i) for i in range(6)], ClusterConfig(), INSTANCE, admission=config)
    assert results.scheduled.tolist() == [0, 0, 0, 0, 250_000, 500_000]


def test_two_limits_for_one_thing_are_an_error() -> None:
    config = msgspec.convert({"legacy": {"max_concurrent_requests": 2}}, AdmissionConfig)
    with pytest.raises(ConfigError, match=r"capacity of 1 and legacy\.max_concurrent_requests of 2 are two limits"):
        simulate([job(0)], ONE_SLOT, INSTANCE, admission=config)


def test_without_a_capacity_there_are_as_many_slots_as_the_batches_hold() -> None:
    instance = msgspec.structs.replace(INSTANCE, max_num_seqs=2)
    config = admission({"default": {"queue_size": 0}})
    results = simulate([job(i) for i in range(5)], ClusterConfig(num_instances=2), instance, admission=config)
    assert outcomes(results) == [COMPLETED] * 4 + [REJECTED]


def test_reservations_that_do_not_fit_are_an_error_that_says_what_to_do() -> None:
    three = {"bulk": {"reserved_floor": 3}}
    two_slots = ClusterConfig(capacity=2)
    with pytest.raises(ConfigError, match=r"sum of class reservations \(3\) exceeds capacity \(2\) \(on_overcommit: clamp"):
        simulate([], two_slots, INSTANCE, admission=admission(three))
    simulate([], two_slots, INSTANCE, admission=admission(three, on_overcommit="clamp"))
    simulate([], ClusterConfig(capacity=3), INSTANCE, admission=admission(three))


def test_a_policy_caps_the_tenants_that_it_names_and_no_other() -> None:
    policies = {"auth:acme": {"max_class": "bulk"}, "auth:plain": {"max_in_flight": 9}}
    tenants = ("auth:acme", "auth:plain", "auth:other", "")
    jobs = [job(i, cls=CHAT, tenant=tenant) for i, tenant in enumerate(tenants)]
    results = simulate(jobs, ClusterConfig(), INSTANCE, admission=admission(tenant_policies=policies))
    assert results.priority_class.tolist() == [BULK, DEFAULT, CHAT, CHAT]
    legacy = admission(tenant_policies=policies, mode="legacy")
    without = simulate(jobs, ClusterConfig(), INSTANCE, admission=legacy)
    assert without.priority_class.tolist() == [CHAT] * 4


def test_a_tenant_at_its_limit_waits_and_others_pass() -> None:
    policies = {"auth:acme": {"max_in_flight": 1, "max_queued": 1}}
    jobs = [
        job(0, tenant="auth:acme"),
        job(1, 1, tenant="auth:acme"),
        job(2, 2, tenant="auth:acme"),
        job(3, 3, tenant="ip:::1"),
    ]
    results = simulate(jobs, ClusterConfig(capacity=2), INSTANCE, admission=admission(tenant_policies=policies))
    assert outcomes(results) == [COMPLETED, COMPLETED, REJECTED, COMPLETED]
    assert results.scheduled.tolist()[3] == 150  # with the step after the one in progress
    assert results.scheduled.tolist()[1] == results.finished.tolist()[0]


def test_a_slot_may_stand_for_tokens_of_what_can_be_known() -> None:
    """2 slots of 75 tokens: a prompt of 50 takes 50 of the 150; with the 100 tokens that its client allows it takes all."""
    config = admission(slot_cost="tokens", slot_tokens=75)
    short = simulate([job(i) for i in range(4)], ClusterConfig(capacity=2), INSTANCE, admission=config)
    assert short.scheduled.tolist()[:3] == [0, 0, 0]
    assert short.scheduled.tolist()[3] > 0
    jobs = [job(0, max_output_tokens=100), job(1)]
    results = simulate(jobs, ClusterConfig(capacity=2), INSTANCE, admission=config)
    assert results.scheduled.tolist() == [0, 260]


def test_one_that_starves_goes_before_more_urgent_ones() -> None:
    jobs = [job(0, cls=CHAT), job(1, 1, cls=BULK), *(job(i, i, cls=CHAT) for i in range(2, 6))]
    patient = admission(promotion_share=0.0)
    results = simulate(jobs, ONE_SLOT, INSTANCE, admission=patient)
    assert results.scheduled.tolist() == [0, 5 * 260, 260, 520, 780, 1040]
    starving = admission({"bulk": {"starvation_threshold_secs": 500e-6}})
    promoted = simulate(jobs, ONE_SLOT, INSTANCE, admission=starving)
    assert promoted.scheduled.tolist() == [0, 520, 260, 780, 1040, 1300]
