"""The rest of the core's behaviour as timelines: pools, resizing, reloading, time, and what a driver may do twice."""

from __future__ import annotations

import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket, TicketState, TransitionError

PRIORITY = AdmissionConfig(mode="priority")


def test_the_shipped_reservations_are_shares_that_fit_any_fleet() -> None:
    core = Admission(PRIORITY, {"large": 128, "small": 4, "single": 1})

    reserved = {pool: [view.reserved for view in core.view(pool).classes.values()] for pool in core.pool_names}

    assert reserved == {"large": [7, 32, 0, 0], "small": [1, 1, 0, 0], "single": [0, 0, 0, 0]}


def test_a_queue_of_size_zero_rejects_at_once() -> None:
    t = Timeline(1, default={"queue_size": 0})
    t.submit(0, "held")

    assert t.submit(0, "second") == ["second reject queue_full"]
    assert t.next_deadline() is None


def test_a_pool_without_capacity_parks_requests_until_it_comes() -> None:
    t = Timeline(0)

    assert t.submit(0, "early") == ["early queue no_capacity"]
    assert t.resize(5, 1) == ["early admit slot_free"]


def test_a_higher_class_passes_a_queue_of_lower_ones_but_a_lower_class_does_not() -> None:
    t = Timeline(2, interactive={"reserved_floor": 1})
    t.submit(0, "d0")
    assert t.submit(0, "d1") == ["d1 queue held_by_reservation"]

    assert t.submit(1, "b", BULK) == ["b queue behind_queue"]
    assert t.submit(1, "i", INTERACTIVE) == ["i admit slot_free"]
    assert t.release(2, "d0") == ["d1 admit slot_free"]
    assert t.release(2, "i") == []
    assert t.release(3, "d1") == ["b admit slot_free"]


def test_models_do_not_wait_for_each_other() -> None:
    """SMG s38: with one count for all, a request for an idle model waited behind a saturated one."""
    t = Timeline(1)
    t.resize(0, 1, pool="other")
    t.submit(0, "a0")

    assert t.submit(0, "a1") == ["a1 queue no_slot"]
    assert t.submit(0, "b0", pool="other") == ["b0 admit slot_free"]
    assert t.release(1, "b0") == []


def test_reservations_return_with_the_capacity() -> None:
    t = Timeline(256, system={"reserved_floor": 32}, interactive={"reserved_floor": 128})

    t.resize(1, 80)
    assert t.reserved() == {"system": 22, "interactive": 57, "default": 0, "bulk": 0}  # 32 and 80 of 112, into 80
    t.resize(2, 256)
    assert t.reserved() == {"system": 32, "interactive": 128, "default": 0, "bulk": 0}


def test_a_waiter_in_the_middle_may_leave() -> None:
    t = Timeline(1)
    for name in ("held", "first", "second", "third"):
        t.submit(0, name)

    assert t.release(1, "second", ReleaseReason.CLIENT_GONE) == ["second cancel client_gone"]
    assert t.release(2, "held") == ["first admit slot_free"]
    assert t.release(3, "first") == ["third admit slot_free"]


def test_a_release_counts_once() -> None:
    t = Timeline(1)
    t.submit(0, "a")
    t.submit(0, "b")
    t.submit(0, "c")

    assert t.release(1, "a") == ["b admit slot_free"]
    assert t.release(1, "a") == []
    assert t.release(1, "a", ReleaseReason.FAILED) == []
    assert t.core.view("m").in_flight == 1


def test_ends_are_told_apart() -> None:
    t = Timeline(4)
    for name in ("a", "b", "c", "d"):
        t.submit(0, name)
    t.release(1, "a", ReleaseReason.DRAINED)
    t.release(1, "b", ReleaseReason.CLIENT_GONE)
    t.release(1, "c", ReleaseReason.FAILED)
    t.release(1, "d", ReleaseReason.GATEWAY_GONE)

    assert t.core.view("m").classes[DEFAULT].ended == {
        ReleaseReason.DRAINED: 1,
        ReleaseReason.CLIENT_GONE: 1,
        ReleaseReason.GATEWAY_GONE: 1,
        ReleaseReason.FAILED: 1,
        ReleaseReason.SLOT_PREEMPTED: 0,
    }


def test_a_slot_that_frees_at_the_deadline_comes_too_late() -> None:
    """Everything that is due is settled first, whether or not the driver's timer has fired."""
    t = Timeline(1, default={"queue_timeout_secs": 1})
    t.submit(0, "held")
    t.submit(0, "late")

    assert t.release(1, "held") == ["late reject queue_timeout"]
    assert t.release(1, "late", ReleaseReason.CLIENT_GONE) == []


def test_a_request_that_leaves_after_its_deadline_has_timed_out() -> None:
    t = Timeline(1, default={"queue_timeout_secs": 1})
    t.submit(0, "held")
    t.submit(0, "late")

    assert t.release(1.5, "late", ReleaseReason.CLIENT_GONE) == ["late reject queue_timeout"]


