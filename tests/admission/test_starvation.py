"""Starvation: requests that have waited too long may go first, within bounds."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import ReleaseReason
from maitred.admission.classes.priority import PromotionBudget

SMG = {"flavour": "smg"}
STARVING = {"starvation_threshold_secs": 1}
PATIENT: dict[str, Any] = {"queue_size": 100, "queue_timeout_secs": 1000, "can_preempt": False}


def test_s18_a_reserved_slot_that_idles_goes_to_a_starving_request() -> None:
    t = Timeline(1, SMG, interactive={"reserved_floor": 1}, bulk=STARVING)

    assert t.submit(0, "bulk", BULK) == ["bulk queue held_by_reservation"]
    assert t.next_deadline() == 1.000001  # strictly older than the threshold
    assert t.advance(1.0) == []
    assert t.advance(1.1) == ["bulk admit starved"]
    assert t.last[0].at == 1_000_001
    assert t.of(BULK).promoted == 1


def test_s19_the_starved_go_before_younger_ones_of_higher_classes_bulk_first() -> None:
    t = Timeline(1, interactive={"can_preempt": False}, bulk=STARVING, default=STARVING)
    t.submit(0, "held")
    t.submit(0.02, "default", DEFAULT)
    t.submit(0.07, "bulk", BULK)
    for n, at in enumerate((0.1, 0.15, 0.2)):
        t.submit(at, f"i{n}", INTERACTIVE)

    assert t.release(1.45, "held") == ["bulk admit starved"]
    assert t.release(1.5, "bulk") == ["default admit starved"]
    assert t.release(1.55, "default") == ["i0 admit slot_free"]
    assert t.release(1.6, "i0") == ["i1 admit slot_free"]


def test_s45_an_old_backlog_does_not_turn_the_order_upside_down() -> None:
    """Ten bulk requests have starved. Two may go in a row, and then one in four."""
    t = Timeline(1, interactive=PATIENT, bulk={**PATIENT, **STARVING})
    t.submit(0, "held")
    for n in range(10):
        t.submit(0, f"b{n}", BULK)
    for n in range(10):
        t.submit(0.1, f"i{n}", INTERACTIVE)

    order, running = [], "held"
    for step in range(16):
        (line,) = t.release(10 + step, running)
        running, _, reason = line.split()
        order.append(f"{running}{'!' if reason == 'starved' else ''}")

    assert order == ["b0!", "b1!", "i0", "i1", "b2!", "i2", "i3", "i4", "b3!", "i5", "i6", "i7", "b4!", "i8", "i9", "b5"]


def test_s45_under_smg_it_does() -> None:
    t = Timeline(1, SMG, interactive={**PATIENT, "reserved_per_slot": 0}, bulk={**PATIENT, **STARVING})
    t.submit(0, "held")
    for n in range(6):
        t.submit(0, f"b{n}", BULK)
    t.submit(0.1, "i", INTERACTIVE)

    running = "held"
    for n in range(6):
        assert t.release(10 + n, running) == [f"b{n} admit starved"]
        running = f"b{n}"
    assert t.release(20, running) == ["i admit slot_free"]


def test_s46_a_promoted_request_is_not_preempted() -> None:
    t = Timeline(1, SMG, interactive={"reserved_floor": 1}, bulk=STARVING)
    t.submit(0, "b", BULK)
    t.advance(1.1)

    assert t.submit(1.2, "i", INTERACTIVE) == ["i queue no_slot"]
    assert t.release(4, "b") == ["i admit slot_free"]


def test_who_is_next_in_any_case_is_not_promoted_and_can_be_preempted() -> None:
    t = Timeline(1, bulk=STARVING)
    t.submit(0, "held", BULK)
    t.first_byte(0, "held")
    t.submit(0, "b", BULK)

    assert t.release(5, "held") == ["b admit slot_free"]
    assert t.submit(6, "i", INTERACTIVE)[0] == "b preempt higher_class i"


def test_under_smg_it_counts_as_promoted_and_cannot() -> None:
    t = Timeline(1, SMG, interactive={"can_preempt": True}, bulk=STARVING)
    t.submit(0, "held", BULK)
    t.first_byte(0, "held")
    t.submit(0, "b", BULK)

    assert t.release(5, "held") == ["b admit starved"]
    assert t.submit(6, "i", INTERACTIVE) == ["i queue no_slot"]


def test_it_starves_when_it_is_older_than_the_threshold_and_not_before() -> None:
    t = Timeline(2, interactive={"can_preempt": False}, bulk={"starvation_threshold_secs": 2})
    t.submit(0, "held0")
    t.submit(0, "held1")
    t.submit(0, "b", BULK)
    t.submit(1, "i0", INTERACTIVE)
    t.submit(1, "i1", INTERACTIVE)

    assert t.release(2, "held0") == ["i0 admit slot_free"]
    assert t.release(2.000001, "held1") == ["b admit starved"]


def test_a_starving_request_that_needs_more_than_there_is_is_not_promoted() -> None:
    t = Timeline(
        2,
        {"slot_cost": "tokens", "slot_tokens": 100},
        interactive={"reserved_floor": 1, "can_preempt": False},
        bulk=STARVING,
    )
    t.submit(0, "i", INTERACTIVE, cost=150)
    t.submit(0, "large", BULK, cost=80)
    assert t.advance(5) == []
    assert t.release(6, "i") == ["large admit slot_free"]


def test_system_is_never_promoted_it_is_first_anyway() -> None:
    t = Timeline(1, interactive={"can_preempt": False, **STARVING}, system={"can_preempt": False, **STARVING})
    t.submit(0, "held")
    t.submit(0, "s", SYSTEM)
    t.submit(5, "i", INTERACTIVE)

    assert t.release(5.5, "held") == ["s admit slot_free"]


def test_a_full_pool_promotes_no_request_and_needs_no_timer_for_it() -> None:
    t = Timeline(1, bulk={"queue_timeout_secs": 20, **STARVING})
    t.submit(0, "held")
    t.submit(0, "b", BULK)

    assert t.advance(2) == []
    assert t.next_deadline() == 20


def test_a_threshold_that_passes_while_slots_idle_is_noticed() -> None:
    """The reserved slot becomes idle only after the waiter came."""
    t = Timeline(2, interactive={"reserved_floor": 1, "can_preempt": False}, bulk=STARVING)
    t.submit(0, "i", INTERACTIVE)
    t.submit(0, "b0", BULK)
    t.submit(0.5, "b1", BULK)
    assert t.release(0.7, "i") == []

    assert t.next_deadline() == 1.500001
    assert t.advance(2) == ["b1 admit starved"]


def test_ten_admissions_earn_one_promotion_at_a_share_of_a_tenth() -> None:
    account = PromotionBudget(0.1, 1)
    account.count_promotion()
    for _ in range(9):
        account.count_admission()
    assert not account.can_promote

    account.count_admission()
    assert account.can_promote


def test_exactly_at_the_threshold_it_has_not_starved_though_another_has() -> None:
    t = Timeline(1, interactive=PATIENT, default={"starvation_threshold_secs": 3}, bulk=STARVING)
    t.submit(0, "held")
    t.submit(0, "b", BULK)
    t.submit(2, "d", DEFAULT)
    t.submit(4, "i", INTERACTIVE)

    assert t.release(5, "held") == ["b admit starved"]
    assert t.release(5, "b") == ["i admit slot_free"]


FULL = {"interactive": {**PATIENT, "can_preempt": False}, "bulk": {**PATIENT, **STARVING}}


def test_what_becomes_idle_is_kept_for_a_starving_request_that_needs_more() -> None:
    """The chats that come and those that wait get no slot before it, though one is free for them."""
    t = Timeline(4, **FULL)
    for name in ("c0", "c1", "c2", "c3"):
        t.submit(0, name, INTERACTIVE)
    t.submit(0, "large", BULK, sequences=3)
    t.submit(0.5, "c4", INTERACTIVE)
    assert t.release(0.9, "c0") == ["c4 admit slot_free"]
    assert t.release(2, "c1") == []
    assert t.submit(2.1, "c5", INTERACTIVE) == ["c5 queue behind_queue"]
    assert t.release(2.2, "c2") == []
    assert t.release(2.3, "c3") == ["large admit starved"]


def test_what_was_kept_goes_to_others_when_the_starving_request_leaves() -> None:
    t = Timeline(2, **FULL)
    t.submit(0, "c0", INTERACTIVE)
    t.submit(0, "c1", INTERACTIVE)
    t.submit(0, "large", BULK, sequences=2)
    t.submit(1.5, "c2", INTERACTIVE)
    assert t.release(2, "c0") == []
    assert t.release(3, "large", ReleaseReason.CLIENT_GONE) == ["large cancel client_gone", "c2 admit slot_free"]


def test_higher_classes_keep_what_they_reserve_meanwhile() -> None:
    t = Timeline(4, interactive={**FULL["interactive"], "reserved_floor": 1}, bulk=FULL["bulk"])
    for name in ("b0", "b1", "b2"):
        t.submit(0, name, BULK)
    t.submit(0, "large", BULK, sequences=3)
    assert t.submit(2, "c0", INTERACTIVE) == ["c0 admit slot_free"]
    assert t.release(2.1, "b0") == []
    assert t.submit(2.2, "c1", INTERACTIVE) == ["c1 queue behind_queue"]
    assert t.release(2.3, "c0") == ["c1 admit slot_free"]
    assert t.release(2.4, "b1") == []
    assert t.release(2.5, "b2") == ["large admit slot_free"]


def test_nothing_is_kept_without_a_promotion_that_is_saved_up() -> None:
    t = Timeline(2, {"promotion_burst": 0}, **FULL)
    t.submit(0, "c0", INTERACTIVE)
    t.submit(0, "c1", INTERACTIVE)
    t.submit(0, "large", BULK, sequences=2)
    t.submit(0, "c2", INTERACTIVE)
    assert t.release(5, "c0") == ["c2 admit slot_free"]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("slot_cost", ["requests", "tokens"])
def test_no_stream_of_small_requests_keeps_a_large_one_waiting(seed: int, slot_cost: str) -> None:
    """Chats come for more slots than there are, and each runs for a second at most: so a large bulk request has its slots a
    second after it starves."""
    random = Random(f"{seed} {slot_cost}")
    size = random.randint(2, 8)
    sizes = {"sequences": size} if slot_cost == "requests" else {"cost": size * 100}
    patient = {**PATIENT, "queue_size": 10_000, "queue_timeout_secs": 600, "can_preempt": random.random() < 0.5}
    floor = random.choice((0, 1, 3))
    t = Timeline(
        8,
        {"slot_cost": slot_cost, "slot_tokens": 100, "reserve": random.choice(("fixed", "adaptive"))},
        interactive={**patient, "reserved_floor": floor},
        default={**patient, "can_preempt": False},
        bulk={**patient, **STARVING, "can_preempt": False},
    )
    ends: list[tuple[float, str]] = []
    came, got = dict[str, float](), dict[str, float]()

    def note(at: float, lines: list[str]) -> None:
        for name, action in (line.split()[:2] for line in lines):
            if action == "admit":
                got[name] = at
                heappush(ends, (at + random.uniform(0.1, 1.0), name))

    for step in range(200):
        at = step / 20
        while ends and ends[0][0] <= at:
            end, name = heappop(ends)
            note(end, t.release(end, name))
        name, is_large = f"r{step}", step in (30, 90)
        came[name] = at
        k = BULK if is_large else random.choice((INTERACTIVE, INTERACTIVE, DEFAULT))
        note(at, t.submit(at, name, k, **(sizes if is_large else {"cost": random.randint(1, 100)})))
    waits = {name: got[name] - came[name] for name in ("r30", "r90")}
    assert max(waits.values()) <= 1 + 1 + 0.05, waits
