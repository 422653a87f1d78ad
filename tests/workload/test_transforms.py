"""A workload with denser arrivals, or with longer times."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.sim import simulate
from maitred.workload import Client, Job, Workload, closed_loop, scale_rate, scale_time, synthetic

SECOND = 1_000_000


def job(number: int, at: int) -> Job:
    return Job(Request(id=number, arrival=at, prompt_tokens=5, deadline=at + 300, slo_target=70), 3)


def facts(jobs: list[Job]) -> list[tuple[int, int | None, int | None]]:
    return [(job.request.arrival, job.request.deadline, job.request.slo_target) for job in jobs]


def test_denser_arrivals_keep_their_deadlines() -> None:
    assert facts(list(scale_rate([job(0, 100), job(1, 1_000)], 2))) == [(50, 350, 70), (500, 800, 70)]


def test_slower_times_are_all_slower() -> None:
    assert facts(list(scale_time([job(0, 100), job(1, 1_000)], 2))) == [(200, 800, 140), (2_000, 2_600, 140)]


def test_a_rate_and_its_scale_are_one_number() -> None:
    plain, scaled = list(synthetic(20, 200)), list(scale_rate(synthetic(10, 200), 2))
    assert all(abs(a.request.arrival - b.request.arrival) <= 1 for a, b in zip(plain, scaled, strict=True))


def test_a_reactive_workload_is_not_made_denser_afterwards() -> None:
    with pytest.raises(ConfigError, match="a workload that waits for answers has no arrivals to be scaled"):
        scale_rate(Workload(num_requests=1, clients=[CHAT]).jobs(), 2)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e9])
def test_factors_that_cannot_be(factor: float) -> None:
    with pytest.raises(ConfigError, match="a factor from 1e-06 to 1e\\+06; 1 changes nothing"):
        scale_time([], factor)


CHAT = Client(id="c", concurrency=5, think_time_us=SECOND, input_distribution="normal:200,50", output_distribution=20)


def test_on_an_instance_twice_as_slow_a_workload_twice_as_slow_takes_twice_as_long() -> None:
    """Steps take whole ms, so nothing is rounded: every instant of the run doubles."""
    workload = Workload(num_requests=60, clients=[CHAT])
    fast = InstanceConfig(latency=LinearLatency(beta=(5_000, 10, 50)))
    slow = replace(fast, latency=LinearLatency(beta=(10_000, 20, 100)))
    one = simulate(workload.jobs(), instance=fast)
    two = simulate(scale_time(workload.jobs(), 2), instance=slow)
    assert (one.finished * 2).tolist() == two.finished.tolist()
    assert (one.arrival * 2).tolist() == two.arrival.tolist()


def test_a_closed_loop_in_short() -> None:
    jobs = iter(closed_loop(3, 10, think_time_ms=30, input_tokens=7, output_tokens="uniform:1,5", class_mix="bulk:1"))
    assert [(job.request.arrival, job.request.prompt_tokens, job.request.priority_class.label) for job in jobs] == [
        (0, 7, "bulk"),
        (10_000, 7, "bulk"),
        (20_000, 7, "bulk"),
    ]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 100_001}, "concurrency"),
        ({"input_tokens": "x"}, "input_tokens"),
        ({"think_time_ms": -5.0}, "think_time_ms"),
        ({"think_time_ms": float("nan")}, "think_time_ms"),
        ({"think_time_ms": 1e13}, "think_time_ms"),
        ({"num_requests": 10**13}, "num_requests"),
    ],
)
def test_a_closed_loop_that_cannot_be(arguments: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        closed_loop(**{"concurrency": 3, "num_requests": 5, **arguments})  # type: ignore[arg-type]
    assert raised.value.where == where


def test_a_closed_loop_without_requests_is_empty() -> None:
    assert list(closed_loop(3, 0)) == []


def test_other_arrival_processes_of_the_plain_workload() -> None:
    assert [job.request.arrival for job in synthetic(4, 3, arrival="constant")] == [250_000, 500_000, 750_000]
    assert list(synthetic(4, 400, arrival="normalized"))[-1].request.arrival == 100 * SECOND
    with pytest.raises(ConfigError, match="arrival: unknown arrival process 'x'"):
        synthetic(4, 3, arrival="x")
