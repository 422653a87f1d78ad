"""Requests that make several sequences: how many slots they take, when they enter, and what their tenants are charged."""

from __future__ import annotations

from admission_timeline import BULK, DEFAULT, INTERACTIVE, Timeline

from maitred.admission import ReleaseReason
from maitred.admission.terms.ticket import Ticket
from maitred.admission.waiting.queues import LaneQueue, SequenceNumbers
from maitred.core.units import SECOND

RESERVED = {"interactive": {"reserved_floor": 2}}


def test_a_request_takes_a_slot_for_each_sequence() -> None:
    t = Timeline(8)
    assert t.submit(0, "a", sequences=5) == ["a admit slot_free"]
    assert t.submit(0, "b", sequences=4) == ["b queue no_slot"]
    assert t.release(1, "a") == ["b admit slot_free"]
    assert t.submit(2, "c", sequences=4) == ["c admit slot_free"]


def test_one_that_is_larger_than_the_pool_enters_alone() -> None:
    t = Timeline(8)
    t.submit(0, "a")
    assert t.submit(0, "b", sequences=100) == ["b queue no_slot"]
    assert t.release(1, "a") == ["b admit slot_free"]
    assert t.core.view("m").in_flight == 1
    assert t.submit(2, "c") == ["c queue no_slot"]


def test_one_that_is_larger_than_its_class_may_have_waits_for_all_that_it_needs_or_until_it_starves() -> None:
    t = Timeline(8, **RESERVED, bulk={"starvation_threshold_secs": 5})
    t.submit(0, "chat", INTERACTIVE)
    assert t.submit(0, "b", BULK, sequences=8) == ["b queue no_slot"]
    assert t.release(1, "chat") == ["b admit slot_free"]
    assert t.release(2, "b") == []
    t.submit(3, "chat 2", INTERACTIVE)
    assert t.submit(3, "c", BULK, sequences=8) == ["c queue no_slot"]
    assert [str(d.reason) for d in t.core.advance(9 * SECOND)] == ["starved"]


def test_a_victim_has_as_many_slots_as_its_preemptor_needs() -> None:
    t = Timeline(8)
    t.submit(0, "large", BULK, sequences=6)
    t.submit(0, "small", BULK, sequences=2)
    assert t.submit(1, "chat", INTERACTIVE, sequences=4)[0] == "large preempt higher_class chat"


def test_the_limit_of_a_tenant_counts_slots_and_lets_a_larger_request_enter_alone() -> None:
    t = Timeline(32, {"tenant_policies": {"auth:a": {"max_in_flight": 4}}})
    assert t.submit(0, "a", tenant="auth:a", sequences=3) == ["a admit slot_free"]
    assert t.submit(0, "b", tenant="auth:a", sequences=2) == ["b queue tenant_limit"]
    assert t.submit(0, "other", tenant="auth:b", sequences=9) == ["other admit slot_free"]
    assert t.release(1, "a") == ["b admit slot_free"]
    assert t.submit(2, "c", tenant="auth:a", sequences=9) == ["c queue tenant_limit"]
    assert t.release(3, "b") == ["c admit slot_free"]


def test_a_small_request_of_a_tenant_follows_a_large_one_that_has_left_the_queue() -> None:
    t = Timeline(32, {"tenant_policies": {"auth:a": {"max_in_flight": 4}}})
    t.submit(0, "a", tenant="auth:a", sequences=3)
    t.submit(0, "large", tenant="auth:a", sequences=4)
    t.submit(0, "small", tenant="auth:a")
    assert t.release(1, "large", ReleaseReason.CLIENT_GONE) == ["large cancel client_gone", "small admit slot_free"]


def test_a_newcomer_that_is_next_by_its_weight_enters_where_the_one_that_was_next_is_too_large() -> None:
    t = Timeline(8, {"tenant_policies": {"auth:a": {"weight": 1}, "auth:b": {"weight": 1}}})
    t.submit(0, "holder", tenant="auth:b", sequences=6)
    assert t.submit(0, "a", tenant="auth:a", cost=100, sequences=2) == ["a admit slot_free"]
    t.submit(0, "a 2", tenant="auth:a", cost=100, sequences=2)
    t.submit(0, "a 3", tenant="auth:a", sequences=8)
    assert t.release(1, "a") == ["a 2 admit slot_free"]
    assert t.release(2, "a 2") == []
    assert t.submit(3, "b", tenant="auth:b", sequences=2) == ["b admit slot_free"]


def served(queue: LaneQueue, count: int) -> list[Ticket]:
    tickets = []
    for _ in range(count):
        head = queue.peek()
        assert head is not None
        queue.serve(head)
        tickets.append(head)
    return tickets


def busy_queue(costs: dict[str, int]) -> LaneQueue:
    queue = LaneQueue(SequenceNumbers(), {})
    for number in range(100):
        for tenant, cost in costs.items():
            queue.push(Ticket(number * len(costs) + len(tenant), "m", DEFAULT, tenant, cost))
    return queue


def test_what_a_request_has_had_is_charged_in_place_of_what_was_expected() -> None:
    """Both have answers of 100 tokens; one says 1, the other 10,000."""
    queue = busy_queue({"a": 1, "bb": 10_000})
    shares = {"a": 0, "bb": 0}
    for _ in range(60):
        ticket = served(queue, 1)[0]
        shares[ticket.tenant] += 1
        queue.settle(ticket, 100)
    assert shares == {"a": 30, "bb": 30}


def test_a_tenant_that_waits_no_more_owes_what_its_last_request_had() -> None:
    queue = busy_queue({"a": 100})
    queue.push(Ticket(1_000, "m", DEFAULT, "bb", 1))
    last = next(ticket for ticket in served(queue, 2) if ticket.tenant == "bb")
    queue.settle(last, 1_000)
    queue.push(Ticket(1_001, "m", DEFAULT, "bb", 1))
    assert [ticket.tenant for ticket in served(queue, 9)].count("bb") == 0


def test_what_was_charged_before_the_lane_was_idle_is_no_debt() -> None:
    queue = LaneQueue(SequenceNumbers(), {})
    queue.push(Ticket(1, "m", DEFAULT, "a", 10))
    ticket = served(queue, 1)[0]
    for number, tenant in enumerate(("a", "b", "a", "b"), 2):
        queue.push(Ticket(number, "m", DEFAULT, tenant, 10))
    queue.settle(ticket, 1_000)
    assert [each.tenant for each in served(queue, 4)] == ["a", "b", "a", "b"]
