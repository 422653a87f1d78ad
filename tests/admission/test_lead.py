"""Slots beyond what the engines run: kept for classes that may preempt, and watched while such a request uses one."""

from __future__ import annotations

import statistics

import pytest
from admission_timeline import BULK, INTERACTIVE, Timeline, classes
from engine_model import Engine, Gateway, World

from maitred.admission import Admission, ReleaseReason, Ticket
from maitred.admission.terms.lead import Lead
from maitred.core.decisions import DecisionLog
from maitred.core.units import MILLISECOND, SECOND, from_seconds
from maitred.replay import replay

ADAPTIVE = {"reserve": "adaptive", "on_preempt": "retry"}
LIMITS = {"interactive": {"reserved_per_slot": 0.3}, "bulk": {"queue_size": 100}}


def saturated(said: dict[str, object] | None = None, lead: int = 1, bulk: int = 30) -> Timeline:
    """Return a pool of 17 slots with a lead, in which bulk waits, after 20 chats have come and gone."""
    t = Timeline(17, said or ADAPTIVE, **LIMITS)
    t.resize(0, 17, lead=Lead(lead))
    for number in range(20):
        t.submit(0.01 * number, f"early{number}", INTERACTIVE)
        t.release(0.01 * number, f"early{number}")
    for number in range(bulk):
        t.submit(1.5, f"b{number}", BULK)
    return t


def busy() -> Timeline:
    """Return such a pool in which as much bulk runs as the engines can, and none waits."""
    t = saturated(bulk=16)
    assert (t.of(BULK).in_flight, t.of(BULK).waiting) == (16, 0)
    return t


def test_bulk_fills_what_the_engines_run_and_a_chat_has_the_lead_at_once() -> None:
    t = saturated()
    assert (t.of(BULK).in_flight, t.of(INTERACTIVE).held) == (16, 1)
    assert t.submit(2, "c", INTERACTIVE) == ["c admit lead_free"]
    assert t.release(2.001, "b0") == [], "the slot is part of the lead again"
    assert t.release(2.004, "b1") == ["b16 admit slot_free"]


def test_a_chat_that_no_slot_is_freed_for_in_time_has_the_place_of_a_victim() -> None:
    t = saturated()
    t.submit(2, "c1", INTERACTIVE)
    t.release(2.001, "b0")
    t.release(2.01, "c1")
    assert t.submit(2.03, "c2", INTERACTIVE) == ["c2 admit lead_free"]
    assert t.next_deadline() == 2.032
    assert t.advance(2.031) == []
    assert t.advance(2.032) == ["b16 preempt higher_class c2"]
    assert t.submit(2.0325, "c3", INTERACTIVE)[-1] == "c3 queue no_slot", "a slot is about to become free: no second victim"
    assert t.release(2.033, "b16", ReleaseReason.SLOT_PREEMPTED) == ["b16 queue to_be_retried", "c3 admit lead_free"]


def test_a_chat_on_a_lead_slot_is_rescued_though_nothing_waits() -> None:
    """16 bulk requests run on 16 places, so the chat stands in the queue of the engine."""
    t = busy()
    assert t.submit(2, "c", INTERACTIVE) == ["c admit lead_free"]
    assert t.next_deadline() == 2.002
    assert t.advance(2.0019) == []
    assert t.advance(2.002) == ["b15 preempt higher_class c"]
    assert t.next_deadline() is None
    assert t.release(2.003, "b15", ReleaseReason.SLOT_PREEMPTED) == ["b15 queue to_be_retried"], "the lead is for chats"


@pytest.mark.parametrize("event", ["a slot is freed", "its response starts", "it leaves"])
def test_a_chat_that_needs_no_rescue_stops_nobody_where_nothing_waits(event: str) -> None:
    t = busy()
    t.submit(2, "c", INTERACTIVE)
    if event == "a slot is freed":
        t.release(2.001, "b3")
    elif event == "its response starts":
        assert t.first_byte(2.001, "c")
    else:
        t.release(2.001, "c")
    assert t.advance(12) == []
    assert t.next_deadline() is None


def test_a_late_timer_rescues_at_the_instant_that_was_due() -> None:
    t = busy()
    t.submit(2, "c", INTERACTIVE)
    t.submit(2.5, "b16", BULK)
    assert [decision.at for decision in t.last] == [from_seconds(2.002), from_seconds(2.5)]


def test_a_preemptor_that_has_its_victims_slot_is_rescued_though_nothing_waits() -> None:
    t = busy()
    t.submit(2, "c1", INTERACTIVE)
    assert t.submit(2.001, "c2", INTERACTIVE)[0] == "b15 preempt higher_class c2"
    assert t.release(2.0012, "b15") == ["c2 admit victim_gone b15"], "its place in the engine goes to c1"
    assert t.next_deadline() == 2.002
    assert t.advance(2.003) == []
    assert t.advance(2.0032) == ["b14 preempt higher_class c2"]


def test_a_reload_keeps_who_is_watched() -> None:
    t = busy()
    t.submit(2, "c", INTERACTIVE)
    t.reconfigure(2.001, ADAPTIVE, **LIMITS)
    assert t.next_deadline() == 2.002
    assert t.advance(2.002) == ["b15 preempt higher_class c"]


def test_a_response_that_has_started_needs_no_victim() -> None:
    t = saturated()
    t.submit(2, "c", INTERACTIVE)
    assert t.first_byte(2.001, "c")
    assert t.advance(2.5) == []


