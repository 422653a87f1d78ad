"""Slots that are taken back in virtual time: what each request loses, and what the others gain at the same instant.

Steps last 100 µs + 1 µs per prefill token + 10 µs per decode: a request of the default size, alone, has its first token after
150 and ends after 260.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from maitred.admission import AdmissionConfig
from maitred.core.contracts import Choice, FleetView, Router
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.units import Micros
from maitred.instance import InstanceConfig, LinearLatency
from maitred.replay import replay
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, DisaggregationConfig, Outcome, Results, simulate
from maitred.workload import Job

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)))
ONE_SLOT = ClusterConfig(capacity=1)
COMPLETED, TIMED_OUT, REJECTED, PREEMPTED = Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.REJECTED, Outcome.PREEMPTED


def bulk(number: int, arrival: int = 0, output: int = 2, **fields: Any) -> Job:
    request = Request(id=number, arrival=arrival, prompt_tokens=50, priority_class=PriorityClass.BULK, **fields)
    return Job(request, output)


def chat(number: int, arrival: int, output: int = 2, **fields: Any) -> Job:
    request = Request(id=number, arrival=arrival, prompt_tokens=50, priority_class=PriorityClass.INTERACTIVE, **fields)
    return Job(request, output)


def admission(bulk: dict[str, Any] | None = None, **keys: Any) -> AdmissionConfig:
    """Return a configuration without reservations that rejects victims, with these settings of the class `bulk`, and these
    keys."""
    free = {c: {"reserved_per_slot": 0.0} for c in ("system", "interactive")}
    said = {"mode": "priority", "on_preempt": "reject", "classes": free | {"bulk": bulk or {}}}
    return msgspec.convert(said | keys, AdmissionConfig)


def run(jobs: list[Job], cluster: ClusterConfig = ONE_SLOT, **said: Any) -> Results:
    return simulate(jobs, cluster, INSTANCE, admission=admission(**said))


def outcomes(results: Results) -> list[Outcome]:
    return [Outcome(value) for value in results.outcome]


def test_a_chat_takes_the_slot_of_bulk_that_has_shown_nothing() -> None:
    results = run([bulk(0), chat(1, 10)])
    assert outcomes(results) == [PREEMPTED, COMPLETED]
    # the step in which the victim's prompt is takes its time; the chat joins the next one, and is not delayed by its decode
    assert results.scheduled.tolist()[1] == 150
    assert results.finished.tolist() == [10, 410]


def test_nothing_of_a_victim_remains_but_where_it_was() -> None:
    results = run([bulk(0, stream=False, output=30), chat(1, 1000)])
    assert (results.outcome[0], results.finished[0], results.instance[0]) == (PREEMPTED, 1000, 0)
    assert (results.first_token[0], results.scheduled[0], results.output_tokens[0]) == (-1, -1, 0)
    assert results.retries.tolist() == [0, 0]


def test_nothing_of_it_remains_though_its_prompt_was_computed_elsewhere() -> None:
    split = DisaggregationConfig(prefill_instances=1, decode_instances=1, kv_bytes_per_token=1000.0)
    results = run(
        [bulk(0, stream=False, output=30), chat(1, 1000)], ClusterConfig(num_instances=2, capacity=1, disaggregation=split)
    )
    assert (results.outcome[0], results.finished[0], results.instance[0]) == (PREEMPTED, 1000, 1)
    assert (results.first_token[0], results.scheduled[0], results.output_tokens[0]) == (-1, -1, 0)


def test_what_has_shown_its_first_token_keeps_its_slot() -> None:
    results = run([bulk(0), chat(1, 151)])
    assert outcomes(results) == [COMPLETED, COMPLETED]
    assert results.finished.tolist() == [260, 520]


def test_who_comes_at_the_instant_of_the_first_token_was_there_before_it() -> None:
    results = run([bulk(0), chat(1, 150)])
    assert outcomes(results) == [PREEMPTED, COMPLETED]
    assert results.first_token.tolist() == [-1, 300]


def test_an_answer_that_is_not_streamed_may_be_lost_until_its_very_end() -> None:
    results = run([bulk(0, stream=False), chat(1, 260)])
    assert outcomes(results) == [PREEMPTED, COMPLETED]
    assert results.finished.tolist() == [260, 520]
    assert results.output_tokens.tolist() == [0, 2]
    assert outcomes(run([bulk(0, stream=False), chat(1, 261)])) == [COMPLETED, COMPLETED]


def test_what_others_came_to_at_that_instant_is_theirs() -> None:
    # both prompts in one step, to 200; a decode of both, to 320: there 0 ends, the chat arrives, and 1 is not streamed
    results = run([bulk(0), bulk(1, stream=False, output=9), chat(2, 320)], ClusterConfig(capacity=2))
    assert outcomes(results) == [COMPLETED, PREEMPTED, COMPLETED]
    assert results.finished.tolist() == [320, 320, 580]
    assert results.output_tokens.tolist() == [2, 0, 2]


def test_the_lowest_class_goes_first_and_of_it_the_newest() -> None:
    default = Job(Request(id=2, arrival=2, prompt_tokens=50), 2)
    jobs = [bulk(0), bulk(1, 1), default, chat(3, 10), chat(4, 11), chat(5, 12)]
    results = run(jobs, ClusterConfig(capacity=3))
    assert outcomes(results)[:3] == [PREEMPTED] * 3
    assert results.finished.tolist()[:3] == [11, 10, 12]


def test_a_victim_that_is_tried_again_loses_its_attempt_and_nothing_else() -> None:
    results = run([bulk(0), chat(1, 10)], on_preempt="retry")
    assert outcomes(results) == [COMPLETED, COMPLETED]
    assert results.retries.tolist() == [1, 0]
    assert results.scheduled.tolist() == [410, 150]
    assert results.first_token.tolist() == [560, 300]
    assert results.finished.tolist() == [670, 410]
    assert results.output_tokens.tolist() == [2, 2]


def test_it_is_left_alone_the_second_time() -> None:
    results = run([bulk(0, stream=False), chat(1, 10), chat(2, 420)], on_preempt="retry")
    assert results.retries.tolist() == [1, 0, 0]
    assert results.finished.tolist() == [670, 410, 930]


def test_it_goes_before_those_of_its_class_that_wait() -> None:
    results = run([bulk(0), bulk(1, 1), chat(2, 10)], on_preempt="retry")
    assert results.scheduled.tolist() == [410, 670, 150]


def test_its_deadline_and_its_queue_timeout_go_on_from_its_arrival() -> None:
    expired = run([bulk(0, 5, deadline=300), chat(1, 10)], on_preempt="retry")
    assert outcomes(expired) == [TIMED_OUT, COMPLETED]
    assert expired.finished.tolist()[0] == 300
    late = run([bulk(0, 5), chat(1, 10)], bulk={"queue_timeout_secs": 200e-6}, on_preempt="retry")
    assert outcomes(late) == [REJECTED, COMPLETED]
    assert late.finished.tolist()[0] == 205
    assert expired.retries.tolist() == late.retries.tolist() == [1, 0]


def test_who_had_waited_too_long_before_it_was_a_victim_is_preempted_for_good() -> None:
    jobs = [bulk(0, stream=False, output=30), chat(1, 1000)]
    results = run(jobs, bulk={"queue_timeout_secs": 200e-6}, on_preempt="retry")
    assert outcomes(results) == [PREEMPTED, COMPLETED]
    assert results.finished.tolist()[0] == 1000


def test_a_preemptor_without_patience_has_its_slot_at_once_all_the_same() -> None:
    assert run([bulk(0), chat(1, 10)], preemption_budget_ms=0).finished.tolist() == [10, 410]


class RecordingRouter(Router):
    """Chooses the first instance, and records its load and the end of each request."""

    seen: list[int]
    gone: list[tuple[RequestId, Micros]]

    def __init__(self, rng: Random) -> None:
        RecordingRouter.seen, RecordingRouter.gone = [], []

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        self.seen.append(fleet[0].in_flight)
        return Choice(0, "the_first")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self.gone.append((request.id, now))


def test_a_router_is_told_that_a_victim_has_left_before_it_places_the_preemptor() -> None:
    routing = RoutingConfig(policy=f"{__name__}:RecordingRouter")
    simulate([bulk(0), chat(1, 10)], ONE_SLOT, INSTANCE, routing, admission(on_preempt="retry"))
    assert RecordingRouter.gone == [(0, 10), (1, 410), (0, 670)]
    assert RecordingRouter.seen == [0, 0, 0]


def test_the_log_of_preemptions_and_retries_replays_to_the_same_bytes() -> None:
    lines, again = list[bytes](), list[bytes]()
    jobs = [bulk(0), bulk(1), chat(2, 10, tenant="auth:acme"), chat(3, 20, max_output_tokens=7), bulk(4, 30)]
    policies = {"auth:acme": {"max_class": "system"}}
    config = admission(on_preempt="retry", tenant_policies=policies, slot_cost="tokens", slot_tokens=110)
    simulate(jobs, ONE_SLOT, INSTANCE, admission=config, log=DecisionLog(lines.append))
    replay(lines, DecisionLog(again.append))
    assert any(b'"action":"preempt"' in line for line in lines)
    assert lines == again


def told(lines: list[bytes]) -> list[tuple[Micros, str, RequestId]]:
    """Return the inputs of admission about single requests: instant, kind, request."""
    inputs = (said for said in map(msgspec.json.decode, lines) if "id" in said)
    return [(said["at"], said["input"], said["id"]) for said in inputs]


def test_who_is_admitted_too_late_beside_a_victim_is_not_forgotten() -> None:
    """At 102 the starving 1 gets the reserved slot, its deadline passes, and 2 takes the slot of 0, all at the same instant."""
    free = {"reserved_per_slot": 0.0, "reserved_floor": 0}
    classes = {"system": free, "interactive": free | {"reserved_floor": 1}, "bulk": {"starvation_threshold_secs": 100e-6}}
    config = msgspec.convert(
        {"mode": "priority", "on_preempt": "reject", "promotion_share": 1.0, "classes": classes}, AdmissionConfig
    )
    control = Job(Request(id=2, arrival=102, prompt_tokens=50, priority_class=PriorityClass.SYSTEM), 2)
    jobs = [bulk(0, stream=False, output=50), bulk(1, 1, deadline=102), control, chat(3, 120)]
    lines: list[bytes] = []
    results = simulate(jobs, ClusterConfig(capacity=2), INSTANCE, admission=config, log=DecisionLog(lines.append))
    assert outcomes(results) == [PREEMPTED, TIMED_OUT, COMPLETED, COMPLETED]
    assert results.finished.tolist()[:2] == [102, 102]
    assert told(lines)[2:6] == [(102, "submit", 2), (102, "release", 0), (102, "release", 1), (120, "submit", 3)]


def test_who_waits_in_the_instance_goes_on_when_a_victim_leaves_it() -> None:
    """0 runs and 2 waits behind it; 3 goes to the other instance behind 1. 0 leaves at 1000, in a step that ends at 1030."""
    instance = msgspec.structs.replace(INSTANCE, max_num_seqs=1)
    waiting = Job(Request(id=2, arrival=300, prompt_tokens=50), 2)
    jobs = [bulk(0, stream=False, output=100), bulk(1, output=11), waiting, chat(3, 1000, output=50)]
    lines: list[bytes] = []
    cluster, routing = ClusterConfig(num_instances=2, capacity=3), RoutingConfig(policy="round-robin")
    results = simulate(jobs, cluster, instance, routing, admission(), log=DecisionLog(lines.append))
    assert results.instance.tolist() == [0, 1, 0, 1]
    assert (results.scheduled[2], results.first_token[2]) == (1030, 1180)
    assert told(lines)[-5:-1] == [(1180, "first_byte", 2), (1250, "release", 1), (1290, "release", 2), (1400, "first_byte", 3)]
