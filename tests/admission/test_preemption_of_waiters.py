"""A waiting request preempts as soon as that becomes possible, and no tenant's limit holds the requests of others back."""

from __future__ import annotations

from admission_timeline import BULK, DEFAULT, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import ReleaseReason

LIMITED = {"tenant_policies": {"auth:a": {"max_in_flight": 1}}}
TWO = {"tenant_policies": {"auth:a": {"max_in_flight": 2}}}
GONE = ReleaseReason.SLOT_PREEMPTED


def test_a_waiter_preempts_when_its_tenant_is_below_its_limit_again() -> None:
    """`second` could not preempt when it came; when `first` ends, its slot goes to a more urgent request."""
    t = Timeline(2, LIMITED)
    t.submit(0, "first", INTERACTIVE, tenant="auth:a")
    t.submit(0, "bulk", BULK)
    assert t.submit(1, "second", INTERACTIVE, tenant="auth:a") == ["second queue tenant_limit"]
    assert t.submit(1, "control", SYSTEM)[0] == "bulk preempt higher_class control"
    t.release(1.01, "bulk", GONE)
    t.submit(2, "bulk2", BULK)
    t.release(3, "control")

    assert t.release(4, "first") == ["second admit slot_free"]


def test_a_waiter_preempts_in_a_pool_when_its_tenant_frees_a_slot_in_another() -> None:
    t = Timeline(1, LIMITED)
    t.resize(0, 1, "n")
    t.submit(0, "elsewhere", INTERACTIVE, pool="n", tenant="auth:a")
    t.submit(0, "bulk", BULK)
    assert t.submit(1, "waits", INTERACTIVE, tenant="auth:a") == ["waits queue tenant_limit"]

    assert t.release(2, "elsewhere") == ["bulk preempt higher_class waits", "waits queue victim_leaving bulk"]
    assert t.release(2.01, "bulk", GONE) == ["waits admit victim_gone bulk"]


def test_a_tenant_at_its_limit_does_not_turn_preemption_off_for_the_others() -> None:
    """a holds one slot, and awaits another; its third request could not have one more, and b's comes behind it."""
    t = Timeline(3, TWO)
    t.submit(0, "a1", INTERACTIVE, tenant="auth:a")
    t.submit(0, "bulk1", BULK)
    t.submit(0, "bulk2", BULK)
    t.submit(1, "a2", INTERACTIVE, tenant="auth:a")
    assert t.submit(1, "a3", INTERACTIVE, tenant="auth:a") == ["a3 queue tenant_limit"]

    assert t.submit(1, "b1", INTERACTIVE, tenant="auth:b") == [
        "bulk1 preempt higher_class b1",
        "b1 queue victim_leaving bulk1",
    ]


def test_no_request_is_stopped_for_a_slot_that_a_limit_denies_later() -> None:
    """a2 awaits the last slot that its tenant may have: a3 may not take it in another pool meanwhile."""
    t = Timeline(1, LIMITED)
    t.resize(0, 1, "n")
    t.submit(0, "bulk", BULK)
    t.submit(1, "a2", INTERACTIVE, tenant="auth:a")

    assert t.submit(1.001, "a3", INTERACTIVE, pool="n", tenant="auth:a") == ["a3 queue tenant_limit"]
    assert t.release(1.01, "bulk", GONE) == ["a2 admit victim_gone bulk"]


def test_a_preemptor_that_gives_up_leaves_its_place_in_the_limit_to_the_next() -> None:
    t = Timeline(1, LIMITED)
    t.resize(0, 1, "n")
    t.submit(0, "bulk", BULK)
    t.submit(1, "a2", INTERACTIVE, tenant="auth:a")
    t.submit(1.001, "a3", INTERACTIVE, pool="n", tenant="auth:a")

    assert t.release(1.002, "a2", ReleaseReason.CLIENT_GONE) == ["a2 cancel client_gone", "a3 admit slot_free"]


