"""Comparing candidates on the same workloads."""

from __future__ import annotations

import pytest

from maitred import Candidate, ClusterConfig, ConfigError, InstanceConfig, LinearLatency, Load, Slo, Workload, compare, simulate
from maitred.report import metrics, summarise
from maitred.study.metrics import RUN_METRICS
from maitred.workload import Client
from maitred.workload.spec import GoodputTargets

ONE = Candidate()
TWO = Candidate(cluster=ClusterConfig(num_instances=2))
LOAD = Load(rate=40, num_requests=150, class_mix="interactive:1,bulk:1")


def test_each_side_has_the_figures_of_its_own_simulation() -> None:
    found = compare(ONE, TWO, workload=LOAD, seeds=[7, 8], metrics=["ttft_mean_ms", "bulk.completed_requests"])
    for side, candidate in enumerate((ONE, TWO)):
        with LOAD.jobs(8) as jobs:
            alone = simulate(jobs, candidate.cluster, candidate.instance, seed=8)
        said = metrics(alone.summary())
        assert found.figures[side][1] == {
            "ttft_mean_ms": said["ttft_mean_ms"],
            "bulk.completed_requests": said["per_class"]["bulk"]["completed_requests"],
        }
    (pairing,) = found.pairings
    first = pairing.differences[0]
    assert (pairing.a, pairing.b) == ("A", "B")
    assert first.wins == 0
    assert first.probability == 0
    assert first.high is not None
    assert first.high < 0


def test_two_processes_say_what_one_does() -> None:
    alone = compare(ONE, TWO, workload=LOAD, seeds=3)
    assert compare(ONE, TWO, workload=LOAD, seeds=3, jobs=2) == alone


def test_every_other_side_is_compared_with_the_first() -> None:
    sjf = Candidate(instance=InstanceConfig(scheduler="sjf"))
    found = compare(ONE, TWO, sjf, workload=LOAD, seeds=2, metrics=["e2e_p99_ms"])
    assert [(pairing.a, pairing.b) for pairing in found.pairings] == [("A", "B"), ("A", "C")]
    assert found.to_frame()["b_name"].to_list() == ["B", "C"]


def test_model_errors_are_in_the_figures_and_alike_on_both_sides() -> None:
    """Twice the KV blocks change nothing here, and an error that both sides share makes no difference between them."""
    load = Load(rate=1, num_requests=20)
    wrong = InstanceConfig(latency_error=0.2)
    larger = InstanceConfig(latency_error=0.2, total_kv_blocks=54_000)
    found = compare(Candidate(instance=wrong), Candidate(instance=larger), workload=load, seeds=3, metrics=["tpot_mean_ms"])
    exact = compare(
        ONE, Candidate(instance=InstanceConfig(total_kv_blocks=54_000)), workload=load, seeds=3, metrics=["tpot_mean_ms"]
    )
    assert found.pairings[0].differences[0].ties == 3
    assert found.figures[0] != exact.figures[0]
    other = Candidate(instance=InstanceConfig(latency_error=0.2, latency=LinearLatency(), hardware="A100"))
    apart = compare(Candidate(instance=wrong), other, workload=load, seeds=3, metrics=["tpot_mean_ms"])
    assert apart.same_residuals == (True, False)
    assert apart.pairings[0].differences[0].ties == 0


def test_what_is_printed_says_what_is_in_it() -> None:
    exact = str(compare(ONE, TWO, workload=LOAD, seeds=2))
    assert "No model error is in these figures: it is neither configured nor published" in exact
    assert max(map(len, exact.splitlines())) <= 80
    single = str(compare(ONE, TWO, workload=LOAD, seeds=1, metrics=["ttft_p50_ms"]))
    assert "With one seed there is no interval" in single
    wrong = Candidate(instance=InstanceConfig(latency_error=0.05))
    said = " ".join(str(compare(wrong, ONE, workload=LOAD, seeds=2, metrics=["ttft_p50_ms"])).split())
    assert "A 5.0% (standard deviation; 0: exact). They do not include that of B" in said
    assert "share the draws" in said


def test_a_workload_brings_its_targets() -> None:
    workload = Workload(
        clients=[Client(id="chat", rate=10, slo_class="critical", input_distribution=100, output_distribution=10)],
        num_requests=20,
        goodput_slo_targets={"critical": GoodputTargets(ttft_ms=0.001)},
    )
    found = compare(ONE, TWO, workload=workload, seeds=1, metrics=["slo_attainment"])
    assert found.figures[0][0] == {"slo_attainment": 0.0}
    assert found.slo == "critical: TTFT ≤ 0.001 ms"


def test_every_metric_is_a_figure_of_a_run() -> None:
    with LOAD.jobs(1) as jobs:
        said = metrics(summarise(simulate(jobs).rows, Slo(ttft=1)))
    assert set(RUN_METRICS) <= set(said)
    of_a_class = said["per_class"]["bulk"]
    assert {name for name, metric in RUN_METRICS.items() if metric.of_groups} == set(RUN_METRICS) & set(of_a_class)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("ttft_p98_ms", "there is no metric 'ttft_p98_ms' (did you mean 'ttft_p99_ms'?)"),
        ("bulk.utilisation", "utilisation is a figure of the whole run, not of 'bulk'"),
        ("bulc.ttft_p99_ms", "no request is of the class or tenant 'bulc' (did you mean 'bulk'?)"),
    ],
)
def test_a_metric_that_is_none(metric: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        compare(ONE, TWO, workload=LOAD, seeds=1, metrics=[metric])
    assert said in str(error.value)


def test_a_class_that_happens_to_send_nothing_has_no_figures() -> None:
    found = compare(ONE, TWO, workload=LOAD, seeds=2, metrics=["system.ttft_p99_ms"])
    assert found.pairings[0].differences[0].seeds == 0
    assert "Not all seeds of A and B have a figure: system.ttft_p99_ms (0)" in " ".join(str(found).split())


def test_a_model_that_does_not_fit_is_named_with_its_side() -> None:
    large = Candidate(instance=InstanceConfig(model="meta-llama/llama-3.1-70b-instruct"))
    with pytest.raises(ConfigError, match=r"^B: hardware: "):
        compare(ONE, large, workload=LOAD, seeds=1)


def test_one_candidate_is_no_comparison() -> None:
    with pytest.raises(ConfigError, match="no comparison"):
        compare(ONE, workload=LOAD)
