"""Steady state: MSER-5 by hand, intervals that cover the truth of a queue that is known, and what is said of each run."""

from __future__ import annotations

import json
from math import inf, log
from typing import Any

import numpy as np
import pytest

import maitred
from maitred import ConfigError
from maitred.instance import InstanceConfig, LinearLatency
from maitred.report import Slo
from maitred.report.slowdown import slowdowns
from maitred.report.steady_state import mean_of_batches, mser5, percentile_of_batches, share_of_batches, warmup_of
from maitred.report.verdicts import VerdictKind
from maitred.sim import ClusterConfig

EVEN = {"input_tokens": "normal:500,50", "output_tokens": "uniform:150,250"}


def queue(load: float, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the times in the system of an M/M/1 queue that begins empty, with a mean size of 1, by Lindley's recursion."""
    draw = np.random.default_rng(seed)
    gaps, sizes = draw.exponential(1 / load, count), draw.exponential(1, count)
    waits = np.zeros(count)
    for number in range(1, count):
        waits[number] = max(0.0, waits[number - 1] + sizes[number - 1] - gaps[number])
    return waits + sizes


def test_mser_leaves_out_what_is_unlike_the_rest() -> None:
    """Groups of 5 with the means 0, 0, 10, 12, 10, 12, 10, ...: without the first two the variance is least."""
    steady = [10.0] * 5 + [12.0] * 5
    assert mser5(np.array([0.0] * 10 + steady * 8)) == 10
    assert mser5(np.array(steady * 8)) == 0
    assert mser5(np.ones(9)) == 0


def test_intervals_cover_the_truth_as_often_as_docs_say() -> None:
    """Half of the load, 5,000 requests: the mean is 2, the median 2 · ln 2, the p99 2 · ln 100."""
    runs = [queue(0.5, 5_000, seed) for seed in range(60)]
    means = [mean_of_batches(run) for run in runs]
    assert sum(each is not None and each.covers(2) for each in means) >= 52
    for percent, truth in ((50, 2 * log(2)), (99, 2 * log(100))):
        found = [percentile_of_batches(run, percent) for run in runs]
        assert sum(each is not None and each.covers(truth) for each in found) >= 50


def test_a_percentile_beyond_the_sample_is_open() -> None:
    found = percentile_of_batches(queue(0.9, 300, 1), 99)
    assert found is not None
    assert found.high == inf


def test_a_share_of_all_is_not_known_to_be_all() -> None:
    """0.95 of the time, 300 requests of which 1 % miss have one that does: 0.05^(1/300) = 0.990."""
    found = share_of_batches(np.ones(300, dtype=np.bool_))
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.990, abs=0.0005), 1.0)


def assessed(rate: float, count: int, warmup: str | float = "mser", **load: Any) -> maitred.report.Assessment:
    return maitred.simulate(maitred.synthetic(rate=rate, num_requests=count, **{**EVEN, **load})).assess(warmup=warmup)


def test_the_warmup_of_a_run_is_left_out_and_told() -> None:
    """Batches fill up during the first answers, of several seconds: the TPOT rises until then."""
    load = {"output_tokens": "uniform:400,600"}
    steady = assessed(15, 2_000, **load).steady_state
    assert steady is not None
    assert steady.rule == "MSER-5"
    assert 20 < steady.left_out < 400
    assert steady.left_out + steady.requests == 2_000
    everything = assessed(15, 2_000, "none", **load).steady_state
    assert everything is not None
    assert everything.left_out == 0
    assert everything.latencies["tpot"].mean is not None
    assert steady.latencies["tpot"].mean is not None
    assert everything.latencies["tpot"].mean.value < steady.latencies["tpot"].mean.value


def test_a_given_number_of_seconds_is_left_out() -> None:
    steady = assessed(25, 2_000, 20).steady_state
    assert steady is not None
    assert steady.left_out == pytest.approx(500, rel=0.2)
    assert steady.warmup >= 20_000_000


@pytest.mark.parametrize(
    ("rate", "count", "problem"),
    [(60, 1_500, "the queue grows without end"), (10, 150, "150 requests are too few (200 at least)")],
)
def test_runs_without_a_steady_state_say_why(rate: float, count: int, problem: str) -> None:
    steady = assessed(rate, count).steady_state
    assert steady is not None
    assert steady.problem == problem
    assert steady.latencies == {}


def test_a_rule_that_there_is_not() -> None:
    assert (warmup_of("none"), warmup_of("2.5"), warmup_of(3)) == ("none", 2.5, 3.0)
    for given in ("fast", "-1", -1, None):
        with pytest.raises(ConfigError, match="mser, none, or a number of seconds"):
            warmup_of(given)  # type: ignore[arg-type]