def test_a_chat_that_finds_the_lead_in_use_preempts_and_is_watched() -> None:
    t = saturated()
    t.submit(2, "c1", INTERACTIVE)
    assert t.submit(2.001, "c2", INTERACTIVE) == ["b15 preempt higher_class c2", "c2 queue victim_leaving b15"]
    # The place of b15 goes to c1, which stands before c2 in the queue of the engine.
    assert t.release(2.0015, "b15", ReleaseReason.SLOT_PREEMPTED) == ["b15 queue to_be_retried", "c2 admit victim_gone b15"]
    assert t.advance(2.003) == []
    assert t.advance(2.0035) == ["b14 preempt higher_class c2"]


@pytest.mark.parametrize("num_ended", [0, 1, 2])
def test_behind_lent_slots_as_many_victims_leave_as_places_are_needed(num_ended: int) -> None:
    t = saturated()
    assert t.resize(2, 18, lead=Lead(1, 1)) == ["b16 admit slot_free"]
    assert t.submit(2.0001, "c", INTERACTIVE) == ["c admit lead_free"]
    for number in range(num_ended):
        t.release(2.001, f"b{number}")
    stopped = t.advance(2.0021)
    assert len([line for line in stopped if "preempt" in line]) == 2 - num_ended


@pytest.mark.parametrize(("said", "lead"), [({"on_preempt": "retry", "reserve": "fixed"}, 1), (ADAPTIVE, 0)])
def test_without_a_lead_or_with_fixed_reservations_nothing_is_watched(said: dict[str, object], lead: int) -> None:
    t = saturated(said, lead)
    assert t.submit(2, "c", INTERACTIVE)[-1] in ("c admit slot_free", "c queue victim_leaving b16")
    assert t.advance(2.05) in ([], ["c queue budget_spent"])


def test_a_reload_keeps_the_lead() -> None:
    t = saturated()
    t.reconfigure(2, ADAPTIVE, **LIMITS)
    assert t.submit(2, "c", INTERACTIVE) == ["c admit lead_free"]


def test_the_log_runs_again() -> None:
    lines: list[bytes] = []
    core = Admission(classes(ADAPTIVE, **LIMITS), {"m": 3}, log=DecisionLog(lines.append))
    core.resize("m", 3, 0, Lead(1))
    for number in range(20):
        core.submit(Ticket(number, "m", INTERACTIVE), number)
        core.release(number, ReleaseReason.DRAINED, number)
    for number in range(20, 25):
        core.submit(Ticket(number, "m", BULK), 2 * SECOND)
    core.submit(Ticket(30, "m", INTERACTIVE), 3 * SECOND)
    assert core.advance(3 * SECOND + 5 * MILLISECOND)[0].other == 30
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == lines


def test_a_log_of_before_the_lead_runs_again() -> None:
    lines: list[bytes] = []
    core = Admission(classes(), {"m": 3}, log=DecisionLog(lines.append))
    core.resize("m", 2, 1)
    core.submit(Ticket(1, "m", BULK), 2)
    older = [line.replace(b',"lead":0,"lent":0', b"") for line in lines]
    assert older != lines
    again: list[bytes] = []
    replay(older, DecisionLog(again.append))
    assert again == lines


def test_learned_slots_lead_where_places_become_free_all_the_time() -> None:
    """An engine of 16 with steps of 4 ms ends 65 requests per second."""
    results = {}
    for keeps_lead in (True, False):
        engine = Engine(16, step=4 * MILLISECOND)
        gateway = Gateway(engine, clients=60, chats_per_sec=13, streams=False, on_preempt="retry", keeps_lead=keeps_lead)
        World(engine, gateway).run(30)
        results[keeps_lead] = gateway
    with_lead, without = results[True], results[False]
    assert statistics.median(with_lead.slots_between(10, 30)) == 17
    assert statistics.median(without.slots_between(10, 30)) == 16
    assert with_lead.bulk_tokens(5, 30) > 0.96 * without.bulk_tokens(5, 30), "no slot of the engine is kept idle"
    assert with_lead.ttft(0.5, since=5) < without.ttft(0.5, since=5) + 5
    assert with_lead.most_beyond <= 0


def test_a_probe_of_an_engine_of_8_sends_it_one_more_than_it_runs_and_what_is_kept_for_a_chat() -> None:
    """One of the 8 slots is kept for chats, as it would be of 12: with those, 11 requests stood in the engine."""
    engine = Engine(8, step=20 * MILLISECOND)
    gateway = Gateway(engine, clients=48, chats_per_sec=5)
    World(engine, gateway).run(20)
    assert max(gateway.slots_between(3, 20)) == 8 + 1 + 1
    assert min(gateway.slots_between(3, 20)) == 8


def test_a_small_request_that_leaves_makes_no_place_for_a_large_one() -> None:
    """Slots of 100 tokens: a tenth of one becomes free, so the chat on the lead still stands in the queue of its engine."""
    t = Timeline(3, ADAPTIVE | {"slot_cost": "tokens", "slot_tokens": 100}, **LIMITS)
    t.resize(0, 3, lead=Lead(1))
    for number in range(20):
        t.submit(0.01 * number, f"early{number}", INTERACTIVE, cost=100)
        t.release(0.01 * number, f"early{number}")
    for name, cost in {"large": 100, "middle": 90, "small": 10}.items():
        assert t.submit(1.5, name, BULK, cost=cost) == [f"{name} admit slot_free"]
    assert t.submit(2, "c", INTERACTIVE, cost=100) == ["c admit lead_free"]
    assert t.release(2.001, "small") == []
    assert t.advance(2.002) == ["large preempt higher_class c"]
