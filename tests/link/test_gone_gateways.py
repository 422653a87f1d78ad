"""Gateways that die, are stopped or cut off; and schedulers that begin to lead while gateways have requests."""

from __future__ import annotations

import pytest
from link_pair import BULK, DEFAULT, DRAINED, INTERACTIVE, Pair

from maitred.core.units import SECOND, from_seconds, to_seconds
from maitred.scheduler.link.scheduler_end import SchedulerMode
from maitred.scheduler.link.terms import RequestTerms

TERMS = RequestTerms("m", DEFAULT, "", 1, 1)


def kill(p: Pair, name: str) -> None:
    """Let a gateway vanish, of which the scheduler sees its connection break."""
    p.end.lost(p.connections.pop(name), p.now)
    del p.gateways[name]
    p.exchange()


def reading(p: Pair, backend: int, running: int) -> list[str]:
    p.end.on_reading(backend, running, p.now, p.now)
    return p.exchange()


def test_the_waiting_requests_of_a_dead_gateway_leave_and_its_slots_are_held() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    p.submit("a", 1)
    assert p.submit("b", 0) == ["b 0 waits behind_queue"]
    kill(p, "a")

    assert p.held() == {"a": 1, "b": 0}
    assert p.end.requests.core.view("m").waiting == 1
    assert [line for line in p.log if b'"end":"gateway_gone"' in line and b'"input":"release"' in line]


def test_the_slots_of_a_dead_gateway_are_free_when_its_engine_shows_its_requests_gone() -> None:
    p = Pair(2, gateways=("a", "b"))
    p.submit("a", 0)
    p.submit("a", 1)
    p.submit("b", 0)
    kill(p, "a")
    assert reading(p, 0, 0) == [], "it might have started them after that, within its lease"
    assert p.at(4) == []
    assert reading(p, 0, 2) == []
    assert reading(p, 0, 1) == ["b 0 granted 0"]
    assert reading(p, 1, 0) == [], "another engine says nothing of it"
    assert p.held() == {"a": 2, "b": 1}, "it is not known which of the two is gone"
    p.release("b", 0)
    assert reading(p, 0, 0) == []
    assert p.held() == {"b": 0}


def test_a_gateway_of_which_its_parent_says_that_it_has_ended_need_not_be_waited_for() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    p.submit("b", 0)
    p.end.note_end(("a", "another boot"), p.now)
    assert p.held() == {"a": 1, "b": 0}
    p.end.note_end(("a", "1"), p.now)  # before its connection is known to be gone
    assert p.exchange() == ["a closed: closed by the peer: its process has ended"]
    assert reading(p, 0, 1) == [], "the engine has not noticed yet"
    assert reading(p, 0, 0) == ["b 0 granted 0"], "without that it would be after its lease"


def test_a_gateway_that_is_back_tells_which_of_its_requests_was_gone() -> None:
    """By the count of the engine one of two orphans is gone, of two gateways. The one that ends now may be that one."""
    p = Pair(2, gateways=("a", "b", "c"))
    p.submit("a", 0)
    p.submit("b", 0)
    p.lose("a", "b")
    p.at(4)
    assert reading(p, 0, 1) == []
    p.gateways["a"].release(0, DRAINED)
    assert p.submit("c", 0) == ["c 0 granted 0"]
    assert p.submit("c", 1) == ["c 1 waits no_slot"]

    assert p.connect("a") == ["a opened 1"], "b's is still there"
    assert reading(p, 0, 2) == []
    assert p.held() == {"a": 0, "b": 1, "c": 1}


def test_a_reading_counts_those_that_were_certainly_there_as_soon_as_their_gateways_have_said_all_before() -> None:
    """The example of `unaccounted`."""
    p = Pair(8, gateways=("a", "b"))
    for number in range(3):
        p.submit("a", number)
    for number in range(5):
        p.submit("b", number)
        p.first_byte("b", number)
    p.submit("b", 5)
    kill(p, "a")
    p.at(4.5)

    assert reading(p, 0, 7) == [], "7 may all be of the dead one"
    assert p.at(4.54) == [], "b has been asked what had ended before, and is still reading"
    assert p.at(4.56) == ["b 5 granted 0"]
    assert p.held() == {"a": 3, "b": 6}
    assert p.submit("b", 6) == ["b 6 waits no_slot"]


