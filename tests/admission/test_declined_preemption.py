"""A preemption that comes after the first byte: the victim declines it, and keeps its slot."""

from __future__ import annotations

import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, Timeline
from flow_timeline import FlowTimeline

from maitred.admission import Admission, ReleaseReason, Ticket, TransitionError
from maitred.admission.terms.lead import Lead
from maitred.core.decisions import DecisionLog
from maitred.replay import replay

PREEMPTED = ReleaseReason.SLOT_PREEMPTED


def preempted(slots: int, *bulk: str) -> Timeline:
    """Return a full pool in which `vip` has just preempted the newest bulk request."""
    t = Timeline(slots)
    for name in bulk:
        t.submit(0, name, BULK)
    t.submit(0.19, "vip", INTERACTIVE)
    return t


def test_the_preemptor_takes_the_next_victim() -> None:
    t = preempted(2, "b1", "b2")

    assert t.decline(0.2, "b2") == ["b1 preempt higher_class vip", "vip queue victim_leaving b1"]
    assert t.release(0.21, "b1", PREEMPTED) == ["vip admit victim_gone b1"]
    assert t.of(BULK).declined == 1
    assert t.of(BULK).preempted_by[INTERACTIVE] == 2


def test_without_another_victim_the_preemptor_waits_first_in_its_class() -> None:
    t = preempted(1, "b1")
    t.submit(0.195, "later", INTERACTIVE)

    assert t.decline(0.2, "b1") == ["vip queue victim_declined"]
    assert t.release(0.3, "b1") == ["vip admit slot_free"]
    assert t.release(0.4, "vip") == ["later admit slot_free"]


def test_a_victim_that_has_declined_is_never_one_again_and_ends_as_others_do() -> None:
    t = preempted(1, "b1")
    t.decline(0.2, "b1")

    assert t.submit(0.3, "another", INTERACTIVE) == ["another queue behind_queue"]
    t.release(0.4, "b1")
    assert t.of(BULK).ended[ReleaseReason.DRAINED] == 1
    assert t.of(BULK).ended[PREEMPTED] == 0
    assert t.of(BULK).wasted_slot_time.count == 0


def test_news_that_comes_twice_or_late_changes_nothing() -> None:
    t = preempted(1, "b1")
    t.decline(0.2, "b1")

    assert t.decline(0.2, "b1") == []
    assert t.first_byte(0.2, "b1")
    t.release(0.3, "b1")
    assert t.decline(0.4, "b1") == []
    with pytest.raises(TransitionError, match="ADMITTED: DECLINE cannot happen"):
        t.decline(0.4, "vip")


def test_the_preemptors_budget_goes_on_with_its_next_victim() -> None:
    """Otherwise a request could wait for ever for victims that decline, one after another."""
    t = Timeline(2, {"preemption_budget_ms": 200})
    t.submit(0, "b1", BULK)
    t.submit(0, "b2", BULK)
    t.submit(1, "vip", INTERACTIVE)
    t.decline(1.15, "b2")

    assert t.next_deadline() == 1.2
    assert t.advance(1.2) == ["vip queue budget_spent"]


def test_a_victim_that_nobody_waits_for_any_more_declines_and_the_next_waiter_preempts() -> None:
    t = preempted(2, "b1", "b2")
    t.release(0.195, "vip")
    assert t.submit(0.198, "vip2", INTERACTIVE) == ["vip2 queue no_slot"]  # b2 is about to leave

    assert t.decline(0.2, "b2") == ["b1 preempt higher_class vip2", "vip2 queue victim_leaving b1"]


def test_no_victim_is_stopped_under_rules_that_have_changed_meanwhile() -> None:
    t = preempted(2, "b1", "b2")
    t.reconfigure(0.195, interactive={"can_preempt": False})

    assert t.decline(0.2, "b2") == ["vip queue victim_declined"]


def test_a_preemptor_whose_tenant_is_at_its_limit_meanwhile_stops_no_other() -> None:
    limit = {"tenant_policies": {"auth:a": {"max_in_flight": 1}}}
    t = Timeline(3)
    t.submit(0, "own", DEFAULT, tenant="auth:a")
    t.submit(0, "b1", BULK)
    t.submit(0, "b2", BULK)
    t.submit(0.19, "vip", INTERACTIVE, tenant="auth:a")
    t.reconfigure(0.195, limit)

    assert t.decline(0.2, "b2") == ["vip queue victim_declined"]


def test_a_victim_for_a_place_in_the_engine_declines_and_the_next_one_is_stopped() -> None:
    t = Timeline(3, {"reserve": "adaptive", "on_preempt": "retry"})
    t.resize(0, 3, lead=Lead(1))
    t.submit(0, "b1", BULK)
    t.submit(0, "b2", BULK)
    assert t.submit(1, "vip", INTERACTIVE) == ["vip admit lead_free"]
    assert t.advance(1.002) == ["b2 preempt higher_class vip"]

    assert t.decline(1.003, "b2") == ["b1 preempt higher_class vip"]
    t.release(1.004, "b1", PREEMPTED)
    assert t.decline(1.005, "b2") == []


def test_flow_control_stops_the_next_one() -> None:
    t = FlowTimeline(saturation_detector="concurrency", in_flight_eviction=True, max_concurrency=2)
    t.submit(0, "s1", "sheddable")
    t.submit(0, "s2", "sheddable")
    assert t.submit(1, "urgent", "critical") == ["s2 preempt higher_class urgent", "urgent queue saturated"]

    assert t.decline(2, "s2") == ["s1 preempt higher_class urgent"]


def test_a_log_says_it_and_runs_again() -> None:
    lines: list[bytes] = []
    core = Admission(Timeline(1).core.config, {"m": 1}, log=DecisionLog(lines.append))
    core.submit(Ticket(0, "m", BULK), 0)
    core.submit(Ticket(1, "m", INTERACTIVE), 1)
    core.decline(0, 2)
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))

    assert b'{"at":2,"id":0,"input":"decline","room":"admission"}\n' in lines
    assert b"victim_declined" in lines[-1]
    assert again == lines
