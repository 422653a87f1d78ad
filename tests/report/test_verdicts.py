"""Verdicts: for each rule a scene in which it holds, and one close to it in which it does not. And the use of the instances."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import maitred
from maitred.admission import AdmissionConfig
from maitred.admission.terms.config import ClassConfig, ClassesConfig
from maitred.instance import InstanceConfig
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.report import Assessment, Slo, Targets, VerdictKind
from maitred.report.utilisation import utilisation_lines
from maitred.report.verdicts import find_growth
from maitred.sim import ClusterConfig, Samples
from maitred.sim.config import LimitChange
from maitred.sim.fleet_config import FailureConfig, InstanceGroup

EVEN = {"input_tokens": "normal:500,50", "output_tokens": "uniform:150,250"}


def assess(
    rate: float,
    num_requests: int = 600,
    *,
    instance: InstanceConfig | None = None,
    cluster: ClusterConfig | None = None,
    admission: AdmissionConfig | None = None,
    slo: Slo | None = None,
    **load: Any,
) -> Assessment:
    jobs = maitred.synthetic(rate=rate, num_requests=num_requests, **{**EVEN, **load})
    return maitred.simulate(jobs, cluster, instance, admission=admission).assess(slo)


def text(assessment: Assessment, kind: VerdictKind) -> str:
    return " ".join(verdict.text for verdict in assessment.verdicts if verdict.kind is kind)


def test_nothing_is_wrong_with_half_a_load() -> None:
    assert assess(15).verdicts == ()


def test_a_queue_diverges_above_the_limit_and_says_at_which_rate_it_would_not() -> None:
    found = text(assess(60, 1_500), VerdictKind.DIVERGES)
    limit = find_throughput_limit(InstanceConfig(), RequestMix(prompt=500, output=200)).rate
    assert found.startswith("The queue diverges: since ")
    assert float(found.split("At about ")[1].split("/s")[0]) == pytest.approx(limit, rel=0.1)


def test_a_queue_below_the_limit_does_not_diverge() -> None:
    limit = find_throughput_limit(InstanceConfig(), RequestMix(prompt=500, output=200)).rate
    assert text(assess(0.9 * limit, 1_500), VerdictKind.DIVERGES) == ""


def test_a_burst_that_is_served_is_no_divergence() -> None:
    """All requests come within the first tenth of the arrivals, and the last one at their end."""
    burst = [*maitred.synthetic(rate=300, num_requests=600, **EVEN)]
    late = maitred.Job(request=maitred.Request(id=10_000, arrival=20_000_000, prompt_tokens=9), output_tokens=9)
    assert text(maitred.simulate([*burst, late]).assess(), VerdictKind.DIVERGES) == ""


def queue_of(load: float, seed: int, requests: int = 3_000) -> Samples:
    """Return samples of an M/M/1 queue that begins empty, until its last request arrives."""
    draw, now, free = Random(seed), 0.0, 0.0
    arrivals, ends = [], []
    for _ in range(requests):
        now += draw.expovariate(load)
        free = max(now, free) + draw.expovariate(1.0)
        arrivals.append(now)
        ends.append(free)
    at = np.linspace(0, now, 200)
    arrived, ended = np.searchsorted(arrivals, at, "right"), np.searchsorted(ends, at, "right")
    return samples_of(at * 1e6, arrived, ended)


def samples_of(at: Any, arrived: Any, ended: Any) -> Samples:
    waiting = (arrived - ended).astype(np.int32)
    none = np.zeros_like(waiting)
    return Samples(
        at=at.astype(np.int64), waiting=waiting[:, None], running=none[:, None], blocks_used=none[:, None], total_blocks=1,
        outside_instances=none, arrived=arrived, ended=ended,
    )  # fmt: skip


def test_no_queue_up_to_98_percent_of_its_capacity_is_said_to_diverge_and_most_beyond_it_are() -> None:
    for load in (0.5, 0.9, 0.98):
        assert sum(find_growth(queue_of(load, seed)) is not None for seed in range(100)) == 0, load
    assert sum(find_growth(queue_of(1.2, seed)) is not None for seed in range(100)) >= 85


def test_bursts_need_more_growth_than_even_arrivals() -> None:
    """5,000 requests come evenly or a thousand at a time, and 9 of 10 have ended: 500 wait at the end of both."""
    at, even = np.linspace(0, 1e8, 201), np.linspace(0, 5_000, 201).astype(int)
    bursts = np.ceil(even / 1_000).astype(int) * 1_000
    ended = (0.9 * even).astype(int)
    assert find_growth(samples_of(at, even, ended)) is not None
    assert find_growth(samples_of(at, bursts, ended)) is None


def test_a_queue_that_is_empty_when_the_last_request_comes_has_not_grown() -> None:
    waiting = np.array([0] * 30 + [*range(100, 500, 10)] + [0])
    arrived = np.arange(len(waiting)) * 100
    assert find_growth(samples_of(np.arange(len(waiting)) * 1e6, arrived, arrived - waiting)) is None


def test_kv_is_the_bottleneck_where_requests_wait_for_blocks() -> None:
    found = text(assess(20, instance=InstanceConfig(total_kv_blocks=1_000)), VerdictKind.KV)
    assert "requests waited for blocks with" in found
    assert "of 256 sequences running" in found


def test_a_full_batch_is_not_kv() -> None:
    assert text(assess(60, instance=InstanceConfig(max_num_seqs=16)), VerdictKind.KV) == ""


def test_kv_that_is_used_but_not_waited_for_is_no_bottleneck() -> None:
    assert text(assess(5, instance=InstanceConfig(total_kv_blocks=1_000)), VerdictKind.KV) == ""


LONG = {"input_tokens": "4000", "output_tokens": "20"}


def test_prefill_starves_decode_with_long_prompts_in_large_chunks() -> None:
    found = text(assess(8, 300, instance=InstanceConfig(max_num_batched_tokens=8_192), **LONG), VerdictKind.PREFILL)
    assert "a gap between tokens took" in found


def test_small_chunks_do_not_starve_decode() -> None:
    assert text(assess(8, 300, instance=InstanceConfig(max_num_batched_tokens=128), **LONG), VerdictKind.PREFILL) == ""


MIX = "interactive:1,bulk:1"
PRIORITY = AdmissionConfig(mode="priority")
PATIENT = AdmissionConfig(
    mode="priority",
    classes=ClassesConfig(
        bulk=ClassConfig(queue_size=9_999, queue_timeout_secs=9_999, starvation_threshold_secs=9_999),
        interactive=ClassConfig(queue_size=9_999, queue_timeout_secs=9_999),
    ),
)


SLOTS = ClusterConfig(capacity=24)


def test_a_class_starves_behind_one_with_reserved_slots() -> None:
    found = text(assess(18, admission=PATIENT, cluster=SLOTS, class_mix=MIX), VerdictKind.STARVES)
    assert found.startswith("The class bulk starves: half of its requests waited ")


def test_a_class_starves_of_which_many_are_lost() -> None:
    curt = AdmissionConfig(mode="priority", classes=ClassesConfig(bulk=ClassConfig(queue_size=2)))
    found = text(assess(18, admission=curt, cluster=SLOTS, class_mix=MIX), VerdictKind.STARVES)
    assert "of its requests did not complete, of others at most 0%" in found


def test_classes_that_wait_alike_do_not_starve() -> None:
    assert text(assess(60, class_mix=MIX), VerdictKind.STARVES) == ""


def test_a_class_within_its_own_target_does_not_starve() -> None:
    day = Slo(classes={"bulk": Targets(ttft_ms=86_400_000)})
    assert text(assess(18, admission=PATIENT, cluster=SLOTS, class_mix=MIX, slo=day), VerdictKind.STARVES) == ""


def test_refused_requests_are_told_with_their_limit() -> None:
    found = text(assess(10, instance=InstanceConfig(max_model_len=650)), VerdictKind.REFUSED)
    assert "beyond the 650 tokens that fit (max_model_len)" in found
    assert "of the requests were not served" in found


def test_rejected_requests_are_told_with_the_reason_of_admission() -> None:
    found = text(assess(90, cluster=ClusterConfig(capacity=8), admission=PRIORITY), VerdictKind.REFUSED)
    assert "by admission, because the queue of their class was full (queue_size)" in found


def test_requests_that_find_the_queue_of_an_instance_full_are_told_so() -> None:
    found = text(assess(90, instance=InstanceConfig(max_num_seqs=8, max_num_queued_reqs=4)), VerdictKind.REFUSED)
    assert "by their instance, with a full queue (max_num_queued_reqs" in found


def test_requests_of_clients_that_leave_are_told_so() -> None:
    jobs = maitred.Load(rate=90, num_requests=400, timeout_secs=1, **EVEN)
    with jobs.jobs() as load:
        found = maitred.simulate(load).assess()
    assert "left by their clients at the deadline" in text(found, VerdictKind.REFUSED)


@pytest.mark.parametrize(("count", "is_said"), [(298, True), (299, False)])
def test_a_p99_needs_299_requests(count: int, is_said: bool) -> None:
    """0.99^299 = 0.0495: with a probability of 95 % the largest of 299 is beyond the true p99."""
    assert bool(text(assess(10, count), VerdictKind.FEW)) is is_said


def test_each_class_needs_them() -> None:
    assert "of bulk" in text(assess(10, 400, class_mix="interactive:9,bulk:1"), VerdictKind.FEW)


def test_a_run_without_requests_has_no_verdicts() -> None:
    assert maitred.simulate([]).assess().verdicts == ()


def test_the_use_of_a_saturated_instance() -> None:
    used = assess(60, 1_500).utilisation
    assert used.with_work == pytest.approx(1, abs=0.01)
    assert used.batch is not None
    assert used.batch > 0.9
    limit = find_throughput_limit(InstanceConfig(), RequestMix(prompt=500, output=200)).rate
    assert used.headroom == pytest.approx(limit / 60, rel=0.1)
    assert used.output_rate is not None
    assert used.output_limit is not None
    assert used.output_rate / used.output_limit == pytest.approx(1, abs=0.1)


def test_the_use_of_an_instance_that_is_busy_with_little() -> None:
    """It has work nearly all the time, and could take five times as much: what "busy" did not say."""
    used = assess(5).utilisation
    assert used.with_work is not None
    assert used.with_work > 0.9
    assert used.batch is not None
    assert used.batch < 0.1
    assert used.headroom is not None
    assert used.headroom > 4


def test_the_use_is_not_known_without_samples() -> None:
    jobs = maitred.synthetic(rate=10, num_requests=60)
    used = maitred.simulate(jobs, sample_every_ms=None).assess().utilisation
    assert used.with_work is not None
    assert (used.batch, used.kv, used.headroom) == (None, None, None)


def lines(assessment: Assessment) -> str:
    return " ".join(utilisation_lines(assessment.utilisation))


def test_the_output_is_that_of_the_table_however_late_the_last_request_comes() -> None:
    """600 requests in 10 s and one an hour later: over the arrivals 0.17/s came, and most had to wait."""
    burst = [*maitred.synthetic(rate=60, num_requests=600, **EVEN)]
    late = maitred.Job(request=maitred.Request(id=10_000, arrival=3_600_000_000, prompt_tokens=9), output_tokens=9)
    result = maitred.simulate([*burst, late])
    found, summary = result.assess(), result.summary()
    assert found.utilisation.output_rate == summary.per_second(summary.total.output_tokens)
    assert found.utilisation.busiest_rate == pytest.approx(600 / 360, rel=0.05)
    assert "requests/s in the busiest tenth of the time (0.17/s over all)" in lines(found)


def test_users_that_wait_for_answers_have_no_arrival_rate_and_no_headroom() -> None:
    with maitred.Load(concurrency=8, num_requests=200, **EVEN).jobs() as jobs:
        result = maitred.simulate(jobs)
    found, summary = result.assess(), result.summary()
    assert (found.utilisation.arrival_rate, found.utilisation.headroom) == (None, None)
    # Little's law: requests per second times their mean time in the system are those in flight, 8 but at the end.
    assert summary.total.e2e is not None
    flow = (summary.per_second(200) or 0) * summary.total.e2e.mean / 1e6
    assert found.utilisation.in_flight == pytest.approx(flow, rel=0.1)
    assert "Requests followed answers, so they have no arrival rate" in lines(found)


def test_steady_arrivals_have_one_rate() -> None:
    found = assess(15)
    assert found.utilisation.busiest_rate is None
    assert "requests/s, the limit is " in lines(found)


def test_no_headroom_is_promised_where_the_queue_diverges() -> None:
    found = assess(60, 1_500)
    assert found.utilisation.headroom is not None
    assert found.utilisation.headroom < 1
    served = text(found, VerdictKind.DIVERGES).split("At about ")[1].split("/s")[0]
    assert f"the instances served {served}/s while the queue grew" in lines(found) or "the limit is" in lines(found)


def test_rejected_requests_are_no_output() -> None:
    found = assess(90, cluster=ClusterConfig(capacity=8), admission=PRIORITY).utilisation
    assert found.output_rate is not None
    assert found.output_limit is not None
    assert found.output_rate < found.output_limit


def test_the_batch_of_each_instance_is_a_share_of_its_own_limit() -> None:
    """Four sequences fit into the first instance and 64 into the other, which both are full."""
    cluster = ClusterConfig(groups=[InstanceGroup(max_num_seqs=4), InstanceGroup(max_num_seqs=64)])
    used = assess(60, cluster=cluster).utilisation
    assert used.batch is not None
    assert 0.8 < used.batch <= 1


def test_the_batch_is_a_share_of_the_limit_of_its_time() -> None:
    """From 1 s on 64 fit where 4 did."""
    cluster = ClusterConfig(limit_changes=[LimitChange(at_secs=1.0, max_num_seqs=64)])
    used = assess(60, cluster=cluster, instance=InstanceConfig(flavour="vllm", max_num_seqs=4)).utilisation
    assert used.batch is not None
    assert 0.8 < used.batch <= 1


def test_the_room_of_each_instance_is_its_own() -> None:
    """Eight requests of 33 blocks fill the second instance, by its limit of sequences and nearly by its 270 blocks."""
    small = InstanceGroup(max_num_seqs=8, total_kv_blocks=270)
    cluster = ClusterConfig(groups=[InstanceGroup(max_num_seqs=100, total_kv_blocks=9_000), small])
    assert text(assess(300, cluster=cluster, input_tokens="500", output_tokens="17"), VerdictKind.KV) == ""


@pytest.mark.parametrize(
    "cluster",
    [
        ClusterConfig(num_instances=2, failures=FailureConfig(slow_instances=1, slow_factor=10.0)),
        ClusterConfig(groups=[InstanceGroup(), InstanceGroup(latency_scale=10.0)]),
    ],
)
def test_slow_instances_are_no_prefill(cluster: ClusterConfig) -> None:
    assert text(assess(8, 300, cluster=cluster, input_tokens="50"), VerdictKind.PREFILL) == ""


def test_prefill_that_starves_one_kind_of_instances_is_told() -> None:
    cluster = ClusterConfig(groups=[InstanceGroup(max_num_batched_tokens=64), InstanceGroup(max_num_batched_tokens=8_192)])
    assert "a gap between tokens took" in text(assess(16, 600, cluster=cluster, **LONG), VerdictKind.PREFILL)
