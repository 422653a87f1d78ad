"""An instance that plans one step ahead (async_scheduling). A step lasts 100 µs + 1 per prefill token + 10 per decode."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from instance_timeline import ABORTED, FINISHED, FIRST, request, run
from msgspec.structs import replace
from test_skipping import drive

from maitred.compat.instance_rules import new_instance
from maitred.core.contracts import WaitQueue
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import Instance, InstanceConfig, LinearLatency


def ahead(**config: Any) -> Instance:
    return new_instance(InstanceConfig(latency=LinearLatency((100, 1, 10)), async_scheduling=True, **config), Random(0))


def limited(number: int, tokens: int) -> Request:
    """Return a request whose answer ends at its limit of `tokens`, which the scheduler knows beforehand."""
    return replace(request(number), max_output_tokens=tokens)


def test_no_request_is_late_where_nothing_runs() -> None:
    engine = ahead()
    engine.enqueue(limited(0, 2), 2, 0)
    engine.enqueue(limited(1, 1), 1, 0)

    assert run(engine) == [(200, FIRST, 0), (200, FIRST, 1), (200, FINISHED, 1), (310, FINISHED, 0)]


def test_who_comes_during_a_step_misses_the_next_one_too() -> None:
    engine = ahead()
    engine.enqueue(limited(0, 4), 4, 0)
    assert engine.next_event() == 150  # its prompt of 50 tokens
    engine.enqueue(limited(1, 1), 1, 60)

    # picked up at 150, when the step until 260 is planned already; its own lasts 100 + 50 + 10
    assert run(engine) == [(150, FIRST, 0), (420, FIRST, 1), (420, FINISHED, 1), (530, FINISHED, 0)]


def test_it_stands_in_the_wait_queue_when_the_step_in_progress_ends() -> None:
    engine = ahead()
    engine.enqueue(limited(0, 10), 10, 0)
    engine.next_event()
    engine.advance(150)
    assert engine.next_event() == 150 + 9 * 110  # a run
    engine.enqueue(limited(1, 5), 5, 270)  # in its second step

    assert engine.sequence(1).queued_at == 150 + 2 * 110
    run(engine)


def test_a_slot_is_filled_one_step_after_it_is_free() -> None:
    engine = ahead(max_num_seqs=2)
    for number, tokens in ((0, 2), (1, 5), (2, 1)):
        engine.enqueue(limited(number, tokens), tokens, 0)

    events = run(engine)
    # the first two prompts until 200; 0 ends at 320; the step until 430 was planned by then; 2 needs 100 + 50 + 10
    assert events[2:5] == [(320, FINISHED, 0), (590, FIRST, 2), (590, FINISHED, 2)]


@pytest.mark.parametrize("step_by_step", [True, False])
def test_an_arrival_under_a_full_batch_stands_before_an_arrival_at_an_empty_one(step_by_step: bool) -> None:
    engine = ahead(max_num_seqs=1, step_by_step=step_by_step, scheduler="sjf")
    engine.enqueue(limited(0, 4), 4, 0)
    while (due := engine.next_event()) is not None and due < 200:
        engine.advance(due)
    engine.enqueue(limited(1, 1), 1, 200)
    while (due := engine.next_event()) is not None and due <= 480:
        if (FINISHED, 0) in [(event.kind, event.seq.request.id) for event in engine.advance(due)]:
            break
    engine.enqueue(limited(2, 1), 1, 480)  # at the instant of that end, as a session's next turn does

    assert run(engine) == [(630, FIRST, 1), (630, FINISHED, 1), (780, FIRST, 2), (780, FINISHED, 2)]


def test_who_gives_up_before_being_picked_up_leaves_no_trace() -> None:
    engine = ahead()
    engine.enqueue(limited(0, 3), 3, 0)
    engine.next_event()
    engine.enqueue(limited(1, 1), 1, 60)
    assert engine.abort(1, 100)

    assert run(engine) == [(100, ABORTED, 1), (150, FIRST, 0), (370, FINISHED, 0)]


def test_a_deadline_may_come_before_it_is_picked_up() -> None:
    engine = ahead()
    engine.enqueue(limited(0, 3), 3, 0)
    engine.next_event()
    engine.enqueue(Request(id=1, arrival=60, prompt_tokens=5, deadline=90), 1, 60)

    assert [event[0] for event in run(engine) if event[2] == 1] == [90]


def test_an_answer_that_stops_by_itself_computes_one_token_in_vain() -> None:
    engine = ahead()
    engine.enqueue(limited(0, 4), 2, 0)  # may have 4 tokens and stops after 2
    engine.enqueue(limited(1, 4), 4, 0)

    # two prompts until 200; 0 stops at 320, and the step until 440 still has a token for it; the last one takes 110
    assert run(engine)[2:] == [(320, FINISHED, 0), (550, FINISHED, 1)]


def test_an_engine_whose_last_answer_stopped_by_itself_is_busy_for_one_step_more() -> None:
    engine = ahead()
    engine.enqueue(limited(0, 4), 1, 0)
    assert engine.next_event() == 150
    engine.advance(150)
    assert (engine.running, engine.waiting) == (0, 0)
    assert engine.next_event() == 260  # a step with the token that is thrown away
    engine.enqueue(limited(1, 1), 1, 200)
    assert run(engine) == [(410, FIRST, 1), (410, FINISHED, 1)]  # it begins at 260


@pytest.mark.parametrize("batching", [None, "guaranteed-no-evict"])
def test_all_slots_are_there_for_those_who_come_while_the_last_answer_ends(batching: str | None) -> None:
    engine = ahead(max_num_seqs=2, batching=batching)
    engine.enqueue(limited(0, 2), 2, 0)
    engine.next_event()
    engine.advance(150)
    engine.next_event()
    for number in (1, 2):
        engine.enqueue(limited(number, 1), 1, 200)
    # The step until 260 ends the answer of 0. A step that is planned without the two has nothing in it, so it takes no time.
    assert run(engine) == [(260, FINISHED, 0), *[(460, kind, number) for kind in (FIRST, FINISHED) for number in (1, 2)]]


def test_a_block_is_free_one_step_after_its_sequence_has_ended() -> None:
    engine = ahead(total_kv_blocks=8, block_size_in_tokens=16, max_model_len=120)
    engine.enqueue(limited(0, 2), 2, 0)  # 50 tokens in 4 blocks
    engine.enqueue(limited(1, 9), 9, 0)
    engine.enqueue(limited(2, 1), 1, 0)

    # 0 ends at 320. The step until 430 was planned while it held its blocks; 2 needs 100 + 50 + 10
    assert (590, FIRST, 2) in run(engine)
    assert engine.free_blocks == 8


def test_it_is_not_for_the_rules_of_blis() -> None:
    with pytest.raises(ValueError, match="async_scheduling is not for flavour blis"):
        InstanceConfig(async_scheduling=True, flavour="blis")


def test_who_came_while_the_batch_was_full_is_known_when_a_deadline_makes_room() -> None:
    """No sequence is asked for while the batch is full, so the run goes on over the arrival, which was known all the same when
    the next step was planned."""
    config = {"max_num_seqs": 2, "block_size_in_tokens": 1, "latency": LinearLatency((97, 0, 0))}
    jobs = [(request(0), 30), (Request(id=1, arrival=0, prompt_tokens=5, deadline=1080), 30)]
    jobs.append((Request(id=2, arrival=700, prompt_tokens=5), 1))
    skipping = drive(InstanceConfig(**config, async_scheduling=True), jobs, [], set())
    assert skipping == drive(InstanceConfig(**config, async_scheduling=True, step_by_step=True), jobs, [], set())
    assert next(at for at, _, number, _ in skipping if number == 2) == 97 * 13


@pytest.mark.parametrize("step_by_step", [True, False])
def test_who_stood_in_the_queue_is_judged_by_what_was_known_then(step_by_step: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that learns lengths from sequences that have finished is told of an arrival before it is told of that end."""
    told: list[tuple[str, int]] = []
    queue_class = type(ahead(scheduler="sjf")._core.waiting)
    add, finished = queue_class.add, queue_class.on_finished

    def adding(queue: WaitQueue, seq: SequenceState, now: Micros, **more: bool) -> None:
        told.append(("comes", seq.request.id))
        add(queue, seq, now, **more)

    def finishing(queue: WaitQueue, seq: SequenceState, now: Micros) -> None:
        told.append(("ends", seq.request.id))
        finished(queue, seq, now)

    monkeypatch.setattr(queue_class, "add", adding)
    monkeypatch.setattr(queue_class, "on_finished", finishing)
    engine = ahead(max_num_seqs=1, step_by_step=step_by_step, scheduler="sjf")
    engine.enqueue(request(0), 6, 0)
    while (due := engine.next_event()) is not None and due < 200:
        engine.advance(due)
    engine.enqueue(request(1), 1, 200)
    run(engine)
    assert told == [("comes", 0), ("comes", 1), ("ends", 0), ("ends", 1)]


@pytest.mark.parametrize("async_scheduling", [True, False])
def test_who_gives_up_while_many_decode_completes_no_more(async_scheduling: bool) -> None:
    engine = ahead() if async_scheduling else Instance(InstanceConfig(latency=LinearLatency((100, 1, 10))), Random(0))
    for number in range(40):
        engine.enqueue(limited(number, 20), 20, 0)
    while (due := engine.next_event()) is not None and due < 2500:
        engine.advance(due)
    for number in range(30):
        assert engine.abort(number, 2500 + number)
    assert sorted(number for _, kind, number in run(engine) if kind == FINISHED) == [*range(30, 40)]
