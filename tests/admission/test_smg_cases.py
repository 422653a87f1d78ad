"""The cases of SMG's own tests, restated: what they set up and what they expect, as timelines of our core.

Those about threads, wake-ups and dropped permits have no counterpart in a core that is told one thing after another; what they
protect (no request admitted twice, none lost) is what the property tests assert. Others stand in the files beside this one.
"""

from __future__ import annotations

import itertools

import msgspec
import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket, parse_class, preset_of
from maitred.admission.terms.ticket import TRANSITIONS, TicketEvent, TicketState, TransitionError
from maitred.core.decisions import decision_on
from maitred.core.request import PriorityClass

SMG = AdmissionConfig(mode="priority", flavour="smg")


def reserved(core: Admission) -> dict[str, int]:
    return {c.label: view.reserved for c, view in core.view("m").classes.items()}


def test_classes_ascend_from_bulk_to_system_and_the_lower_one_counts() -> None:
    assert sorted([SYSTEM, BULK, INTERACTIVE, DEFAULT]) == [BULK, DEFAULT, INTERACTIVE, SYSTEM]
    assert min(INTERACTIVE, DEFAULT) is DEFAULT
    assert min(SYSTEM, INTERACTIVE) is INTERACTIVE
    assert min(BULK, SYSTEM) is BULK
    assert parse_class("123") is None


def test_the_built_in_classes() -> None:
    table = {
        c.label: (r.reserved_floor, r.reserved_per_slot, r.queue_size, r.queue_timeout_secs, r.starvation_threshold_secs)
        for c, r in preset_of("smg").classes.items()
    }

    assert table == {
        "system": (32, 0.0, 64, 30, 5),
        "interactive": (128, 0.25, 256, 30, 5),
        "default": (0, 0.10, 512, 60, 30),
        "bulk": (0, 0.0, 1024, 300, 120),
    }
    assert [c.label for c, r in preset_of("smg").classes.items() if r.can_preempt] == ["system", "interactive"]
    assert msgspec.convert({}, AdmissionConfig).tenant_policies == {}


@pytest.mark.parametrize(
    ("first", "second", "which"),
    [
        (TicketEvent.PREEMPT_SLOT, TicketEvent.PREEMPT_SLOT, "second"),
        (TicketEvent.PREEMPT_SLOT, TicketEvent.FIRST_BYTE, "second"),
        (TicketEvent.FIRST_BYTE, TicketEvent.PREEMPT_SLOT, "second"),
        (TicketEvent.FIRST_BYTE, TicketEvent.FIRST_BYTE, None),
    ],
)
def test_first_byte_and_preemption_exclude_each_other(first: TicketEvent, second: TicketEvent, which: str | None) -> None:
    ticket = Ticket(1, "m")
    ticket.transition(TicketEvent.ADMIT)
    ticket.transition(first)

    if which is None:
        ticket.transition(second)
    else:
        with pytest.raises(TransitionError):
            ticket.transition(second)


def test_every_state_and_event_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(TicketState)
    reached = {state for row in TRANSITIONS.values() for state in row.values()}
    assert reached == set(TicketState) - {TicketState.NEW}
    assert TRANSITIONS[TicketState.LEFT] == {}


def test_the_built_in_reservations_on_256_slots() -> None:
    core = Admission(SMG, {"m": 256})

    assert reserved(core) == {"system": 32, "interactive": 128, "default": 26, "bulk": 0}


def test_on_200_slots_bulk_gets_exactly_20() -> None:
    core = Admission(SMG, {"m": 200})

    said = [decision_on(n, core.submit(Ticket(n, "m", BULK), 0)).action for n in range(30)]

    assert said == ["admit"] * 20 + ["queue"] * 10


def test_reservations_by_share_grow_with_the_capacity_and_come_back() -> None:
    core = Admission(SMG, {"m": 256})

    core.resize("m", 800, 1)
    assert reserved(core) == {"system": 32, "interactive": 200, "default": 80, "bulk": 0}
    core.resize("m", 80, 2)
    assert sum(reserved(core).values()) < 80
    core.resize("m", 256, 3)
    assert reserved(core) == {"system": 32, "interactive": 128, "default": 26, "bulk": 0}


def test_200_for_64_slots_are_exactly_64() -> None:
    t = Timeline(64, default={"queue_size": 200})

    said = [t.submit(0, f"r{n}")[0].split()[1] for n in range(200)]

    assert said.count("admit") == 64


def test_growing_from_one_to_two_drains_and_the_same_value_does_nothing() -> None:
    t = Timeline(1)
    t.submit(0, "a")
    t.submit(0, "b")

    assert t.resize(1, 1) == []
    assert t.resize(2, 2) == ["b admit slot_free"]


def test_a_lone_bulk_request_is_promoted_without_any_release() -> None:
    t = Timeline(1, {"flavour": "smg"}, interactive={"reserved_floor": 1}, bulk={"starvation_threshold_secs": 1})
    t.submit(0, "lone", BULK)

    assert t.advance(2) == ["lone admit starved"]


def test_only_a_victim_past_its_first_byte_means_a_timeout() -> None:
    t = Timeline(1, interactive={"queue_timeout_secs": 1})
    t.submit(0, "streams", BULK)
    t.first_byte(0.1, "streams")

    assert t.submit(0.2, "vip", INTERACTIVE) == ["vip queue no_slot"]
    assert t.advance(1.2) == ["vip reject queue_timeout"]
    assert t.first_byte(1.3, "streams")


def test_default_cannot_take_bulks_slot() -> None:
    t = Timeline(1)
    t.submit(0, "bulk", BULK)

    assert t.submit(0.1, "default", DEFAULT) == ["default queue no_slot"]


def test_bulk_finds_no_victim() -> None:
    t = Timeline(1, bulk={"can_preempt": True})
    t.submit(0, "first", BULK)

    assert t.submit(0.1, "second", BULK) == ["second queue no_slot"]


def test_a_waiter_that_has_gone_is_skipped_and_a_run_of_them_too() -> None:
    t = Timeline(1)
    for name in ("held", "a", "b", "c", "d"):
        t.submit(0, name)
    for name in ("a", "b", "c"):
        t.release(1, name, ReleaseReason.CLIENT_GONE)

    assert t.of(DEFAULT).waiting == 1
    assert t.release(2, "held") == ["d admit slot_free"]


@pytest.mark.parametrize(
    ("capacity", "in_flight", "waiting", "pressure"),
    [(100, 10, 8, 0.8), (100, 50, 1, 0.5), (2, 6, 10, 1.0), (0, 0, 0, 0.0)],
)
def test_pressure(capacity: int, in_flight: int, waiting: int, pressure: float) -> None:
    """The fuller of the queue (10 may wait) and of the slots beyond the own reservation."""
    t = Timeline(max(capacity, in_flight), default={"queue_size": 10})
    names = itertools.count()
    for _ in range(in_flight):
        t.submit(0, f"r{next(names)}")
    if waiting:
        t.resize(0, in_flight)
        for _ in range(waiting):
            t.submit(0, f"r{next(names)}")
    if capacity > in_flight:  # as at the instant of SMG's sampler, before its dispatcher runs
        t.core._pools.by_name["m"].slots.capacity = capacity
    else:
        t.resize(0, capacity)

    assert t.core.view("m").classes[PriorityClass.DEFAULT].pressure == pressure
