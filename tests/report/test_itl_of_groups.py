"""The gaps between tokens by group: by hand, the same with skipped steps and without, and none lost or counted twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import maitred
from maitred.admission import AdmissionConfig
from maitred.core.histogram import QuantileSketch
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.report import By, StreamingSummary, metrics
from maitred.report.breakdown import group_codes, itl_by_group
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, DisaggregationConfig, Outcome, Results, simulate
from maitred.workload import Job

LINEAR = InstanceConfig(latency=LinearLatency((1000, 10, 100), (0, 0, 7)), max_num_seqs=6)
GROWING = InstanceConfig(model="meta-llama/llama-3.1-8b-instruct", hardware="H100", max_num_seqs=6)
"""Each step takes longer than the one before."""


def job(number: int, arrival: int, prompt: int, answer: int, **said: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **said), answer)


def test_each_tenant_has_its_own_gaps() -> None:
    """Four blocks of 16 tokens. Both prompts are computed at 1640. B loses its KV, A decodes four times 1100 and ends at 6040.
    B computes its prompt and its token, until 7370, and decodes once more for 1100. Each gap takes 7 µs to the client."""
    jobs = [job(0, 0, 32, 5, tenant="acme"), job(1, 0, 32, 3, tenant="globex")]
    config = msgspec.structs.replace(LINEAR, total_kv_blocks=4)
    result = maitred.simulate(jobs, instance=config)
    groups = result.summary().by[By.TENANT]
    acme, globex = groups["acme"].itl, groups["globex"].itl
    assert acme is not None
    assert globex is not None
    assert acme.mean == acme.p50 == acme.p99 == 1_107
    paused = 6040 + 1000 + 330 - 1640 + 7
    assert globex.mean == (paused + 1_107) / 2
    assert globex.p50 == pytest.approx(globex.mean, rel=1e-9)  # between the least and the greatest, which are exact
    figures = metrics(result.summary())
    assert figures["per_tenant"]["acme"]["itl_p99_ms"] == 1.107
    assert figures["per_class"]["default"]["itl_p50_ms"] == figures["itl_p50_ms"]


def test_who_leaves_in_the_midst_of_a_step_does_not_get_its_token() -> None:
    """Alone, a step takes 1100. The prompt is computed at 1320, a token at 2420; the request leaves at 3000, in the second
    step."""
    results = simulate([job(0, 0, 32, 5, deadline=3_000)], instance=LINEAR, log_itl=True)
    assert results.outcome.tolist() == [Outcome.TIMED_OUT]
    assert results.output_tokens.tolist() == [2]
    (totals,) = results.instances
    assert (totals.itl.count, totals.itl.total) == (1, 1_107)
    assert itl_by_group(results, group_codes(results, By.TENANT)) == {0: totals.itl}


def test_of_a_run_that_keeps_no_requests_there_is_the_mean_only() -> None:
    jobs = [job(0, 0, 32, 5, tenant="acme"), job(1, 0, 32, 3, tenant="globex")]
    tally = StreamingSummary(maitred.Slo(), By)
    summary = tally.summary(simulate(jobs, instance=LINEAR, sink=tally.add))
    acme = summary.by[By.TENANT]["acme"]
    assert acme.itl is None
    assert acme.itl_mean == acme.completed_itl_mean == (1_200 * 2 + 1_100 * 2) / 4 + 7
    assert metrics(summary)["per_tenant"]["acme"]["itl_p99_ms"] is None
    assert summary.total.itl == summary.all_instances.itl
    assert summary.by[By.INSTANCE]["0"].itl == summary.by[By.CLASS]["default"].itl == summary.all_instances.itl


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    assert simulate([job(0, 0, 32, 5)], instance=LINEAR).itl_gaps is None


def test_a_run_with_no_gap() -> None:
    summary = maitred.simulate([job(0, 0, 32, 1, tenant="acme"), job(1, 0, 32, 1)], instance=LINEAR).summary()
    assert [group.itl for group in summary.by[By.TENANT].values()] == [None, None]
    assert maitred.simulate([], instance=LINEAR).summary().total.itl is None


def crowd(seed: int, size: int, hurried: bool) -> Iterator[Job]:
    for i in range(size):
        mixed = (i * 7919 + seed * 104_729) % 997
        arrival = (i // 4) * (1_500 + seed % 7 * 400)
        yield job(
            i,
            arrival,
            1 + mixed % 90,
            1 + mixed % 67,
            tenant=("auth:acme", "auth:globex", "")[mixed % 3],
            model="ab"[mixed % 5 == 0],
            priority_class=PriorityClass(mixed % 4),
            priority=float(mixed % 5),
            deadline=arrival + 500 * (mixed % 60) + 1 if hurried and not mixed % 4 else None,
        )


PD = DisaggregationConfig(prefill_instances=1, decode_instances=1, kv_bytes_per_token=131_072)
CLUSTERS = {
    "alone": ClusterConfig(),
    "three": ClusterConfig(num_instances=3),
    "P/D": ClusterConfig(num_instances=2, disaggregation=PD),
    "admission": ClusterConfig(num_instances=2, capacity=5),
}
RETRYING: dict[str, Any] = {
    "mode": "priority",
    "on_overcommit": "clamp",
    "on_preempt": "retry",
    "preemption_budget_ms": 50,
    "classes": {"interactive": {"can_preempt": True}},
}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    instance=st.sampled_from([LINEAR, GROWING]),
    cluster=st.sampled_from(sorted(CLUSTERS)),
    kind=st.sampled_from([{}, {}, {"async_scheduling": True}, {"flavour": "blis"}, {"flavour": "blis"}]),
    victims=st.sampled_from(["fcfs", "priority"]),
    blocks=st.sampled_from([12, 30, 1000]),
    routing=st.sampled_from(["round-robin", "weighted"]),
    hurried=st.booleans(),
    horizon=st.sampled_from([None, 21_234]),
)
def test_groups_have_all_gaps_of_the_run_and_no_more(
    seed: int,
    instance: InstanceConfig,
    cluster: str,
    kind: dict[str, Any],
    victims: Any,
    blocks: int,
    routing: str,
    hurried: bool,
    horizon: int | None,
) -> None:
    blis = "flavour" in kind
    assume(not (blis and cluster == "P/D"))

    def run(**said: Any) -> Results:
        config = msgspec.structs.replace(instance, preemption_policy=victims, total_kv_blocks=blocks, **kind, **said)
        admission = msgspec.convert(RETRYING, AdmissionConfig) if cluster == "admission" else None
        jobs, router = crowd(seed, 60, hurried), RoutingConfig(policy=routing)
        return simulate(jobs, CLUSTERS[cluster], config, router, admission, horizon=horizon, log_itl=True)

    skipping, stepping = run(), run(step_by_step=True)
    assert skipping.itl_gaps is not None
    assert stepping.itl_gaps is not None
    np.testing.assert_array_equal(skipping.finished, stepping.finished)
    for name in skipping.itl_gaps.__struct_fields__:
        np.testing.assert_array_equal(getattr(skipping.itl_gaps, name), getattr(stepping.itl_gaps, name), err_msg=name)
    whole = QuantileSketch()
    for totals in skipping.instances:
        whole.merge(totals.itl)
    for by in (By.CLASS, By.TENANT, By.MODEL):
        merged = QuantileSketch()
        for sketch in itl_by_group(skipping, group_codes(skipping, by)).values():
            merged.merge(sketch)
        assert (merged.bucket_counts, merged.count, merged.total) == (whole.bucket_counts, whole.count, whole.total)
        assert whole.minimum <= merged.minimum <= whole.minimum * 1.01
        assert whole.maximum / 1.01 <= merged.maximum <= whole.maximum
    one_by_one = itl_by_group(skipping, np.arange(len(skipping)))
    if not blis and not skipping.retries.sum():
        gaps = np.maximum(skipping.output_tokens - 1, 0)
        assert {row: sketch.count for row, sketch in one_by_one.items()} == {
            row: count for row, count in enumerate(gaps.tolist()) if count
        }
