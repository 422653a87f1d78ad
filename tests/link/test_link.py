"""The link between a scheduler and its gateways: who is asked what, and what comes of it."""

from __future__ import annotations

from link_pair import BULK, DEFAULT, DRAINED, INTERACTIVE, SYSTEM, Pair, nonce

from maitred.core.units import SECOND
from maitred.scheduler.link.gateway_end import EndState
from maitred.scheduler.link.terms import RequestTerms

TERMS = RequestTerms("m", INTERACTIVE, "", 1, 1)


def test_a_request_is_granted_and_its_slot_goes_to_the_next_one_of_another_gateway() -> None:
    p = Pair(1, gateways=("a", "b"))

    assert p.submit("a", 0) == ["a 0 granted 0"]
    assert p.submit("b", 0) == ["b 0 waits no_slot"]
    assert p.first_byte("a", 0)
    assert p.release("a", 0) == ["b 0 granted 0"]
    assert p.held() == {"a": 0, "b": 1}


def test_classes_hold_over_all_gateways() -> None:
    p = Pair(1, gateways=("a", "b", "c"))
    p.submit("a", 0)
    p.submit("a", 1, BULK)
    p.submit("b", 0, BULK)
    p.submit("c", 0, DEFAULT)

    assert p.release("a", 0) == ["c 0 granted 0"]
    assert p.release("c", 0) == ["a 1 granted 0"]
    assert p.release("a", 1) == ["b 0 granted 0"]


def test_a_request_is_preempted_for_one_of_another_gateway() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0, BULK)

    assert sorted(p.submit("b", 0, INTERACTIVE)) == ["a 0 preempted", "b 0 waits victim_leaving"]
    assert not p.first_byte("a", 0), "it may not begin any more"
    assert sorted(p.yield_slot("a", 0)) == ["a 0 rejected preempted", "b 0 granted 0"]


def test_a_victim_that_is_tried_again_waits_as_another_attempt() -> None:
    p = Pair(1, gateways=("a", "b"), on_preempt="retry")
    p.submit("a", 0, BULK)
    p.submit("b", 0, INTERACTIVE)

    assert sorted(p.yield_slot("a", 0)) == ["a 0 waits to_be_retried", "b 0 granted 0"]
    assert p.release("b", 0) == ["a 0 granted 0"]
    assert [request.attempt for request in p.gateways["a"].requests] == [2]


def test_a_request_that_loses_its_slot_at_the_instant_at_which_it_gets_it_waits_again() -> None:
    p = Pair(1, gateways=("a", "b"), on_preempt="retry")
    p.submit("a", 0, BULK)
    p.submit("b", 0, INTERACTIVE)
    p.submit("b", 1, SYSTEM)

    # The slot is promised to the first one, from which the second one takes it. Nothing is at a backend that could be stopped.
    told = p.yield_slot("a", 0)
    assert told[-1] == "b 1 granted 0"
    assert "b 0 waits to_be_retried" in told
    assert p.held() == {"a": 0, "b": 1}
    assert p.release("b", 1) == ["b 0 granted 0"]
    assert p.release("b", 0) == ["a 0 granted 0"]


def test_a_preemption_that_comes_after_the_first_byte_is_declined_and_the_next_victim_stopped() -> None:
    p = Pair(2, gateways=("a", "b"))
    p.submit("a", 0, BULK)
    p.submit("a", 1, BULK)
    assert p.gateways["a"].confirm_first_byte(1)
    p.gateways["a"].take_bytes()  # The news of it does not arrive before the preemption is decided.

    told = p.submit("b", 0, INTERACTIVE)
    assert sorted(told) == ["a 0 preempted", "b 0 waits victim_leaving", "b 0 waits victim_leaving"]
    assert p.yield_slot("a", 0)[-1] == "b 0 granted 0"
    assert p.release("a", 1) == [], "its stream has ended as it should"


def test_the_news_of_a_first_byte_is_enough_to_decline() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0, BULK)
    p.gateways["a"].confirm_first_byte(0)
    late = p.gateways["a"].take_bytes()
    p.gateways["b"].submit(0, TERMS, p.local("b"))
    p.end.feed(p.connections["b"], p.gateways["b"].take_bytes(), p.now)
    p.end.feed(p.connections["a"], late, p.now)

    assert "b 0 waits victim_declined" in p.exchange()
    assert p.release("a", 0) == ["b 0 granted 0"]


