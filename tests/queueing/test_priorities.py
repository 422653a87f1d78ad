"""BLIS's schedulers and priority policies: orders, scores, and which combinations are something simpler."""

from __future__ import annotations

from random import Random

import pytest
from queue_samples import TimeVarying, drained, queue, seq, started

from maitred.core.contracts import PriorityPolicy
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.config import QueueingConfig


class Shortest(PriorityPolicy):
    """A user's own: the shorter the prompt, the more urgent."""

    computed = 0

    def compute(self, request: Request, now: Micros) -> float:
        Shortest.computed += 1
        return -float(request.prompt_tokens)


@pytest.mark.parametrize(
    ("scheduler", "order"),
    [
        ("priority-fcfs", [0, 1, 3, 2]),
        ("priority-fcfs(slo-based)", [0, 1, 3, 2]),
        ("priority-fcfs(inverted-slo)", [2, 1, 3, 0]),
        ("priority-fcfs(slo-based(age_weight=-2))", [2, 1, 3, 0]),
        ("priority-fcfs(slo-based(age_weight=0))", [0, 1, 3, 2]),
        ("reverse-priority", [0, 1, 3, 2]),
        ("reverse-priority(slo-based)", [2, 1, 3, 0]),
        ("reverse-priority(inverted-slo)", [0, 1, 3, 2]),
        ("priority-fcfs(test_priorities:Shortest)", [2, 3, 1, 0]),
        ("reverse-priority(test_priorities:Shortest)", [0, 1, 3, 2]),
    ],
)
def test_orders_by_score_then_arrival_then_id(scheduler: str, order: list[int]) -> None:
    waiting = queue(scheduler)
    for s in (seq(3, 20, arrival=5), seq(1, 30, arrival=5), seq(2, 10, arrival=9), seq(0, 40, arrival=2)):
        waiting.add(s, now=10)
    assert drained(started(waiting, 20)) == order


def test_preempted_sequences_are_ordered_by_score_too() -> None:
    waiting = queue("priority-fcfs(slo-based)")
    for number in (4, 1):
        waiting.add(seq(number), now=10)
    waiting.add(seq(2), now=20, front=True)
    assert drained(started(waiting, 20)) == [1, 2, 4]


@pytest.mark.parametrize(
    ("priority_policy", "rank"), [("constant(2.5)", 0), ("slo-based(10, 1e-5)", -1_000_000), ("inverted-slo", 1_000_000)]
)
@pytest.mark.parametrize("scheduler", ["fcfs", "sjf", "priority-fcfs", "reverse-priority", "bounded(sjf)"])
def test_an_admitted_sequence_has_its_rank_under_every_scheduler_whenever_it_is_admitted(
    scheduler: str, priority_policy: str, rank: int
) -> None:
    waiting = QueueingConfig(scheduler=scheduler, priority_policy=priority_policy).policy().make_queue(None, Random(0))
    s = seq(1, seconds=1)
    for now in (1_000_000, 4_000_000):
        waiting.add(s, now)
        waiting.on_step_start(None, now + 1_000_000)  # type: ignore[arg-type]
        assert waiting.pop().priority == rank


@pytest.mark.parametrize("scheduler", ["fcfs", "priority-fcfs"])
def test_scores_that_time_may_reorder_are_computed_for_all_in_each_pass(scheduler: str) -> None:
    config = QueueingConfig(scheduler=scheduler, priority_policy="queue_samples:TimeVarying")
    waiting, seqs = config.policy().make_queue(None, Random(0)), [seq(number) for number in range(5)]
    for s in seqs:
        waiting.add(s, now=0)
    for now in (0, 500, 1000):
        started(waiting, now)
        assert [s.priority for s in seqs] == [TimeVarying().compute(s.request, now) for s in seqs]


def test_one_policy_computes_a_score_once_in_a_pass() -> None:
    config = QueueingConfig(scheduler="bounded(priority-fcfs)", priority_policy="test_priorities:Shortest")
    waiting = config.policy().make_queue(None, Random(0))
    for number in range(5):
        waiting.add(seq(number), now=0)
    Shortest.computed = 0
    started(waiting, 5)
    assert Shortest.computed == 5


def test_without_a_priority_policy_the_priority_is_the_clients() -> None:
    waiting = QueueingConfig().policy().make_queue(None, Random(0))
    waiting.add(SequenceState(Request(id=0, arrival=0, prompt_tokens=1, priority=7.0), 0, 1, priority=7.0), now=0)
    assert started(waiting, 9).pop().priority == 7.0


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({}, []),
        ({"scheduler": "priority-fcfs"}, ["priority-fcfs with constant is fcfs"]),
        ({"scheduler": "bounded(priority-fcfs(slo-based))"}, ["priority-fcfs with slo-based is fcfs"]),
        (
            {"scheduler": "priority-fcfs", "priority_policy": "inverted-slo"},
            ["priority-fcfs with inverted-slo is last come, first served"],
        ),
        (
            {"scheduler": "reverse-priority", "priority_policy": "slo-based"},
            ["reverse-priority with slo-based is last come, first served"],
        ),
        ({"scheduler": "reverse-priority", "priority_policy": "inverted-slo"}, ["reverse-priority with inverted-slo is fcfs"]),
        ({"scheduler": "priority-fcfs", "priority_policy": "test_priorities:Shortest"}, []),
        (
            {"scheduler": "sjf", "priority_policy": "slo-based"},
            ["sjf does not order by the scores of slo-based: they are only kept"],
        ),
        (
            {"schedule_low_priority_values_first": True},
            ["schedule_low_priority_values_first has no effect without enable_priority_scheduling"],
        ),
        ({"scheduler": "aged-sjf"}, []),
        (
            {"scheduler": "vtc(lpm)"},
            ["vtc(lpm) orders by the prefix cache, which is off: fcfs takes the place of what needs it"],
        ),
    ],
)
def test_combinations_that_are_something_simpler_are_reported(fields: dict[str, object], warnings: list[str]) -> None:
    config = QueueingConfig(**fields)  # type: ignore[arg-type]
    assert config.warnings(prefix_cache=False) == warnings


def test_what_needs_the_prefix_cache_is_in_order_when_it_is_on() -> None:
    assert QueueingConfig(scheduler="lpm").warnings(prefix_cache=True) == []


def test_an_unknown_priority_policy_is_told_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown priority policy 'slo-base' \(did you mean 'slo-based'\?\)"):
        QueueingConfig(priority_policy="slo-base").policy()


def test_sglangs_flags_put_the_clients_priority_before_the_scheduler() -> None:
    def order(**flags: bool) -> list[int]:
        waiting = QueueingConfig(scheduler="sjf", enable_priority_scheduling=True, **flags).policy().make_queue(None, Random(0))
        for number, (priority, prompt) in enumerate([(1, 9), (5, 20), (1, 3), (5, 10)]):
            waiting.add(seq(number, prompt, priority=float(priority)), now=0)
        return drained(started(waiting))

    assert order() == [3, 1, 2, 0]
    assert order(schedule_low_priority_values_first=True) == [2, 0, 3, 1]
