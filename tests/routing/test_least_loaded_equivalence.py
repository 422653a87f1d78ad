"""least-loaded looks at few instances, and chooses as if it looked at all of them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from routing_views import Driver, View, least, request, router

from maitred.routing.per_fleet import InFlightOrder, InFlightRouter


@given(seed=st.integers(0, 10**9), size=st.integers(1, 9), ends=st.floats(0.2, 0.8), fleets=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_it_is_always_one_with_the_fewest(seed: int, size: int, ends: float, fleets: int) -> None:
    """Several models share the instances, and health changes make other fleets of them."""
    dice = Random(seed)
    views = [View(index, in_flight=dice.randrange(3)) for index in range(size)]
    shown = [[view for view in views if dice.random() < 0.7] or views for _ in range(fleets)]
    driver = Driver(router("least-loaded"), views)
    for _ in range(200):
        if driver.there and dice.random() < ends:
            driver.end(dice.choice(list(driver.there)))
            continue
        which = dice.randrange(fleets)
        if dice.random() < 0.05:
            shown[which] = [view for view in views if dice.random() < 0.7] or views
        allowed = least(shown[which])
        assert driver.send(shown[which]) in allowed


@given(seed=st.integers(0, 10**9), size=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_count_that_rises_unannounced_is_never_chosen_and_one_that_falls_is_found_within_a_round(
    seed: int, size: int
) -> None:
    dice = Random(seed)
    views = [View(index) for index in range(size)]
    driver = Driver(router("least-loaded"), views)
    for _ in range(60):
        views[dice.randrange(size)].in_flight += dice.randrange(4)
        assert driver.send() in least_before(driver, views)
    views[dice.randrange(size)].in_flight = 0
    sent = [driver.send() for _ in range(size)]
    idle = next(iter(least([View(view.index, view.in_flight - sent.count(view.index)) for view in views])))
    assert idle in sent


def least_before(driver: Driver, views: list[View]) -> set[int]:
    """Return what `least` was before the request that was sent last."""
    _, chosen = driver.there[driver.number]
    return least([View(view.index, view.in_flight - (view is chosen)) for view in views])


@dataclass
class Watched(View):
    num_looks: int = 0

    def __getattribute__(self, name: str) -> object:
        if name == "in_flight":
            object.__setattr__(self, "num_looks", object.__getattribute__(self, "num_looks") + 1)
        return object.__getattribute__(self, name)


def looks_per_choice(size: int) -> float:
    """Under steady load: as many end as are sent."""
    dice, views = Random(1), [Watched(index) for index in range(size)]
    driver = Driver(router("least-loaded"), views, checks=False)
    for _ in range(5 * size):
        driver.send()
    for view in views:
        view.num_looks = 0
    for number in dice.sample(range(1, 5 * size), 2 * size):
        driver.end(number)
        driver.send()
    return sum(view.num_looks for view in views) / (2 * size)


def test_a_choice_looks_at_few_however_many_there_are() -> None:
    # The driver itself reads it twice for each request, to count up and down.
    assert looks_per_choice(16) < 10
    assert looks_per_choice(1024) < 10


def test_an_idle_fleet_of_any_size_is_used_in_turn() -> None:
    driver = Driver(router("least-loaded"), [View(index) for index in range(100)])
    sent = []
    for number in range(1, 301):
        sent.append(driver.send())
        driver.end(number)
    assert sent == [*range(100)] * 3


def test_fleets_that_are_shown_once_are_forgotten() -> None:
    made = InFlightRouter()
    first = [View(0), View(1)]
    assert made.choose(request(), first, now=0).instance == 0
    first[0].in_flight = 1
    for _ in range(100):
        made.choose(request(), [View(0), View(1)], now=0)
    assert len(made._orders.values) == 64
    assert made.choose(request(), first, now=0).instance == 1


def test_the_order_begins_with_what_is_in_flight() -> None:
    assert InFlightOrder([View(4, in_flight=2), View(5, in_flight=1)]).least_loaded().instance == 5
