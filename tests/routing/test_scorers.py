"""Scorers: the formulas, worked out by hand, and what weighted makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_views import Driver, View, request, router

from maitred.core.contracts import FleetView, InstanceView
from maitred.core.request import Request
from maitred.routing import SCORERS, BaseScorer, RoutingConfig, Signals, check_policy, signals_read

FLEET = [
    View(0, in_flight=4, waiting=3, running=1, kv_usage=0.25, cached=2),
    View(1, in_flight=2, waiting=0, running=2, kv_usage=1.0, cached=0),
    View(2, in_flight=1, waiting=1, running=0, kv_usage=0.0, cached=8),
]


BY_HAND = [
    ("queue-depth", [0.0, 1.0, 2 / 3]),
    ("kv-utilization", [0.75, 0.0, 1.0]),
    ("load-balance", [1 / 9, 1 / 5, 1 / 3]),
    ("active-requests", [0.0, 0.5, 0.75]),
    ("running-requests", [0.5, 0.0, 1.0]),
    ("load-aware", [0.5 * (1 - 3 / 128), 0.5, 0.5 * (1 - 1 / 128)]),
    ("vllm-dp", [0.0, 1.0, 9 / 11]),  # 13, 2, 4
    ("precise-prefix-cache", [0.25, 0.0, 1.0]),
    ("prefix-affinity", [0.0, 0.0, 0.0]),
    ("no-hit-lru", [0.5, 0.5, 0.5]),
]


@pytest.mark.parametrize(("scorer", "expected"), BY_HAND)
def test_the_formula(scorer: str, expected: list[float]) -> None:
    assert list(SCORERS.get(scorer)().scores(request(), FLEET)) == expected


def test_cached_blocks_count_from_the_fewest_and_waiting_ones_likewise() -> None:
    """Where every instance has some, what all of them have does not tell them apart."""
    fleet = [View(0, waiting=5, cached=4), View(1, waiting=7, cached=12), View(2, waiting=6, cached=6)]
    assert list(SCORERS.get("precise-prefix-cache")().scores(request(), fleet)) == [0.0, 1.0, 0.25]
    assert list(SCORERS.get("queue-depth")().scores(request(), fleet)) == [1.0, 0.0, 0.5]


def test_every_scorer_has_its_formula_tested() -> None:
    """Here, or in a file of its own beside this one."""
    beside = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    here = {scorer for scorer, _ in BY_HAND}
    assert here <= set(SCORERS)
    assert [scorer for scorer in SCORERS if scorer not in here and f'check_scorer("{scorer}' not in beside] == []


@pytest.mark.parametrize(
    ("scorer", "expected"),
    [
        ("queue-depth", 1.0),
        ("kv-utilization", 0.5),
        ("load-balance", 0.1),
        ("active-requests", 0.0),
        ("running-requests", 1.0),
        ("load-aware", 0.0),
        ("vllm-dp", 1.0),
        ("precise-prefix-cache", 1.0),
    ],
)
def test_where_all_are_equal(scorer: str, expected: float) -> None:
    fleet = [View(index, in_flight=3, waiting=0, running=6, kv_usage=0.5, cached=5) for index in range(3)]
    if scorer == "load-aware":
        fleet = [View(index, waiting=1000) for index in range(3)]
    assert list(SCORERS.get(scorer)().scores(request(), fleet)) == [expected] * 3


UNREAD = View(3, in_flight=8, waiting=None, running=None, kv_usage=None)


@pytest.mark.parametrize(
    ("scorer", "expected"),  # of 4, 2, 1 and 8 in flight
    [
        ("queue-depth", [4 / 7, 6 / 7, 1.0, 0.0]),
        ("kv-utilization", [4 / 8, 6 / 8, 7 / 8, 0.0]),
        ("load-balance", [1 / 5, 1 / 3, 1 / 2, 1 / 9]),
        ("running-requests", [4 / 7, 6 / 7, 1.0, 0.0]),
        ("load-aware", [0.5 * (1 - count / 128) for count in (4, 2, 1, 8)]),
        ("vllm-dp", [4 / 7, 6 / 7, 1.0, 0.0]),
    ],
)
def test_where_an_instance_reports_no_load_all_are_compared_by_requests_in_flight(scorer: str, expected: list[float]) -> None:
    assert list(SCORERS.get(scorer)().scores(request(), [*FLEET, UNREAD])) == expected


@pytest.mark.parametrize("missing", ["waiting", "running"])
def test_half_a_report_of_a_queue_is_none(missing: str) -> None:
    half = View(1, in_flight=1, waiting=5, running=5)
    setattr(half, missing, None)
    for scorer in ("vllm-dp", "load-balance"):
        first, second = SCORERS.get(scorer)().scores(request(), [View(0, in_flight=2), half])
        assert second > first, scorer


@pytest.mark.parametrize("scorers", [f"{name}:1" for name in SCORERS] + ["queue-depth:2, kv-utilization:2, load-balance:1", ""])
def test_an_instance_whose_load_cannot_be_read_draws_its_share(scorers: str) -> None:
    views = [
        View(0, waiting=2, running=8, kv_usage=0.4),
        View(1, waiting=3, running=8, kv_usage=0.5),
        View(2, 0, None, None, None),
    ]
    driver = Driver(router("weighted", scorers), views)
    for _ in range(150):
        driver.send()
    assert max(view.in_flight for view in views) <= 70, scorers
    assert min(view.in_flight for view in views) >= 30, scorers


def test_with_nothing_in_flight_all_are_best() -> None:
    assert list(SCORERS.get("active-requests")().scores(request(), [View(0), View(1)])) == [1.0, 1.0]


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.integers(0, 300)] * 4, st.floats(0, 1)), min_size=1, max_size=6))
def test_scores_are_from_0_to_1(counts: list[tuple[int, int, int, int, float]]) -> None:
    fleet = [View(i, in_flight=f, waiting=w, running=r, cached=c, kv_usage=u) for i, (f, w, r, c, u) in enumerate(counts)]
    for name in SCORERS:
        scorer = SCORERS.get(name)()
        for _ in range(2):
            scores = scorer.scores(request(tokens=range(64)), fleet)
            assert len(scores) == len(fleet)
            assert all(0.0 <= score <= 1.0 for score in scores)
            scorer.on_chosen(request(), fleet[-1])


def test_prefix_affinity_remembers_what_was_sent_where() -> None:
    scorer = SCORERS.get("prefix-affinity(block=4)")()
    fleet = [View(0), View(1)]
    long, short, other = request(tokens=range(16)), request(tokens=[*range(8), 9, 9, 9, 9]), request(tokens=range(50, 66))
    assert scorer.scores(long, fleet) == [0.0, 0.0]
    scorer.on_chosen(long, fleet[1])
    assert scorer.scores(long, fleet) == [0.0, 1.0]
    assert scorer.scores(short, fleet) == [0.0, 2 / 3]
    assert scorer.scores(other, fleet) == [0.0, 0.0]
    assert scorer.scores(request(), fleet) == [0.0, 0.0], "nothing is known of its prompt"


def test_prefix_affinity_forgets_the_blocks_that_were_sent_least_recently() -> None:
    scorer = SCORERS.get("prefix-affinity(block=1, most=4)")()
    fleet = [View(0)]

    def send(*tokens: int) -> None:
        scorer.scores(request(tokens=tokens), fleet)
        scorer.on_chosen(request(tokens=tokens), fleet[0])

    send(1, 2, 3)
    send(1, 9)  # 2, 3, 1, 9
    assert scorer.scores(request(tokens=[1, 2, 3]), fleet) == [1.0]
    send(7)  # the block after 1 goes
    assert scorer.scores(request(tokens=[1, 2, 3]), fleet) == [1 / 3]
    assert scorer.scores(request(tokens=[1, 9]), fleet) == [1.0]


def test_of_a_prompt_that_is_longer_than_its_memory_prefix_affinity_remembers_the_beginning() -> None:
    """Otherwise it would keep the end, which is never found without the beginning."""
    scorer = SCORERS.get("prefix-affinity(block=1, most=4)")()
    fleet = [View(0), View(1)]
    scorer.scores(request(tokens=range(10)), fleet)
    scorer.on_chosen(request(tokens=range(10)), fleet[1])

    assert scorer.scores(request(tokens=range(10)), fleet) == [0.0, 0.4]
    assert scorer.scores(request(tokens=range(3)), fleet) == [0.0, 1.0]


@settings(max_examples=40)
@given(
    sent=st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=5)), max_size=25),
    most=st.integers(1, 12),
)
def test_prefix_affinity_is_an_lru_of_blocks_for_each_instance(sent: list[tuple[int, list[int]]], most: int) -> None:
    scorer = SCORERS.get(f"prefix-affinity(block=1, most={most})")()
    fleet = [View(index) for index in range(4)]
    memories: list[list[tuple[int, ...]]] = [[] for _ in fleet]
    for position, tokens in sent:
        prefixes = [tuple(tokens[: end + 1]) for end in range(min(len(tokens), most))]
        shares = [
            next((n for n, prefix in enumerate(prefixes) if prefix not in memory), len(prefixes)) / len(tokens)
            for memory in memories
        ]
        assert scorer.scores(request(tokens=tokens), fleet) == shares
        scorer.on_chosen(request(tokens=tokens), fleet[position])
        check_policy(scorer)
        for prefix in prefixes:
            memories[position] = [*(kept for kept in memories[position] if kept != prefix), prefix][-most:]


def test_no_hit_lru_spreads_what_is_cached_nowhere() -> None:
    scorer = SCORERS.get("no-hit-lru")()
    fleet = [View(0), View(1), View(2)]
    assert scorer.scores(request(), fleet) == [1.0, 0.5, 0.0]
    scorer.on_chosen(request(), fleet[0])
    assert scorer.scores(request(), fleet) == [0.0, 1.0, 0.5], "those that never got one, then 0"
    scorer.on_chosen(request(), fleet[2])
    assert scorer.scores(request(), fleet) == [0.5, 1.0, 0.0], "1 never got one; 0 longer ago than 2"
    fleet[2].cached = 1
    assert scorer.scores(request(), fleet) == [0.5, 0.5, 0.5]
    scorer.on_chosen(request(), fleet[1])
    fleet[2].cached = 0
    assert scorer.scores(request(), fleet) == [0.5, 1.0, 0.0], "what is cached somewhere does not count"


class NoNumber(BaseScorer):
    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [float("nan")] * len(fleet)


class TooMuch(BaseScorer):
    """Beyond all bounds for the first, below for the second."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [100.0, -100.0, 0.9]


