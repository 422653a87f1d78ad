"""Requests that another core has decided on: a core takes them over, each in its state."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, classes
from log_writer import KINDS, World, draw_config

from maitred.admission import Action, Admission, AdmissionConfig, ReleaseReason, Ticket, TicketState, TransitionError
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND, from_seconds
from maitred.replay import replay

QUEUED, ADMITTED, STREAMING = TicketState.QUEUED, TicketState.ADMITTED, TicketState.STREAMING
DRAINED = ReleaseReason.DRAINED


def ticket(number: int, state: TicketState, submitted: float, k: PriorityClass = DEFAULT, admitted: float = 0) -> Ticket:
    made = Ticket(number, "m", k)
    made.state, made.submitted_at, made.admitted_at = state, from_seconds(submitted), from_seconds(admitted)
    return made


def admitted(decisions: list[Decision]) -> list[int]:
    return [decision.subject for decision in decisions if decision.action is Action.ADMIT]


def order_of_the_queue(core: Admission, holder: int) -> list[int]:
    order = []
    while True:
        entered = admitted(list(core.release(holder, DRAINED, 100 * SECOND)))
        core.check()
        if not entered:
            return order
        (holder,) = entered
        order.append(holder)


def test_those_that_wait_join_by_age() -> None:
    core = Admission(classes(default={"queue_timeout_secs": 600}), {"m": 1})
    core.submit(Ticket(0, "m"), from_seconds(9))
    core.submit(Ticket(1, "m"), from_seconds(10))
    assert core.adopt([ticket(2, QUEUED, 11), ticket(3, QUEUED, 9.5)], from_seconds(12)) == []
    core.check()
    core.submit(Ticket(4, "m"), from_seconds(13))

    assert order_of_the_queue(core, 0) == [3, 1, 2, 4]


def test_a_holder_keeps_its_slot_beyond_the_capacity() -> None:
    core = Admission(classes(), {"m": 1})
    core.submit(Ticket(0, "m"), 0)
    core.adopt([ticket(1, STREAMING, -5), ticket(2, QUEUED, -4)], SECOND)
    core.check()
    assert core.view("m").in_flight == 2

    assert admitted(list(core.release(0, DRAINED, 2 * SECOND))) == []
    assert admitted(list(core.release(1, DRAINED, 3 * SECOND))) == [2]


def test_those_that_wait_enter_at_once_where_slots_are_free_and_the_most_urgent_first() -> None:
    core = Admission(classes(), {"m": 2})
    waiting = [ticket(0, QUEUED, -9, BULK), ticket(1, QUEUED, -3, INTERACTIVE), ticket(2, QUEUED, -5, INTERACTIVE)]

    assert admitted(list(core.adopt(waiting, 0))) == [2, 1]
    core.check()


def test_of_adopted_holders_the_one_with_the_newest_slot_is_the_victim() -> None:
    core = Admission(classes(), {"m": 2})
    core.adopt([ticket(0, ADMITTED, -9, BULK, admitted=-1), ticket(1, ADMITTED, -8, BULK, admitted=-7)], 0)

    (preempted, _) = core.submit(Ticket(2, "m", INTERACTIVE), SECOND)
    assert (preempted.subject, preempted.action) == (0, Action.PREEMPT_SLOT)


def test_the_timeout_of_one_that_waits_counts_from_its_submission() -> None:
    core = Admission(classes(default={"queue_timeout_secs": 20}), {"m": 0})
    core.adopt([ticket(0, QUEUED, -15)], 0)

    assert core.next_deadline() == 5 * SECOND


@pytest.mark.parametrize("wrong", [ticket(0, QUEUED, 0), ticket(7, TicketState.VICTIM, 0)])
def test_what_cannot_be_adopted_changes_nothing(wrong: Ticket) -> None:
    core = Admission(classes(), {"m": 1})
    core.submit(Ticket(0, "m"), 0)
    with pytest.raises(TransitionError, match="cannot be adopted"):
        core.adopt([ticket(5, QUEUED, 0), wrong], SECOND)
    core.check()
    assert core.view("m").waiting == 0


@pytest.mark.parametrize("seed", range(2 * len(KINDS)))
def test_random_adoptions_keep_the_books_and_run_again(seed: int) -> None:
    world, draw = World(seed), Random(seed)
    for number in range(120):
        world.step()
        if number % 10 == 0:
            submitted = world.now - draw.randint(0, 50_000)
            for nth in range(draw.randint(1, 4)):
                made = Ticket(10_000 + 10 * number + nth, "m", PriorityClass(draw.randint(0, 3)), "auth:a")
                made.state, made.submitted_at = draw.choice((QUEUED, ADMITTED, STREAMING)), submitted
                made.admitted_at = world.now - draw.randint(0, 1000) if made.state is not QUEUED else 0
                world.here.append(made)
            world.core.adopt([t for t in world.here if t.id >= 10_000 + 10 * number], world.now)
        world.core.check()
    again: list[bytes] = []
    replay(world.lines, DecisionLog(again.append))

    assert again == world.lines
    assert any(b'"input":"adopt"' in line for line in again)
    assert draw_config(draw, world.kind).mode == world.core.config.mode


def test_limits_count_those_of_whom_no_core_has_decided_and_no_others() -> None:
    lines, again = list[bytes](), list[bytes]()
    rules = msgspec.convert({"mode": "priority", "limits": [{"requests_per_minute": 2}]}, AdmissionConfig)
    core = Admission(rules, {"m": 1}, log=DecisionLog(lines.append))
    waiting = [ticket(number, QUEUED, number) for number in range(5)]
    decisions = core.adopt(waiting, 9 * SECOND, {1, 2, 4})
    core.check()
    assert [(each.subject, each.reason) for each in decisions if each.action is Action.REJECT] == [(4, "requests_per_minute")]
    assert [each.subject for each in decisions if each.action is Action.ADMIT] == [0]
    core.check()
    replay(lines, DecisionLog(again.append))
    assert again == lines
