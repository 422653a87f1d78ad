"""Comparing candidates on the same workloads: confidence intervals, and the error of latency models."""

from __future__ import annotations

from statistics import NormalDist, mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred import Candidate, ClusterConfig, ConfigError, InstanceConfig, LinearLatency, Load, Slo, Workload, compare, simulate
from maitred.report import metrics, summarise
from maitred.study.candidate import draw_latency_scale
from maitred.study.comparison import bootstrap, make_difference
from maitred.study.metrics import DIVERGES, RUN_METRICS
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
        said = metrics(summarise(simulate(jobs).rows, Slo(ttft_ms=0.001)))
    assert set(RUN_METRICS) - {DIVERGES} <= set(said)  # A study finds that one out from its samples.
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


def test_two_differences_by_hand() -> None:
    """Resamples of (0, 4) average 0 with probability 1/4, 2 with 1/2 and 4 with 1/4."""
    sure = bootstrap([0.0, 4.0], seed=42)
    assert sure is not None
    assert (sure.low, sure.high) == (0.0, 4.0)
    assert sure.above == pytest.approx(3 / 4 + 1 / 4 / 2, abs=0.02)  # a mean of 0 counts by half


def test_of_many_differences_the_interval_is_that_of_their_mean() -> None:
    gains = [NormalDist(3, 2).inv_cdf((index + 0.5) / 40) for index in range(40)]
    sure = bootstrap(gains, seed=1)
    assert sure is not None
    spread = 1.96 * stdev(gains) / 40**0.5
    assert sure.low == pytest.approx(mean(gains) - spread, abs=0.1)
    assert sure.high == pytest.approx(mean(gains) + spread, abs=0.1)
    assert sure.above == 1


def test_of_one_difference_nothing_can_be_said() -> None:
    assert bootstrap([1.0], seed=42) is None
    assert bootstrap([], seed=42) is None


def test_where_lower_is_better_a_wins_by_being_lower() -> None:
    found = make_difference("ttft_p99_ms", [10.0, 20.0, 30.0], [15.0, 20.0, 45.0], seed=42)
    assert (found.a, found.b, found.difference) == (20.0, pytest.approx(80 / 3), pytest.approx(20 / 3))
    assert (found.wins, found.ties, found.seeds) == (2, 1, 3)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low < 20 / 3 < found.high <= 15
    assert found.probability is not None
    assert found.probability > 0.9


def test_where_higher_is_better_the_same_figures_say_the_contrary() -> None:
    lower = make_difference("ttft_p99_ms", [10.0, 20.0, 30.0], [15.0, 20.0, 45.0], seed=42)
    higher = make_difference("goodput_rps", [10.0, 20.0, 30.0], [15.0, 20.0, 45.0], seed=42)
    assert (higher.low, higher.high) == (pytest.approx(lower.low), pytest.approx(lower.high))
    assert higher.difference == lower.difference
    assert higher.probability == pytest.approx(1 - (lower.probability or 0))
    assert (higher.wins, higher.ties) == (0, 1)


def test_seeds_without_a_figure_are_left_out_and_counted() -> None:
    found = make_difference("ttft_p99_ms", [10.0, None, 30.0], [12.0, 20.0, None], seed=42)
    assert (found.seeds, found.a, found.b, found.low) == (1, 10.0, 12.0, None)
    assert make_difference("ttft_p99_ms", [None], [1.0], seed=42).difference is None


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12), st.integers(0, 5))
def test_intervals_lie_within_the_differences_and_turn_with_their_sign(gains: list[int], seed: int) -> None:
    sure, turned = bootstrap(gains, seed), bootstrap([-gain for gain in gains], seed)
    assert sure is not None
    assert turned is not None
    assert min(gains) <= sure.low <= sure.high <= max(gains)
    assert (turned.low, turned.high) == (pytest.approx(-sure.high), pytest.approx(-sure.low))
    assert turned.above == pytest.approx(1 - sure.above)


BUSY = InstanceConfig(latency_error=0.05)


def test_an_exact_model_has_the_scale_that_is_said() -> None:
    assert draw_latency_scale(InstanceConfig(latency_scale=1.5), seed=7) == 1.5


def test_draws_have_the_stated_standard_deviation() -> None:
    scales = [draw_latency_scale(BUSY, seed) for seed in range(2000)]
    assert mean(scales) == pytest.approx(1, abs=0.004)
    assert stdev(scales) == pytest.approx(0.05, rel=0.06)
    assert draw_latency_scale(InstanceConfig(latency_error=0.05, latency_scale=2), 7) == 2 * draw_latency_scale(BUSY, 7)


def test_the_same_latency_model_errs_alike_however_it_is_run() -> None:
    other = InstanceConfig(latency_error=0.05, scheduler="sjf", max_num_seqs=8, tensor_parallel_size=2)
    assert draw_latency_scale(other, 42) == draw_latency_scale(BUSY, 42)
    assert draw_latency_scale(BUSY, 43) != draw_latency_scale(BUSY, 42)


@pytest.mark.parametrize(
    "other", [{"latency": LinearLatency(beta=(1, 2, 3))}, {"hardware": "A100"}, {"model": "qwen/qwen3-8b"}]
)
def test_another_latency_model_errs_on_its_own(other: dict[str, object]) -> None:
    assert draw_latency_scale(InstanceConfig(latency_error=0.05, **other), 42) != draw_latency_scale(BUSY, 42)  # type: ignore[arg-type]


def test_an_error_as_large_as_the_model_never_turns_time_around() -> None:
    wild = InstanceConfig(latency_error=0.99)
    assert min(draw_latency_scale(wild, seed) for seed in range(500)) == 0.05


ALONE = Load(rate=2, num_requests=10)
LLAMA = "meta-llama/llama-3.1-8b"


def candidate(**said: object) -> Candidate:
    return Candidate(instance=InstanceConfig(model=LLAMA, latency="trained-physics", **said))  # type: ignore[arg-type]


def test_the_published_error_is_drawn_from_where_none_is_said() -> None:
    sides = candidate(), candidate(latency_error=0.0689), candidate(latency_error=0.0)
    found = compare(*sides, workload=ALONE, seeds=2, metrics=["tpot_mean_ms"])

    assert found.latency_errors == (0.0689, 0.0689, 0.0)
    assert found.figures[0] == found.figures[1]
    assert found.figures[0] != found.figures[2]


def test_an_unknown_error_is_not_called_exact() -> None:
    found = compare(candidate(), candidate(hardware="H200"), candidate(latency_error=0.0), workload=ALONE, seeds=2)

    assert found.latency_errors == (0.0689, None, 0.0)
    said = " ".join(str(found).split())
    assert "error drawn with a standard deviation of 6.9%, for the 5.5% of E2E that BLIS published" in said
    assert "drawn anew for each seed: A 6.9%, C 0.0% (standard deviation; 0: exact)." in said
    assert "They do not include that of B: it is neither configured nor published" in said
    nothing = " ".join(str(compare(candidate(hardware="H200"), candidate(latency_error=0), workload=ALONE, seeds=1)).split())
    assert "No model error is in these figures: it is neither configured nor published" in nothing


def test_elsewhere_a_model_is_exact_if_nothing_is_said() -> None:
    assert draw_latency_scale(InstanceConfig(model=LLAMA), seed=42) == 1


def test_whose_hardware_is_unknown_is_said() -> None:
    with pytest.raises(ConfigError) as error:
        compare(candidate(), candidate(hardware="H10O"), workload=ALONE, seeds=1)

    assert str(error.value).startswith("B: hardware: unknown hardware 'H10O'")
