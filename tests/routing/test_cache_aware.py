"""cache-aware: when a prefix is followed, and where the others go."""

from __future__ import annotations

import pytest
from routing_views import Driver, View, request, router

from maitred.core.contracts import Choice
from maitred.core.errors import ConfigError


def choose(policy: str, sent: list[list[int]], views: list[View], asked: list[int]) -> Choice:
    """Return the choice for the prompt `asked` after each of `sent` went to the instance of the same number, all idle."""
    made = router(policy)
    for index, tokens in enumerate(sent):
        assert made.choose(request(tokens=tokens), [View(index)], 0).instance == index
    return made.choose(request(tokens=asked), views, 0)


FAMILY = list(range(160))
OTHER = list(range(5_000, 5_160))


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([4, 0, 0], Choice(0, "prefix")),
        ([5, 0, 0], Choice(1, "prefix_overloaded")),
        ([5, 2, 1], Choice(0, "prefix")),
        ([6, 2, 1], Choice(2, "prefix_overloaded")),
        ([30, 20, 20], Choice(0, "prefix")),
        ([31, 20, 20], Choice(1, "prefix_overloaded")),
    ],
)
def test_a_prefix_is_left_beyond_both_thresholds(loads: list[int], expected: Choice) -> None:
    views = [View(index, load) for index, load in enumerate(loads)]
    assert choose("cache-aware", [FAMILY], views, FAMILY) == expected


def test_smgs_thresholds() -> None:
    policy = "cache-aware(balance_abs_threshold=64, balance_rel_threshold=1.5)"
    assert choose(policy, [FAMILY], [View(0, 64), View(1)], FAMILY).instance == 0
    assert choose(policy, [FAMILY], [View(0, 65), View(1)], FAMILY).instance == 1


def test_an_instance_that_is_not_overloaded_keeps_its_prefix_whatever_another_has() -> None:
    assert choose("cache-aware", [OTHER, FAMILY], [View(0, 90), View(1, 4), View(2, 0)], FAMILY) == Choice(1, "prefix")


def test_the_longest_prefix_wins_and_of_equals_the_one_with_fewer_in_flight() -> None:
    longer = [*FAMILY, *OTHER]
    views = [View(0), View(1, 2), View(2, 1)]
    assert choose("cache-aware", [FAMILY, longer, longer], views, longer).instance == 2
    assert choose("cache-aware", [longer, FAMILY, FAMILY], views, longer).instance == 0


def test_a_prefix_counts_beyond_a_share_of_the_prompt() -> None:
    asked = [*FAMILY[:48], *range(9_000, 9_112)]  # 3 of 10 blocks
    views = [View(0, 1), View(1)]
    assert choose("cache-aware", [FAMILY], views, asked) == Choice(1, "least_loaded")
    assert choose("cache-aware(cache_threshold=0.29)", [FAMILY], views, asked) == Choice(0, "prefix")


def test_a_prompt_of_which_nothing_is_known_goes_to_the_least_loaded() -> None:
    assert choose("cache-aware(cache_threshold=0)", [FAMILY], [View(0, 1), View(1)], []).instance == 1


def test_an_instance_that_is_not_shown_is_not_chosen_for_its_prefix() -> None:
    assert choose("cache-aware", [FAMILY, OTHER], [View(1), View(2)], FAMILY).instance in (1, 2)


def test_conversations_with_one_system_prompt_are_spread_and_stay() -> None:
    views = [View(0), View(1)]
    driver = Driver(router("cache-aware"), views)
    prompts = {number: [*range(480), *range(1_000 * number, 1_000 * number + 200)] for number in range(1, 21)}
    went = {number: driver.send(sent=request(number, tokens=tokens)) for number, tokens in prompts.items()}
    assert [view.in_flight for view in views] == [10, 10], "as soon as both have the system prompt, they share it"
    for number, tokens in prompts.items():
        driver.end(number)
        assert driver.send(sent=request(number, tokens=[*tokens, *range(100)])) == went[number]


@pytest.mark.parametrize("share", ["-0.1", "1.1", "nan"])
def test_the_share_is_from_0_to_1(share: str) -> None:
    with pytest.raises(ConfigError, match="cache_threshold must be from 0 to 1, not"):
        router(f"cache-aware(cache_threshold={share})")
