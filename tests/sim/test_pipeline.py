"""Delays on the path of a request to its instance, to the microsecond.

Steps last 100 µs + 1 µs per prefill token + 10 µs per decode: a request of the default size, alone, takes 150 + 110.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from maitred.admission import AdmissionConfig
from maitred.core.contracts import BatchShape, Choice, FleetView, LatencyModel, Overheads, Router
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros
from maitred.instance import InstanceConfig, LinearLatency
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job

SLOW = ClusterConfig(admission_latency_ms=0.02, routing_latency_ms=0.03)
COMPLETED, TIMED_OUT = Outcome.COMPLETED, Outcome.TIMED_OUT


class LatencyWithOverheads(msgspec.Struct, frozen=True, tag_field="model", tag="paid"):
    """Steps as above, with overheads."""

    overheads: Overheads = Overheads()
    steps: LinearLatency = LinearLatency((100, 1, 10))

    def compiled(self, _scale: float) -> LatencyModel:
        return self

    def step_time(self, batch: BatchShape) -> Micros:
        return self.steps.compiled().step_time(batch)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return self.steps.compiled().run_time(batch, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return self.steps.compiled().steps_within(batch, span, limit)


def instance(**overheads: Any) -> InstanceConfig:
    model: LatencyModel = LatencyWithOverheads(Overheads(**overheads))
    return msgspec.structs.replace(InstanceConfig(), latency=model)


def job(number: int, arrival: int = 0, prompt: int = 50, output: int = 2, **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **fields), output)


def outcomes(results: Results) -> list[Outcome]:
    return [Outcome(value) for value in results.outcome]


def test_each_station_takes_its_time() -> None:
    results = simulate([job(0, arrival=5), job(1, arrival=10)], SLOW, instance(queueing=7, queueing_per_token=0.15))
    assert results.queued.tolist() == [5 + 20 + 30 + 14, 10 + 20 + 30 + 14]  # 7 + 7.5, truncated
    assert results.scheduled.tolist() == [69, 219]
    assert results.first_token.tolist() == [219, 219 + 160]


def test_at_one_instant_they_go_on_in_the_order_in_which_they_came() -> None:
    ids = [7, 3, 5]
    results = simulate([job(i) for i in ids], SLOW, instance(queueing=1), RoutingConfig(policy="round-robin"))
    assert results.instance.tolist() == [0, 0, 0]
    spread = msgspec.structs.replace(SLOW, num_instances=3)
    results = simulate([job(i) for i in ids], spread, instance(queueing=1), RoutingConfig(policy="round-robin"))
    assert results.request_id.tolist() == ids
    assert results.instance.tolist() == [0, 1, 2]


def test_overheads_reach_the_client_and_do_not_hold_the_engine() -> None:
    results = simulate([job(0, output=3), job(1, arrival=370)], None, instance(per_output_token=1000, after_last_token=50))
    assert results.first_token.tolist() == [150 + 1000, 370 + 150 + 1000]
    assert results.scheduled.tolist() == [0, 370]  # the engine was done at 370
    assert results.finished.tolist() == [370 + 3 * 1000 + 50, 370 + 260 + 2 * 1000 + 50]
    assert results.end == results.finished.max()


def test_what_did_not_complete_pays_only_for_what_came_out() -> None:
    results = simulate([job(0, output=99, deadline=300)], None, instance(per_output_token=1000, after_last_token=50))
    assert outcomes(results) == [TIMED_OUT]
    assert (results.first_token[0], results.finished[0]) == (1150, 300)


@pytest.mark.parametrize(("deadline", "place"), [(10, -1), (30, -1), (55, 0), (75, 0)])
def test_a_deadline_ends_it_wherever_it_is(deadline: int, place: int) -> None:
    """In front of admission, in front of the router, on the way into the instance, and in it."""
    results = simulate([job(0, deadline=deadline)], SLOW, instance(queueing=20))
    assert outcomes(results) == [TIMED_OUT]
    assert results.finished.tolist() == [deadline]
    assert results.instance.tolist() == [place]
    assert (results.queued[0] >= 0) == (deadline == 75)


class RecordingRouter(Router):
    """Chooses the first instance, and records its load."""

    seen: list[tuple[Micros, int, int, int]]

    def __init__(self, rng: Random) -> None:
        RecordingRouter.seen = []

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        RecordingRouter.seen.append((now, fleet[0].in_flight, fleet[0].waiting, fleet[0].running))
        return Choice(0, "the_first")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        pass


RECORDING = RoutingConfig(policy=f"{__name__}:RecordingRouter")


def test_on_its_way_into_the_instance_it_is_in_flight_and_neither_waits_nor_runs() -> None:
    jobs = [job(0), job(1, 10), job(2, 40), job(3, 60)]
    simulate(jobs, None, instance(queueing=30), RECORDING)
    assert RecordingRouter.seen == [(0, 0, 0, 0), (10, 1, 0, 0), (40, 2, 0, 1), (60, 3, 1, 1)]


def test_one_that_gives_up_on_its_way_is_in_flight_no_more() -> None:
    simulate([job(0, deadline=20), job(1, 20), job(2, 21)], None, instance(queueing=30), RECORDING)
    assert RecordingRouter.seen == [
        (0, 0, 0, 0),
        (20, 1, 0, 0),
        (21, 1, 0, 0),
    ]  # a router decides before a deadline of that instant


def admission(**keys: Any) -> AdmissionConfig:
    free = {c: {"reserved_per_slot": 0.0} for c in ("system", "interactive")}
    return msgspec.convert({"mode": "priority", "on_preempt": "reject", "classes": free} | keys, AdmissionConfig)


@pytest.mark.parametrize(("at", "instance_of_victim"), [(5, -1), (25, 0)])
def test_a_slot_may_be_taken_back_on_the_way(at: int, instance_of_victim: int) -> None:
    """Routing takes 10 µs, and entry another 30 µs: at 5 and at 25 the victim is not in its instance yet."""
    cluster = ClusterConfig(capacity=1, routing_latency_ms=0.01)
    urgent = job(1, at, priority_class=PriorityClass.INTERACTIVE)
    victim = job(0, priority_class=PriorityClass.BULK)
    lost = simulate([victim, urgent], cluster, instance(queueing=30), None, admission())
    assert outcomes(lost) == [Outcome.PREEMPTED, COMPLETED]
    assert lost.finished.tolist() == [at, at + 40 + 260]
    assert lost.instance.tolist() == [instance_of_victim, 0]
    again = simulate([victim, urgent], cluster, instance(queueing=30), None, admission(on_preempt="retry"))
    assert outcomes(again) == [COMPLETED, COMPLETED]
    assert again.finished.tolist() == [at + 300 + 300, at + 300]
    assert again.retries.tolist() == [1, 0]


def test_what_is_on_its_way_at_the_horizon_is_unfinished() -> None:
    jobs = [job(0), job(1, 60), job(2, 90)]
    results = simulate(jobs, SLOW, instance(queueing=20), horizon=100)
    assert outcomes(results) == [Outcome.UNFINISHED] * 3
    assert results.queued.tolist() == [70, -1, -1]
    assert results.end == 100


def test_latencies_are_durations() -> None:
    with pytest.raises(ValueError, match="routing_latency_ms must be from 0"):
        ClusterConfig(routing_latency_ms=-1)
    with pytest.raises(ConfigError):
        simulate([job(0, arrival=-1)], SLOW)
