"""Edge cases of the simulator: refusals, ties between deadlines, the instant of the end, and the view of routers."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from maitred.admission import AdmissionConfig
from maitred.core.contracts import Choice, FleetView, Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.instance import InstanceConfig, LinearLatency
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)))


def job(number: int, arrival: int = 0, prompt: int = 50, output: int = 2, **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **fields), output)


def outcomes(results: Results) -> list[Outcome]:
    return [Outcome(value) for value in results.outcome]


def admission(**default: Any) -> AdmissionConfig:
    """Return a configuration without reservations, with these settings for the class `default`."""
    nobody = {name: {"reserved_per_slot": 0.0} for name in ("system", "interactive")}
    return msgspec.convert({"mode": "priority", "classes": nobody | {"default": default}}, AdmissionConfig)


def test_an_idle_instance_refuses_at_once_what_can_never_run() -> None:
    results = simulate([job(0, arrival=7, prompt=10**9)], instance=INSTANCE)
    assert outcomes(results) == [Outcome.REFUSED]
    assert results.finished.tolist() == [7]


def test_what_comes_after_its_deadline_is_timed_out_where_nothing_runs() -> None:
    results = simulate([job(0, arrival=10, deadline=5)], instance=INSTANCE)
    assert outcomes(results) == [Outcome.TIMED_OUT]
    assert results.finished.tolist() == [10]


def test_a_refused_request_gives_its_slot_back_at_that_instant() -> None:
    jobs = [job(0, arrival=5, prompt=10**9), job(1, arrival=8), job(2, arrival=400)]
    results = simulate(jobs, ClusterConfig(capacity=1), INSTANCE)
    assert outcomes(results) == [Outcome.REFUSED, Outcome.COMPLETED, Outcome.COMPLETED]
    assert results.finished.tolist() == [5, 268, 660]


def test_a_refusal_beside_a_long_answer_does_not_hold_its_slot_until_that_one_moves() -> None:
    # 0 prefills to 150 and decodes in one run; 1 is refused at 200 in the middle of it, so 2 has the slot at 201
    jobs = [job(0, output=1000), job(1, arrival=200, prompt=10**9), job(2, arrival=201)]
    results = simulate(jobs, ClusterConfig(capacity=2), INSTANCE, admission=admission())
    assert results.finished.tolist()[1] == 200
    assert results.scheduled.tolist()[2] == 260


def test_a_deadline_at_the_very_instant_of_the_queue_timeout() -> None:
    impatient = admission(queue_timeout_secs=1e-4)
    results = simulate([job(0), job(1, arrival=1, deadline=101)], ClusterConfig(capacity=1), INSTANCE, admission=impatient)
    assert outcomes(results) == [Outcome.COMPLETED, Outcome.TIMED_OUT]
    assert results.finished.tolist() == [260, 101]


def test_the_run_ends_with_its_last_event_not_with_an_unneeded_timer() -> None:
    waited = simulate([job(0), job(1, arrival=1)], ClusterConfig(capacity=1), INSTANCE)  # 1 could have waited for a minute
    assert waited.finished.tolist() == [260, 520]
    assert waited.end == 520
    patient = simulate([job(0, deadline=10**9)], ClusterConfig(capacity=1), INSTANCE)
    assert patient.end == 260
    assert simulate([job(0), job(1, arrival=1)], ClusterConfig(capacity=1), INSTANCE, horizon=10_000).end == 520


def test_instants_far_from_the_start_are_as_good_as_others_until_they_are_slips_of_the_unit() -> None:
    results = simulate([job(0, arrival=10**15), job(1, arrival=10**15 + 5)], instance=INSTANCE, sample_every=1)
    assert (results.finished - 10**15).tolist() == [310, 420]
    with pytest.raises(ConfigError, match="request 0 arrives at 1700000000000000000 µs, in 53,906 years"):
        simulate([job(0, arrival=1_700_000_000 * 10**9)], instance=INSTANCE)


class LowestKvUsage(Router):
    """Chooses by KV usage, then index: a router that looks into the instances."""

    def __init__(self, rng: Random) -> None:
        pass

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        return Choice(min(fleet, key=lambda view: (view.kv_usage, view.index)).index, "emptiest")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        pass


@pytest.mark.parametrize("step_by_step", [True, False])
def test_a_router_that_looks_at_the_memory_sees_it_as_it_is_now(step_by_step: bool) -> None:
    # Blocks of 16. The answer of 0 grows from 1 block beyond 10 by 2000 µs, while 1 rests at 8 with its last token far off.
    instance = msgspec.structs.replace(INSTANCE, total_kv_blocks=100, step_by_step=step_by_step)
    jobs = [
        job(0, prompt=10, output=400),  # instance 0: after 110, a token every 110 µs; 192 tokens (12 blocks) at about 20,000
        job(1, arrival=1, prompt=150, output=20),  # instance 1, to 250; then 19 tokens until 2,340
        job(2, arrival=19_000, prompt=150, output=100),  # the fleet: 12 blocks here, none there
        job(3, arrival=25_000, prompt=20, output=1),  # 0 holds 15 blocks by now; 1 holds 13
    ]
    results = simulate(jobs, ClusterConfig(num_instances=2), instance, RoutingConfig(policy=f"{__name__}:LowestKvUsage"))
    assert results.instance.tolist() == [0, 1, 1, 1]


def test_who_gets_the_slot_of_a_refused_one_joins_the_step_that_begins_at_that_instant() -> None:
    jobs = [job(0, arrival=5), job(1, arrival=5, prompt=10**9), job(2, arrival=5)]
    results = simulate(jobs, ClusterConfig(capacity=2), INSTANCE, admission=admission())
    assert results.scheduled.tolist() == [5, -1, 5]
    assert results.first_token.tolist() == [205, -1, 205]  # both prompts in one step
