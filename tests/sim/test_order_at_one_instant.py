"""The order of events at one instant, the inputs of admission, and the inputs of routers and schedulers.

Steps last 100 µs + 1 µs per prefill token + 10 µs per decode: a request of the default size, alone, takes 150 + 110.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from maitred.admission import AdmissionConfig
from maitred.core.contracts import Choice, FleetView, PrefixCacheView, QueuePolicy, Router, WaitQueue
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.units import Micros
from maitred.instance import InstanceConfig, LinearLatency
from maitred.queueing import SCHEDULERS
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)))
ONE_SLOT = ClusterConfig(capacity=1)
COMPLETED, TIMED_OUT, REJECTED = Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.REJECTED


def job(number: int, arrival: int = 0, prompt: int = 50, output: int = 2, **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **fields), output)


def outcomes(results: Results) -> list[Outcome]:
    return [Outcome(value) for value in results.outcome]


def admission(**classes: dict[str, Any]) -> AdmissionConfig:
    """Return a configuration without reservations and preemption, with these settings for the classes that they name."""
    free: dict[str, dict[str, Any]] = {c: {"reserved_per_slot": 0.0, "can_preempt": False} for c in ("system", "interactive")}
    said = {"mode": "priority", "classes": {c: free.get(c, {}) | classes.get(c, {}) for c in free | classes}}
    return msgspec.convert(said, AdmissionConfig)


def test_what_has_ended_is_no_load_any_more() -> None:
    jobs = [job(0), job(1, output=1000), job(2, arrival=300), job(3, arrival=600)]
    results = simulate(jobs, ClusterConfig(num_instances=2), INSTANCE)
    # 1 keeps its instance busy; it is that instance's turn when 3 comes, but the other has nothing in flight
    assert results.instance.tolist() == [0, 1, 0, 0]


def test_at_one_instant_an_arrival_precedes_the_end_of_a_step() -> None:
    jobs = [job(0), job(1, arrival=1), job(2, arrival=260)]
    results = simulate(jobs, ONE_SLOT, INSTANCE, admission=admission(default={"queue_size": 1}))
    assert outcomes(results) == [COMPLETED, COMPLETED, REJECTED]  # 1 has the slot at 260, but 2 found the queue full
    assert results.finished.tolist() == [260, 520, 260]


def test_at_one_instant_a_deadline_precedes_the_slot_that_falls_free() -> None:
    results = simulate([job(0), job(1, arrival=1, deadline=260)], ONE_SLOT, INSTANCE)
    assert outcomes(results) == [COMPLETED, TIMED_OUT]
    assert results.instance.tolist() == [0, -1]


def test_each_waiter_is_turned_away_when_its_own_time_is_up() -> None:
    jobs = [job(0, output=100), job(1, arrival=1), job(2, arrival=50)]
    results = simulate(jobs, ONE_SLOT, INSTANCE, admission=admission(default={"queue_timeout_secs": 1e-4}))
    assert results.finished.tolist() == [150 + 99 * 110, 101, 150]


def test_a_request_that_arrives_later_may_be_rejected_earlier() -> None:
    jobs = [job(0, output=100), job(1, arrival=1), job(2, arrival=20, priority_class=PriorityClass.INTERACTIVE)]
    results = simulate(jobs, ONE_SLOT, INSTANCE, admission=admission(interactive={"queue_timeout_secs": 1e-4}))
    assert outcomes(results) == [COMPLETED, COMPLETED, REJECTED]
    assert results.finished.tolist()[2] == 120


def test_one_gives_up_in_the_instant_in_which_another_is_turned_away() -> None:
    jobs = [job(0, output=100), job(1, arrival=2), job(2, arrival=50, deadline=102)]
    results = simulate(jobs, ONE_SLOT, INSTANCE, admission=admission(default={"queue_timeout_secs": 1e-4}))
    assert outcomes(results) == [COMPLETED, REJECTED, TIMED_OUT]
    assert results.finished.tolist() == [150 + 99 * 110, 102, 102]


def test_admission_is_told_of_first_bytes_and_of_how_each_request_ended() -> None:
    lines: list[bytes] = []
    jobs = [job(0), job(1, arrival=1000, stream=False), job(2, arrival=2000, output=100, deadline=2200)]
    simulate(jobs, ONE_SLOT, INSTANCE, log=DecisionLog(lines.append))
    told = [said for said in map(msgspec.json.decode, lines) if said.get("input") in {"first_byte", "release"}]
    assert [(said["input"], said["id"], said["at"], said.get("end")) for said in told] == [
        ("first_byte", 0, 150, None),
        ("release", 0, 260, "drained"),
        ("release", 1, 1260, "drained"),  # not streamed: its first byte is its last
        ("first_byte", 2, 2150, None),
        ("release", 2, 2200, "failed"),
    ]


class RecordingRouter(Router):
    """Chooses the first instance, and records when each request leaves."""

    gone: list[tuple[RequestId, int, Micros]]

    def __init__(self, rng: Random) -> None:
        RecordingRouter.gone = []

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        return Choice(fleet[0].index, "the_first")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self.gone.append((request.id, instance, now))


def test_a_router_is_told_of_each_end_however_it_came() -> None:
    simulate(
        [job(0), job(1, arrival=1000, output=100, deadline=1200)],
        None,
        INSTANCE,
        RoutingConfig(policy=f"{__name__}:RecordingRouter"),
    )
    assert RecordingRouter.gone == [(0, 0, 260), (1, 0, 1200)]


class DrawingPolicy(QueuePolicy):
    """First come, first served; records a draw from the random stream of each queue."""

    drawn: list[float]

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        DrawingPolicy.drawn.append(rng.random())
        return SCHEDULERS.get("fcfs")().make_queue(prefix, rng)


def test_each_instance_draws_from_a_stream_of_its_own_that_follows_from_the_seed() -> None:
    def drawn(seed: int) -> list[float]:
        DrawingPolicy.drawn = []
        simulate([], ClusterConfig(num_instances=2), InstanceConfig(scheduler=f"{__name__}:DrawingPolicy"), seed=seed)
        return DrawingPolicy.drawn

    assert len({*drawn(1), *drawn(2)}) == 4
    assert drawn(1) == drawn(1)


def test_a_slot_freed_by_giving_up_goes_to_the_next_at_that_instant() -> None:
    jobs = [job(0, output=100), job(1, arrival=1, deadline=300), job(2, arrival=2)]
    results = simulate(jobs, ONE_SLOT, INSTANCE)
    assert outcomes(results) == [COMPLETED, TIMED_OUT, COMPLETED]
    assert results.finished.tolist() == [150 + 99 * 110, 300, 150 + 99 * 110 + 260]


def test_what_the_horizon_cuts_off_is_counted_as_of_that_instant() -> None:
    results = simulate([job(0, output=10_000)], instance=INSTANCE, horizon=150 + 30 * 110 + 5)
    assert outcomes(results) == [Outcome.UNFINISHED]
    assert results.output_tokens.tolist() == [31]
    assert results.first_token.tolist() == [150]
    assert results.instance.tolist() == [0]


def test_at_one_instant_the_end_of_a_step_precedes_a_sample() -> None:
    samples = simulate([job(0), job(1, arrival=300)], instance=INSTANCE, sample_every=260).samples
    assert samples is not None
    assert samples.at[:2].tolist() == [0, 260]
    assert samples.ended[:2].tolist() == [0, 1]  # 0 ends at 260
    assert samples.running[:2].tolist() == [[0], [0]]


def test_requests_that_enter_at_one_instant_join_the_same_step() -> None:
    """Both are routed to the same instance at 1,000 µs, each by an event of its own."""
    results = simulate([job(0), job(1)], ClusterConfig(routing_latency_ms=1), INSTANCE)
    assert results.first_token.tolist() == [1_200, 1_200]  # 100 + 2 * 50 µs after they entered
