"""`maitred capacity`: the bisection, the answers of small clusters held against every size and rate, the table, the command."""

from __future__ import annotations

import gc
import json
from functools import cache
from math import inf, log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from maitred import Candidate, ClusterConfig, ConfigError, InstanceConfig, Load, capacity
from maitred.instance.latency import LinearLatency
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.report import DEFAULT_SLO, Slo
from maitred.routing import RoutingConfig
from maitred.sim.config import DisaggregationConfig
from maitred.sim.fleet_config import FailureConfig, InstanceGroup
from maitred.study.capacity import CapacityOption, CapacityResult
from maitred.study.capacity.boundary import BoundarySearch
from maitred.study.capacity.options import measure_traffic
from maitred.study.capacity.shapes import Shape, ShapeLimits
from maitred.study.runs import RunSettings, decode_figures, run_task

LOAD = Load(rate=30, num_requests=400, input_tokens="normal:400,100", output_tokens="uniform:20,60")
SMALL = Candidate(instance=InstanceConfig(max_num_seqs=16))


def search(low: int, high: int, start: int, truth: int) -> tuple[int | None, list[int]]:
    searching, tried = BoundarySearch(low, high, start), []
    while (number := searching.next_number()) is not None:
        tried.append(number)
        searching.tell(number, number <= truth)
    return searching.largest, tried


@given(st.integers(-300, 300), st.integers(0, 600), st.integers(-400, 400), st.integers(-400, 400))
def test_a_search_finds_the_largest_that_holds(low: int, width: int, start: int, truth: int) -> None:
    high = low + width
    found, tried = search(low, high, start, truth)
    assert found == (None if truth < low else min(truth, high))
    assert len(tried) == len(set(tried))
    assert all(low <= number <= high for number in tried)
    assert len(tried) <= 2 * (width + 1).bit_length() + 1


def test_a_good_estimate_needs_few_probes() -> None:
    assert search(-1_000, 1_000, 10, 12) == (12, [10, 11, 13, 12])


def found(**changes: Any) -> CapacityResult:
    return capacity(SMALL, workload=LOAD, constraints=["ttft_p99_ms <= 300"], seeds=1, **changes)


def every_rate(size: int, tolerance: float) -> float:
    """Return the highest rate that holds, by trying every one up to the limit, by capacity's own probes of a single rate."""
    traffic = measure_traffic(LOAD, (42,))
    most = size * find_throughput_limit(SMALL.instance, traffic.mix).rate / traffic.rate
    settings = RunSettings(seeds=(42,), slo=DEFAULT_SLO, horizon=None, metrics=("ttft_p99_ms",))
    best, factor = 0.0, 1.0
    while factor <= most:
        candidate = Candidate(instance=SMALL.instance, cluster=ClusterConfig(num_instances=size))
        (run,) = settings.make_runs(candidate, Load(**{**fields(LOAD), "rate_scale": factor}))
        p99 = decode_figures(run_task(run.task))["ttft_p99_ms"]
        if p99 is not None and p99 <= 300:
            best = traffic.rate * factor
        factor *= 1 + tolerance
    return best


def test_a_run_of_a_study_leaves_no_cycles_and_the_collector_as_it_was() -> None:
    settings = RunSettings(seeds=(42,), slo=DEFAULT_SLO, horizon=None, metrics=("ttft_p99_ms",))
    (run,) = settings.make_runs(SMALL, Load(rate=30, num_requests=5))
    run_task(run.task)  # what is made once stays
    before = (gc.get_threshold(), gc.get_freeze_count() > 0)
    gc.collect()
    gc.disable()
    try:
        run_task(run.task)
        assert not gc.collect()
    finally:
        gc.enable()
    assert (gc.get_threshold(), gc.get_freeze_count() > 0) == before


def fields(load: Load) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__struct_fields__ if getattr(load, name) is not None}


def test_the_answer_is_that_of_every_size_and_every_rate() -> None:
    result = found(tolerance=0.05)
    (option,) = result.options
    assert option.instances is not None
    holds = [found(num_instances=size, tolerance=0.05).options[0].headroom or 0 for size in range(1, option.instances + 2)]
    assert [headroom >= 1 for headroom in holds] == [False] * (option.instances - 1) + [True, True]
    assert option.highest_rate == pytest.approx(every_rate(option.instances, 0.05))
    assert result.runs < 30


