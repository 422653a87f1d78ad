"""An instance at single instants. Steps last 100 µs + 1 µs per prefill token + 10 µs per decode, so sums are easy by hand."""

from __future__ import annotations

import pytest
from instance_timeline import ABORTED, FINISHED, FIRST, TIMED_OUT, instance, request, run

from maitred.core.contracts import BatchShape
from maitred.instance import EventKind, LinearLatency


def test_step_by_step_every_step_is_an_event() -> None:
    engine = instance(step_by_step=True)
    engine.enqueue(request(0), output_tokens=4, now=0)
    ends = []
    while (now := engine.next_event()) is not None:
        engine.advance(now)
        ends.append(now)
    assert ends == [150, 260, 370, 480]


def test_an_arrival_leaves_the_run_of_a_full_batch_alone() -> None:
    engine = instance(max_num_seqs=1)
    engine.enqueue(request(0), output_tokens=10, now=0)
    engine.advance(engine.next_event() or 0)
    assert engine.next_event() == 150 + 9 * 110
    engine.enqueue(request(1), output_tokens=1, now=300)
    assert engine.next_event() == 150 + 9 * 110


def test_an_answer_has_a_token_even_when_it_was_to_have_none() -> None:
    engine = instance()
    engine.enqueue(request(0), output_tokens=0, now=0)
    assert run(engine) == [(150, FIRST, 0), (150, FINISHED, 0)]


def test_a_request_whose_deadline_is_now_does_not_join_the_step_that_begins_now() -> None:
    engine = instance()
    engine.enqueue(request(0, deadline=0), output_tokens=1, now=0)
    engine.enqueue(request(1, prompt=20), output_tokens=1, now=0)
    assert run(engine) == [(0, TIMED_OUT, 0), (120, FIRST, 1), (120, FINISHED, 1)]


def test_a_step_that_has_begun_goes_on_when_one_of_it_is_aborted_in_that_instant() -> None:
    engine = instance()
    for number in (0, 1):
        engine.enqueue(request(number, prompt=20), output_tokens=50, now=0)
    engine.advance(engine.next_event() or 0)
    assert engine.next_event() == 140 + 49 * 120  # both decode from 140 on
    assert engine.abort(0, now=140)
    assert [(e.at, e.kind) for e in engine.advance(140)] == [(140, ABORTED)]
    assert engine.next_event() == 260
    engine.advance(260)
    assert engine.next_event() == 260 + 48 * 110


@pytest.mark.parametrize("step_by_step", [True, False])
@pytest.mark.parametrize("looked", [True, False])
def test_an_input_when_a_step_ends_meets_the_next_step_even_after_an_observation(looked: bool, step_by_step: bool) -> None:
    engine = instance(step_by_step=step_by_step)
    for number in (0, 1):
        engine.enqueue(request(number, prompt=20), output_tokens=50, now=0)
    while (due := engine.next_event()) is not None and due < 380:
        engine.advance(due)  # both decode from 140 on, and steps end at 260, 380, ...
    if looked:
        engine.commit_ended_steps(380)
    engine.enqueue(request(2, prompt=30), output_tokens=1, now=380)
    assert engine.abort(1, now=380)
    assert [(e.at, e.kind, e.seq.request.id) for e in engine.advance(380)] == [(380, ABORTED, 1)]
    assert engine.next_event() == 380 + 100 + 30 + 10
    assert [(e.at, e.kind) for e in engine.advance(520)] == [(520, FIRST), (520, FINISHED)]


def test_an_observation_sees_the_step_that_ended_at_an_arrival() -> None:
    """Blocks of 4 tokens; a prompt of 4, and each 4 tokens of answer open another one."""
    used = []
    for step_by_step in (True, False):
        engine = instance(total_kv_blocks=100, block_size_in_tokens=4, step_by_step=step_by_step)
        engine.enqueue(request(0, prompt=4), output_tokens=50, now=0)
        while (due := engine.next_event()) is not None and due < 654:  # the fifth decode ends then, and has opened a block
            engine.advance(due)
        engine.enqueue(request(1, prompt=4), output_tokens=1, now=654)
        if step_by_step:
            engine.advance(654)  # its turn
        engine.commit_ended_steps(654)
        used.append(engine.total_blocks - engine.free_blocks)
    assert used == [3, 3]