def test_a_backend_that_fails_a_request_is_replaced() -> None:
    p = Pair(1)
    p.submit("a", 0)

    assert p.fail("a", 0) == ["a 0 granted 1"]
    assert p.fail("a", 0) == ["a 0 rejected no_backend"]
    assert p.held() == {"a": 0}


def test_a_model_that_is_not_served_is_refused() -> None:
    p = Pair(1)

    assert p.submit("a", 0, model="x") == ["a 0 rejected unknown_model"]


def test_a_request_that_waits_too_long_is_refused() -> None:
    p = Pair(0)
    p.submit("a", 0)

    assert p.at(29.9) == []
    assert p.at(30.1) == ["a 0 rejected queue_timeout"]


def test_a_lease_counts_from_the_sending_of_the_beat_that_was_answered() -> None:
    p = Pair()
    gateway, connection = p.gateways["a"], p.connections["a"]
    assert p.lease("a") == 3
    p.now = SECOND
    gateway.advance(p.local("a"))
    beat = gateway.take_bytes()
    p.now = 2 * SECOND + SECOND // 2
    p.end.feed(connection, beat, p.now)
    answer = p.end.take_bytes(connection, p.now)
    p.now += SECOND // 4
    gateway.feed(answer, p.local("a"))

    assert p.lease("a") == 4, "sent at 1 s, answered at 2.5 s, heard at 2.75 s"


def test_a_gateway_that_was_stopped_obeys_no_grant_that_it_finds_when_it_wakes_up() -> None:
    p = Pair(1)
    p.gateways["a"].submit(0, TERMS, p.local("a"))
    p.end.feed(p.connections["a"], p.gateways["a"].take_bytes(), p.now)
    grant = p.end.take_bytes(p.connections["a"], p.now)
    p.now = 4 * SECOND

    assert p.lines("a", p.gateways["a"].feed(grant, p.local("a"))) == [
        "a closed: the lease is over: no beat was answered in time"
    ]
    assert not p.gateways["a"].may_start(p.local("a"))
    p.end.lost(p.connections["a"], p.now)
    assert p.connect("a") == ["a opened 1", "a 0 granted 0"], "it asks once more, and holds one slot"
    assert p.held() == {"a": 1}


def test_grants_come_twice_and_late() -> None:
    p = Pair(1)
    gateway, connection = p.gateways["a"], p.connections["a"]
    gateway.submit(0, TERMS, p.local("a"))
    p.end.feed(connection, gateway.take_bytes(), p.now)
    grant = p.end.take_bytes(connection, p.now)

    assert p.lines("a", gateway.feed(grant, p.local("a"))) == ["a 0 granted 0"]
    assert gateway.feed(grant, p.local("a")) == []
    p.release("a", 0)
    assert gateway.feed(grant, p.local("a")) == []


def test_what_a_gateway_says_may_come_twice() -> None:
    p = Pair(2)
    gateway, connection = p.gateways["a"], p.connections["a"]
    for act in (
        lambda: gateway.submit(0, TERMS, p.local("a")),
        lambda: gateway.confirm_first_byte(0),
        lambda: gateway.release(0, "drained"),  # type: ignore[arg-type]
    ):
        act()
        said = gateway.take_bytes()
        p.end.feed(connection, said, p.now)
        p.end.feed(connection, said, p.now)
        p.exchange()
    assert p.held() == {"a": 0}
    assert p.end.requests.core.view("m").classes[INTERACTIVE].arrived == 1


def test_a_gateway_whose_hello_is_on_its_way_grants_nothing_by_itself_and_takes_back_what_it_has_named() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("b", 0)
    p.lose("a")
    end = p.gateways["a"]
    end.submit(0, RequestTerms("m", DEFAULT, "", 1, 1), p.local("a"))
    p.connections["a"] = 9
    end.connect(nonce(9), p.local("a"))
    p.end.accept(9, nonce(10), p.now)
    p.end.feed(9, end.take_bytes(), p.now)
    end.feed(p.end.take_bytes(9, p.now), p.local("a"))
    assert end.state is EndState.HELLO
    assert not end.grant_by_itself(0, 0, p.local("a"))
    end.release(0, DRAINED)
    p.exchange()
    p.release("b", 0)
    assert p.held() == {"a": 0, "b": 0}
