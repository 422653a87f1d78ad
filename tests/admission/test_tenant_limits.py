"""Tenants: how many requests of one may be in flight or wait, and how tenants share a class."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, Timeline, classes

from maitred.admission import Admission, ReleaseReason
from maitred.core.decisions import Decision
from maitred.core.request import Request

LARGE = {"queue_size": 1000, "queue_timeout_secs": 1000}


def policies(**said: dict[str, Any]) -> dict[str, Any]:
    return {"tenant_policies": {f"auth:{name}": policy for name, policy in said.items()}}


def test_a_tenant_at_its_limit_waits_and_others_pass_it() -> None:
    t = Timeline(3, policies(a={"max_in_flight": 1}))
    t.submit(0, "a0", tenant="auth:a")

    assert t.submit(0, "a1", tenant="auth:a") == ["a1 queue tenant_limit"]
    assert t.submit(0, "b0", tenant="auth:b") == ["b0 admit slot_free"]
    assert t.submit(0, "a2", tenant="auth:a") == ["a2 queue tenant_limit"]
    assert t.release(1, "b0") == []
    assert t.release(2, "a0") == ["a1 admit slot_free"]


def test_first_come_first_served_among_tenants_below_their_limits() -> None:
    t = Timeline(1, policies(a={"max_in_flight": 1}))
    t.submit(0, "held", tenant="auth:b")
    t.submit(0, "a0", tenant="auth:a")
    t.submit(0, "b0", tenant="auth:b")
    t.submit(0, "a1", tenant="auth:a")
    t.submit(0, "b1", tenant="auth:b")
    t.resize(1, 2)  # a0
    assert t.resize(2, 4) == ["b0 admit slot_free", "b1 admit slot_free"]
    assert t.release(3, "a0") == ["a1 admit slot_free"]


def test_a_limit_holds_over_all_models() -> None:
    t = Timeline(1, policies(a={"max_in_flight": 1}))
    t.resize(0, 1, pool="other")
    t.submit(0, "a0", tenant="auth:a")

    assert t.submit(0, "a1", tenant="auth:a", pool="other") == ["a1 queue tenant_limit"]
    assert t.release(1, "a0") == ["a1 admit slot_free"]


def test_a_limit_holds_over_the_models_that_are_left() -> None:
    t = Timeline(1, policies(a={"max_in_flight": 1}))
    for pool in ("other", "third"):
        t.resize(0, 1, pool=pool)
    t.core.forget("third", 0)
    t.submit(0, "a0", tenant="auth:a")
    t.submit(0, "a1", tenant="auth:a", pool="other")

    assert t.release(1, "a0") == ["a1 admit slot_free"]


def test_a_tenant_at_its_limit_preempts_no_request() -> None:
    t = Timeline(2, policies(a={"max_in_flight": 1}))
    t.submit(0, "a0", INTERACTIVE, tenant="auth:a")
    t.submit(0, "b", BULK)

    assert t.submit(0, "a1", INTERACTIVE, tenant="auth:a") == ["a1 queue tenant_limit"]


def test_a_preemptor_whose_tenant_has_a_lower_limit_since_a_reload_is_passed_over() -> None:
    t = Timeline(1, policies(a={"max_in_flight": 2}))
    t.resize(0, 1, pool="other")
    t.submit(0, "victim", BULK)
    t.submit(0.1, "next", BULK)
    t.submit(1, "a1", INTERACTIVE, tenant="auth:a", pool="other")
    assert t.submit(1, "a0", INTERACTIVE, tenant="auth:a")[-1] == "a0 queue victim_leaving victim"
    t.reconfigure(1.001, policies(a={"max_in_flight": 1}))

    assert t.release(1.01, "victim", ReleaseReason.SLOT_PREEMPTED) == ["a0 queue tenant_limit", "next admit slot_free"]
    assert t.release(1.02, "next") == []
    assert t.release(1.03, "a1") == ["a0 admit slot_free"]


def test_a_preemptor_whose_tenant_is_at_its_limit_holds_no_newcomer_back() -> None:
    t = Timeline(1, policies(a={"max_in_flight": 2}))
    t.resize(0, 1, pool="other")
    t.submit(0, "victim", BULK)
    t.submit(1, "a1", INTERACTIVE, tenant="auth:a", pool="other")
    t.submit(1, "a0", INTERACTIVE, tenant="auth:a")
    t.reconfigure(1, policies(a={"max_in_flight": 1}))
    assert t.resize(1, 2) == []

    assert t.submit(1, "b", DEFAULT) == ["b admit slot_free"]


def test_only_so_many_of_a_tenant_may_wait() -> None:
    t = Timeline(1, policies(a={"max_queued": 1}))
    t.submit(0, "held")
    t.submit(0, "a0", tenant="auth:a")

    assert t.submit(0, "a1", tenant="auth:a") == ["a1 reject tenant_queue_full"]
    assert t.submit(0, "b0", tenant="auth:b") == ["b0 queue behind_queue"]
    assert t.release(1, "held") == ["a0 admit slot_free"]
    assert t.submit(1, "a2", tenant="auth:a") == ["a2 queue behind_queue"]


def serve(t: Timeline, running: str, count: int) -> str:
    """Return the first letters of the requests that get one slot, which is handed on `count` times."""
    order = ""
    for n in range(count):
        (line,) = t.release(10 + n, running)
        running = line.split()[0]
        order += running[0]
    return order


def flood(t: Timeline, **many: int) -> None:
    t.submit(0, "held")
    for name, count in many.items():
        for n in range(count):
            t.submit(1, f"{name}{n}", tenant=f"auth:{name}")


def test_without_weights_it_is_first_come_first_served() -> None:
    t = Timeline(1, default=LARGE)
    flood(t, a=4, b=4)

    assert serve(t, "held", 8) == "aaaabbbb"


def test_weights_share_a_class_in_proportion() -> None:
    """a has weight 2, b none, which is 1: two to one, in whatever order they came."""
    t = Timeline(1, policies(a={"weight": 2}), default=LARGE)
    flood(t, b=20, a=20)

    order = serve(t, "held", 18)
    assert (order.count("a"), order.count("b")) == (12, 6)


def test_a_flood_of_one_tenant_delays_another_by_one_request() -> None:
    t = Timeline(1, policies(a={"weight": 1}), default=LARGE)
    flood(t, a=100)
    t.release(2, "held")
    t.submit(3, "b0", tenant="auth:b")

    assert serve(t, "a0", 2) in ("ab", "ba")


def test_shares_count_what_requests_cost() -> None:
    """One of b's requests costs as much as ten of a's."""
    t = Timeline(1, policies(a={"weight": 1}), default=LARGE)
    t.submit(0, "held")
    for n in range(20):
        t.submit(1, f"a{n}", tenant="auth:a", cost=10)
    for n in range(20):
        t.submit(1, f"b{n}", tenant="auth:b", cost=100)

    order = serve(t, "held", 11)
    assert (order.count("a"), order.count("b")) in ((10, 1), (9, 2))


def test_idleness_saves_nothing_up() -> None:
    """b comes back after a has been served 50 times; it does not get 50 in a row."""
    t = Timeline(1, policies(a={"weight": 1}), default=LARGE)
    flood(t, a=80)
    running = "held"
    for n in range(50):
        (line,) = t.release(2 + n / 100, running)
        running = line.split()[0]
    for n in range(20):
        t.submit(5, f"b{n}", tenant="auth:b")

    order = serve(t, running, 10)
    assert 4 <= order.count("b") <= 6


def test_a_line_that_empties_and_refills_owes_what_it_had() -> None:
    """b sends one at a time, and is not served twice before a is served once."""
    t = Timeline(1, policies(a={"weight": 1}), default=LARGE)
    flood(t, a=10)
    running, order = "held", ""
    for n in range(8):
        t.submit(2 + n, f"b{n}", tenant="auth:b")
        (line,) = t.release(2 + n, running)
        running = line.split()[0]
        order += running[0]
    assert "bbb" not in order
    assert order.count("a") >= 3


def test_a_higher_class_is_no_tenants_business() -> None:
    t = Timeline(1, policies(a={"weight": 100}), interactive={"can_preempt": False})
    t.submit(0, "held")
    t.submit(0, "a0", DEFAULT, tenant="auth:a")
    t.submit(1, "i", INTERACTIVE, tenant="auth:b")

    assert t.release(2, "held") == ["i admit slot_free"]


def test_tokens_are_what_slots_count() -> None:
    """2 slots of 100 tokens. A prompt of 150 leaves room for one of 50; and none passes one that waits for more."""
    t = Timeline(2, {"slot_cost": "tokens", "slot_tokens": 100})

    assert t.submit(0, "long", cost=150) == ["long admit slot_free"]
    assert t.submit(0, "short", cost=50) == ["short admit slot_free"]
    assert t.submit(0, "large", cost=120) == ["large queue no_slot"]
    assert t.release(1, "short") == []
    assert t.submit(1, "tiny", cost=1) == ["tiny queue behind_queue"]
    assert t.release(2, "long") == ["large admit slot_free", "tiny admit slot_free"]


def test_when_a_request_that_needs_much_leaves_the_queue_others_find_room() -> None:
    t = Timeline(2, {"slot_cost": "tokens", "slot_tokens": 100})
    t.submit(0, "runs", cost=150)
    t.submit(0, "large", cost=120)
    t.submit(0, "tiny", cost=1)

    assert t.release(1, "large", ReleaseReason.CLIENT_GONE) == ["large cancel client_gone", "tiny admit slot_free"]


def test_a_newcomer_that_its_weight_puts_before_a_large_request_does_not_wait_for_it() -> None:
    """Tenant a has been served 20 tokens, and its next request needs all 100. That of b is next, and it fits."""
    t = Timeline(1, {"slot_cost": "tokens", "slot_tokens": 100, **policies(a={"weight": 1}, b={"weight": 1})})
    t.submit(0, "held", cost=90)
    t.submit(0, "a0", tenant="auth:a", cost=20)
    t.submit(0, "a1", tenant="auth:a", cost=100)
    assert t.release(1, "held") == ["a0 admit slot_free"]

    assert t.submit(2, "b0", tenant="auth:b", cost=50) == ["b0 admit slot_free"]
    assert t.submit(2, "b1", tenant="auth:b", cost=10) == ["b1 queue behind_queue"]


def test_one_larger_than_all_there_is_has_all_there_is() -> None:
    t = Timeline(2, {"slot_cost": "tokens", "slot_tokens": 100}, interactive={"reserved_floor": 1, "can_preempt": False})

    assert t.submit(0, "huge", cost=5000) == ["huge admit slot_free"]  # the 100 tokens that bulk can reach
    assert t.submit(0, "i", INTERACTIVE, cost=100) == ["i admit slot_free"]
    assert t.submit(0, "d", cost=1) == ["d queue no_slot"]


def test_a_victim_whose_tokens_do_not_suffice_is_left_alone() -> None:
    t = Timeline(2, {"slot_cost": "tokens", "slot_tokens": 100})
    t.submit(0, "large", DEFAULT, cost=190)
    t.submit(0, "small", BULK, cost=10)

    assert t.submit(1, "vip", INTERACTIVE, cost=50)[0] == "large preempt higher_class vip"


TOKENS = {"slot_cost": "tokens", "slot_tokens": 100}


def test_a_large_waiting_request_blocks_no_other_once_its_tenant_is_at_its_limit_in_another_model() -> None:
    t = Timeline(2, {**TOKENS, **policies(a={"max_in_flight": 1})})
    t.resize(0, 2, pool="other")
    t.submit(0, "runs", cost=150)
    t.submit(0, "large", tenant="auth:a", cost=120)
    assert t.submit(0, "small", cost=10) == ["small queue behind_queue"]

    assert t.submit(1, "a1", tenant="auth:a", pool="other") == ["small admit slot_free", "a1 admit slot_free"]


def test_and_once_it_has_reached_it_in_the_same_model() -> None:
    t = Timeline(2, {**TOKENS, **policies(a={"max_in_flight": 1})})
    t.submit(0, "runs", cost=150)
    t.submit(0, "large", BULK, tenant="auth:a", cost=120)
    t.submit(0, "small", BULK, cost=10)

    assert t.submit(1, "a1", DEFAULT, tenant="auth:a", cost=1) == ["small admit slot_free", "a1 admit slot_free"]


def test_a_tenant_preempts_no_more_than_it_may_have() -> None:
    """Two at once, one slot allowed: the second of them preempts no request, because it could not have the slot."""
    t = Timeline(2, policies(a={"max_in_flight": 1}))
    t.submit(0, "b0", BULK)
    t.submit(0, "b1", BULK)

    assert t.submit(1, "a0", INTERACTIVE, tenant="auth:a")[0] == "b1 preempt higher_class a0"
    assert t.submit(1, "a1", INTERACTIVE, tenant="auth:a") == ["a1 queue tenant_limit"]
    assert t.release(1.01, "b1", ReleaseReason.SLOT_PREEMPTED) == ["a0 admit victim_gone b1"]
    assert t.of(BULK).preempted_by[INTERACTIVE] == 1
    assert t.submit(2, "other", INTERACTIVE, tenant="auth:o")[0] == "b0 preempt higher_class other"


def test_a_preemptor_whose_tenant_is_at_its_limit_does_not_hide_the_next_preemptor() -> None:
    t = Timeline(2, policies(a={"max_in_flight": 2}))
    t.resize(0, 1, pool="other")
    t.submit(0, "b0", BULK)
    t.submit(0, "b1", BULK)
    t.submit(1, "a1", INTERACTIVE, tenant="auth:a", pool="other")
    t.submit(1, "a0", INTERACTIVE, tenant="auth:a")
    assert t.submit(1, "c0", INTERACTIVE, tenant="auth:c")[-1] == "c0 queue victim_leaving b0"
    t.reconfigure(1, policies(a={"max_in_flight": 1}))

    assert t.release(1.01, "b1", ReleaseReason.SLOT_PREEMPTED) == ["a0 queue tenant_limit", "c0 admit slot_free"]


def test_the_victim_is_the_newest_of_the_lowest_class_whose_tokens_suffice() -> None:
    t = Timeline(3, TOKENS)
    t.submit(0, "d", DEFAULT, cost=100)
    t.submit(0, "b_large", BULK, cost=100)
    t.submit(0, "b_enough", BULK, cost=60)
    t.submit(0, "b_small", BULK, cost=40)

    assert t.submit(1, "vip", INTERACTIVE, cost=50)[0] == "b_enough preempt higher_class vip"
    assert t.submit(1, "vip2", INTERACTIVE, cost=45)[0] == "b_large preempt higher_class vip2"


def test_a_reload_that_leaves_the_weights_as_they_are_lets_no_tenant_begin_anew() -> None:
    """b has just had as much as twenty requests of a."""
    said = policies(a={"weight": 1})
    t = Timeline(1, said, default=LARGE)
    t.submit(0, "held")
    t.submit(1, "b0", tenant="auth:b", cost=200)
    for n in range(30):
        t.submit(1, f"a{n}", tenant="auth:a", cost=10)
        t.submit(1, f"b{n + 1}", tenant="auth:b", cost=10)
    assert serve(t, "held", 3) == "baa"

    t.reconfigure(20, {**said, "preemption_budget_ms": 60}, default=LARGE)
    assert serve(t, "a1", 15) == "a" * 15
    t.reconfigure(30, policies(a={"weight": 2}), default=LARGE)
    assert serve(t, "a16", 3).count("b") == 1, "with other weights all begin anew"


def flow_of_requests(seed: int, reloads: bool) -> list[str]:
    """Return the decisions on requests of three tenants with weights; in between, requests end with more or less than expected,
    lanes run empty, and the same configuration is read again, if it is."""
    dice, decisions = Random(seed), list[str]()
    config = classes(policies(a={"weight": 2}, b={"weight": 3, "max_in_flight": 2}), default=LARGE)
    core = Admission(config, {"m": 2})
    running: list[int] = []
    for number in range(150):
        made: Sequence[Decision] = ()
        if dice.random() < 0.55:
            request = Request(id=number, arrival=number, prompt_tokens=1, model="m", tenant=f"auth:{dice.choice('abc')}")
            made = core.submit(core.make_ticket(request, dice.randint(0, 50)), number)
        elif running:
            made = core.release(running.pop(dice.randrange(len(running))), ReleaseReason.DRAINED, number, dice.randint(0, 80))
        if reloads and number % 7 == 0:
            assert core.reconfigure(config, number) == []
        decisions += [f"{d.subject} {d.action} {d.reason}" for d in made]
        running += [d.subject for d in made if d.action == "admit"]
        core.check()
    return decisions


@pytest.mark.parametrize("seed", range(20))
def test_reading_the_same_configuration_again_changes_no_decision(seed: int) -> None:
    assert flow_of_requests(seed, reloads=True) == flow_of_requests(seed, reloads=False)