def test_more_instances_hold_more() -> None:
    rates = [found(num_instances=size).options[0].highest_rate or 0.0 for size in (2, 4)]
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.25)


def test_the_best_option_is_the_cheapest() -> None:
    gpus = {"H100": 2.5, "L4": 0.5}
    result = capacity(
        model="llama-3.1-8b",
        hardware=list(gpus),
        workload=Load(rate=10, num_requests=150, output_tokens="uniform:20,60"),
        prices=gpus,
        seeds=1,
        constraints=["ttft_p99_ms <= 2000"],
        tolerance=0.2,
    )
    costs = {option.hardware: option.cost for option in result.options}
    assert result.best is not None
    assert costs[result.best.hardware] == min(cost for cost in costs.values() if cost is not None)
    assert {line.split()[1] for line in str(result).splitlines() if line.split()[:1] == ["best"]} == {result.best.hardware}
    assert result.best.cost is not None
    assert result.best.cost_per_million is not None
    # 10 requests/s of 40 output tokens: 1.44 million tokens an hour, at the mean length and the rate of the one seed.
    assert result.best.cost / result.best.cost_per_million == pytest.approx(1.44, rel=0.15)
    assert max(map(len, str(result).splitlines())) <= 80
    assert f"Best: llama-3.1-8b on {result.best.instances} instances of 1 × {result.best.hardware}; " in " ".join(
        str(result).split()
    )


def test_an_option_that_does_not_fit_is_told_and_left_out() -> None:
    result = capacity(
        model="llama-3.1-70b",
        hardware=["L4", "B300"],
        workload=Load(rate=1, num_requests=20),
        seeds=1,
    )
    assert result.best is result.options[1]
    assert "GiB before any KV" in str(result)


def test_a_cluster_that_would_be_too_large_is_told() -> None:
    result = capacity(SMALL, workload=Load(rate=2_000, num_requests=400), seeds=1, max_instances=4)
    assert "4 instances do not hold today's rate (--max-instances)" in str(result)
    assert result.runs == 0  # the limit of the latency model says so without any


def test_no_rate_above_the_limit_holds_however_short_the_run() -> None:
    """200 requests fit into one batch: no request waits at any rate, which says nothing of an hour at this rate."""
    load = Load(rate=1, num_requests=200, input_tokens=400, output_tokens=40)
    (option,) = capacity(workload=load, seeds=1, constraints=["ttft_p99_ms <= 60000"], num_instances=1).options
    limit = find_throughput_limit(InstanceConfig(), RequestMix(prompt=400, output=40)).rate
    assert option.highest_rate is not None
    assert 0.95 * limit < option.highest_rate <= limit


def test_no_rate_at_which_the_queue_grows_holds_however_generous_the_constraint() -> None:
    """The instance is slow by 1.5, which the limit of the latency model does not know, so it takes two thirds of that."""
    load = Load(rate=8, num_requests=1_500, input_tokens=2_000, output_tokens=100)
    engine = InstanceConfig(max_num_seqs=16, max_num_batched_tokens=512)
    slow = ClusterConfig(failures=FailureConfig(slow_instances=1, slow_factor=1.5))
    given: dict[str, Any] = {"constraints": ["ttft_p99_ms <= 60000"], "num_instances": 1, "tolerance": 0.1}
    result = capacity(Candidate(cluster=slow, instance=engine), workload=load, seeds=[42], **given)
    (option,) = result.options
    limit = find_throughput_limit(engine, RequestMix(prompt=2_000, output=100)).rate
    assert option.highest_rate is not None
    assert 0.6 * limit < option.highest_rate < 0.75 * limit
    growing = [point for point in option.knee if point.figures["diverges"]]
    assert any(point.excess < 0 and point.rate < limit for point in growing)
    assert not any(point.holds for point in growing)
    assert "too short" not in str(result)


