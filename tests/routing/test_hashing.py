"""prefix-hash and consistent-hashing: who belongs where, what moves, and what happens at an instance that is overloaded."""

from __future__ import annotations

import pytest
from routing_views import View, request, router

from maitred.core.contracts import Choice, Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request

FLEET = [View(index) for index in range(5)]
BY_KEY = [request(key=f"k{number}") for number in range(300)]


def homes(made: Router, fleet: list[View], sent: list[Request] = BY_KEY) -> list[int]:
    return [made.choose(each, fleet, 0).instance for each in sent]


def test_a_key_belongs_to_one_instance_in_every_gateway() -> None:
    first, again = (homes(router("consistent-hashing", seed=seed), FLEET) for seed in (0, 1))
    assert first == again
    assert min(first.count(index) for index in range(5)) > 25


def test_only_the_keys_of_an_instance_that_goes_move_and_come_back() -> None:
    made = router("consistent-hashing")
    before, without = homes(made, FLEET), homes(made, FLEET[:3] + FLEET[4:])
    assert all(new == old for old, new in zip(before, without, strict=True) if old != 3)
    assert len({new for old, new in zip(before, without, strict=True) if old == 3}) > 1
    assert homes(made, FLEET) == before
    grown = homes(made, [*FLEET, View(5)])
    assert all(new in (old, 5) for old, new in zip(before, grown, strict=True))


def test_a_session_is_a_program_else_a_routing_key_else_a_tenant() -> None:
    made = router("consistent-hashing")
    by_program = homes(made, FLEET, [request(program=f"p{n}", key=f"{n % 2}", tenant="t") for n in range(50)])
    assert by_program == homes(made, FLEET, [request(program=f"p{n}") for n in range(50)])
    assert len(set(homes(made, FLEET, [request(tenant="t", model="a") for _ in range(9)]))) == 1
    assert homes(made, FLEET, [request() for _ in range(5)]) == [0] * 5, "without a name to the least loaded"


def test_the_beginning_of_a_prompt_is_its_key() -> None:
    made = router("prefix-hash")
    first = list(range(256))
    assert len({made.choose(request(tokens=[*first, n, n]), FLEET, 0).instance for n in range(1_000, 1_020)}) == 1
    assert len(set(homes(made, FLEET, [request(tokens=range(n, n + 300)) for n in range(0, 6_000, 300)]))) > 2
    short = [made.choose(request(tokens=range(n, n + 40)), FLEET, 0).instance for n in range(0, 4_000, 40)]
    assert len(set(short)) > 2
    assert homes(made, FLEET, [request(tokens=range(9))]) == [0], "without a full block to the least loaded"


@pytest.mark.parametrize(
    ("home", "other", "stays"),
    [
        (2, 0, True),  # 0.5 beyond the mean of 1.5
        (3, 0, True),  # the mean is 2 with the request that comes
        (5, 0, True),  # 2 beyond the mean of 3
        (6, 0, False),  # 2.5 beyond 3.5
        (15, 8, True),  # 15 is 1.25 times 12
        (16, 8, False),  # 16 is more than 1.25 times 12.5
    ],
)
def test_beyond_the_mean_the_least_loaded_takes_over(home: int, other: int, stays: bool) -> None:
    made, sent = router("prefix-hash"), request(tokens=range(300))
    index = made.choose(sent, [View(0), View(1)], 0).instance
    views = [View(0, other), View(1, other)]
    views[index].in_flight = home
    assert made.choose(sent, views, 0) == (Choice(index, "hashed") if stays else Choice(1 - index, "least_loaded"))


def test_a_prefix_has_at_least_one_token() -> None:
    with pytest.raises(ConfigError, match="prefix_token_count must be at least 1, not 0"):
        router("prefix-hash(prefix_token_count=0)")
