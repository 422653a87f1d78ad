"""What was granted before a gateway stood still, a leader was lost, or a store forgot: nothing of it is used twice."""

from __future__ import annotations

from link_pair import Pair
from test_gone_gateways import reading

from maitred.core.units import SECOND, from_seconds
from maitred.scheduler.link.failure_kinds import FailureKind
from maitred.scheduler.link.scheduler_end import SchedulerMode


def may_send(p: Pair, name: str, number: int) -> bool:
    return p.gateways[name].may_send(number, p.local(name))


def stand_still(p: Pair, name: str, until: float) -> None:
    """Let a gateway do nothing until then, and let the scheduler lose it."""
    gateway, connection = p.gateways.pop(name), p.connections.pop(name)
    p.at(until)
    p.end.lost(connection, p.now)
    gateway.lost()
    p.gateways[name] = gateway


def test_a_request_is_not_sent_on_a_grant_that_is_older_than_the_lease() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    assert may_send(p, "a", 0)
    p.submit("b", 0)
    stand_still(p, "a", 4)
    assert reading(p, 0, 0) == ["b 0 granted 0"], "nothing of a's is at the engine, and its lease is over"

    assert not may_send(p, "a", 0)
    assert p.connect("a") == ["a opened 1"]
    assert not may_send(p, "a", 0), "it has a lease again, and no slot"
    p.gateways["a"].leave_backend(0, "withheld", FailureKind.WITHHELD)
    assert p.exchange() == ["a 0 waits lost_backend"]
    assert p.release("b", 0) == ["a 0 granted 0"], "the same backend may have it: it has not failed it"
    assert may_send(p, "a", 0)


def test_a_grant_outlives_a_connection_that_is_back_within_the_lease() -> None:
    p = Pair(1, gateways=("a",))
    p.submit("a", 0)
    p.lose("a")
    p.at(1)
    assert may_send(p, "a", 0), "its slot is held for it"
    assert p.connect("a") == ["a opened 1"]
    assert may_send(p, "a", 0)
    p.at(10)
    assert may_send(p, "a", 0), "each beat that is answered prolongs the lease"


def test_a_gateway_without_a_scheduler_sends_what_it_has_granted_by_itself() -> None:
    p = Pair(1, gateways=("a",))
    p.lose("a")
    p.submit("a", 0)
    assert p.gateways["a"].grant_by_itself(0, 0, p.local("a"))
    p.now += 10 * SECOND
    assert may_send(p, "a", 0)


def test_requests_lose_no_age_while_their_gateway_waits_to_be_named() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    p.lose("b")
    p.gateways["b"].submit(0, p.gateways["a"]._requests[0].terms, p.local("b"))
    p.at(0.1)
    p.end.door.named = {("a", "1")}
    p.connect("b")
    p.at(0.2)
    p.submit("a", 1)
    p.at(0.3)
    p.submit("b", 1)
    p.at(0.4)
    p.submit("a", 2)
    p.end.name_gateways([("a", "1"), ("b", "1")], p.now)
    assert "b opened 1" in p.exchange()
    order, (name, number) = [], ("a", 0)
    while told := p.release(name, number):
        name, number = told[0].split()[0], int(told[0].split()[1])
        order.append((name, number))
    assert order == [("b", 0), ("a", 1), ("b", 1), ("a", 2)]


def test_slots_of_a_model_that_no_backend_has_told_of_yet_are_held() -> None:
    p = Pair(2, gateways=("a",))
    p.submit("a", 0)
    p.first_byte("a", 0)
    p.submit("a", 1)
    p.submit("a", 2)
    p.lose("a")
    p.end = p.new_scheduler()
    p.end.lead(2, from_seconds(1_000), [("a", "1")], {}, {}, p.now)
    assert p.connect("a") == ["a opened 2 learning"], "nobody is told that there is no such model"
    assert p.held() == {"a": 2}
    p.end.set_backends({0: "m"})
    p.end.set_slots("m", 2, p.now)
    assert p.exchange() == []
    assert p.release("a", 0) == ["a 2 granted 0"]


def test_a_backend_that_is_found_late_is_asked_what_unheard_gateways_hold() -> None:
    p = Pair(2, gateways=("a",))
    p.lose("a")
    p.end = p.new_scheduler()
    p.end.lead(2, from_seconds(1_000), [("a", "1"), ("b", "1")], {}, {}, p.now)
    p.end.set_backends({0: "m"})
    p.end.set_slots("m", 2, p.now)
    p.connect("a")
    p.at(3.1)
    assert p.submit("a", 0) == ["a 0 waits no_capacity"], "b may have both slots"
    assert reading(p, 0, 1) == ["a 0 granted 0"]
    assert p.submit("a", 1) == ["a 1 waits no_slot"], "the other slot is b's"


def test_the_leader_of_a_first_term_grants_nothing_while_another_one_may_lead() -> None:
    p = Pair(2, gateways=("a", "b"))
    p.submit("a", 0)
    p.first_byte("a", 0)
    p.submit("a", 1)
    p.lose("a", "b")
    p.end = p.new_scheduler()
    p.end.lead(2, from_seconds(1_000), [("", "")], {"m": 2}, {0: "m"}, p.now, alone_from=2 * SECOND)
    p.connect("a")
    p.at(1)
    p.submit("a", 2)
    assert p.release("a", 0) == [], "the leader before may just have granted that slot to a gateway of its own"
    assert p.at(1.9) == []
    assert p.at(2.1) == ["a 2 granted 0"]
    assert p.end.mode is SchedulerMode.LEARNING


def test_a_lease_that_is_longer_than_that_of_gateways_is_waited_for() -> None:
    p = Pair(1, gateways=("a",))
    p.lose("a")
    p.end = p.new_scheduler()
    p.end.lead(2, from_seconds(1_000), [("", "")], {"m": 1}, {}, p.now, alone_from=9 * SECOND)
    p.connect("a")
    p.submit("a", 0)
    assert p.at(8.9) == []
    assert p.at(9.1) == ["a 0 granted 0"]