def test_the_largest_rate_that_is_tried_is_no_end_of_the_interval() -> None:
    result = capacity(workload=Load(rate=0.001, num_requests=20, output_tokens=20), seeds=2, num_instances=1, tolerance=0.3)
    (option,) = result.options
    assert option.rates is not None
    assert option.rates[1] == inf
    assert " to ? " in str(result)


def test_a_constraint_that_no_size_meets_is_named_with_its_figure() -> None:
    load = Load(rate=5, num_requests=20, output_tokens=1)
    for text, why in (("ttft_p99_ms <= 0.001", "ttft_p99_ms is "), ("tpot_p99_ms <= 9", "tpot_p99_ms is not there")):
        (option,) = capacity(workload=load, seeds=1, constraints=[text], max_instances=2).options
        assert option.problem.startswith(f"2 instances do not hold today's rate (--max-instances): {why}")
        (single,) = capacity(workload=load, seeds=1, constraints=[text], max_instances=1).options
        assert single.problem.startswith("1 instance does not hold today's rate (--max-instances): ")


def test_runs_that_are_shorter_than_their_answers_are_told() -> None:
    load = Load(rate=20, num_requests=60, input_tokens=100, output_tokens=600)
    (option,) = (result := capacity(workload=load, seeds=1, num_instances=4, tolerance=0.3)).options
    assert option.answer_share is not None
    assert option.answer_share > 0.5
    assert "The runs are too short to show what lasts (instances, TP 1)" in " ".join(str(result).split())


def test_with_hits_it_holds_what_the_limit_without_them_would_not_allow() -> None:
    """Prompts of 2,000 tokens of which 1,900 are shared: an instance computes 100 of them, and not 2,000."""
    load = Load(rate=20, num_requests=300, prefix_tokens=1_900, input_tokens=100, output_tokens="uniform:5,15")
    rates = {}
    for caching in (False, True):
        instance = InstanceConfig(enable_prefix_caching=caching)
        (option,) = capacity(Candidate(instance=instance), workload=load, seeds=1, num_instances=1).options
        rates[caching] = option.highest_rate or 0.0
        knee = (point for point in option.knee if point.rate == option.highest_rate)
        hits = [point.figures["cache_hit_rate"] or 0.0 for point in knee]
    cold = find_throughput_limit(InstanceConfig(), RequestMix(prompt=2_000, output=10)).rate
    warm = find_throughput_limit(InstanceConfig(), RequestMix(prompt=2_000, output=10, cached=2_000 * hits[0])).rate
    assert hits[0] > 0.9
    assert rates[False] <= cold < 2 * cold < rates[True] <= warm * 1.02