def test_a_preemptor_whose_budget_is_spent_leaves_its_place_in_the_limit_to_the_next() -> None:
    t = Timeline(1, LIMITED)
    t.resize(0, 1, "n")
    t.submit(0, "bulk", BULK)
    t.submit(1, "a2", INTERACTIVE, tenant="auth:a")
    t.submit(1.001, "a3", INTERACTIVE, pool="n", tenant="auth:a")

    assert t.advance(1.05) == ["a2 queue budget_spent", "a3 admit slot_free"]


def test_after_a_shrink_a_waiter_preempts_once_one_slot_would_help() -> None:
    t = Timeline(3)
    for name in ("shown", "old", "new"):
        t.submit(0, name, BULK)
    t.first_byte(0, "shown")
    t.resize(0.1, 2)
    assert t.submit(0.2, "vip", INTERACTIVE) == ["vip queue no_slot"]
    assert t.submit(0.2, "vip2", INTERACTIVE) == ["vip2 queue behind_queue"]

    assert t.release(0.3, "shown") == [
        *("new preempt higher_class vip", "vip queue victim_leaving new"),
        *("old preempt higher_class vip2", "vip2 queue victim_leaving old"),
    ]
    assert t.release(0.31, "new", GONE) == ["vip admit victim_gone new"]
    assert t.release(0.32, "old", GONE) == ["vip2 admit victim_gone old"]


def test_after_a_growth_that_is_not_enough_a_waiter_preempts() -> None:
    t = Timeline(4)
    for name in "abcd":
        t.submit(0, name, BULK)
    t.resize(0.1, 2)
    t.submit(0.2, "vip", INTERACTIVE)

    assert t.resize(0.3, 4) == ["d preempt higher_class vip", "vip queue victim_leaving d"]


