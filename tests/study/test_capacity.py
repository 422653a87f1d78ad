"""`maitred capacity`: the bisection, the answers of small clusters held against every size and rate, the table, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred import Candidate, ClusterConfig, ConfigError, InstanceConfig, Load, capacity
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.report import DEFAULT_SLO
from maitred.study.capacity import CapacityResult
from maitred.study.capacity.options import BoundarySearch, measure_traffic
from maitred.study.runs import RunSettings, decode_figures, run_task

LOAD = Load(rate=30, num_requests=400, input_tokens="normal:400,100", output_tokens="uniform:20,60")
SMALL = Candidate(instance=InstanceConfig(max_num_seqs=16))


def search(low: int, high: int, start: int, truth: int) -> tuple[int | None, list[int]]:
    searching, tried = BoundarySearch(low, high, start), []
    while (number := searching.next_probe()) is not None:
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
    traffic = measure_traffic(LOAD, 42)
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


def fields(load: Load) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__struct_fields__ if getattr(load, name) is not None}


def test_the_answer_is_that_of_every_size_and_every_rate() -> None:
    result = found(tolerance=0.05)
    (option,) = result.options
    assert option.instances is not None
    holds = [found(num_instances=size, tolerance=0.05).options[0].headroom or 0 for size in range(1, option.instances + 2)]
    assert [headroom >= 1 for headroom in holds] == [False] * (option.instances - 1) + [True, True]
    assert option.highest_rate == pytest.approx(every_rate(option.instances, 0.05))
    assert result.runs < 20


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
    assert [line.split()[1] for line in str(result).splitlines() if line.split()[:1] == ["best"]] == [result.best.hardware]
    assert max(map(len, str(result).splitlines())) <= 80
    assert f"Best: llama-3.1-8b on {result.best.instances} instances of 1 × {result.best.hardware}; " in " ".join(
        str(result).split()
    )


def test_an_option_that_does_not_fit_is_told_and_left_out() -> None:
    result = capacity(
        model="llama-3.1-70b",
        hardware=["L4"],
        workload=Load(rate=1, num_requests=20),
        seeds=1,
    )
    assert result.best is None
    assert "GiB before any KV" in str(result)
    assert "No option holds today's rate." in str(result)


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


def test_with_hits_it_holds_what_the_limit_without_them_would_not_allow() -> None:
    """Prompts of 2,000 tokens of which 1,900 are shared: an instance computes 100 of them, and not 2,000."""
    load = Load(rate=20, num_requests=300, prefix_tokens=1_900, input_tokens=100, output_tokens="uniform:5,15")
    rates = {}
    for caching in (False, True):
        instance = InstanceConfig(enable_prefix_caching=caching)
        (option,) = capacity(Candidate(instance=instance), workload=load, seeds=1, num_instances=1).options
        rates[caching] = option.highest_rate or 0.0
        hits = [point.figures["cache_hit_rate"] or 0.0 for point in option.points if point.rate == option.highest_rate]
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
        (("--ray", "auto", "--jobs", "2"), "--jobs does not go with --ray"),
        (("--concurrency", "3"), "concurrency"),
        (("--model", "llama-3.1-8b", "--hardware", "H100,L40S"), "unknown hardware 'H100,L40S'"),
        (("--model", "nope-7b"), "unknown model 'nope-7b'"),
    ],
)
def test_mistakes_of_the_command(maitred: Any, flags: tuple[str, ...], problem: str) -> None:
    result = maitred(*COMMAND, *flags)
    assert result.code == 2
    assert problem in result.err
