"""`check` of each router that keeps something finds what contradicts itself, and looks at a part of what is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from routing_views import Driver, View, request

from maitred.core.decisions import DecisionLog
from maitred.core.errors import InvariantError
from maitred.routing import RoutingConfig, check_policy, open_router
from maitred.routing.base import MAX_CHECKED
from maitred.routing.hashing import HashRing
from maitred.routing.per_fleet import InFlightRouter
from maitred.routing.sent_prefixes import SentPrefixes

PREFIX = "cache-aware(block=1, most=4)"
SESSION = "session-affinity(sessions=4)"
HASH = "consistent-hashing"


def order_of(keeper: Any) -> Any:
    """Return the order of the fleet that an `InFlightRouter` was shown last."""
    return keeper._orders.last[1]


def order_in_least_loaded(made: Any) -> Any:
    keeper: InFlightRouter = made.on_request_end.__self__
    return order_of(keeper)


def empty_queues(order: Any) -> None:
    for queue in order._queues:
        queue.clear()


def forget_holder(made: Any) -> None:
    del made._sent._holders[next(iter(made._sent._holders))]


def forget_sent(made: Any) -> None:
    made._sent._sent[0].popitem()


def leak_block(made: Any) -> None:
    made._sent._holders = {1: 0b1, **made._sent._holders}


def remember_too_much(made: Any) -> None:
    for block in range(9):
        made._sent._sent[0][block] = None
        made._sent._holders[block] = 0b1


def swap_places(made: Any) -> None:
    places = made._ring._places
    places[3], places[4] = places[4], places[3]


DAMAGE: list[tuple[str, Callable[[Any], object], str]] = [
    ("round-robin", lambda made: made._turns.update(m=-1), "'m': -1 turns"),
    ("least-loaded", lambda made: empty_queues(order_in_least_loaded(made)), "of 3 instances are in a queue"),
    ("least-loaded", lambda made: order_in_least_loaded(made)._counts.__setitem__(2, 7), "has 7 in flight"),
    ("least-loaded", lambda made: setattr(order_in_least_loaded(made), "fewest", 5), "5 are the fewest"),
    ("least-loaded", lambda made: order_in_least_loaded(made)._position_of.pop(1), "the positions"),
    (SESSION, lambda made: made._instance_of.update({("", "tenant", "t"): -1}), "'t' of model '' is at instance -1"),
    (SESSION, lambda made: made._instance_of.update({("", "tenant", n): 0 for n in "abcde"}), "sessions are remembered"),
    (PREFIX, lambda made: empty_queues(order_of(made._least)), "are in a queue"),
    (SESSION, lambda made: setattr(made._views, "values", []), "0 values are kept"),
    ("session-affinity(round-robin)", lambda made: made.inner._turns.update(m=0), "0 turns"),
    (SESSION, lambda made: empty_queues(order_in_least_loaded(made.inner)), "are in a queue"),
    (PREFIX, forget_holder, "is no holder of it"),
    (PREFIX, forget_sent, "was not sent it"),
    (PREFIX, leak_block, "was not sent it"),
    (PREFIX, remember_too_much, "may be 4"),
    (PREFIX, lambda made: made._sent._holders.__setitem__(1, -1), "has the holders -1"),
    (PREFIX, lambda made: made._views.last[1].pop(1), "are kept of them"),
    (HASH, lambda made: made._ring._known.discard(0), "192 places for 2"),
    (HASH, lambda made: (made._ring._known.discard(0), made._ring._known.add(9)), "instance 0, which was never shown"),
    (HASH, swap_places, "out of order"),
    ("weighted", lambda made: made.scorers["prefix-affinity(block=1)"]._sent._holders.clear(), "is no holder of it"),
]


@pytest.mark.parametrize(("policy", "spoil", "told"), DAMAGE)
@pytest.mark.parametrize("has_log", [False, True])
def test_damage_is_found(policy: str, spoil: Callable[[Any], object], told: str, has_log: bool) -> None:
    config = RoutingConfig(policy=policy, scorers="prefix-affinity(block=1):1" if policy == "weighted" else "")
    made: Any = open_router(config, 0, DecisionLog([].append) if has_log else None)
    driver = Driver(made, [View(0), View(1), View(2)])
    for number in range(4):
        driver.send(sent=request(number, model="m", tenant=f"t{number % 2}", tokens=(1, 2, number)))
    driver.end(1)
    spoil(made._router if has_log else made)
    with pytest.raises(InvariantError, match=told):
        check_policy(made)


def renumber(made: Any) -> None:
    numbers = made._numbers._numbers
    for identity, (_, fleet) in list(numbers.items()):
        numbers[identity] = (0, fleet)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (renumber, "have the numbers"),
        (lambda made: made._numbers._numbers.update({1: (0, [])}), "identity of another object"),
        (lambda made: made._shown.update({number: [] for number in range(2000)}), "fleets are kept for the router"),
    ],
)
def test_damage_to_what_a_log_needs_is_found(spoil: Callable[[Any], object], told: str) -> None:
    made = open_router(RoutingConfig(), 0, DecisionLog([].append))
    driver = Driver(made, [View(0), View(1)])
    driver.send()
    driver.send([*driver.views])
    spoil(made)
    with pytest.raises(InvariantError, match=told):
        check_policy(made)


def test_a_router_without_a_check_is_not_checked() -> None:
    check_policy(object())


def test_of_a_ring_that_is_too_large_for_one_check_each_checks_the_next_part() -> None:
    ring = HashRing()
    for index in range(200):
        ring.add(index)
    assert len(ring._places) > 2 * MAX_CHECKED
    ring._places[-1] = (ring._places[-1][0], 1000)
    ring.check()
    ring.check()
    with pytest.raises(InvariantError, match="instance 1000"):
        ring.check()


def test_of_fleets_that_are_too_large_for_one_check_each_checks_another() -> None:
    made = InFlightRouter()
    fleets = [[View(index) for index in range(MAX_CHECKED)] for _ in range(3)]
    for fleet in fleets:
        made.choose(request(), fleet, now=0)
    empty_queues(order_of(made))
    made.check()
    made.check()
    with pytest.raises(InvariantError, match="are in a queue"):
        made.check()


def test_what_was_sent_lately_is_checked_however_much_is_remembered() -> None:
    sent = SentPrefixes(1, None)
    for index in range(3):
        sent.note(range(10**6 + index, 10**6 + index + 3 * MAX_CHECKED), View(index, kv_tokens=10**6))
    sent.check()
    sent._sent[2].popitem()
    with pytest.raises(InvariantError, match="instance 2 is a holder"):
        sent.check()