def test_the_slowdown_of_a_request_alone_is_1_and_of_two_at_once_is_known() -> None:
    """Two prompts of 500 tokens and answers of 11 come at once. Alone: 5,000 + 17.5 · 500 + 10 · 5,060 = 64,350 µs. Together a
    step has both: 5,000 + 17.5 · 1,000 + 10 · 5,120 = 73,700 µs."""
    alone = maitred.Job(request=maitred.Request(id=0, arrival=0, prompt_tokens=500), output_tokens=11)
    both = [maitred.Job(request=maitred.Request(id=i, arrival=10**6, prompt_tokens=500), output_tokens=11) for i in (1, 2)]
    run = maitred.simulate([alone, *both])
    assert slowdowns(run.rows, InstanceConfig()).tolist() == pytest.approx([1, 73_700 / 64_350, 73_700 / 64_350])


def test_no_slowdown_without_a_single_instance_that_serves_a_request() -> None:
    split = ClusterConfig(
        num_instances=2,
        disaggregation=maitred.sim.config.DisaggregationConfig(prefill_instances=1, decode_instances=1, kv_bytes_per_token=1e5),
    )
    run = maitred.simulate(maitred.synthetic(rate=5, num_requests=300, **EVEN), split)
    assert run.assess().slowdown is None
    assert run.assess(Slo(ttft_ms=100)).steady_state is not None


def test_the_command_prints_it_and_writes_it(maitred: Any) -> None:
    flags = ("simulate", "--rate", 15, "--num-requests", 800, "--output-tokens", 100)
    out = maitred(*flags).out
    assert "steady state" in out
    assert "intervals of 95 % by batch means" in " ".join(out.split())
    assert "Slowdown (E2E by that on an idle instance): mean " in out
    cached = ("--enable-prefix-caching", "--prefix-tokens", 8_000, "--input-tokens", 8_100)
    out = maitred("simulate", "--rate", 1, "--num-requests", 30, "--output-tokens", 2, *cached).out
    assert "Slowdown (E2E by that on an idle instance, whose cache is empty): mean " in " ".join(out.split())
    told = json.loads(maitred(*flags, "--warmup", "5", "--json").out)["steady_state"]
    assert told["rule"] == "as given"
    assert told["ttft_mean_ms"]["low"] < told["ttft_mean_ms"]["value"] < told["ttft_mean_ms"]["high"]
    assert "--warmup" in maitred(*flags, "--warmup", "x").err


def test_what_the_end_of_a_run_may_have_cut_off_is_left_out() -> None:
    """Of those that arrive last the long ones do not end: the rest is faster than all, and few are within the SLO."""
    load: dict[str, Any] = {"rate": 10, "num_requests": 2_000, "input_tokens": 100, "output_tokens": "uniform:100,500"}
    whole, cut = (
        maitred.simulate(maitred.synthetic(**load), horizon_secs=horizon).assess(Slo(e2e_ms=60_000), warmup="none").steady_state
        for horizon in (None, 60)
    )
    assert whole is not None
    assert cut is not None
    assert (whole.cut, cut.problem) == (0, "")
    assert 20 < cut.cut < 120
    assert cut.attainment is not None
    assert cut.attainment.value == 1.0
    assert whole.latencies["e2e"].mean is not None
    assert cut.latencies["e2e"].mean is not None
    assert cut.latencies["e2e"].mean.value == pytest.approx(whole.latencies["e2e"].mean.value, rel=0.05)


def test_a_run_without_answers_has_no_steady_state() -> None:
    load = maitred.synthetic(rate=10, num_requests=300, input_tokens=100)
    steady = maitred.simulate(load, instance=InstanceConfig(total_kv_blocks=4)).assess().steady_state
    assert steady is not None
    assert steady.problem == "none of the requests has completed"


def test_a_run_that_is_cut_off_early_claims_no_limit() -> None:
    """Two seconds of answers that take twenty: what completed is short, and the batch has not turned over."""
    load = maitred.synthetic(rate=1_000, num_requests=3_000)
    instance = InstanceConfig(latency=LinearLatency((5000, 20, 20)))
    told = maitred.simulate(load, instance=instance, horizon_secs=2).assess()
    assert (told.utilisation.limit, told.utilisation.served, told.utilisation.headroom) == (None, None, None)
    (diverges,) = (each.text for each in told.verdicts if each.kind is VerdictKind.DIVERGES)
    assert "At about" not in diverges


def test_a_run_that_mostly_drains_its_queue_has_no_steady_state() -> None:
    """1.5 s of arrivals, at twenty times the rate that one instance takes, and then half a minute in which they are served."""
    jobs = maitred.synthetic(rate=1_000, num_requests=1_500, input_tokens=500, output_tokens=200)
    found = maitred.simulate(jobs).assess(warmup="none").steady_state
    assert found is not None
    assert found.problem.endswith("of the requests ended after the last one had come")
    assert not found.latencies
