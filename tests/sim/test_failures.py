"""Instances that fail and come back, and slow instances: by hand, by the formula of availability, and step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import comb
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission import AdmissionConfig
from maitred.admission.terms.config import ClassConfig, ClassesConfig
from maitred.core.contracts import Choice, FleetView
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.core.units import SECOND, from_seconds
from maitred.instance import InstanceConfig, LinearLatency
from maitred.report import Slo, summarise
from maitred.routing import RoutingConfig
from maitred.routing.base import BaseRouter
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.sim.fleet_config import FailureConfig
from maitred.workload import Job
from maitred.workload.prefix_keys import GroupPrefixKeys

STEPS_OF_1_MS = InstanceConfig(latency=LinearLatency((1000, 0, 0)), total_kv_blocks=1000)


def regular(count: int, every: int, output: int = 1, *, stream: bool = True) -> Iterator[Job]:
    for i in range(count):
        yield Job(Request(id=i, arrival=i * every, prompt_tokens=10, stream=stream), output)


def drawn(seed: int, index: int, *means: float) -> list[int]:
    """Return the times in µs that the stream of an instance draws for these means in seconds."""
    stream = Random(f"{seed}/failures/{index}")
    return [from_seconds(stream.expovariate(1 / mean)) for mean in means]


def outcomes(results: Results) -> Counter[str]:
    return Counter(Outcome(each).name for each in results.outcome)


class CountServing(BaseRouter):
    """The first instance; notes how many there are at each choice."""

    seen: ClassVar[Counter[int]] = Counter()

    def choose(self, request: Request, fleet: FleetView, now: int) -> Choice:
        self.seen[len(fleet)] += 1
        return Choice(fleet[0].index, "first")


def test_the_share_of_time_with_k_of_n_is_binomial() -> None:
    CountServing.seen.clear()
    n, mtbf, mttr, count = 3, 2.0, 1.0, 500
    cluster = ClusterConfig(num_instances=n, failures=FailureConfig(mtbf_secs=mtbf, mttr_secs=mttr))
    router = RoutingConfig(policy=f"{__name__}:CountServing")
    results = simulate(regular(count, 2 * SECOND), cluster, STEPS_OF_1_MS, router)
    available = mtbf / (mtbf + mttr)
    for k in range(1, n + 1):
        exact = comb(n, k) * available**k * (1 - available) ** (n - k)
        assert CountServing.seen[k] / count == pytest.approx(exact, abs=0.06)
    # With none of them every request that comes is lost; hardly any of 1 ms is caught by a failure.
    assert outcomes(results)["FAILED"] / count == pytest.approx((1 - available) ** n, abs=0.02)
    assert summarise(results, Slo(), []).all_instances.availability == pytest.approx(available, abs=0.04)


@pytest.mark.parametrize("seed", range(3))
def test_a_request_is_lost_once_its_client_has_seen_a_token(seed: int) -> None:
    """The prompt takes a step of 1 ms, and the answer outlasts the first failure."""
    (fails,) = drawn(seed, 0, 1.0)
    cluster = ClusterConfig(failures=FailureConfig(mtbf_secs=1.0, mttr_secs=1000.0))
    results = simulate(regular(1, 1, output=fails // 1000 + 100), cluster, STEPS_OF_1_MS, seed=seed)
    assert outcomes(results) == {"FAILED": 1}
    assert (results.finished[0], results.first_token[0], results.retries[0]) == (fails, 1000, 0)
    assert results.output_tokens[0] == fails // 1000


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_answer_in_one_piece_goes_to_another_instance(attempts: int) -> None:
    """Its client has seen nothing of it, so the other instance begins anew at the instant of the failure."""
    seed = next(each for each in range(50) if 4 * drawn(each, 0, 1.0)[0] < drawn(each, 1, 1.0)[0])
    (fails,) = drawn(seed, 0, 1.0)
    steps = fails // 1000 + 100
    failures = FailureConfig(mtbf_secs=1.0, mttr_secs=1000.0, max_attempts=attempts)
    jobs = regular(1, 1, output=steps, stream=False)
    results = simulate(jobs, ClusterConfig(num_instances=2, failures=failures), STEPS_OF_1_MS, seed=seed)
    if attempts == 1:
        assert outcomes(results) == {"FAILED": 1}
        return
    assert outcomes(results) == {"COMPLETED": 1}
    assert (results.finished[0], results.instance[0], results.retries[0]) == (fails + steps * 1000, 1, 1)


@pytest.mark.parametrize(("mtbf", "hits"), [(None, 48), (1.0, 0)])
def test_a_restarted_instance_has_an_empty_cache(mtbf: float | None, hits: int) -> None:
    """A second request with the prompt of the first finds it cached, unless the instance has failed between the two."""
    back = sum(drawn(42, 0, 1.0, 1.0))
    caching = InstanceConfig(latency=LinearLatency((1000, 0, 0)), enable_prefix_caching=True)
    prompt = GroupPrefixKeys(group=7, shared_tokens=64, owner=0, tokens=64)
    jobs = [Job(Request(id=i, arrival=at, prompt_tokens=64, prefix=prompt), 1) for i, at in enumerate((0, back + 1))]
    failures = FailureConfig() if mtbf is None else FailureConfig(mtbf_secs=mtbf, mttr_secs=1.0)
    assert simulate(jobs, ClusterConfig(failures=failures), caching).cached_tokens.tolist() == [0, hits]


def test_a_slow_instance_takes_longer_for_each_step() -> None:
    cluster = ClusterConfig(num_instances=2, failures=FailureConfig(slow_instances=1, slow_factor=3.0))
    results = simulate(regular(2, 1, output=5), cluster, STEPS_OF_1_MS)
    assert (results.finished - results.arrival).tolist() == [5_000, 15_000]


def crowd(seed: int) -> Iterator[Job]:
    draw = Random(seed)
    for i in range(60):
        tokens = draw.randrange(1, 90)
        prefix = GroupPrefixKeys(group=draw.randrange(1, 5), shared_tokens=tokens, owner=i, tokens=tokens)
        request = Request(
            id=i,
            arrival=i * 300,
            prompt_tokens=tokens,
            prefix=prefix,
            stream=draw.random() < 0.5,
            priority_class=draw.choice([*PriorityClass]),
        )
        yield Job(request, draw.randrange(1, 40))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    mtbf=st.sampled_from([0.002, 0.01, 0.1]),
    mttr=st.sampled_from([0.001, 0.02]),
    admission=st.sampled_from(["off", "reported", "5 slots"]),
    caching=st.booleans(),
    slow=st.integers(0, 2),
)
def test_skipping_changes_nothing(seed: int, mtbf: float, mttr: float, admission: str, caching: bool, slow: int) -> None:
    def run(**instance: Any) -> Results:
        config = InstanceConfig(
            latency=LinearLatency((100, 1, 10)), max_num_seqs=6, total_kv_blocks=40, enable_prefix_caching=caching, **instance
        )
        failures = FailureConfig(mtbf_secs=mtbf, mttr_secs=mttr, slow_instances=slow)
        cluster = ClusterConfig(num_instances=3, capacity=5 if admission == "5 slots" else None, failures=failures)
        classes = None if admission == "off" else AdmissionConfig(mode="priority", on_overcommit="clamp")
        return simulate(crowd(seed), cluster, config, None, classes, seed=seed)

    skipped, stepped = run(), run(step_by_step=True)
    assert outcomes(skipped).total() == 60
    for name in ("arrival", "first_token", "finished", "outcome", "instance", "retries", "output_tokens", "cached_tokens"):
        assert np.array_equal(getattr(skipped, name), getattr(stepped, name)), name
    assert skipped.end == stepped.end
    assert [(each.serving, each.down, each.busy, each.steps) for each in skipped.instances] == [
        (each.serving, each.down, each.busy, each.steps) for each in stepped.instances
    ]


CLASSES = AdmissionConfig(mode="priority", on_overcommit="clamp")


@pytest.mark.parametrize("seed", range(15))
def test_each_request_ends_once_where_classes_preempt_the_lost_ones(seed: int) -> None:
    """Failures take slots away while classes take them from each other."""
    draw, at, jobs = Random(seed), 0, list[Job]()
    for i in range(100):
        at += from_seconds(draw.expovariate(60))
        c, stream = draw.choice([*PriorityClass]), draw.random() < 0.7
        jobs.append(Job(Request(id=i, arrival=at, prompt_tokens=10, stream=stream, priority_class=c), 20))
    slow = InstanceConfig(latency=LinearLatency((20_000, 0, 0)), max_num_seqs=4)
    cluster = ClusterConfig(num_instances=4, failures=FailureConfig(mtbf_secs=0.2, mttr_secs=0.1))
    results = simulate(jobs, cluster, slow, None, CLASSES, seed=seed)
    assert outcomes(results).total() == 100
    assert (results.finished >= 0).all()


def test_those_that_wait_get_no_slot_of_a_failed_instance() -> None:
    """Two instances of one slot each run requests 0 and 1, and request 2 waits. The slot of the one that fails fails with it,
    so request 2 waits for the other one."""
    seed = next(each for each in range(50) if 3 * (drawn(each, 0, 1.0)[0] + 100_000) < drawn(each, 1, 1.0)[0])
    (fails,) = drawn(seed, 0, 1.0)
    one_slot = InstanceConfig(latency=LinearLatency((1000, 0, 0)), max_num_seqs=1)
    steps = fails // 1000 + 100
    cluster = ClusterConfig(num_instances=2, failures=FailureConfig(mtbf_secs=1.0, mttr_secs=1000.0))
    # The highest class, since no slot is kept from it.
    jobs = [
        Job(Request(id=i, arrival=i, prompt_tokens=10, priority_class=PriorityClass.SYSTEM), output_tokens=steps)
        for i in range(3)
    ]
    results = simulate(jobs, cluster, one_slot, None, CLASSES, seed=seed)
    assert [Outcome(each).name for each in results.outcome] == ["FAILED", "COMPLETED", "COMPLETED"]
    assert results.admitted[2] == results.finished[1]


def test_those_that_wait_fail_one_by_one_where_slots_are_given_and_none_serves() -> None:
    """The slot of each goes to the next one at once, however many there are."""
    cluster = ClusterConfig(capacity=1, failures=FailureConfig(mtbf_secs=1.0, mttr_secs=1000.0))
    queue = ClassConfig(queue_size=3000, queue_timeout_secs=1000.0)
    admission = AdmissionConfig(mode="priority", on_overcommit="clamp", classes=ClassesConfig(default=queue))
    results = simulate(regular(3000, 1, output=10**6), cluster, STEPS_OF_1_MS, None, admission)
    assert outcomes(results) == {"FAILED": 3000}


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ({"mtbf_secs": 0.0}, "mtbf_secs must be from"),
        ({"mtbf_secs": 1e-6}, "mtbf_secs must be from 0.001 to"),
        ({"mtbf_secs": 1.0, "mttr_secs": 1e-6}, "mttr_secs must be from 0.001 to"),
        ({"mttr_secs": -1.0}, "mttr_secs must be from"),
        ({"max_attempts": 0}, "max_attempts must be from 1"),
        ({"slow_factor": 0.5}, "slow_factor must be from 1"),
        ({"slow_instances": -1}, "slow_instances must be at least 0"),
    ],
)
def test_a_wrong_value_is_named(section: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        FailureConfig(**section)


def test_more_slow_instances_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="slow_instances 2 are more than num_instances 1"):
        ClusterConfig(failures=FailureConfig(slow_instances=2))


@pytest.mark.parametrize("instance", [InstanceConfig(latency_scale=100.0), InstanceConfig()])
def test_instances_that_are_too_slow_are_an_error(instance: InstanceConfig) -> None:
    cluster = ClusterConfig(failures=FailureConfig(slow_instances=1, slow_factor=1e6))
    with pytest.raises(ConfigError, match="slow_factor: slow instances: latency_scale"):
        simulate((), cluster, instance)


def test_what_failures_do_not_go_with_is_an_error() -> None:
    with pytest.raises(ConfigError, match="failures are not simulated with a delayed view of caches"):
        simulate((), ClusterConfig(cache_signal_delay_ms=5.0, failures=FailureConfig(mtbf_secs=1.0)))


def test_keys_without_effect_warn() -> None:
    assert [*FailureConfig(mttr_secs=5.0, slow_factor=3.0).warnings()] == [
        "failures.mttr_secs has no effect without mtbf_secs",
        "failures.slow_factor has no effect without slow_instances",
    ]