def test_short_streams_of_others_do_not_hold_up_the_slots_of_a_dead_gateway() -> None:
    """Each of b's streams takes 200 ms, and there are always two. An engine of 3 that has 2 has no request of a's any more."""
    p = Pair(3, gateways=("a", "b"))
    p.submit("a", 0)
    number = 0
    kill(p, "a")
    while p.now < from_seconds(4):
        if number >= 2:
            p.release("b", number - 2)
        p.submit("b", number)
        p.first_byte("b", number)
        number += 1
        p.at(to_seconds(p.now) + 0.02)
        reading(p, 0, 2)
        p.at(to_seconds(p.now) + 0.08)
    assert p.held() == {"b": 2}


def test_slots_that_no_engine_shows_gone_are_reclaimed_after_a_minute() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    kill(p, "a")
    p.at(40)
    p.submit("b", 0)

    assert p.at(62.9) == []
    assert p.at(63.1) == ["b 0 granted 0"]


def test_nobody_waits_for_a_victim_whose_gateway_is_gone() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0, BULK)
    kill(p, "a")

    assert p.submit("b", 0, INTERACTIVE) == ["b 0 waits no_slot"]


def test_a_gateway_that_says_nothing_for_a_lease_is_gone() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    p.submit("a", 1)
    silent = p.gateways.pop("a")
    del p.connections["a"]
    p.at(2.9)
    assert p.end.requests.core.view("m").waiting == 1
    p.at(3.1)

    assert p.end.requests.core.view("m").waiting == 0
    assert p.held() == {"a": 1, "b": 0}
    assert not silent.may_start(p.local("a"))


def test_a_gateway_that_is_back_has_its_slots_again_and_its_places_by_age() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    p.first_byte("a", 0)
    p.at(0.1)
    p.submit("a", 1)
    p.at(0.2)
    p.submit("b", 0)
    p.lose("a")
    assert p.at(0.5) == []
    p.connect("a")

    assert p.held() == {"a": 1, "b": 0}
    assert p.release("a", 0) == ["a 1 granted 0"], "it has waited longer than b's"


def test_what_ended_while_a_gateway_was_cut_off_is_free_when_it_is_back() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0)
    p.first_byte("a", 0)
    p.submit("b", 0)
    p.lose("a")
    p.gateways["a"].release(0, DRAINED)

    assert sorted(p.connect("a")) == ["a opened 1", "b 0 granted 0"]


def test_another_process_of_the_same_name_is_another_gateway() -> None:
    p = Pair(1)
    p.submit("a", 0)
    kill(p, "a")
    p.boot("a", "2")
    p.connect("a")

    assert p.submit("a", 0) == ["a 0 waits no_slot"]
    assert len(p.end.books.gateways) == 2


def change_leader(p: Pair, known: list[tuple[str, str]]) -> None:
    """Let another scheduler lead, which knows nothing."""
    names = [*p.gateways]
    p.lose(*names)
    p.end = p.new_scheduler()
    p.lead(2, known)


def test_a_leader_learns_until_all_have_said_hello_and_then_grants_by_age() -> None:
    p = Pair(2, gateways=("a", "b"))
    p.submit("a", 0)
    p.first_byte("a", 0)
    p.submit("b", 0)
    p.at(0.1)
    p.submit("b", 1)
    p.at(0.2)
    p.submit("a", 1)
    change_leader(p, [("a", "1"), ("b", "1")])

    assert p.connect("a") == ["a opened 2 learning"]
    assert p.end.mode is SchedulerMode.LEARNING
    assert p.release("a", 0) == ["a 1 granted 0"], "this slot is certainly free, whatever b holds"
    assert p.connect("b") == ["b opened 2 learning"]
    assert p.end.mode is SchedulerMode.LEADING
    assert p.release("a", 1) == ["b 1 granted 0"]


