"""The bound of affinities: no prefix, session or score holds requests at an instance that is overloaded."""

from __future__ import annotations

from math import inf, nan

import pytest
from routing_views import Driver, View, request, router

from maitred.core.errors import ConfigError
from maitred.routing import ROUTERS, SCORERS
from maitred.routing.load_bound import LoadBound

SYSTEM = range(1_000)
"""The tokens of a system prompt, most of each prompt."""
AFFINITY = [
    "precise-prefix-cache:1",
    "prefix-affinity:1",
    "prefix-affinity:2, active-requests:1",
    "prefix-affinity:9, load-balance:1",
    "",
]
"""Scorers of which a prefix outweighs every load."""
POLICIES = [name for name in ROUTERS if name not in ("always-busiest", "weighted")]


def chat(number: int) -> list[int]:
    """Return the prompt of a conversation: the system prompt and as much again of its own."""
    own = 10_000 * (number + 1)
    return [*SYSTEM, *range(own, own + 400)]


def test_an_instance_is_overloaded_beyond_both_thresholds() -> None:
    bound = LoadBound(4, 1.5)
    assert [bound.limit(fewest) for fewest in (0, 1, 8, 20)] == [4, 5, 12, 30]
    assert LoadBound(inf, 1.5).limit(0) == LoadBound(4, inf).limit(0) == inf
    assert LoadBound(0, 1).limit(3.5) == 3.5


@pytest.mark.parametrize("policy", ["cache-aware", "weighted", "session-affinity", "prefix-hash", "consistent-hashing"])
@pytest.mark.parametrize("threshold", ["-1", "nan"])
def test_a_threshold_is_a_number_from_0_on(policy: str, threshold: str) -> None:
    with pytest.raises(ConfigError, match="a threshold of load must be at least 0, not "):
        router(f"{policy}(balance_abs_threshold={threshold})")
    with pytest.raises(ValueError, match="not nan"):
        LoadBound(4, nan)


@pytest.mark.parametrize(("policy", "scorers"), [*((name, "") for name in POLICIES), *(("weighted", mix) for mix in AFFINITY)])
def test_one_prompt_for_all_leaves_no_instance_idle(policy: str, scorers: str) -> None:
    """All 60 requests name one program, routing key and tenant, and begin alike; one instance has the prefix already."""
    views = [View(0, cached=60), View(1), View(2)]
    driver = Driver(router(policy, scorers), views)
    for number in range(60):
        driver.send(sent=request(number, program="p", key="k", tenant="t", tokens=chat(number)))
    loads = [view.in_flight for view in views]
    assert min(loads) >= 12, loads
    assert max(loads) <= 32, loads


@pytest.mark.parametrize("scorers", [f"{name}:1" for name in SCORERS])
def test_no_scorer_alone_fills_one_instance(scorers: str) -> None:
    views = [View(0, 0, 0, 0, 0.0, cached=60), View(1, 0, 9, 9, 0.9), View(2, 0, 9, 9, 0.9)]
    driver = Driver(router("weighted", scorers), views)
    for number in range(60):
        driver.send(sent=request(number, tokens=chat(number)))
    assert min(view.in_flight for view in views) >= 12


@pytest.mark.parametrize(
    ("policy", "scorers"),
    [
        ("cache-aware", ""),
        ("session-affinity", ""),
        ("prefix-hash(prefix_token_count=1200)", ""),
        ("consistent-hashing", ""),
        ("weighted", "prefix-affinity:2, load-balance:1"),
    ],
)
def test_an_affinity_holds_while_the_load_is_balanced(policy: str, scorers: str) -> None:
    """A conversation stays where it is beside one to four other requests at each instance."""
    driver = Driver(router(policy, scorers), [View(index, 1 + index % 4) for index in range(8)])
    first = {number: driver.send(sent=request(tokens=chat(number), program=f"p{number}")) for number in range(6)}
    for number in range(6):
        driver.end(number + 1)
    for number, instance in first.items():
        assert driver.send(sent=request(tokens=chat(number), program=f"p{number}")) == instance
        driver.end(driver.number)


def test_weighted_without_a_bound_adds_up_scores_and_nothing_else() -> None:
    driver = Driver(router("weighted(balance_abs_threshold=inf)", "precise-prefix-cache:1"), [View(0, cached=9), View(1)])
    assert [driver.send() for _ in range(50)] == [0] * 50


def test_the_next_best_score_counts_where_the_best_one_is_overloaded() -> None:
    views = [View(0, 9, cached=9), View(1, 2, cached=5), View(2, 1, cached=0)]
    made = router("weighted", "precise-prefix-cache:1")
    choice = made.choose(request(), views, 0)
    assert (choice.instance, choice.reason) == (1, "best_score_within_bound")
