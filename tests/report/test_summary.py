"""The figures of a run: of a scenario that can be computed by hand (`FIVE` in conftest), of groups, under objectives, as BLIS's
score, and added up from rows that stream by.

The five: TTFT 100, 200, 400, and 800 ms of the unfinished; E2E 500, 200, 1400 ms; TPOT 100, none, 100 ms. The third is bulk and
names the SLO class batch; the others of bulk did not complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.report import (
    DEFAULT_SLO,
    By,
    GroupSummary,
    LatencyStatistics,
    Slo,
    StreamingSummary,
    Summary,
    Targets,
    fitness,
    parse_weights,
    summarise,
)
from maitred.report.breakdown import select_rows
from maitred.report.request_statistics import RequestCounts, StreamedLatency
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job, synthetic


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
        (Slo(ttft_ms=200), 2),
        (Slo(ttft_ms=199.999), 1),
        (Slo(e2e_ms=499.999), 1),
        (Slo(tpot_ms=99.999), 1),
        (Slo(ttft_ms=400, tpot_ms=100, e2e_ms=1_400), 3),
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
        summary = summarise(none, Slo(ttft_ms=0.001))
    assert summary.total.ttft is summary.total.tpot is summary.total.e2e is summary.total.attainment is None
    assert summary.per_second(0) is None
    assert summary.classes == {}


def test_percentiles_are_numpys(five: Results) -> None:
    e2e = [500_000, 200_000, 1_400_000]
    spread = summarise(five).total.e2e
    assert spread is not None
    assert [spread.p50, spread.p90, spread.p95, spread.p99] == list(np.percentile(e2e, [50, 90, 95, 99]))


@pytest.mark.parametrize(
    ("by", "arrived"),
    [
        (By.CLASS, {"interactive": 2, "bulk": 3}),
        (By.SLO_CLASS, {"–": 3, "batch": 1, "sheddable": 1}),
        (By.TENANT, {"–": 1, "acme": 2, "globex": 2}),
        (By.MODEL, {"llama": 5}),
        (By.INSTANCE, {"0": 2, "1": 2}),  # the rejected one came to none
    ],
)
def test_who_belongs_to_which(told: Results, by: By, arrived: dict[str, int]) -> None:
    groups = summarise(told).by[by]
    assert [(label, group.arrived) for label, group in groups.items()] == [*arrived.items()]


def test_each_has_its_own_figures(told: Results) -> None:
    acme, globex = (summarise(told, Slo(ttft_ms=150)).by[By.TENANT][name] for name in ("acme", "globex"))
    assert acme.ttft is not None
    assert (acme.ttft.mean, acme.output_tokens, acme.within_slo, acme.attainment) == (150_000, 6, 1, 0.5)
    assert globex.ttft is not None
    assert (globex.ttft.mean, globex.output_tokens, globex.within_slo, globex.wasted_tokens) == (400_000, 11, 0, 12)


def test_only_those_asked_for_and_classes(told: Results) -> None:
    assert list(summarise(told, by=()).by) == [By.CLASS]
    assert list(summarise(told, by=(By.MODEL, By.TENANT)).by) == [By.CLASS, By.TENANT, By.MODEL]


def test_what_instances_did(told: Results) -> None:
    """Gaps of 100, 100 and 300 ms; busy 1.5 s and 0.5 s of 2 s each."""
    summary = summarise(told)
    assert summary.instances["0"].utilisation == 0.75
    assert summary.instances["1"].utilisation == 0.25
    assert (summary.all_instances.utilisation, summary.all_instances.steps) == (0.5, 40)
    assert summary.all_instances.itl is not None
    assert summary.all_instances.itl.mean == pytest.approx(500_000 / 3)
    assert summary.all_instances.itl.p50 == pytest.approx(100_000, rel=0.006)


def test_fairness_is_jains_index_of_the_tokens(told: Results, five: Results) -> None:
    """6, 11 and 3 tokens: 20² / (3 · (36 + 121 + 9))."""
    assert summarise(told).fairness == pytest.approx(400 / 498)
    assert summarise(five).fairness is None


def test_the_longest_wait_counts_requests_that_never_ran(make: object, told: Results) -> None:
    """The rejected request stays to the end, because its end is not given; the others waited 10, 20, 30 and 40 ms."""
    summary = summarise(told)
    assert summary.total.longest_wait == 1_750_000
    assert summary.by[By.INSTANCE]["0"].longest_wait == 30_000
    told.scheduled[2] = 700_000  # preempted after its first token, at 600 ms
    assert summarise(told).by[By.INSTANCE]["0"].longest_wait == 400_000


def test_work_that_was_done_twice(told: Results) -> None:
    """110 prompt tokens were admitted, 22 of them cached, and 20 tokens generated: 18 wasted are 14 %, which is thrashing."""
    summary = summarise(told)
    assert summary.total.waste == pytest.approx(18 / (110 - 22 + 20 + 18))
    assert summary.warnings[0].startswith("KV thrashing: 3 preemptions, 14% of the tokens computed were computed again")
    told.wasted_tokens[:] = 2
    assert summarise(told).warnings == ()


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_ms=200), 2),
        (Slo(ttft_ms=200, classes={"batch": Targets(ttft_ms=400)}), 3),
        (Slo(ttft_ms=200, classes={"batch": Targets(e2e_ms=1_400)}), 2),  # what it leaves out is as for all
        (Slo(classes={"batch": Targets(e2e_ms=0.001)}), 2),  # the others have no target
        (Slo(classes={"interactive": Targets(ttft_ms=100)}), 2),
        (Slo(ttft_ms=200, classes={"bulk": Targets(ttft_ms=400)}), 2),  # of bulk only the request without an SLO class
        (Slo(ttft_ms=0.001, classes={"interactive": Targets(ttft_ms=200), "batch": Targets(ttft_ms=400)}), 3),
    ],
)
def test_targets_of_a_class_come_before_those_for_all(told: Results, slo: Slo, good: int) -> None:
    assert summarise(told, slo).total.within_slo == good


def test_a_class_without_requests_is_a_warning(told: Results) -> None:
    slo = Slo(classes={"batch": Targets(ttft_ms=0.001), "bacth": Targets(ttft_ms=0.001), "system": Targets(ttft_ms=0.001)})
    told.wasted_tokens[:] = 0
    assert summarise(told, slo).warnings == (
        "there is an SLO for the class 'bacth', and no request of it",
        "there is an SLO for the class 'system', and no request of it",
    )


def test_targets_that_say_nothing_are_none() -> None:
    assert not Slo()
    assert not Slo(classes={"batch": Targets()})
    assert Slo(classes={"batch": Targets(e2e_ms=0.001)})


def test_the_score_is_the_weighted_sum(five: Results) -> None:
    summary = summarise(five)
    completed, tokens = summary.per_second(summary.total.completed), summary.per_second(summary.total.output_tokens)
    assert completed is not None
    assert tokens is not None
    score = fitness(summary, parse_weights("throughput:2, tokens_per_sec:1,p50_ttft:0.5,mean_e2e:0.25"))
    assert score.components == {
        "throughput": completed / (completed + 100),
        "tokens_per_sec": tokens / (tokens + 10_000),
        "p50_ttft": pytest.approx(1 / 301),
        "mean_e2e": pytest.approx(1 / 701),
    }
    assert score.score == pytest.approx(2 * completed / (completed + 100) + tokens / (tokens + 10_000) + 0.5 / 301 + 0.25 / 701)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("p99_tfft:1", "no component 'p99_tfft'.*p99_ttft"),
        ("throughput", "cannot read the weight 'throughput'"),
        ("throughput:-1", "cannot read the weight"),
        ("throughput:nan", "cannot read the weight"),
        ("throughput:1,throughput:1", "each once"),
    ],
)
def test_what_cannot_be_weighed(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_weights(text, where="--fitness-weights")


CLUSTER = ClusterConfig(num_instances=3, capacity=40)


def requests_at(rate: float = 60) -> Iterator[Job]:
    mixes = {"class_mix": "interactive:1,bulk:2", "tenant_mix": "auth:a:1,auth:b:3"}
    return synthetic(rate, 5_000, output_tokens="lognormal:99,80", **mixes)


def agree(exact: GroupSummary, nearly: GroupSummary) -> None:
    for name in RequestCounts.__struct_fields__:
        assert getattr(exact, name) == getattr(nearly, name), name
    for name in ("ttft", "tpot", "e2e", "scheduling_delay"):
        assert msgspec.structs.astuple(getattr(nearly, name)) == pytest.approx(
            msgspec.structs.astuple(getattr(exact, name)), rel=0.0101
        )
        assert getattr(nearly, name).std == pytest.approx(getattr(exact, name).std, rel=1e-9)


def summaries_agree(exact: Summary, nearly: Summary) -> None:
    agree(exact.total, nearly.total)
    for by, groups in exact.by.items():
        assert set(groups) == set(nearly.by[by])
        for label, group in groups.items():
            agree(group, nearly.by[by][label])
    assert (exact.duration, exact.all_instances, exact.instances, exact.warnings) == (
        nearly.duration,
        nearly.all_instances,
        nearly.instances,
        nearly.warnings,
    )
    assert exact.fairness == pytest.approx(nearly.fairness)


def test_of_a_run_whose_rows_are_not_kept() -> None:
    slo = Slo(ttft_ms=500, classes={"bulk": Targets(e2e_ms=9_000), "nobody": Targets(e2e_ms=0.001)})
    tally = StreamingSummary(slo, By)
    bare = simulate(requests_at(), CLUSTER, sink=tally.add)
    assert len(bare) == 0
    kept = simulate(requests_at(), CLUSTER)
    summaries_agree(summarise(kept, slo), tally.summary(bare))


@pytest.mark.parametrize("horizon", [1_000, 3_500_000])
def test_of_a_run_that_is_cut_off(horizon: int) -> None:
    """A request that never ran has waited until the end, also if there is more than a block of them."""
    tally = StreamingSummary(DEFAULT_SLO)
    bare = simulate(requests_at(2_000), ClusterConfig(capacity=1), horizon=horizon, sink=tally.add)
    kept = simulate(requests_at(2_000), ClusterConfig(capacity=1), horizon=horizon)
    for name in RequestCounts.__struct_fields__:
        assert getattr(summarise(kept, DEFAULT_SLO).total, name) == getattr(tally.summary(bare).total, name), name


def test_parts_in_any_order(told: Results) -> None:
    tally = StreamingSummary(Slo(ttft_ms=200, classes={"batch": Targets(ttft_ms=0.001), "x": Targets(ttft_ms=0.001)}), By)
    for rows in ([4], [2, 0], [3], [1]):
        tally.add(select_rows(told, np.array(rows)))
    exact = summarise(told, Slo(ttft_ms=200, classes={"batch": Targets(ttft_ms=0.001), "x": Targets(ttft_ms=0.001)}))
    nearly = tally.summary(select_rows(told, np.array([], dtype=np.int64)))
    for name in RequestCounts.__struct_fields__:
        assert getattr(exact.total, name) == getattr(nearly.total, name), name
    assert list(nearly.by[By.CLASS]) == ["interactive", "bulk"]
    assert list(nearly.by[By.INSTANCE]) == ["0", "1"]
    assert nearly.warnings == exact.warnings


def test_a_small_spread_of_large_values_comes_out_whatever_the_parts() -> None:
    """A day and 0 to 7 µs: all in one bucket of the sketch, and the squares differ in their last digits alone."""
    values = 86_400e6 + np.arange(8.0)
    latency = StreamedLatency()
    for part in (values[:1], values[1:1], values[1:6], values[6:]):
        latency.add(part)
    found = latency.statistics()
    assert found is not None
    assert (found.mean, found.std) == (86_400e6 + 3.5, pytest.approx(5.25**0.5, rel=1e-9))


def test_of_no_request(none: Results) -> None:
    summary = StreamingSummary(DEFAULT_SLO).summary(none)
    assert summary.total.arrived == 0
    assert summary.total.ttft is None
    assert summary.by == {By.CLASS: {}}