def test_it_does_not_depend_on_the_number_of_processes() -> None:
    assert found(jobs=2) == found()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"workload": Load(concurrency=4, num_requests=50)}, "its users wait for answers"),
        ({"workload": Load(rate=5, num_requests=1)}, "it has 1 requests"),
        ({"workload": LOAD, "tolerance": 0.0}, "--tolerance"),
        ({"workload": LOAD, "max_instances": 0}, "--max-instances"),
        ({"workload": LOAD, "num_instances": 3, "max_instances": 2}, r"--num-instances: 3 are more than --max-instances, 2 \("),
        ({"workload": LOAD, "hardware": ["H100"]}, "without a model all GPUs are alike"),
        ({"workload": LOAD, "constraints": ["ttft <= 3"]}, "there is no metric"),
        ({"workload": LOAD, "constraints": []}, "there is nothing to hold"),
        ({"workload": LOAD, "model": "llama-3.1-8b", "prices": {"A100": 1.0}}, "H100 has no price"),
        ({"workload": LOAD, "seeds": 0}, "0 seeds cannot be used"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        capacity(**arguments)


COMMAND = ("capacity", "--rate", 20, "--num-requests", 120, "--output-tokens", 30, "--seeds", 1, "--jobs", 1)


def test_the_command_prints_a_table_and_writes_what_was_tried(maitred: Any) -> None:
    result = maitred(*COMMAND, "--tolerance", 0.1, "--json", "c.json", "--plot", "knee.svg")
    assert result.code == 0, result.err
    assert "any" in result.out
    assert "slo_attainment >= 0.99" in result.out
    written = json.loads(Path("c.json").read_text())
    assert written["options"][0]["points"][0]["figures"]["ttft_p99_ms"] > 0
    assert "requests/s" in Path("knee.svg").read_text()


def test_the_command_prints_json_alone(maitred: Any) -> None:
    assert json.loads(maitred(*COMMAND, "--tolerance", 0.3, "--json", "-").out)["today"] > 10


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--price", "H100"), "--price: cannot read 'H100' (write it as H100=2.5)"),
        (("--price", "H100=-1"), "--price: cannot read"),
        (("--constraint", "x"), "cannot read 'x'"),
        (("--constraint", "slo_attainment>=95"), "slo_attainment is a share from 0 to 1, and 95 is none (95 % are 0.95)"),
        (("--model", "llama-3.1-70b", "--hardware", "L4"), "llama-3.1-70b wants 137 GiB before any KV"),
        (("--model", "llama-3.1-70b", "--hardware", "L4", "--hardware", "A10"), "none of the 2 options can be simulated; the"),
        (("--ray", "auto", "--jobs", "2"), "--jobs does not go with --ray"),
        (("--concurrency", "3"), "concurrency"),
        (("--model", "llama-3.1-8b", "--hardware", "H100,L40S"), "unknown hardware 'H100,L40S'"),
        (("--model", "nope-7b"), "unknown model 'nope-7b'"),
        (("--instance-groups", "H100:1"), "--model: without a model all GPUs are alike"),
        (("--instance-groups", "H100:1,L40S"), "--instance-groups: 'L40S' is no [TPx]GPU:N"),
        (("--instance-groups", "H100:0"), "--instance-groups: num_instances of a group must be from 1"),
        (("--model", "llama-3.1-8b", "--instance-groups", "H100:1,L40:1"), "unknown hardware 'L40'"),
        (("--model", "llama-3.1-8b", "--instance-groups", "H100:1,L40S:1", "--price", "H100=1"), "L40S has no price"),
    ],
)
def test_mistakes_of_the_command(maitred: Any, flags: tuple[str, ...], problem: str) -> None:
    result = maitred(*COMMAND, *flags)
    assert result.code == 2
    assert problem in result.err


@cache
def queue(**arguments: Any) -> CapacityOption:
    """Return the option of one server with exponential sizes of 100 ms on average: of an M/M/1 queue 99 % of the requests are
    within 1 s up to a rate of 10 - ln 100 = 5.395/s, as the time in the system is exponential with the rate 10 - λ."""
    server = Candidate(instance=InstanceConfig(max_num_seqs=1, latency=LinearLatency(beta=(1000.0, 0.0, 0.0))))
    load = Load(rate=5, num_requests=150, input_tokens=1, output_tokens="exponential:100")
    given = {"num_instances": 1, "seeds": 6, "tolerance": 0.2, **arguments}
    return capacity(server, workload=load, slo=Slo(e2e_ms=1_000), **given).options[0]


EXACT = 10 - log(100)


def test_the_interval_of_a_queue_that_is_known_covers_its_rate() -> None:
    option = queue()
    assert option.rates is not None
    assert option.highest_rate is not None
    low, high = option.rates
    assert low < EXACT < high
    assert low <= option.highest_rate <= high
    assert option.today is not None
    assert option.today.seeds == 6
    assert option.today.intervals["slo_attainment"] is not None


def test_one_run_has_no_interval_and_no_probability() -> None:
    option = queue(seeds=1)
    assert (option.rates, option.probability) == (None, None)


def test_seeds_are_added_until_the_interval_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maitred.study.capacity._ROUNDS", (2, 4))
    wide, narrow = (queue(seeds=None, tolerance=0.2, precision=precision) for precision in (1.0, 0.0))
    assert (wide.seeds, narrow.seeds) == (2, 4)
    assert wide.rates is not None
    assert narrow.rates is not None
    assert narrow.rates[1] / narrow.rates[0] <= wide.rates[1] / wide.rates[0]


