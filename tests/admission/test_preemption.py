"""Preemption: which request is the victim, which gets its slot, and what becomes of the victim."""

from __future__ import annotations

import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import ReleaseReason, TransitionError

RETRY = {"on_preempt": "retry"}


def test_s07_a_victim_gives_its_slot_to_its_preemptor() -> None:
    t = Timeline(1)
    t.submit(0, "victim", BULK)

    assert t.submit(0.02, "vip", INTERACTIVE) == ["victim preempt higher_class vip", "vip queue victim_leaving victim"]
    assert not t.first_byte(0.021, "victim")
    assert t.release(0.022, "victim", ReleaseReason.SLOT_PREEMPTED) == ["vip admit victim_gone victim"]
    assert t.of(BULK).ended[ReleaseReason.SLOT_PREEMPTED] == 1
    assert t.of(BULK).preempted_by[INTERACTIVE] == 1
    assert t.of(INTERACTIVE).queue_wait.count == 0  # it was in no queue
    assert t.of(BULK).wasted_slot_time.total == 22_000


def test_s10_past_its_first_byte_no_request_is_a_victim() -> None:
    t = Timeline(1)
    t.submit(0, "streaming", BULK)
    assert t.first_byte(0.3, "streaming")

    assert t.submit(0.32, "vip", INTERACTIVE) == ["vip queue no_slot"]
    assert t.release(2, "streaming") == ["vip admit slot_free"]


def test_s11_lowest_class_first_newest_first_and_then_the_queue() -> None:
    t = Timeline(3)
    t.submit(0, "default", DEFAULT)
    t.submit(0.03, "bulk_old", BULK)
    t.submit(0.06, "bulk_new", BULK)

    assert t.submit(0.1, "vip0", INTERACTIVE)[0] == "bulk_new preempt higher_class vip0"
    assert t.submit(0.1, "vip1", INTERACTIVE)[0] == "bulk_old preempt higher_class vip1"
    assert t.submit(0.1, "vip2", INTERACTIVE)[0] == "default preempt higher_class vip2"
    assert t.submit(0.1, "vip3", INTERACTIVE) == ["vip3 queue no_slot"]
    # each slot goes to the preemptor that it was taken for, in whatever order they come
    assert t.release(0.11, "default", ReleaseReason.SLOT_PREEMPTED) == ["vip2 admit victim_gone default"]
    assert t.release(0.12, "bulk_new", ReleaseReason.SLOT_PREEMPTED) == ["vip0 admit victim_gone bulk_new"]
    assert t.release(0.13, "bulk_old", ReleaseReason.SLOT_PREEMPTED) == ["vip1 admit victim_gone bulk_old"]


def test_s13_which_classes_may_preempt_is_configured() -> None:
    t = Timeline(1, default={"can_preempt": True}, interactive={"can_preempt": False, "queue_timeout_secs": 1})
    t.submit(0, "bulk", BULK)

    assert t.submit(0.02, "interactive", INTERACTIVE) == ["interactive queue no_slot"]
    assert t.advance(1.02) == ["interactive reject queue_timeout"]
    assert t.submit(1.1, "default", DEFAULT) == ["bulk preempt higher_class default", "default queue victim_leaving bulk"]


def test_s40_two_preemptors_one_victim() -> None:
    t = Timeline(1)
    t.submit(0, "victim", BULK)
    t.submit(0.02, "v0", INTERACTIVE)

    assert t.submit(0.02, "v1", INTERACTIVE) == ["v1 queue no_slot"]
    assert t.release(0.03, "victim", ReleaseReason.SLOT_PREEMPTED) == ["v0 admit victim_gone victim"]
    assert t.release(0.33, "v0") == ["v1 admit slot_free"]


def test_no_request_preempts_its_own_or_a_higher_class() -> None:
    t = Timeline(1)
    t.submit(0, "system", SYSTEM)

    assert t.submit(0.1, "interactive", INTERACTIVE) == ["interactive queue no_slot"]
    assert t.submit(0.1, "system too", SYSTEM) == ["system too queue no_slot"]


def test_no_request_is_stopped_for_a_slot_that_would_not_help() -> None:
    """After a shrink the pool is above its capacity: a victim's slot would be of no use."""
    t = Timeline(3)
    for name in ("a", "b", "c"):
        t.submit(0, name, BULK)
    t.resize(0.1, 2)

    assert t.submit(0.2, "vip", INTERACTIVE) == ["vip queue no_slot"]
    assert t.submit(0.2, "vip2", INTERACTIVE) == ["vip2 queue behind_queue"]


