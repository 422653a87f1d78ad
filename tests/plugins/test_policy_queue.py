"""The waiting queue of vLLM over a policy: the order, what the policy is told, and when."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_vllm import FakeEngine, FakeRequest, FakeScheduler

from maitred.core.contracts import StepView
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.plugins.vllm.policy_queue import PolicyQueue
from maitred.queueing import SCHEDULERS
from maitred.queueing.base import KeyQueue

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


def made_queue(policy: str = "fcfs") -> tuple[PolicyQueue, FakeEngine]:
    engine = FakeEngine()
    return PolicyQueue(SCHEDULERS.create(policy).make_queue(None, Random(0)), engine), engine


def popped(queue: PolicyQueue) -> list[str]:
    """Take all requests out, in a step of their own."""
    queue.begin_step()
    names = []
    while queue:
        head = queue.peek_request()
        assert queue.pop_request() is head
        names.append(head.request_id)
    return names


class SpyQueue(KeyQueue):
    """The order of arrival, and a list of all that the policy is told."""

    def __init__(self) -> None:
        super().__init__(lambda seq: (seq.arrival_index,))
        self.told: list[tuple[Any, ...]] = []

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self.told.append(("add", seq.request.client_id, "front" if front else "back"))
        super().add(seq, now, front=front)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self.told.append(("step", step.step_index))

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        self.told.append(("served", seq.request.client_id, prefill_tokens, decode_tokens))

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        self.told.append(("finished", seq.request.client_id, seq.num_output_tokens))

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        self.told.append(("end", seq.request.client_id))


def spied(max_num_seqs: int = 1) -> tuple[FakeScheduler, SpyQueue]:
    spy, engine = SpyQueue(), FakeEngine()
    return FakeScheduler(PolicyQueue(spy, engine), engine, max_num_seqs), spy


def test_the_order_is_that_of_the_policy() -> None:
    queue, _ = made_queue("sjf")
    for name, tokens in (("a", 300), ("b", 20), ("c", 150)):
        queue.add_request(FakeRequest(name, tokens))

    assert len(queue) == 3
    assert [request.request_id for request in queue] == ["a", "b", "c"]
    assert popped(queue) == ["b", "c", "a"]
    assert not queue
    assert list(queue) == []


def test_an_empty_queue_has_no_head() -> None:
    queue, _ = made_queue()
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()


def test_requests_are_removed_wherever_they_stand() -> None:
    queue, _ = made_queue()
    requests = [FakeRequest(name) for name in "abcd"]
    for request in requests:
        queue.add_request(request)
    queue.remove_requests([requests[1], FakeRequest("elsewhere")])
    queue.remove_request(requests[3])

    with pytest.raises(ValueError, match="request d does not wait here"):
        queue.remove_request(requests[3])
    assert popped(queue) == ["a", "c"]


def test_a_preempted_request_goes_to_the_front() -> None:
    queue, engine = made_queue("fcfs")
    scheduler = FakeScheduler(queue, engine, max_num_seqs=2)
    for name in "abc":
        queue.add_request(FakeRequest(name, max_tokens=50))
    scheduler.step()
    scheduler.preempt()

    assert [queue.pop_request().request_id, queue.pop_request().request_id] == ["b", "c"]


def test_requests_that_could_not_run_keep_their_places() -> None:
    queue, engine = made_queue("fcfs")
    scheduler = FakeScheduler(queue, engine, max_num_seqs=1)
    for name in "abcd":
        queue.add_request(FakeRequest(name, max_tokens=5))
    scheduler.blocked = {"a", "b"}
    scheduler.step()

    assert scheduler.admitted == ["c"]
    assert popped(queue) == ["a", "b", "d"]


def test_a_step_starts_when_the_head_is_first_looked_at_and_once() -> None:
    scheduler, spy = spied(max_num_seqs=2)
    scheduler.queue.add_request(FakeRequest("a", max_tokens=9))
    scheduler.queue.add_request(FakeRequest("b", max_tokens=9))
    scheduler.step()
    scheduler.queue.add_request(FakeRequest("c"))
    scheduler.step()  # no slot is free: vLLM does not look at the queue
    scheduler.preempt()
    scheduler.step()

    assert [what for what in spy.told if what[0] == "step"] == [("step", 0), ("step", 2)]


def test_a_policy_is_told_what_was_served() -> None:
    """A prompt of 10 tokens and 3 tokens of output; then one of 7 and 4, preempted after 2."""
    scheduler, spy = spied()
    scheduler.queue.add_request(FakeRequest("a", 10, 3))
    for _ in range(3):
        scheduler.step()
    scheduler.queue.add_request(FakeRequest("b", 7, 4))
    scheduler.step()
    scheduler.step()
    scheduler.preempt()
    scheduler.step()
    scheduler.step()

    assert spy.told == [
        ("add", "a", "back"),
        ("step", 0),
        ("served", "a", 10, 0),
        ("served", "a", 0, 3),
        ("finished", "a", 3),
        ("end", "a"),
        ("add", "b", "back"),
        ("step", 3),
        ("served", "b", 7, 0),
        ("served", "b", 0, 2),
        ("add", "b", "front"),
        ("step", 5),
        ("served", "b", 9, 0),
        ("served", "b", 0, 2),
        ("finished", "b", 4),
        ("end", "b"),
    ]


def test_the_progress_of_a_sequence_follows_from_the_step_index() -> None:
    scheduler, spy = spied(max_num_seqs=1)
    seqs: list[SequenceState] = []
    add, spy.add = spy.add, lambda seq, now, *, front=False: (seqs.append(seq), add(seq, now, front=front))  # type: ignore[method-assign,func-returns-value]
    scheduler.queue.add_request(FakeRequest("a", 40, 99))
    scheduler.queue.begin_step()
    scheduler.queue.end_step({})  # without tokens it is no step
    for _ in range(5):
        scheduler.step()

    assert scheduler.queue.step_index == 5
    assert (seqs[0].is_decoding, scheduler.queue.step_index - seqs[0].decode_origin_step) == (True, 5)
    scheduler.preempt()
    assert (seqs[0].is_decoding, seqs[0].num_output_tokens, seqs[0].num_tokens_to_prefill) == (False, 5, 45)
    scheduler.step()
    assert scheduler.queue.step_index - seqs[0].decode_origin_step == 6


def test_a_prompt_that_comes_in_chunks_is_reported_chunk_by_chunk() -> None:
    spy, engine = SpyQueue(), FakeEngine()
    queue, request = PolicyQueue(spy, engine), FakeRequest("a", 100)
    queue.add_request(request)
    for computed, tokens in ((64, 32), (96, 32), (100, 4)):  # 32 tokens were in the prefix cache
        queue.begin_step()
        if queue:
            queue.pop_request()
        request.num_computed_tokens, request.is_prefill_chunk = computed, computed < 100
        queue.end_step({"a": tokens})
    queue.begin_step()

    assert [what[2:] for what in spy.told if what[0] == "served"] == [(32, 0), (32, 0), (4, 0)]


def test_an_aborted_request_is_not_finished() -> None:
    scheduler, spy = spied()
    waiting, running = FakeRequest("waiting"), FakeRequest("running", 10, 9)
    scheduler.queue.add_request(running)
    scheduler.step()
    scheduler.queue.add_request(waiting)
    scheduler.abort(waiting)
    scheduler.abort(running)
    scheduler.queue.on_end(["unknown"])

    assert spy.told[-3:] == [("end", "waiting"), ("served", "running", 0, 1), ("end", "running")]
    assert not [what for what in spy.told if what[0] == "finished"]


def test_an_id_may_come_again_once_its_request_has_ended() -> None:
    scheduler, _ = spied()
    scheduler.queue.add_request(FakeRequest("a"))
    scheduler.step()
    scheduler.queue.add_request(FakeRequest("a"))
    scheduler.step()

    assert scheduler.finished == ["a", "a"]


def test_what_was_not_served_is_not_charged() -> None:
    """Tenant a has one request whose grammar is not ready. For 50 steps it is popped and put back; that must not count as
    service, or b would go first when it is ready."""
    queue, engine = made_queue("vtc")
    scheduler = FakeScheduler(queue, engine, max_num_seqs=1)
    queue.add_request(FakeRequest("b0", 10, 50, tenant="b"))
    scheduler.step()
    queue.add_request(FakeRequest("a", 10, tenant="a"))
    queue.add_request(FakeRequest("b1", 10, tenant="b"))
    scheduler.blocked, scheduler.max_num_seqs = {"a", "b1"}, 2
    for _ in range(49):
        scheduler.step()
    scheduler.blocked, scheduler.max_num_seqs = set(), 1
    scheduler.step()

    assert scheduler.admitted == ["b0", "a"]


def test_a_policy_sees_the_running_batch() -> None:
    queue, engine = made_queue("routing-key")
    scheduler = FakeScheduler(queue, engine, max_num_seqs=2)
    queue.add_request(FakeRequest("a", max_tokens=9, routing_key="x"))
    scheduler.step()
    queue.add_request(FakeRequest("b", max_tokens=9, routing_key="y"))
    queue.add_request(FakeRequest("c", max_tokens=9, routing_key="x"))
    scheduler.step()

    assert scheduler.admitted == ["a", "c"]
    assert (queue.running, queue.running_routing_keys(), queue.free_blocks) == (2, {"x": 2}, 100)


def test_no_two_instants_are_the_same() -> None:
    """The clock of the engine stands still here."""
    scheduler, spy = spied(max_num_seqs=3)
    arrivals: list[Micros] = []
    add, spy.add = spy.add, lambda seq, now, *, front=False: (arrivals.append(seq.request.arrival), add(seq, now))  # type: ignore[method-assign,func-returns-value]
    for name in "abc":
        scheduler.queue.add_request(FakeRequest(name))

    assert arrivals == [0, 1, 2]


@pytest.mark.parametrize(
    "policy", [*SCHEDULERS.built_in(), "bounded(lpm, max_wait=0.0001)", "vtc(sjf, slack=50)", "srpt(hint)"]
)
def test_every_policy_serves_every_request(policy: str) -> None:
    rng, (queue, engine) = Random(1), made_queue(policy)
    scheduler, requests, aborted = FakeScheduler(queue, engine, max_num_seqs=3), [], set()
    for number in range(300):
        engine.time += rng.randrange(40)
        if number < 200 and rng.random() < 0.5:
            fields = {"tenant": rng.choice("ab"), "routing_key": rng.choice("xyz"), "deadline_secs": rng.choice([0.01, 9])}
            requests.append(
                FakeRequest(f"r{number}", rng.randint(1, 90), rng.randint(1, 6), priority=rng.randint(-2, 2), **fields)
            )
            queue.add_request(requests[-1])
        scheduler.blocked = {request.request_id for request in requests[-3:]} if rng.random() < 0.2 else set()
        if engine.running and rng.random() < 0.1:
            scheduler.preempt()
        if rng.random() < 0.03 and requests and requests[-1].request_id not in scheduler.finished:
            scheduler.abort(requests[-1])
            aborted.add(requests[-1].request_id)
        scheduler.step()
        assert len(queue) + len(engine.running) + len(scheduler.finished) + len(aborted) == len(requests)
    scheduler.blocked = set()
    while queue or engine.running:
        scheduler.step()

    assert sorted([*scheduler.finished, *aborted]) == sorted(request.request_id for request in requests)


def test_a_policy_that_a_user_wrote_for_the_simulator_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    queue, _ = made_queue("queue_policy:WeightedShortestFirst(interactive=8)")
    queue.add_request(FakeRequest("default", 100))
    queue.add_request(FakeRequest("interactive", 300, priority_class="interactive"))

    assert popped(queue) == ["interactive", "default"]
