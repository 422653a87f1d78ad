"""Wait queues: what every one of them must keep, whatever its order. The kits are those of `maitred.testing`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_samples import ALL, drained, queue, seq

from maitred.core.errors import ConfigError
from maitred.queueing import SCHEDULERS
from maitred.testing.queueing import (
    VERBS,
    Operations,
    check_empty,
    check_nothing_is_lost,
    check_order_of_the_rest,
    check_removal,
)


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
    check_empty(queue(spelling))


def test_an_unknown_scheduler_is_told_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown scheduler 'fcsf'.*did you mean 'fcfs'"):
        SCHEDULERS.get("fcsf")


OPERATIONS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 60)), max_size=80)


@pytest.mark.parametrize("spelling", ALL)
@settings(max_examples=12)
@given(operations=OPERATIONS, seed=st.integers(0, 1000))
def test_nothing_is_lost_and_peek_agrees_with_pop(spelling: str, operations: Operations, seed: int) -> None:
    check_nothing_is_lost(queue(spelling), operations, seed)


@pytest.mark.parametrize("spelling", ALL)
def test_the_order_does_not_depend_on_what_was_removed(spelling: str) -> None:
    check_removal(lambda: queue(spelling))


@pytest.mark.parametrize("spelling", ALL)
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 30))
def test_the_order_is_the_one_that_a_new_queue_would_have(spelling: str, seed: int, count: int) -> None:
    check_order_of_the_rest(lambda: queue(spelling), seed, count)