def test_order_is_restored_by_age_whoever_says_hello_first() -> None:
    p = Pair(1, gateways=("a", "b", "c"))
    p.submit("a", 0)
    for at, name in ((0.1, "c"), (0.2, "b"), (0.3, "a"), (0.4, "c")):
        p.at(at)
        p.submit(name, int(10 * at))
    change_leader(p, [("a", "1"), ("b", "1"), ("c", "1")])
    for name in ("b", "a", "c"):
        p.connect(name)
    order = []
    told, holder = p.release("a", 0), ("", 0)
    while told:
        name, number = told[0].split()[:2]
        order.append(name + number)
        holder = name, int(number)
        told = p.release(*holder)

    assert order == ["c1", "b2", "a3", "c4"]


def test_a_lease_that_passes_ends_learning_and_the_engines_tell_what_the_missing_hold() -> None:
    p = Pair(3, gateways=("a",))
    change_leader(p, [("a", "1"), ("b", "1")])
    p.connect("a")
    p.submit("a", 0)
    assert p.held() == {"a": 0}
    assert reading(p, 0, 2) == [], "too early: b may start something within its lease"
    assert p.at(3.1) == []
    assert reading(p, 1, 0) == []
    assert reading(p, 0, 2) == ["a 0 granted 0"]
    assert p.end.mode is SchedulerMode.LEADING
    assert p.submit("a", 1) == ["a 1 waits no_slot"], "2 of 3 slots are strangers'"
    assert reading(p, 0, 2) == []
    assert reading(p, 0, 1) == ["a 1 granted 0"]


def test_engines_that_do_not_answer_do_not_keep_a_leader_from_leading() -> None:
    p = Pair(1, gateways=("a",))
    change_leader(p, [("a", "1"), ("b", "1")])
    p.connect("a")
    p.submit("a", 0)

    assert p.at(5.9) == []
    assert p.at(6.1) == ["a 0 granted 0"]


def test_a_victim_of_the_leader_before_asks_anew() -> None:
    p = Pair(1, gateways=("a", "b"))
    p.submit("a", 0, BULK)
    p.submit("b", 0, INTERACTIVE)
    change_leader(p, [("a", "1"), ("b", "1")])
    p.connect("a")
    p.connect("b")

    assert sorted(p.yield_slot("a", 0))[-1] == "b 0 granted 0"
    assert p.held() == {"a": 0, "b": 1}


def test_a_leader_whose_own_lease_is_over_grants_nothing() -> None:
    p = Pair(1)
    p.end.renew(SECOND)
    gateway = p.gateways["a"]
    gateway.submit(0, TERMS, p.local("a"))
    said = gateway.take_bytes()
    p.now = SECOND
    p.end.feed(p.connections["a"], said, p.now)

    assert p.exchange() == ["a closed: closed by the peer: the lease of this scheduler is over"]
    assert p.end.mode is SchedulerMode.STANDBY
    assert p.connect("a") == ["a closed: closed by the peer: this scheduler does not lead"]


def test_what_was_decided_before_the_lease_was_over_is_not_said_afterwards() -> None:
    p = Pair(1)
    p.end.renew(SECOND)
    gateway = p.gateways["a"]
    gateway.submit(0, TERMS, p.local("a"))
    p.end.feed(p.connections["a"], gateway.take_bytes(), p.now)
    p.now = 2 * SECOND

    assert p.end.take_bytes(p.connections["a"], p.now) == b""


def test_a_gateway_obeys_no_scheduler_of_an_earlier_epoch_and_that_one_steps_down() -> None:
    p = Pair(1)
    old = p.end
    change_leader(p, [("a", "1")])
    p.connect("a")
    p.lose("a")
    p.end = old

    assert p.connect("a") == ["a closed: closed by the peer: a scheduler of epoch 2 leads"]
    assert old.mode is SchedulerMode.STANDBY


@pytest.mark.parametrize("seconds", [0.5, 2])
def test_streams_go_on_without_any_scheduler(seconds: float) -> None:
    p = Pair(2)
    p.submit("a", 0)
    p.submit("a", 1)
    p.first_byte("a", 0)
    p.lose("a")
    p.at(seconds)

    assert p.gateways["a"].confirm_first_byte(0)
    assert p.gateways["a"].confirm_first_byte(1), "it is at its engine, and holds its slot"
    p.connect("a")
    assert p.held() == {"a": 2}
