"""Wait queues: what every one of them must keep, whatever its order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_samples import ALL, Step, begun, drained, mixed, queue, seq

from maitred.core.errors import ConfigError
from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS


def test_fcfs_serves_in_order_of_arrival_and_the_preempted_first() -> None:
    waiting = queue("fcfs")
    for order in (0, 1, 2):
        waiting.add(seq(order), now=0)
    waiting.add(seq(9), now=5, front=True)
    waiting.add(seq(8), now=5, front=True)  # the earlier admitted of two victims is put in front last
    assert drained(waiting) == [8, 9, 0, 1, 2]


def test_sjf_serves_the_shortest_prompt_then_the_earliest_then_the_lowest_id() -> None:
    waiting = queue("sjf")
    for s in (seq(0, 300), seq(3, 20, arrival=7), seq(2, 20, arrival=3), seq(1, 20, arrival=7), seq(4, 100)):
        waiting.add(s, now=0)
    waiting.add(seq(5, 500), now=9, front=True)  # order applies to a preempted one like to any other
    assert drained(waiting) == [2, 1, 3, 4, 0, 5]


@pytest.mark.parametrize("spelling", ALL)
def test_pop_from_an_empty_queue_is_an_error(spelling: str) -> None:
    with pytest.raises(IndexError, match="pop from an empty"):
        queue(spelling).pop()


def test_an_unknown_scheduler_is_told_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown scheduler 'fcsf'.*did you mean 'fcfs'"):
        SCHEDULERS.get("fcsf")


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "front", "pop", "remove", "begin", "again"]), st.integers(0, 60)), max_size=80
)


@pytest.mark.parametrize("spelling", ALL)
@given(operations=OPERATIONS, seed=st.integers(0, 1000))
def test_nothing_is_lost_and_peek_agrees_with_pop(spelling: str, operations: list[tuple[str, int]], seed: int) -> None:
    """What waits is what came and has not gone; the head is the one that is popped. `again`: one that runs is preempted."""
    waiting, here, running, rng = queue(spelling), set[int](), list[SequenceState](), Random(seed)
    for order, (verb, number) in enumerate(operations):
        now = 100 * order
        if verb in {"add", "front"}:
            waiting.add(mixed(rng, order, now), now, front=verb == "front")
            here.add(order)
        elif verb == "again" and running:
            victim = running.pop()
            waiting.add(victim, now, front=True)
            here.add(victim.arrival_index)
        elif verb == "remove":
            removed = waiting.remove(number)
            assert (removed is not None) == (number in here)
            here.discard(number)
        elif verb == "begin":
            waiting.on_step_start(Step(order, keys={"k": number % 3, "l": number % 2}), now)
        elif here:
            head = waiting.peek()
            assert head is not None
            assert waiting.peek() is head
            assert waiting.pop() is head
            here.remove(head.arrival_index)
            running.append(head)
        assert len(waiting) == len(here)
        soon = waiting.next_order_change(now)
        assert soon is None or soon > now
    assert (waiting.peek() is None) == (not here)
    assert sorted(drained(waiting)) == sorted(here)


@pytest.mark.parametrize("spelling", ALL)
def test_the_order_does_not_depend_on_who_was_removed(spelling: str) -> None:
    """Many leave from within; the rest stands as if they had never come."""
    rng = Random(1)
    seqs = [mixed(rng, number, 10 * number) for number in range(200)]
    waiting, reference = queue(spelling), queue(spelling)
    for s in seqs:
        waiting.add(s, s.request.arrival)
        if s.arrival_index % 7 == 0:
            reference.add(s, s.request.arrival)
    for s in seqs:
        if s.arrival_index % 7:
            waiting.remove(s.arrival_index)
    assert drained(begun(waiting, 2000)) == drained(begun(reference, 2000))
    assert waiting.peek() is None


@pytest.mark.parametrize("spelling", ALL)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 30))
def test_the_order_is_the_one_that_a_new_queue_would_have(spelling: str, seed: int, count: int) -> None:
    """Steps, time, heads that come and go, some that leave: then the order of the rest is as if it were made just now."""
    rng = Random(seed)
    waiting, here, now = queue(spelling), dict[int, SequenceState](), 0
    for number in range(count):
        now += rng.choice([0, 1, 50, 400])
        here[number] = mixed(rng, number, now)
        waiting.add(here[number], now)
        if rng.random() < 0.5:
            waiting.on_step_start(Step(number, keys={rng.choice("kl"): 1}), now)
        if rng.random() < 0.3:
            assert waiting.peek() is not None
        if rng.random() < 0.3 and (gone := rng.choice([None, *here])) is not None:
            assert waiting.remove(gone) is here.pop(gone)
    made_now = queue(spelling)
    for s in here.values():
        made_now.add(s, s.request.arrival)
    now += rng.choice([0, 300, 4000])
    step = {"step_index": count, "keys": {"k": 2, "l": rng.randint(1, 3)}}
    assert drained(begun(waiting, now, **step)) == drained(begun(made_now, now, **step))