def test_a_place_that_timed_out_unnoticed_is_free_for_a_newcomer() -> None:
    t = Timeline(1, default={"queue_size": 1, "queue_timeout_secs": 1})
    t.submit(0, "held")
    t.submit(0, "late")

    assert t.submit(1, "next") == ["late reject queue_timeout", "next queue no_slot"]


def test_timeouts_come_in_the_order_of_their_deadlines() -> None:
    t = Timeline(0, default={"queue_timeout_secs": 3}, bulk={"queue_timeout_secs": 1}, system={"queue_timeout_secs": 2})
    t.submit(0, "d")
    t.submit(0.1, "b", BULK)
    t.submit(0.2, "s", SYSTEM)
    t.submit(0.3, "b2", BULK)

    assert t.next_deadline() == 1.1
    assert t.advance(10) == [f"{name} reject queue_timeout" for name in ("b", "b2", "s", "d")]
    assert t.next_deadline() is None


def test_the_first_byte_needs_a_slot() -> None:
    t = Timeline(1)
    t.submit(0, "a")
    t.submit(0, "waits")

    assert t.first_byte(1, "a")
    assert t.first_byte(1, "a")
    t.release(2, "a")
    assert not t.first_byte(2, "a")
    t.release(2, "waits")
    t.submit(3, "b")
    t.submit(3, "c")
    with pytest.raises(TransitionError, match="request 3 is QUEUED: FIRST_BYTE cannot happen"):
        t.first_byte(3, "c")


def test_a_ticket_serves_once() -> None:
    core = Admission(PRIORITY, {"m": 1})
    ticket = Ticket(7, "m")
    core.submit(ticket, 0)

    with pytest.raises(TransitionError, match="submitted before"):
        core.submit(ticket, 1)
    with pytest.raises(TransitionError, match="submitted before"):
        core.submit(Ticket(7, "m"), 1)
    core.release(7, ReleaseReason.DRAINED, 2)
    assert ticket.state is TicketState.LEFT
    with pytest.raises(TransitionError, match="submitted before"):
        core.submit(ticket, 3)
    core.check()


def test_an_unknown_pool_and_a_negative_capacity_are_refused_and_change_nothing() -> None:
    core = Admission(PRIORITY, {"m": 1})

    with pytest.raises(KeyError):
        core.submit(Ticket(1, "other"), 0)
    with pytest.raises(ValueError, match="at least 0 slots"):
        core.resize("m", -1, 0)
    with pytest.raises(ValueError, match="at least 0 slots"):
        core.resize("new", -1, 0)
    assert core.pool_names == ["m"]
    core.check()
    with pytest.raises(ValueError, match="at least 0 slots"):
        Admission(AdmissionConfig(), {"m": -1})


def test_a_reload_keeps_slots_and_places() -> None:
    t = Timeline(2, interactive={"reserved_floor": 1}, bulk={"queue_size": 3})
    t.submit(0, "b0", BULK)
    for name in ("b1", "b2", "b3"):
        t.submit(0, name, BULK)

    # fewer may wait: the requests that wait stay, and no other joins
    assert t.reconfigure(1, interactive={"reserved_floor": 1}, bulk={"queue_size": 1}) == []
    assert t.submit(1, "b4", BULK) == ["b4 reject queue_full"]
    # the reservation goes: its slot is free at once
    assert t.reconfigure(2, bulk={"queue_size": 1}) == ["b1 admit slot_free"]


def test_a_shorter_timeout_holds_for_requests_that_wait_already() -> None:
    t = Timeline(1)
    t.submit(0, "held")
    t.submit(0, "a")
    t.submit(2, "b")

    assert t.reconfigure(2.5, default={"queue_timeout_secs": 1}) == ["a reject queue_timeout"]
    assert t.next_deadline() == 3.0
    assert t.reconfigure(2.6, default={"queue_timeout_secs": 10}) == []
    assert t.next_deadline() == 12.0


def test_decisions_do_not_depend_on_the_order_in_which_pools_were_named() -> None:
    def run(names: list[str]) -> list[int]:
        core = Admission(PRIORITY, dict.fromkeys(names, 0))
        for n, pool in enumerate(("a", "b", "c")):
            core.submit(Ticket(n, pool), 0)
        return [d.subject for d in core.advance(10**9)]

    assert run(["a", "b", "c"]) == run(["c", "a", "b"]) == [0, 1, 2]


def test_nothing_of_a_request_stays_when_it_has_left() -> None:
    t = Timeline(1, default={"queue_size": 1, "queue_timeout_secs": 1})
    t.submit(0, "a")
    t.submit(0, "times out")
    t.submit(0, "rejected")
    t.advance(1)
    t.submit(2, "leaves")
    t.release(2, "leaves", ReleaseReason.CLIENT_GONE)
    t.release(2, "a")

    assert not t.core._tickets
    queues = [queue for pool in t.core._pools.by_name.values() for queue in pool.queues.lanes]
    assert all(not len(queue) and queue.peek() is None for queue in queues)
