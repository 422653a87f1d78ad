"""Routers: which instance each policy chooses among those that it is shown."""

from __future__ import annotations

from random import Random

import pytest
from routing_views import Driver, View, request, router

from maitred.core.contracts import Choice, FleetView, Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing import ROUTERS, RoutingConfig, Signals, signals_read


def chosen(policy: str, fleet: list[View], times: int = 1) -> list[int]:
    made = router(policy)
    return [made.choose(request(), fleet, now=0).instance for _ in range(times)]


@pytest.mark.parametrize("policy", list(ROUTERS))
def test_an_empty_fleet_is_an_error(policy: str) -> None:
    with pytest.raises(ValueError, match="no instance"):
        router(policy).choose(request(), [], now=0)


@pytest.mark.parametrize("policy", list(ROUTERS))
def test_a_choice_names_the_index_of_the_view_not_its_position(policy: str) -> None:
    assert chosen(policy, [View(7)]) == [7]


def test_round_robin_ignores_load() -> None:
    assert chosen("round-robin", [View(0, in_flight=9), View(1)], 4) == [0, 1, 0, 1]


def test_round_robin_has_a_turn_for_each_model() -> None:
    fleet, made = [View(0), View(1)], router("round-robin")
    models = ["a", "b", "a", "b"]
    assert [made.choose(request(model=model), fleet, now=0).instance for model in models] == [0, 0, 1, 1]


def test_least_loaded_takes_the_one_with_the_fewest_in_flight() -> None:
    driver = Driver(router("least-loaded"), [View(0, in_flight=3), View(1, in_flight=1), View(2, in_flight=2)])
    assert [driver.send() for _ in range(2)] == [1, 2]


def test_least_loaded_uses_an_idle_fleet_in_turn() -> None:
    driver = Driver(router("least-loaded"), [View(0), View(1), View(2)])
    sent = []
    for number in range(1, 7):
        sent.append(driver.send())
        driver.end(number)
    assert sent == [0, 1, 2, 0, 1, 2]


def test_bliss_least_loaded_adds_up_all_it_knows_and_draws_among_equals() -> None:
    fleet = [View(0, in_flight=1, running=1), View(1, in_flight=2), View(2, waiting=1, in_flight=1), View(3, in_flight=3)]
    drawn = chosen("least-loaded(load=effective)", fleet, 200)
    assert set(drawn) == {0, 1, 2}
    assert min(drawn.count(index) for index in (0, 1, 2)) > 40


def test_bliss_least_loaded_compares_requests_in_flight_where_an_instance_reports_no_queue() -> None:
    views = [View(0, waiting=9, running=9), View(1, 0, None, None, None), View(2, waiting=9, running=9)]
    driver = Driver(router("least-loaded(load=effective)"), views)
    for _ in range(150):
        driver.send()
    assert [view.in_flight for view in views] == [50, 50, 50]
    busiest = Driver(router("always-busiest"), [View(0, 1, waiting=9), View(1, 2, None, None, None)])
    assert busiest.send() == 1


def test_power_of_two_never_takes_the_worst_and_draws_all_others() -> None:
    fleet = [View(0), View(1), View(2, in_flight=1), View(3, in_flight=5)]
    drawn = chosen("power-of-two", fleet, 600)
    assert set(drawn) == {0, 1, 2}
    # Of 12 ordered pairs of different instances 0 wins (0,1), (0,2), (0,3), (2,0), (3,0); 1 wins five as well;
    # 2 wins (2,3), (3,2).
    assert drawn.count(0) == pytest.approx(250, abs=50)
    assert drawn.count(2) == pytest.approx(100, abs=40)


def test_power_of_two_draws_nothing_for_one_instance() -> None:
    rng = Random(5)
    made = RoutingConfig(policy="power-of-two").router(rng)
    before = rng.getstate()
    made.choose(request(), [View(0)], now=0)
    assert rng.getstate() == before


def test_always_busiest_is_the_first_of_the_most_loaded() -> None:
    fleet = [View(0, in_flight=1), View(1, waiting=2, in_flight=1), View(2, running=1, in_flight=2)]
    assert chosen("always-busiest", fleet, 3) == [1, 1, 1]


def test_the_same_seed_makes_the_same_choices() -> None:
    fleet = [View(index) for index in range(8)]
    for policy in ("power-of-two", "least-loaded(load=effective)", "weighted"):
        first, again, other = (
            [made.choose(request(), fleet, now=0).instance for _ in range(30)]
            for made in (router(policy, seed=1), router(policy, seed=1), router(policy, seed=2))
        )
        assert first == again != other


def test_the_signals_of_a_router_are_known_before_it_is_driven() -> None:
    expected = {
        "always-busiest": Signals.LOAD,
        "least-loaded": Signals.NOTHING,
        "power-of-two": Signals.NOTHING,
        "round-robin": Signals.NOTHING,
        "session-affinity": Signals.SESSION,
        "weighted": Signals.LOAD | Signals.CACHES | Signals.PROMPT,
    }
    assert {policy: signals_read(router(policy)) for policy in expected} == expected
    assert signals_read(router("least-loaded(load=effective)")) == Signals.LOAD
    assert signals_read(router("session-affinity(always-busiest)")) == Signals.SESSION | Signals.LOAD
    assert signals_read(router("weighted", "active-requests:1")) == Signals.NOTHING
    assert signals_read(router(f"{__name__}:Last")) == Signals.ALL


class Last(Router):
    """A user's own router."""

    def __init__(self, rng: Random, offset: int = 1) -> None:
        self._offset = offset

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        return Choice(fleet[-self._offset].index, "last")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        pass


def test_a_users_router_has_parameters_as_well() -> None:
    fleet = [View(0), View(1), View(2)]
    assert chosen(f"{__name__}:Last", fleet) == [2]
    assert chosen(f"{__name__}:Last(offset=2)", fleet) == [1]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("least-load", "unknown routing policy 'least-load' (did you mean 'least-loaded'?)"),
        ("least-loaded(load=efective)", "routing policy 'least-loaded': unknown load 'efective' (did you mean 'effective'?)"),
        ("least-loaded(rng=3)", "routing policy 'least-loaded' has no parameter 'rng' (valid: load)"),
        ("power-of-two(3)", "routing policy 'power-of-two' takes no '3' (it has no parameters)"),
        ("random(queue-depth)", "routing policy 'random' takes no 'queue-depth' (it has no parameters)"),
        ("session-affinity(round-robbin)", "unknown routing policy 'round-robbin' (did you mean 'round-robin'?)"),
        ("session-affinity(sessions=0)", "routing policy 'session-affinity': sessions must be at least 1, not 0"),
    ],
)
def test_a_mistake_in_a_policy_is_one_line(policy: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        router(policy)
    assert str(caught.value) == message