def test_after_a_reload_the_waiters_of_a_class_that_may_preempt_now_do() -> None:
    t = Timeline(1, interactive={"can_preempt": False})
    t.submit(0, "bulk", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.reconfigure(2) == ["bulk preempt higher_class vip", "vip queue victim_leaving bulk"]


def test_after_a_reload_that_lifts_a_limit_a_waiter_preempts() -> None:
    t = Timeline(2, LIMITED)
    t.submit(0, "first", INTERACTIVE, tenant="auth:a")
    t.submit(0, "bulk", BULK)
    t.submit(1, "second", INTERACTIVE, tenant="auth:a")

    assert t.reconfigure(2)[0] == "bulk preempt higher_class second"


def test_no_waiter_preempts_before_a_more_urgent_one_that_may_not() -> None:
    t = Timeline(1, system={"can_preempt": False})
    t.submit(0, "bulk", BULK)
    t.submit(1, "control", SYSTEM)

    assert t.submit(1, "vip", INTERACTIVE) == ["vip queue behind_queue"]
    assert t.release(2, "control", ReleaseReason.CLIENT_GONE) == [
        *("control cancel client_gone", "bulk preempt higher_class vip", "vip queue victim_leaving bulk"),
    ]


def test_a_victim_that_is_slow_to_leave_costs_no_second_one() -> None:
    t = Timeline(2)
    t.submit(0, "old", BULK)
    t.submit(0, "new", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.advance(1.05) == ["vip queue budget_spent"]
    assert t.advance(1.2) == []
    assert t.release(1.3, "new", GONE) == ["vip admit slot_free"]


def test_a_waiter_that_has_preempted_has_its_budget_from_then_on_and_keeps_its_place() -> None:
    t = Timeline(1, interactive={"can_preempt": False, "queue_size": 2})
    t.submit(0, "bulk", BULK)
    t.submit(1, "first", INTERACTIVE)
    t.submit(1, "second", INTERACTIVE)
    t.reconfigure(2, interactive={"queue_size": 2})
    t.submit(2.01, "third", INTERACTIVE)

    assert t.next_deadline() == 2.05
    assert t.advance(2.05) == ["first queue budget_spent"]
    assert t.release(2.1, "bulk", GONE) == ["first admit slot_free"]
    assert t.release(3, "first") == ["second admit slot_free"]


def test_a_preemptor_that_cannot_have_its_slot_any_more_takes_another() -> None:
    """The pool shrinks while the victim leaves, and grows again."""
    t = Timeline(2)
    t.submit(0, "old", BULK)
    t.submit(0, "new", BULK)
    t.submit(1, "vip", INTERACTIVE)
    t.resize(1.001, 1)

    assert t.release(1.002, "new", GONE) == [
        *("vip queue no_slot", "old preempt higher_class vip", "vip queue victim_leaving old"),
    ]
    assert t.release(1.003, "old", GONE) == ["vip admit victim_gone old"]


def test_a_class_that_waits_behind_a_default_request_still_preempts_bulk() -> None:
    t = Timeline(2)
    t.submit(0, "default", DEFAULT)
    t.submit(0, "bulk", BULK)
    t.submit(1, "default2", DEFAULT)

    assert t.submit(1, "vip", INTERACTIVE)[0] == "bulk preempt higher_class vip"


def test_a_cheap_request_preempts_where_the_one_before_it_is_too_large() -> None:
    """Slots are charged by tokens. With weights the newcomer is the next of its class, and one victim is enough for it."""
    said = {"slot_cost": "tokens", "slot_tokens": 10, "tenant_policies": {"auth:b": {"weight": 8.0}}}
    t = Timeline(2, said)
    t.submit(0, "bulk1", BULK, cost=10)
    t.submit(0, "bulk2", BULK, cost=10)
    assert t.submit(1, "large", INTERACTIVE, tenant="auth:a", cost=20) == ["large queue no_slot"]
    assert t.submit(1, "small", INTERACTIVE, tenant="auth:b", cost=5) == ["small queue behind_queue"]
    t.release(2, "large", ReleaseReason.CLIENT_GONE)

    assert t.of(INTERACTIVE).waiting == 1
    assert [d.action for d in t.last] == ["cancel", "preempt", "queue"]


def test_a_request_whose_slot_goes_with_it_is_no_victim() -> None:
    """One backend of two is drained, with the newer request: the slot of that would not be the preemptor's."""
    t = Timeline(2)
    t.submit(0, "old", BULK)
    t.submit(0, "new", BULK)
    assert t.strand(0.5, "new") == []

    assert t.submit(1, "vip", INTERACTIVE)[0] == "old preempt higher_class vip"
    assert t.submit(1, "vip2", INTERACTIVE) == ["vip2 queue no_slot"]


def test_a_request_whose_slot_stays_after_all_is_a_victim_again() -> None:
    t = Timeline(2)
    t.submit(0, "first", BULK)
    t.submit(0, "second", BULK)
    t.strand(0.5, "first")
    t.strand(0.5, "second")
    assert t.submit(1, "vip", INTERACTIVE) == ["vip queue no_slot"]
    assert t.strand(1.5, "second", stranded=False) == ["second preempt higher_class vip", "vip queue victim_leaving second"]
    t.strand(1.51, "first", stranded=False)

    assert t.submit(1.52, "vip2", INTERACTIVE)[0] == "first preempt higher_class vip2"


def test_the_newest_is_the_victim_also_when_slots_that_were_going_stay() -> None:
    t = Timeline(2)
    t.submit(0, "old", BULK)
    t.submit(0, "new", BULK)
    t.strand(0.5, "old")
    t.strand(0.6, "old", stranded=False)

    assert t.submit(1, "vip", INTERACTIVE)[0] == "new preempt higher_class vip"


def test_a_preemptor_of_a_slot_that_goes_has_another_victim_at_once() -> None:
    t = Timeline(2)
    t.submit(0, "old", BULK)
    t.submit(0, "new", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.strand(1.001, "new") == [
        *("vip queue no_slot", "old preempt higher_class vip", "vip queue victim_leaving old"),
    ]
    assert t.resize(1.002, 1) == []
    assert t.release(1.003, "new", GONE) == []
    assert t.release(1.004, "old", GONE) == ["vip admit victim_gone old"]


def test_a_victim_that_is_tried_again_has_a_slot_that_stays() -> None:
    t = Timeline(1, {"on_preempt": "retry", "promotion_burst": 0})
    t.submit(0, "bulk", BULK)
    t.submit(1, "vip", INTERACTIVE)
    t.strand(1.001, "bulk")
    t.release(1.002, "bulk", GONE)

    assert not t.core._tickets[0].stranded
    assert t.strand(1.003, "bulk") == []


def test_a_request_whose_backend_has_taken_a_slot_along_waits_again_and_the_chat_goes_first() -> None:
    """Two backends of one slot each: the first goes down, and its request must not be the second one at the other."""
    t = Timeline(2, {"on_preempt": "retry", "promotion_burst": 0})
    t.submit(0, "moved", BULK)
    t.submit(0, "stays", BULK)
    t.strand(0.5, "moved")
    t.resize(0.5, 1)
    assert t.submit(0.6, "vip", INTERACTIVE) == ["vip queue no_slot"]

    assert t.leave_backend(0.7, "moved") == [
        *("moved queue lost_backend", "stays preempt higher_class vip", "vip queue victim_leaving stays"),
    ]
    assert t.release(0.71, "stays", GONE) == ["stays queue to_be_retried", "vip admit victim_gone stays"]
    assert t.release(0.9, "vip") == ["stays admit slot_free"]
    assert t.release(1.0, "stays") == ["moved admit slot_free"]
    assert not t.core._tickets[0].stranded


def test_a_request_that_leaves_its_backend_keeps_a_slot_that_counts() -> None:
    t = Timeline(2)
    t.submit(0, "moved", BULK)
    t.strand(0.5, "moved")
    t.resize(0.5, 1)

    assert t.leave_backend(0.7, "moved") == []
    assert t.submit(0.8, "vip", INTERACTIVE)[0] == "moved preempt higher_class vip"


def test_a_request_that_loses_its_backend_after_its_timeout_is_rejected() -> None:
    t = Timeline(1, bulk={"queue_timeout_secs": 5})
    t.submit(0, "bulk", BULK)
    t.resize(6, 0)

    assert t.leave_backend(6, "bulk") == ["bulk queue lost_backend", "bulk reject queue_timeout"]
    assert not t.core._tickets


def test_only_a_request_that_holds_a_slot_can_lose_it_with_its_backend() -> None:
    t = Timeline(1)
    t.submit(0, "held", BULK)
    t.submit(0, "waits", BULK)
    assert t.strand(1, "waits") == []
    assert t.release(2, "held") == ["waits admit slot_free"]

    assert t.strand(2, "held") == []
    assert t.submit(3, "vip", INTERACTIVE)[0] == "waits preempt higher_class vip"


def test_a_preemptor_that_cannot_have_its_slot_and_finds_the_queue_full_is_rejected() -> None:
    t = Timeline(1, interactive={"queue_size": 1})
    t.submit(0, "bulk", BULK)
    t.submit(1, "vip", INTERACTIVE)
    assert t.submit(1.001, "next", INTERACTIVE) == ["next queue no_slot"]
    t.resize(1.002, 0)

    assert t.release(1.003, "bulk", GONE) == ["vip reject queue_full"]
    assert 1 not in t.core._tickets
    assert t.resize(1.004, 1) == ["next admit slot_free"]


def test_a_more_urgent_newcomer_that_takes_what_was_idle_leaves_a_waiter_that_may_preempt_another_victim() -> None:
    """What was about to be free was enough for the waiter beside the slot that was idle, and is not any more."""
    t = Timeline(5)
    t.submit(0, "chat 1", INTERACTIVE)
    t.submit(0, "bulk 1", BULK, sequences=2)
    t.submit(0, "bulk 2", BULK)
    assert t.submit(1, "chat 2", INTERACTIVE, sequences=2)[0] == "bulk 2 preempt higher_class chat 2"
    due = t.next_deadline()
    assert due is not None
    assert t.advance(due) == ["chat 2 queue budget_spent"]  # bulk 2 does not stop
    told = t.submit(due, "urgent", SYSTEM)
    assert told[:2] == ["urgent admit slot_free", "bulk 1 preempt higher_class chat 2"]
    assert t.release(due + 0.01, "bulk 1", GONE)[-1] == "chat 2 admit victim_gone bulk 1"