class Best(BaseScorer):
    """The instance `index`, by however little."""

    chosen: list[int]

    def __init__(self, index: int, by: float = 1.0) -> None:
        Best.chosen = []
        self._index, self._by = index, by

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [self._by * (view.index == self._index) for view in fleet]

    def on_chosen(self, request: Request, view: InstanceView) -> None:
        self.chosen.append(view.index)


def best(scorers: str, times: int = 1) -> list[int]:
    made = router("weighted", scorers)
    return [made.choose(request(), FLEET, now=0).instance for _ in range(times)]


def test_weights_decide_between_scorers() -> None:
    assert best("queue-depth:1") == [1]
    assert best("queue-depth:2, kv-utilization:1, load-balance:1") == [2]  # 0.2153, 0.55, 0.6667
    assert best("queue-depth:9, kv-utilization:1") == [1]


def test_scores_are_cut_off_before_they_are_weighed() -> None:
    assert best(f"{__name__}:TooMuch:1, {__name__}:Best(2, by=0.5):1") == [2]  # 0.5, 0, 0.7


def test_a_score_that_is_no_number_is_0() -> None:
    assert best(f"{__name__}:NoNumber:1, {__name__}:Best(2, by=0.5):1") == [2]


def test_equal_sums_are_drawn_and_the_least_difference_decides() -> None:
    assert set(best(f"{__name__}:Best(0):1, {__name__}:Best(1, 1.0):1", times=50)) == {0, 1}
    assert set(best(f"{__name__}:Best(0):1, {__name__}:Best(1, by=0.9999999999999999):1", times=50)) == {0}


