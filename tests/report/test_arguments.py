"""Slips of the hand in calls from Python: each has one clear error, and no run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import maitred
from maitred import ClusterConfig, ConfigError, InstanceConfig, Job, Load, Request, RoutingConfig, Slo
from maitred.workload import closed_loop

LOAD: Any = Load(rate=1.0, num_requests=3)


def jobs() -> Any:
    return maitred.synthetic(rate=10, num_requests=3)


def one_job(**changes: Any) -> list[Job]:
    request = {"id": 0, "arrival": 0, "prompt_tokens": 10}
    output = changes.pop("output_tokens", 3)
    return [Job(Request(**{**request, **changes}), output_tokens=output)]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: maitred.simulate(ClusterConfig(), jobs()), "workload: a ClusterConfig is no workload"),
        (lambda: maitred.simulate(jobs(), InstanceConfig()), "cluster: must be ClusterConfig, not InstanceConfig"),
        (lambda: maitred.simulate(jobs(), None, None, {"policy": "random"}), "routing: must be RoutingConfig, not dict"),
        (lambda: maitred.simulate(jobs(), horizon_secs=0), "horizon_secs: a run cannot end after 0"),
        (lambda: maitred.simulate(jobs(), horizon_secs="60"), "horizon_secs: a run cannot end after '60'"),
        (lambda: maitred.simulate(jobs(), sample_every_ms="5"), "sample_every_ms: samples cannot be taken every '5'"),
        (lambda: maitred.simulate(jobs(), sample_every_ms=float("inf")), "sample_every_ms: samples cannot be taken every inf"),
        (lambda: maitred.synthetic(rate="10", num_requests=3), "rate: a rate of '10' cannot be used"),
        (lambda: maitred.simulate(jobs(), seed="1"), "seed: must be a whole number, not '1'"),
        (lambda: maitred.simulate(jobs(), slo=500), "slo: must be Slo, not int (write Slo(ttft_ms=500))"),
        (lambda: maitred.capacity(workload=Load(rate="10", num_requests=3)), "workload: rate must be float or None, not '10'"),
        (lambda: maitred.capacity(workload=jobs()), "workload: a RepeatableJobs is no load"),
        (lambda: maitred.simulate(one_job(arrival=1.5)), "request 0 has arrival 1.5 (float)"),
        (lambda: maitred.simulate(one_job(prompt_tokens="10")), "request 0 has prompt_tokens '10' (str)"),
        (lambda: maitred.simulate(one_job(output_tokens=3.0)), "request 0 has output_tokens 3.0 (float)"),
        (lambda: maitred.simulate(one_job(id="a")), "request a has id 'a' (str)"),
        (lambda: maitred.simulate(one_job(max_output_tokens=2.5)), "request 0 has max_output_tokens 2.5 (float)"),
        (lambda: maitred.simulate(one_job(deadline=1.5)), "request 0 has deadline 1.5 (float)"),
        (lambda: maitred.simulate([one_job()[0].request]), "the workload has a Request in place of a job"),
        (lambda: maitred.simulate(None), "workload: a NoneType is no workload"),
        (lambda: maitred.synthetic(10, 3, input_tokens=None), "input_tokens: None is not a length in tokens"),
        (lambda: maitred.open_trace(5), "trace: 5 is no trace (a text: FILE or FORMAT:FILE)"),
        (lambda: maitred.capacity(InstanceConfig(), workload=LOAD), "base: must be Candidate, not InstanceConfig"),
        (lambda: maitred.capacity(workload=LOAD, num_instances="1"), "--num-instances: '1' cannot be used"),
        (lambda: maitred.capacity(workload=LOAD, slo={"ttft_ms": 1}), "slo: must be Slo, not dict"),
        (lambda: maitred.compare([InstanceConfig()], workload=LOAD), "a list is no candidate"),
    ],
)
def test_a_slip_has_one_clear_error(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("value", [0, -1, float("nan"), "500", 1e-6, 1e15])
def test_a_target_is_a_time(value: Any) -> None:
    with pytest.raises(ValueError, match="ttft_ms must be a number of milliseconds"):
        Slo(ttft_ms=value)


def test_a_target_has_its_unit_in_its_name() -> None:
    with pytest.raises(TypeError):
        Slo(ttft=500)  # type: ignore[call-arg]
    assert Slo(ttft_ms=500).ttft == 500_000


def test_synthetic_jobs_are_the_same_each_time() -> None:
    workload = maitred.synthetic(rate=10, num_requests=20, class_mix="bulk:1", tenant_mix="auth:a:1", prefix_tokens=5)
    assert [*workload] == [*workload]
    first, second = (maitred.simulate(workload).summary().total for _ in range(2))
    assert (first.arrived, first.e2e) == (20, second.e2e)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (job for job in jobs()),
        lambda: closed_loop(2, 5),
    ],
)
def test_what_can_be_read_once_says_so_the_second_time(make: Callable[[], Any]) -> None:
    workload = make()
    maitred.simulate(workload, horizon_secs=0.15)
    with pytest.raises(ConfigError, match="the workload was read before"):
        maitred.simulate(workload)


def test_the_order_of_sections_is_said() -> None:
    with pytest.raises(ConfigError, match="in this order: workload, cluster, instance, routing, admission, programs"):
        maitred.simulate(jobs(), RoutingConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "kind", "problem"),
    [
        (lambda: InstanceConfig(max_num_seqs="8"), TypeError, r"max_num_seqs must be int, not '8' \(str\)"),
        (lambda: InstanceConfig(enable_prefix_caching="off"), TypeError, "enable_prefix_caching must be bool"),
        (lambda: InstanceConfig(total_kv_blocks="1"), TypeError, r"total_kv_blocks must be int or None, not '1' \(str\)"),
        (lambda: InstanceConfig(flavour="vlm"), ValueError, r"flavour 'vlm' cannot be chosen \(did you mean 'vllm'\?\)"),
        (lambda: ClusterConfig(num_instances="2"), TypeError, "num_instances must be int"),
        (lambda: ClusterConfig(num_instances=2.5), TypeError, r"num_instances must be int, not 2.5 \(float\)"),
        (lambda: ClusterConfig(num_instances=True), TypeError, r"num_instances must be int, not True \(bool\)"),
        (lambda: InstanceConfig(latency_scale=True), TypeError, r"latency_scale must be float, not True \(bool\)"),
        (lambda: maitred.LinearLatency((5000.0, 17.5)), ValueError, "beta must be three numbers"),  # type: ignore[arg-type]
        (lambda: maitred.LinearLatency(("5", 1, 1)), ValueError, "beta must be three numbers"),  # type: ignore[arg-type]
    ],
)
def test_a_key_of_another_type_is_named(make: Callable[[], object], kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=problem):
        make()
