"""How routers and scorers are written, and the errors and warnings about it."""

from __future__ import annotations

import re

import msgspec
import pytest
from routing_views import router

from maitred.routing import RoutingConfig, Signals
from maitred.routing.policies import WeightedRouter
from maitred.routing.scorer_weights import DEFAULT_WEIGHTS, WeightedScorer, parse_scorer_weights


def test_scorers_in_one_text_or_as_a_list_or_as_bliss_list() -> None:
    text = parse_scorer_weights(" queue-depth:2,kv-utilization : 2, prefix-affinity(block=32, most=5):0.5")
    assert text == parse_scorer_weights(("queue-depth:2", "kv-utilization:2", "prefix-affinity(block=32, most=5):0.5"))
    blis = [
        {"name": "queue-depth", "weight": 2},
        "kv-utilization:2",
        {"name": "prefix-affinity(block=32, most=5)", "weight": 0.5},
    ]
    assert text == parse_scorer_weights(msgspec.convert({"scorers": blis}, RoutingConfig).scorers)
    assert text.scorers[0] == WeightedScorer("queue-depth", 2.0)
    assert text.normalized() == [2 / 4.5, 2 / 4.5, 0.5 / 4.5]


def test_without_scorers_the_default_ones_are_used() -> None:
    assert parse_scorer_weights(()) == parse_scorer_weights("") == DEFAULT_WEIGHTS
    made = router("weighted")
    assert isinstance(made, WeightedRouter)
    assert list(made.scorers) == ["precise-prefix-cache", "queue-depth", "kv-utilization"]


def test_scorers_reach_weighted_wherever_it_is() -> None:
    weighted = router("session-affinity(weighted)", "load-aware:1").inner  # type: ignore[attr-defined]
    assert list(weighted.scorers) == ["load-aware"]


@pytest.mark.parametrize(
    ("scorers", "message"),
    [
        ("queu-depth:2", "unknown scorer 'queu-depth' (did you mean 'queue-depth'?)"),
        (
            "queue-depth",
            "'queue-depth' has no weight (write NAME:WEIGHT, NAME:WEIGHT, ... as in queue-depth:2, load-balance:1)",
        ),
        ("queue-depth:0", "the weight of 'queue-depth' is 0 (a number above 0; or leave it out)"),
        ("queue-depth:nan", "the weight of 'queue-depth' is nan (a number above 0; or leave it out)"),
        ("queue-depth:1, queue-depth:2", "the scorer 'queue-depth' is named twice (name each once, with one weight)"),
        ("queue-depth:1e308, load-aware:1e308", "the weights add up to more than a number holds (only their ratios count)"),
        ("prefix-affinity(blok=3):1", "scorer 'prefix-affinity' has no parameter 'blok' (did you mean 'block'?)"),
        ("prefix-affinity(most=0):1", "scorer 'prefix-affinity': block and most must be at least 1, not 0"),
    ],
)
def test_a_mistake_in_the_scorers_is_one_line(scorers: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'scorers: {message}')}$"):
        RoutingConfig(scorers=scorers)


@pytest.mark.parametrize("scorers", ["queue-depth:x", "queue-depth:1,,load-aware:1", "queue-depth:"])
def test_scorers_that_cannot_be_read_are_told_how_to_write_them(scorers: str) -> None:
    with pytest.raises(ValueError, match="write NAME:WEIGHT"):
        RoutingConfig(scorers=scorers)


def test_what_has_no_effect_is_a_warning() -> None:
    assert RoutingConfig(scorers="load-aware:1").warnings() == [
        "routing scorers have no effect with least-loaded: they are those of weighted"
    ]
    prefixes = RoutingConfig(policy="weighted", scorers="prefix-affinity:1, queue-depth:1")
    assert prefixes.warnings() == []
    assert prefixes.warnings(Signals.PROMPT) == [
        "the scorer prefix-affinity looks at what prompts say, which is not known here: it cannot tell instances apart"
    ]
    assert [line.split()[2] for line in RoutingConfig(policy="weighted").warnings(Signals.CACHES)] == ["precise-prefix-cache"]
    assert RoutingConfig(policy="session-affinity").warnings(Signals.SESSION) == [
        "session-affinity: no request names a program, routing key or tenant here, so there are no sessions"
    ]
    assert RoutingConfig().warnings(Signals.ALL) == []
