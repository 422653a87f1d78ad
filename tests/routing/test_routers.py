"""Routers: whom each policy chooses, among what it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from maitred.contracts import Router
from maitred.errors import ConfigError
from maitred.request import Request
from maitred.routing import ROUTERS, RoutingConfig

REQUEST = Request(id=0, arrival=0, prompt_tokens=10)


@dataclass
class View:
    index: int
    in_flight: int = 0
    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0


def router(policy: str) -> Router:
    return RoutingConfig(policy=policy).router(Random(0))


def test_least_loaded_takes_the_one_with_the_fewest_in_flight() -> None:
    fleet = [View(0, in_flight=3), View(1, in_flight=1), View(2, in_flight=2)]
    least_loaded = router("least-loaded")
    assert [least_loaded.choose(REQUEST, fleet, now=0).instance for _ in range(3)] == [1, 1, 1]


def test_least_loaded_uses_an_idle_fleet_evenly() -> None:
    fleet = [View(0), View(1), View(2)]
    least_loaded = router("least-loaded")
    assert [least_loaded.choose(REQUEST, fleet, now=0).instance for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_round_robin_ignores_load() -> None:
    fleet = [View(0, in_flight=9), View(1)]
    round_robin = router("round-robin")
    assert [round_robin.choose(REQUEST, fleet, now=0).instance for _ in range(4)] == [0, 1, 0, 1]


def test_a_choice_names_the_index_of_the_view_not_its_place() -> None:
    assert router("least-loaded").choose(REQUEST, [View(5)], now=0).instance == 5
    assert router("round-robin").choose(REQUEST, [View(7)], now=0).instance == 7


@pytest.mark.parametrize("policy", list(ROUTERS))
def test_no_instance_is_the_callers_mistake(policy: str) -> None:
    with pytest.raises(ValueError, match="no instance"):
        router(policy).choose(REQUEST, [], now=0)


def test_an_unknown_policy_is_told_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown routing policy 'least-load'.*'least-loaded'"):
        router("least-load")
