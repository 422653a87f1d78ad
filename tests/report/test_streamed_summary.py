"""A streaming summary equals a summary of kept rows, in whatever parts the rows come: counts exactly, percentiles nearly."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from maitred.report import DEFAULT_SLO, By, GroupSummary, Slo, StreamingSummary, Summary, Targets, summarise
from maitred.report.breakdown import select_rows
from maitred.report.request_statistics import RequestCounts
from maitred.sim import ClusterConfig, Results, simulate
from maitred.workload import Job, synthetic

CLUSTER = ClusterConfig(num_instances=3, capacity=40)


def workload(rate: float = 60) -> Iterator[Job]:
    mixes = {"class_mix": "interactive:1,bulk:2", "tenant_mix": "auth:a:1,auth:b:3"}
    return synthetic(rate, 9_000, output_tokens="lognormal:99,80", **mixes)


def agree(exact: GroupSummary, nearly: GroupSummary) -> None:
    for name in RequestCounts.__struct_fields__:
        assert getattr(exact, name) == getattr(nearly, name), name
    for name in ("ttft", "tpot", "e2e", "scheduling_delay"):
        assert msgspec.structs.astuple(getattr(nearly, name)) == pytest.approx(
            msgspec.structs.astuple(getattr(exact, name)), rel=0.0101
        )


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
    slo = Slo(ttft=500_000, classes={"bulk": Targets(e2e=9_000_000), "nobody": Targets(e2e=1)})
    tally = StreamingSummary(slo, By)
    bare = simulate(workload(), CLUSTER, sink=tally.add)
    assert len(bare) == 0
    kept = simulate(workload(), CLUSTER)
    summaries_agree(summarise(kept, slo), tally.summary(bare))


@pytest.mark.parametrize("horizon", [1_000, 3_500_000])
def test_of_a_run_that_is_cut_off(horizon: int) -> None:
    """A request that never ran has waited until the end, also if there is more than a block of them."""
    tally = StreamingSummary(DEFAULT_SLO)
    bare = simulate(workload(2_000), ClusterConfig(capacity=1), horizon=horizon, sink=tally.add)
    kept = simulate(workload(2_000), ClusterConfig(capacity=1), horizon=horizon)
    for name in RequestCounts.__struct_fields__:
        assert getattr(summarise(kept, DEFAULT_SLO).total, name) == getattr(tally.summary(bare).total, name), name


def test_parts_in_any_order(told: Results) -> None:
    tally = StreamingSummary(Slo(ttft=200_000, classes={"batch": Targets(ttft=1), "x": Targets(ttft=1)}), By)
    for rows in ([4], [2, 0], [3], [1]):
        tally.add(select_rows(told, np.array(rows)))
    exact = summarise(told, Slo(ttft=200_000, classes={"batch": Targets(ttft=1), "x": Targets(ttft=1)}))
    nearly = tally.summary(select_rows(told, np.array([], dtype=np.int64)))
    for name in RequestCounts.__struct_fields__:
        assert getattr(exact.total, name) == getattr(nearly.total, name), name
    assert list(nearly.by[By.CLASS]) == ["interactive", "bulk"]
    assert list(nearly.by[By.INSTANCE]) == ["0", "1"]
    assert nearly.warnings == exact.warnings


def test_of_no_request(none: Results) -> None:
    summary = StreamingSummary(DEFAULT_SLO).summary(none)
    assert summary.total.arrived == 0
    assert summary.total.ttft is None
    assert summary.by == {By.CLASS: {}}