def test_a_reserved_slot_that_idles_does_not_save_the_lower_class() -> None:
    """4 slots, 2 kept for system: interactive finds none free, and takes bulk's."""
    t = Timeline(4, system={"reserved_floor": 2})
    t.submit(0, "b0", BULK)
    t.submit(0, "b1", BULK)

    assert t.submit(0.1, "vip", INTERACTIVE)[0] == "b1 preempt higher_class vip"


def test_a_slot_that_frees_otherwise_is_taken_and_the_victims_passes_on() -> None:
    t = Timeline(2)
    t.submit(0, "shown", BULK)
    t.first_byte(0, "shown")
    t.submit(0, "victim", BULK)
    t.submit(0.1, "vip", INTERACTIVE)
    t.submit(0.1, "d", DEFAULT)

    assert t.release(0.11, "shown") == ["vip admit slot_free"]
    assert t.release(0.12, "victim", ReleaseReason.SLOT_PREEMPTED) == ["d admit slot_free"]


def test_when_the_budget_is_spent_the_preemptor_queues() -> None:
    t = Timeline(1)
    t.submit(0, "victim", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.next_deadline() == 1.05
    assert t.advance(1.049999) == []
    assert t.advance(1.05) == ["vip queue budget_spent"]
    assert t.release(1.2, "victim", ReleaseReason.SLOT_PREEMPTED) == ["vip admit slot_free"]
    assert t.of(INTERACTIVE).queue_wait.total == 150_000


def test_without_a_queue_a_preemptor_has_its_budget_and_no_more() -> None:
    t = Timeline(1, interactive={"queue_size": 0})
    t.submit(0, "victim", BULK)

    assert t.submit(1, "vip", INTERACTIVE)[-1] == "vip queue victim_leaving victim"
    assert t.advance(1.05) == ["vip reject queue_full"]
    assert t.release(1.2, "victim", ReleaseReason.SLOT_PREEMPTED) == []


def test_a_preemptor_that_leaves_leaves_the_slot_to_the_next() -> None:
    t = Timeline(1)
    t.submit(0, "victim", BULK)
    t.submit(0, "next", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.release(1.01, "vip", ReleaseReason.CLIENT_GONE) == ["vip cancel client_gone"]
    assert t.release(1.02, "victim", ReleaseReason.SLOT_PREEMPTED) == ["next admit slot_free"]


def test_a_victim_whose_client_leaves_was_preempted_all_the_same() -> None:
    t = Timeline(1)
    t.submit(0, "victim", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.release(1.01, "victim", ReleaseReason.CLIENT_GONE) == ["vip admit victim_gone victim"]
    assert t.of(BULK).ended == {
        ReleaseReason.DRAINED: 0,
        ReleaseReason.CLIENT_GONE: 0,
        ReleaseReason.GATEWAY_GONE: 0,
        ReleaseReason.FAILED: 0,
        ReleaseReason.SLOT_PREEMPTED: 1,
    }


def test_only_a_victim_can_be_let_go_as_one() -> None:
    t = Timeline(1)
    t.submit(0, "a", BULK)

    with pytest.raises(TransitionError, match="was not preempted"):
        t.release(1, "a", ReleaseReason.SLOT_PREEMPTED)


def test_a_victim_that_is_tried_again_is_first_in_its_class_and_safe_from_then_on() -> None:
    t = Timeline(1, RETRY, bulk={"queue_timeout_secs": 5})
    t.submit(0, "victim", BULK)
    t.submit(0.5, "other", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.release(1.01, "victim", ReleaseReason.SLOT_PREEMPTED) == [
        "victim queue to_be_retried",
        "vip admit victim_gone victim",
    ]
    assert t.release(2, "vip") == ["victim admit slot_free"]
    assert t.submit(2.1, "vip2", INTERACTIVE) == ["vip2 queue no_slot"]
    assert t.first_byte(3, "victim")
    assert t.release(4, "victim") == ["vip2 admit slot_free"]
    seen = t.of(BULK)
    assert (seen.arrived, seen.admitted, seen.retried, seen.ended[ReleaseReason.DRAINED]) == (2, 2, 1, 1)


def test_a_victim_that_is_tried_again_keeps_its_deadline() -> None:
    t = Timeline(1, RETRY, bulk={"queue_timeout_secs": 5})
    t.submit(0, "victim", BULK)
    t.submit(4, "vip", INTERACTIVE)
    t.release(4.01, "victim", ReleaseReason.SLOT_PREEMPTED)

    assert t.advance(4.999999) == []
    assert t.next_deadline() == 5
    assert t.advance(5) == ["victim reject queue_timeout"]


def test_its_deadline_is_looked_to_however_long_its_preemptor_would_have_waited() -> None:
    t = Timeline(1, {**RETRY, "preemption_budget_ms": 60_000}, bulk={"queue_timeout_secs": 5})
    t.submit(0, "victim", BULK)
    t.submit(4, "vip", INTERACTIVE)
    t.release(4.01, "victim", ReleaseReason.SLOT_PREEMPTED)

    assert t.next_deadline() == 5
    assert t.advance(5) == ["victim reject queue_timeout"]


def test_a_victim_whose_time_was_up_while_it_held_its_slot_is_not_tried_again() -> None:
    t = Timeline(1, RETRY, bulk={"queue_timeout_secs": 5})
    t.submit(0, "victim", BULK)
    t.submit(6, "vip", INTERACTIVE)

    assert t.release(6.01, "victim", ReleaseReason.SLOT_PREEMPTED) == ["vip admit victim_gone victim"]
    assert t.of(BULK).ended[ReleaseReason.SLOT_PREEMPTED] == 1


def test_a_victim_whose_client_leaves_is_not_tried_again() -> None:
    t = Timeline(1, RETRY)
    t.submit(0, "victim", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.release(1.01, "victim", ReleaseReason.CLIENT_GONE) == ["vip admit victim_gone victim"]


def test_the_one_preempted_last_is_tried_again_first_and_both_before_newcomers() -> None:
    t = Timeline(2, RETRY)
    t.submit(0, "old", BULK)
    t.submit(0.1, "new", BULK)
    t.submit(0.2, "waits", BULK)
    t.submit(1, "vip0", INTERACTIVE)
    t.submit(1, "vip1", INTERACTIVE)
    t.release(1.01, "new", ReleaseReason.SLOT_PREEMPTED)
    t.release(1.02, "old", ReleaseReason.SLOT_PREEMPTED)

    assert t.release(2, "vip0") == ["old admit slot_free"]
    assert t.release(2, "vip1") == ["new admit slot_free"]
    assert t.release(3, "new") == ["waits admit slot_free"]


def test_a_preemptor_that_queues_late_is_rejected_when_its_own_time_is_up() -> None:
    """`late` came first and queued second, because its victim did not leave in time."""
    t = Timeline(1, {"preemption_budget_ms": 5000})
    t.submit(0, "victim", BULK)
    t.submit(1, "late", INTERACTIVE)
    t.submit(3, "prompt", INTERACTIVE)
    assert t.advance(6) == ["late queue budget_spent"]

    assert t.next_deadline() == 21
    assert t.advance(21) == ["late reject queue_timeout"]
    assert t.advance(23) == ["prompt reject queue_timeout"]


def test_a_budget_longer_than_the_timeout_ends_in_the_order_of_time() -> None:
    t = Timeline(1, {"preemption_budget_ms": 2000}, interactive={"queue_timeout_secs": 1})
    t.submit(0, "victim", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.advance(10) == ["vip queue budget_spent", "vip reject queue_timeout"]
    assert [d.at for d in t.last] == [3_000_000, 3_000_000]
    assert t.of(INTERACTIVE).queue_wait.total == 0


def test_the_newest_is_the_victim_also_after_a_reload() -> None:
    """All within one instant; `first` got its slot after `second`, because its tenant was at its limit."""
    said = {"tenant_policies": {"auth:a": {"max_in_flight": 1}}}
    t = Timeline(2, said)
    t.submit(0, "a0", BULK, tenant="auth:a")
    t.submit(0, "first", BULK, tenant="auth:a")
    t.submit(0, "second", BULK)
    assert t.release(0, "a0") == ["first admit slot_free"]
    t.reconfigure(0, said)

    assert t.submit(1, "vip", INTERACTIVE)[0] == "first preempt higher_class vip"
