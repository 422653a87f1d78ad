"""Wait queues: the order of each policy, and what every queue must keep."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.contracts import Seq, WaitQueue
from maitred.errors import ConfigError
from maitred.queueing import SCHEDULERS
from maitred.request import Request


def queue(name: str) -> WaitQueue:
    return SCHEDULERS.get(name)().queue(None, Random(0))


def seq(order: int, prompt: int = 100, arrival: int | None = None) -> Seq:
    arrival = order if arrival is None else arrival
    return Seq(Request(id=order, arrival=arrival, prompt_tokens=prompt), order, prompt)


def drained(waiting: WaitQueue) -> list[int]:
    return [waiting.pop().order for _ in range(len(waiting))]


def test_fcfs_serves_in_order_of_arrival_and_the_preempted_first() -> None:
    waiting = queue("fcfs")
    for order in (0, 1, 2):
        waiting.add(seq(order), now=0)
    waiting.add(seq(9), now=5, front=True)
    waiting.add(seq(8), now=5, front=True)  # the earlier admitted of two victims is put in front last
    assert drained(waiting) == [8, 9, 0, 1, 2]


def test_sjf_serves_the_shortest_prompt_then_the_earliest_then_the_first_to_come() -> None:
    waiting = queue("sjf")
    for s in (seq(0, 300), seq(1, 20, arrival=7), seq(2, 20, arrival=3), seq(3, 20, arrival=7), seq(4, 100)):
        waiting.add(s, now=0)
    waiting.add(seq(5, 500), now=9, front=True)  # order applies to a preempted one like to any other
    assert drained(waiting) == [2, 1, 3, 4, 0, 5]


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_pop_from_an_empty_queue_is_an_error(name: str) -> None:
    with pytest.raises(IndexError, match="empty wait queue"):
        queue(name).pop()


def test_an_unknown_scheduler_is_told_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown scheduler 'fcsf'.*did you mean 'fcfs'"):
        SCHEDULERS.get("fcsf")


OPERATIONS = st.lists(st.tuples(st.sampled_from(["add", "front", "pop", "remove"]), st.integers(0, 60)), max_size=80)


@pytest.mark.parametrize("name", list(SCHEDULERS))
@given(operations=OPERATIONS)
def test_nothing_is_lost_and_peek_agrees_with_pop(name: str, operations: list[tuple[str, int]]) -> None:
    waiting, here = queue(name), set[int]()
    for order, (verb, number) in enumerate(operations):
        if verb in {"add", "front"}:
            waiting.add(seq(order, prompt=number + 1), now=order, front=verb == "front")
            here.add(order)
        elif verb == "remove":
            removed = waiting.remove(number)
            assert (removed is not None) == (number in here)
            here.discard(number)
        elif here:
            head = waiting.peek()
            assert head is not None
            assert waiting.pop() is head
            here.remove(head.order)
        assert len(waiting) == len(here)
    assert (waiting.peek() is None) == (not here)
    assert sorted(drained(waiting)) == sorted(here)