def test_when_all_are_aborted_the_step_in_progress_still_ends_before_the_next_begins() -> None:
    engine = instance()
    for number in (0, 1):
        engine.enqueue(request(number, prompt=20), output_tokens=50, now=0)
    engine.advance(engine.next_event() or 0)
    engine.next_event()
    for number in (0, 1):
        assert engine.abort(number, now=200)
    assert engine.free_blocks == engine.total_blocks
    engine.enqueue(request(2), output_tokens=1, now=210)
    assert run(engine) == [(200, ABORTED, 0), (200, ABORTED, 1), (410, FIRST, 2), (410, FINISHED, 2)]  # 140..260 goes on


def test_a_recomputed_sequence_says_when_it_came_back_and_when_it_first_spoke() -> None:
    engine = instance(total_kv_blocks=4, block_size_in_tokens=10)
    for number in (0, 1):
        engine.enqueue(request(number, prompt=20), output_tokens=3, now=0)
    last = None
    while (now := engine.next_event()) is not None:
        for event in engine.advance(now):
            last = event.seq
    assert last is not None
    assert (last.request.id, last.first_token_at, last.scheduled_at, last.num_preemptions) == (1, 140, 360, 1)


def test_a_step_takes_no_less_than_a_microsecond() -> None:
    nothing = LinearLatency((0, 0, 0.4)).compiled()
    assert nothing.step_time(BatchShape(num_decodes=2, context_tokens=9)) == 1
    assert nothing.run_time(BatchShape(num_decodes=2, context_tokens=9), 7) == 7
    assert nothing.steps_within(BatchShape(num_decodes=2, context_tokens=9), 5, 100) == 5


@pytest.mark.parametrize("calls", [[10_000], [170, 10_000], [0, 100, 170, 171, 10_000]])
def test_a_driver_that_comes_late_finds_what_a_deadline_left_behind(calls: list[int]) -> None:
    engine = instance()
    engine.enqueue(request(0, deadline=200), output_tokens=50, now=0)
    engine.enqueue(request(1, prompt=20), output_tokens=3, now=0)
    events = [(e.at, e.kind, e.seq.request.id) for now in calls for e in engine.advance(now)]
    # prefill of both to 170; the first decode, of both, 170..290, goes on without 0; then one decode of 110
    assert events == [(170, FIRST, 0), (170, FIRST, 1), (200, TIMED_OUT, 0), (400, FINISHED, 1)]


def test_a_driver_that_comes_late_with_an_arrival_has_it_join_after_what_a_deadline_left_behind() -> None:
    engine = instance()
    engine.enqueue(request(0, deadline=200), output_tokens=50, now=0)
    engine.enqueue(request(1, prompt=20), output_tokens=50, now=0)
    engine.advance(170)
    assert engine.next_event() == 200
    engine.enqueue(request(2, prompt=30), output_tokens=1, now=500)  # without a look in between
    events = [(e.at, e.kind, e.seq.request.id) for e in engine.advance(700)]
    # 170..290 goes on without 0; 1 alone to 400 and 510; then both
    assert events == [(200, TIMED_OUT, 0), (510 + 140, FIRST, 2), (510 + 140, FINISHED, 2)]


def test_what_advance_has_not_told_yet_is_due_when_it_happened() -> None:
    engine = instance(max_model_len=60)
    engine.enqueue(request(0, prompt=60), output_tokens=1, now=5)
    assert engine.next_event() == 5
    assert [(e.at, e.kind) for e in engine.advance(5)] == [(5, EventKind.REFUSED)]
    assert engine.next_event() is None