def test_the_error_of_the_latency_model_is_part_of_the_probability() -> None:
    """5/s hold, and not with steps that take 1.2 times as long, 1 standard deviation of 20 %."""
    unsure, given = queue(latency_error=0.2), queue()
    assert given.probability is not None
    assert unsure.probability is not None
    assert unsure.probability < given.probability
    assert unsure.stretch == given.stretch
    assert (unsure.model_error, given.model_error) == (0.2, None)
    assert "error 20.0% as configured" in unsure.simulated


def test_a_given_size_has_figures_and_points_that_fail() -> None:
    option = found(num_instances=2).options[0]
    assert option.today is not None
    assert option.today.figures["ttft_p99_ms"] is not None
    beyond = [point for point in option.knee if point.rate > (option.highest_rate or 0)]
    assert len([point for point in beyond if not point.holds]) >= 2


def test_the_knee_is_that_of_the_figure_that_binds() -> None:
    """Of 30 ms per token a step of 16 sequences takes most: TPOT is beyond its target long before TTFT."""
    result = capacity(SMALL, workload=LOAD, slo=Slo(ttft_ms=60_000, tpot_ms=7), seeds=1, num_instances=2, tolerance=0.1)
    picture = result.presentation().scatter
    assert picture.title == "TPOT p99 ms over the rate"
    (line,) = [limit for limit in picture.limits if limit.axis == "y"]
    assert (line.label, line.at) == ("SLO", 7)
    assert any(point.hollow and point.y > 7 for group in picture.groups for point in group.points)


def test_prefill_and_decode_instances_are_split_as_they_hold_most() -> None:
    pools = DisaggregationConfig(prefill_instances=1, decode_instances=1, kv_bytes_per_token=1e5)
    split = Candidate(cluster=ClusterConfig(num_instances=2, disaggregation=pools))
    load = Load(rate=20, num_requests=150, input_tokens=6_000, output_tokens=20)
    (option,) = capacity(split, workload=load, constraints=["ttft_p99_ms <= 2000"], seeds=1, tolerance=0.2).options
    assert not option.problem
    # A prompt takes 110 ms in a prefill instance, and 19 decodes of a full batch hardly any time.
    prefill, decode = (int(part.strip(" PD")) for part in option.shape.split("+"))
    assert prefill > decode == 1
    assert option.instances == prefill + decode
    assert "P + 1D" in str(option.points[-1].shape)


def test_splits_are_options_beside_equal_instances() -> None:
    limits = ShapeLimits(instance=5, prefill=6, decode=12, bound="max_num_seqs", is_split=True)
    assert [shape.in_words() for shape in limits.shapes(9)] == ["6P + 3D", "5P + 4D", "7P + 2D"]
    assert (limits.of(Shape(9, 6)), limits.of_size(9), limits.least_size) == (36, 36, 2)
    assert limits.shapes(2) == [Shape(2, 1)]


def test_a_fleet_of_unequal_groups_grows_by_all_of_them() -> None:
    """An instance and one of half the speed take 1.5 times as much as one, and twice the groups twice that."""
    groups = [InstanceGroup(latency_scale=2.0), InstanceGroup()]
    base = Candidate(instance=SMALL.instance, routing=RoutingConfig(policy="weighted-least-loaded"))
    given: dict[str, Any] = {"constraints": ["ttft_p99_ms <= 300"], "seeds": 1, "tolerance": 0.05}
    (equal,) = capacity(base, workload=LOAD, num_instances=1, **given).options
    (mixed,) = capacity(base, workload=LOAD, groups=[groups], **given).options
    (twice,) = capacity(base, workload=replace(LOAD, rate=100, num_requests=1_200), groups=[groups], **given).options
    assert (mixed.shape, mixed.size, mixed.instances, mixed.gpus) == ("1 instance + 1 instance", 1, 2, 2)
    assert mixed.tensor_parallel_size is None
    assert (twice.size, twice.instances) == (2, 4)
    one, both, all_four = (each.highest_rate or 0.0 for each in (equal, mixed, twice))
    assert 1.2 * one < both < 1.6 * one
    assert 1.8 * both < all_four < 2.4 * both
    (stated,) = capacity(base, workload=LOAD, groups=[groups], num_instances=1, **given).options
    assert stated.highest_rate == mixed.highest_rate


