"""The figures of a scenario that can be computed by hand (`FIVE` in conftest)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from maitred.core.request import PriorityClass
from maitred.report import LatencyStatistics, Slo, summarise
from maitred.sim import Outcome, Results


def ms(spread: LatencyStatistics | None) -> dict[str, float]:
    assert spread is not None
    return {name: round(getattr(spread, name) / 1000, 6) for name in ("mean", "p50", "p90", "p99")}


def test_ttft_is_of_all_that_got_a_first_token(five: Results) -> None:
    """100, 200, 400, and 800 ms of the unfinished one. p90 lies at rank 2.7, p99 at rank 2.97."""
    assert ms(summarise(five).total.ttft) == {"mean": 375, "p50": 300, "p90": 680, "p99": 788}


def test_e2e_is_of_the_completed(five: Results) -> None:
    """200, 500, 1400 ms. p90 lies at rank 1.8, p99 at rank 1.98."""
    assert ms(summarise(five).total.e2e) == {"mean": 700, "p50": 500, "p90": 1220, "p99": 1382}


def test_tpot_leaves_out_the_single_token(five: Results) -> None:
    """400 ms over 4 gaps and 1000 ms over 10."""
    assert ms(summarise(five).total.tpot) == {"mean": 100, "p50": 100, "p90": 100, "p99": 100}


def test_scheduling_delay_is_of_all_that_were_scheduled(five: Results) -> None:
    assert ms(summarise(five).total.scheduling_delay)["mean"] == 25


def test_every_request_is_accounted_for(five: Results) -> None:
    total = summarise(five).total
    assert {kind: count for kind, count in total.outcomes.items() if count} == {
        Outcome.COMPLETED: 3,
        Outcome.REJECTED: 1,
        Outcome.UNFINISHED: 1,
    }
    assert sum(total.outcomes.values()) == total.arrived == 5


def test_what_was_preempted_was_let_in_and_has_no_latency(preempting: Results) -> None:
    summary = summarise(preempting)
    assert summary.total.outcomes[Outcome.PREEMPTED] == summary.total.retries == 1
    assert sum(summary.total.outcomes.values()) == summary.total.arrived == 7
    assert summary.total.prompt_tokens == 10 + 20 + 30 + 50 + 60 + 70
    assert ms(summary.classes[PriorityClass.BULK].ttft)["mean"] == round(
        1600 / 3, 6
    )  # 400, 800, 400: the retried one from its arrival, not its retry


def test_throughput_counts_all_tokens_that_came_out(five: Results) -> None:
    summary = summarise(five)
    assert summary.per_second(summary.total.completed) == 1.5
    assert summary.total.output_tokens == 20
    assert summary.per_second(summary.total.output_tokens) == 10
    assert summary.total.prompt_tokens == 10 + 20 + 30 + 50
    assert summary.total.preemptions == 3


def test_classes_have_their_own_figures_the_most_urgent_first(five: Results) -> None:
    classes = summarise(five).classes
    assert list(classes) == [PriorityClass.INTERACTIVE, PriorityClass.BULK]
    assert ms(classes[PriorityClass.INTERACTIVE].ttft)["mean"] == 150
    assert ms(classes[PriorityClass.BULK].e2e)["p50"] == 1400
    assert [group.arrived for group in classes.values()] == [2, 3]


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft=200_000), 2),
        (Slo(ttft=199_999), 1),
        (Slo(e2e=499_999), 1),
        (Slo(tpot=99_999), 1),
        (Slo(ttft=400_000, tpot=100_000, e2e=1_400_000), 3),
    ],
)
def test_good_is_completed_within_every_target(five: Results, slo: Slo, good: int) -> None:
    """A target counts as met if it is reached exactly. The single token meets any TPOT. A request that did not complete never
    meets."""
    summary = summarise(five, slo)
    assert summary.total.within_slo == good
    assert summary.per_second(summary.total.within_slo) == good / 2
    assert summary.total.attainment == good / 5


def test_without_an_slo_nothing_is_good_or_bad(five: Results) -> None:
    total = summarise(five).total
    assert total.within_slo is None
    assert total.attainment is None


def test_from_nothing_comes_nothing_and_no_warning(none: Results) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = summarise(none, Slo(ttft=1))
    assert summary.total.ttft is summary.total.tpot is summary.total.e2e is summary.total.attainment is None
    assert summary.per_second(0) is None
    assert summary.classes == {}


def test_percentiles_are_numpys(five: Results) -> None:
    e2e = [500_000, 200_000, 1_400_000]
    spread = summarise(five).total.e2e
    assert spread is not None
    assert [spread.p50, spread.p90, spread.p95, spread.p99] == list(np.percentile(e2e, [50, 90, 95, 99]))
