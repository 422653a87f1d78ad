"""bounded: what a policy may do to a request, and what it may not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_samples import ALL, Step, queue, random_seq, seq, started

from maitred.core.contracts import WaitQueue
from maitred.core.sequence import SequenceState
from maitred.core.units import SECOND
from maitred.queueing import SCHEDULERS
from maitred.queueing.bounded import Bounded


def order_at(waiting: WaitQueue, *instants: float) -> list[int]:
    """Pop one sequence at each of these instants, in seconds, and return their numbers."""
    popped = []
    for instant in instants:
        started(waiting, round(instant * SECOND))
        popped.append(waiting.pop().arrival_index)
    return popped


def test_a_request_that_has_waited_for_max_wait_is_not_overtaken_any_more() -> None:
    waiting = queue("bounded(sjf, max_wait=5)")
    for s in (seq(0, 900, seconds=0), seq(1, 800, seconds=1), seq(2, 10, seconds=2), seq(3, 20, seconds=2)):
        waiting.add(s, now=s.request.arrival)
    # at 4.9 s the shortest; at 5 s request 0 is due, and at 5.5 s none is
    assert order_at(waiting, 4.9, 5, 5.5, 6) == [2, 0, 3, 1]


def test_a_request_that_was_overtaken_max_displacement_times_goes_next() -> None:
    waiting = queue("bounded(sjf, max_displacement=2)")
    waiting.add(seq(0, 900), now=0)
    waiting.add(seq(1, 800), now=0)
    for number in range(2, 8):
        waiting.add(seq(number, 10), now=0)
    # 2 and 3 overtake both; then 0 has its turn, and then 1, which was overtaken by the same two
    assert order_at(waiting, *[1] * 8) == [2, 3, 0, 1, 4, 5, 6, 7]


def test_starts_of_earlier_arrivals_are_not_counted() -> None:
    waiting = queue("bounded(sjf, max_displacement=1)")
    for number, prompt in enumerate([10, 10, 10, 900, 5]):
        waiting.add(seq(number, prompt), now=0)
    # 4 overtakes all the others, so they go in order of arrival
    assert order_at(waiting, *[1] * 5) == [4, 0, 1, 2, 3]


def test_a_request_that_leaves_changes_no_other_count() -> None:
    """5 overtakes 0 and 1. Then 1 leaves: 0 has still been overtaken once, and one request more may overtake it."""
    waiting = queue("bounded(sjf, max_displacement=2)")
    for s in (seq(0, 900), seq(1, 800), seq(5, 10), seq(6, 10), seq(7, 10)):
        waiting.add(s, now=0)
    assert order_at(waiting, 1) == [5]
    waiting.remove(1)
    assert order_at(waiting, *[1] * 3) == [6, 0, 7]


def test_a_count_does_not_outlive_the_requests_that_were_overtaken() -> None:
    waiting = queue("bounded(sjf, max_displacement=1)")
    for s in (seq(0, 900), seq(1, 800), seq(2, 10), seq(3, 700), seq(4, 20)):
        waiting.add(s, now=0)
    assert order_at(waiting, 1) == [2]
    waiting.remove(1)
    waiting.remove(0)
    assert order_at(waiting, 1) == [4]  # 3 was not overtaken


def test_the_next_has_its_own_count_when_the_earliest_leaves() -> None:
    """0 was overtaken twice and 1, which came later, once; when 0 leaves, two more may overtake 1."""
    waiting = queue("bounded(sjf, max_displacement=3)")
    waiting.add(seq(0, 900), now=0)
    waiting.add(seq(5, 10, arrival=1), now=1)
    assert order_at(waiting, 1) == [5]
    waiting.add(seq(1, 800, arrival=2), now=2)
    for number in (6, 7, 8, 9):
        waiting.add(seq(number, 10), now=9)
    assert order_at(waiting, 1) == [6]
    waiting.remove(0)
    assert order_at(waiting, *[1] * 4) == [7, 8, 1, 9]


def test_a_preempted_sequence_is_due_by_its_arrival() -> None:
    waiting = queue("bounded(sjf, max_wait=5)")
    waiting.add(seq(1, 10, seconds=6), now=6 * SECOND)
    waiting.add(seq(0, 900, seconds=1), now=7 * SECOND, front=True)
    assert order_at(waiting, 7, 7) == [0, 1]


def test_it_says_when_the_earliest_becomes_due() -> None:
    waiting = queue("bounded(sjf, max_wait=5)")
    waiting.add(seq(0, 900, seconds=1), now=SECOND)
    waiting.add(seq(1, 10, seconds=2), now=2 * SECOND)
    started(waiting, 3 * SECOND)
    assert waiting.next_order_change(3 * SECOND) == 6 * SECOND
    started(waiting, 6 * SECOND)
    assert waiting.next_order_change(6 * SECOND) is None


def test_by_default_it_is_lpm_within_ten_seconds() -> None:
    policy = SCHEDULERS.get("bounded")()
    assert isinstance(policy, Bounded)
    assert policy.inner.__class__ is SCHEDULERS.get("lpm")
    waiting = policy.make_queue(None, Random(0))
    waiting.add(seq(0, seconds=1), now=SECOND)
    assert waiting.next_order_change(2 * SECOND) == 11 * SECOND


INNER = [spelling for spelling in ALL if not spelling.startswith("bounded")]


@pytest.mark.parametrize("inner", INNER)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 100_000),
    max_displacement=st.one_of(st.none(), st.integers(0, 4)),
    max_wait=st.one_of(st.none(), st.sampled_from([0.0, 0.0004, 0.002])),
)
def test_the_ceiling_holds_whatever_arrives(
    inner: str, seed: int, max_displacement: int | None, max_wait: float | None
) -> None:
    """Short and long, near and far deadlines, tenants, heads that are looked at and not taken, preemptions: an adversary of
    every policy. Whoever starts is held against all that wait."""
    ceilings = {"max_wait": max_wait, "max_displacement": max_displacement}
    limits = ", ".join(
        f"{name}={value:.6f}" if name == "max_wait" else f"{name}={value}"
        for name, value in ceilings.items()
        if value is not None
    )
    waiting = queue(f"bounded({inner}{limits and ', '}{limits})")
    ceiling = None if max_wait is None else round(max_wait * SECOND)
    rng, here, running, now = Random(seed), dict[SequenceState, int](), list[SequenceState](), 0
    for number in range(40):
        now += rng.choice([0, 1, 20, 200])
        if rng.random() < 0.7:
            s = random_seq(rng, number, now)
            here[s] = 0
            waiting.add(s, now)
        elif running and rng.random() < 0.5:
            s = running.pop(rng.randrange(len(running)))
            here[s] = 0
            waiting.add(s, now, front=True)
        waiting.on_step_start(Step(number, keys={rng.choice("kl"): 1}), now)
        for _ in range(rng.choice([0, 0, 1, 2])):
            if (started := waiting.peek()) is None:
                break
            assert waiting.pop() is started
            del here[started]
            running.append(started)
            for s in here:
                if (started.request.arrival, started.request.id) > (s.request.arrival, s.request.id):
                    here[s] += 1
                    assert ceiling is None or now - s.request.arrival < ceiling
                    assert max_displacement is None or here[s] <= max_displacement