def test_all_scorers_are_told_which_instance_was_chosen() -> None:
    made = router("weighted", f"queue-depth:5, {__name__}:Best(0, by=0.1):1")
    made.choose(request(), FLEET, now=0)
    assert Best.chosen == [1]


def test_ties_are_broken_in_one_place() -> None:
    offered: list[list[int]] = []

    def last(request: Request, tied: Sequence[InstanceView]) -> InstanceView:
        offered.append([view.index for view in tied])
        return tied[-1]

    for policy, scorers in (("least-loaded(load=effective)", ""), ("weighted", "queue-depth:1")):
        made = router(policy, scorers)
        made._break_tie = last  # type: ignore[attr-defined]
        assert made.choose(request(), [View(0), View(1, waiting=1), View(2)], now=0).instance == 2
    assert offered == [[0, 2], [0, 2]]


def test_nothing_is_drawn_where_nothing_is_tied() -> None:
    rng = Random(3)
    made = RoutingConfig(policy="weighted", scorers="queue-depth:1").router(rng)
    before = rng.getstate()
    made.choose(request(), FLEET, now=0)
    assert rng.getstate() == before


@pytest.mark.parametrize("name", ["prefix-affinity(block=2)", "prefix-affinity(block=2, most=3)"])
def test_prefix_affinity_remembers_as_many_blocks_as_an_instance_says_that_it_holds(name: str) -> None:
    scorer = SCORERS.get(name)()
    fleet = [View(0), View(1, kv_tokens=7)]
    for view in fleet:
        scorer.scores(request(tokens=range(10)), fleet)
        scorer.on_chosen(request(tokens=range(10)), view)
    assert scorer.scores(request(tokens=range(10)), fleet) == ([1.0, 0.6] if "most" not in name else [0.6, 0.6])
    assert (Signals.MEMORY in signals_read(scorer)) is ("most" not in name)


def test_prefix_affinity_forgets_what_an_instance_turns_out_not_to_hold() -> None:
    scorer = SCORERS.get("prefix-affinity(block=1)")()
    fleet = [View(0)]
    for tokens in (range(10), range(20, 24)):
        scorer.scores(request(tokens=tokens), fleet)
        scorer.on_chosen(request(tokens=tokens), fleet[0])
        fleet[0].kv_tokens = 6
    assert scorer.scores(request(tokens=range(10)), fleet) == [0.0]  # 8 and 9 are left of it, without their beginning
    assert scorer.scores(request(tokens=range(20, 24)), fleet) == [1.0]