def test_prefill_and_decode_instances_may_be_of_two_kinds() -> None:
    """Steps of one kind take 10 times as long: where that one prefills, there are more prefill instances."""
    pools = DisaggregationConfig(kv_bytes_per_token=1e5)
    base = Candidate(cluster=ClusterConfig(disaggregation=pools))
    load = Load(rate=20, num_requests=150, input_tokens=3_000, output_tokens=50)
    given: dict[str, Any] = {"workload": load, "disaggregation": True, "seeds": 1, "tolerance": 0.2}
    given["constraints"] = ["ttft_p99_ms <= 2000"]
    slow_decode = [InstanceGroup(), InstanceGroup(latency_scale=10.0)]
    (option,) = capacity(base, groups=[slow_decode], **given).options
    assert option.gpus is not None
    prefill = int(option.shape.partition("P")[0])
    assert option.shape == f"{prefill}P instance + {option.gpus - prefill}D instance"
    slow_prefill = [slow_decode[1], slow_decode[0]]
    (other,) = capacity(base, groups=[slow_prefill], **given).options
    assert int(other.shape.partition("P")[0]) > prefill
    with pytest.raises(ConfigError, match="two groups of one instance"):
        capacity(base, groups=[[InstanceGroup(num_instances=2), InstanceGroup()]], **given)


def test_a_stated_number_is_of_prefill_and_decode_instances_together() -> None:
    """One instance cannot be split. It was simulated as two, whose limit was taken for that of two that do both."""
    pools = DisaggregationConfig(kv_bytes_per_token=1e5)
    base = Candidate(cluster=ClusterConfig(disaggregation=pools))
    load = Load(rate=20, num_requests=50, input_tokens=100, output_tokens=50)
    groups = [InstanceGroup(), InstanceGroup(latency_scale=10.0)]
    with pytest.raises(ConfigError, match="a prefill and a decode instance are 2 instances, and 1 was stated"):
        capacity(base, groups=[groups], disaggregation=True, workload=load, num_instances=1, seeds=1)


def test_what_a_split_takes_at_most_is_that_of_the_pool_that_binds() -> None:
    limits = ShapeLimits(instance=50, prefill=6, decode=12, bound="max_num_seqs", is_split=True)
    assert limits.most_in_words(2) == "1P + 1D takes 6 requests/s at most, bound by its prefill instances"
    assert limits.most_in_words(1) == limits.most_in_words(2)
    slow = replace(limits, decode=2, groups=((1, "H100"), (1, "L40S")))
    assert slow.most_in_words(2).startswith("1P H100 + 1D L40S takes 2 requests/s at most, bound by max_num_seqs of its decode")
    assert replace(limits, is_split=False).most_in_words(9) == "one takes 50 requests/s at most, bound by max_num_seqs"


def test_groups_cost_what_their_gpus_cost(maitred: Any) -> None:
    given = "--model llama-3.1-8b --rate 20 --num-requests 300 --seeds 1 --tolerance 0.2 --latency-model roofline"
    prices = "--price H100=2.5 --price L40S=0.8"
    command = f"capacity {given} {prices} --instance-groups 2xH100:1,L40S:2 --num-instances 1 --quiet --json -"
    (option,) = json.loads(maitred(*command.split()).out)["options"]
    assert (option["shape"], option["gpus"], option["cost"]) == ("1 2×H100 + 2 L40S", 4, pytest.approx(2 * 2.5 + 2 * 0.8))
    assert option["cost_per_million"] > 0


def test_flags_of_the_instance_are_those_of_all_options(maitred: Any) -> None:
    """A step of 6 ms, and 60 µs for each sequence: 16 sequences get 16 / 6.96 ms of tokens."""
    given = "--rate 30 --num-requests 300 --seeds 1 --tolerance 0.2 --output-tokens 40 --num-instances 1 --quiet --json -"
    command = f"capacity {given} --latency-model linear:6000,0,60 --max-num-seqs 16"
    (option,) = json.loads(maitred(*command.split()).out)["options"]
    assert 0.7 * 16 / 0.00696 / 40 < option["highest_rate"] < 16 / 0.00696 / 40
    assert "6,000 µs + 0 per prefill token + 60 per decode" in option["simulated"]
