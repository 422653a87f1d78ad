"""`maitred bench` and `maitred.bench` against an emulated engine in this process, what a prediction compares, and
bench/sender.py.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from endpoint_thread import engine, serving
from msgspec.structs import replace

import maitred
from maitred import Candidate, ClusterConfig, InstanceConfig
from maitred.core.errors import ConfigError
from maitred.sim import Results, simulate
from maitred.study.calibration.validation import as_measured, predict
from maitred.workload import Job, open_trace
from maitred.workload.synthetic import synthetic

LOAD = "--rate 200 --num-requests 20 --input-tokens 50 --output-tokens 5"
MIX = "--class-mix interactive:1,bulk:1"


@pytest.fixture(scope="module")
def url():
    with serving(engine()) as found:
        yield found


def test_a_live_run_has_the_table_and_the_files_of_a_simulation(maitred, url, tmp_path):
    flags = f"{LOAD} {MIX} --results-path r.csv --metrics-path m.json --report r.html --trace-output t"
    result = maitred("bench", url, *flags.split())
    assert result.code == 0, result.err
    assert result.out.startswith(f"measured: emulated at {url}; completions, streaming; seed 42; \nmaitred ")
    assert "interactive" in result.out
    assert "s measured; SLO: TTFT" in result.out
    assert "sent late by" in result.out
    assert "KV preemptions" not in result.out
    metrics = json.loads((tmp_path / "m.json").read_text())
    assert metrics["completed_requests"] == 20
    assert metrics["ttft_p50_ms"] > 2
    rows = (tmp_path / "r.csv").read_text().splitlines()
    assert len(rows) == 21
    page = (tmp_path / "r.html").read_text()
    assert "maitred bench" in page
    assert "Generating" in page
    trace = (tmp_path / "t.csv").read_text().splitlines()
    assert len(trace) == 21
    assert ",ok," in trace[1]


def test_the_same_requests_are_simulated_side_by_side(maitred, url, tmp_path):
    (tmp_path / "cluster.yaml").write_text('instance: {latency: "linear:2000,0,10"}\n')
    result = maitred("bench", url, *f"{LOAD} {MIX}".split(), "--predict", "cluster.yaml")
    assert result.code == 0, result.err
    _, table = result.out.split("predicted beside measured")
    for name in ("all", "interactive", "bulk"):
        assert any(line.split()[:4] == ["TPOT", "mean", "ms", name] for line in table.splitlines())
    assert "error: mean" in table


def test_names_of_vllm_describe_the_same_workload(maitred, url, tmp_path):
    flags = (
        f"--base-url {url}/v1 --model emulated --dataset-name random --random-input-len 40 --random-output-len 4 "
        "--random-range-ratio 0.5 --request-rate inf --num-prompts 10 --burstiness 0.5 --max-concurrency 5 "
        "--percentile-metrics ttft,e2el --metric-percentiles 25,99.9 --goodput ttft:10000,e2el:20000 "
        "--result-filename v.json --ramp-up-strategy linear --ramp-up-start-rps 50 --ramp-up-end-rps 400"
    )
    result = maitred("bench", *flags.split())
    assert result.code == 0, result.err
    assert "p25" in result.out
    assert "p99.9" in result.out
    assert "E2EL ms" in result.out
    assert "SLO: TTFT ≤ 10,000 ms, E2E ≤ 20,000 ms" in result.out.replace("\n", " ")
    found = json.loads((tmp_path / "v.json").read_text())
    assert (found["completed"], found["failed"], found["model_id"]) == (10, 0, "emulated")
    assert all(20 <= length <= 60 for length in found["input_lens"])
    for first, gaps, latency in zip(found["ttfts"], found["itls"], found["latencies"], strict=True):
        assert first + sum(gaps) == pytest.approx(latency, abs=0.005)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "there is no endpoint"),
        ("--base-url http://x --goodput ttft:500 tpot:50", "the targets of --goodput have commas between them"),
        ("http://a:1 --base-url http://b:1", "two names for one thing"),
        ("http://a:1/v2", "has more than a host and a port"),
        ("http://a:1 --endpoint /generate", "requests cannot be made for /generate"),
        ("http://a:1", "there is no workload"),
        (f"http://a:1 {LOAD} --max-concurrency 0", "0 requests cannot be in flight"),
        (f"http://a:1 {LOAD} --num-warmups -1", "there cannot be -1"),
        (f"http://a:1 {LOAD} --header nothing", "'nothing' is no header"),
        (f"http://a:1 {LOAD} --extra-body [1]", "is no JSON object"),
        (f"http://a:1 {LOAD} --prefix-tokens 3 --random-prefix-len 3", "two names for one thing"),
        (f"http://a:1 {LOAD} --goodput ttft", "cannot read 'ttft'"),
        (f"http://a:1 {LOAD} --percentile-metrics tftt", "did you mean 'ttft'?"),
        (f"http://a:1 {LOAD} --percentile-metrics ttft --metric-percentiles 101", "cannot read '101'"),
        (f"http://a:1 {LOAD} --dataset-name sharegpt", "the data set 'sharegpt' is not known"),
        (f"http://a:1 {LOAD} --dataset-path f", "it goes with --dataset-name timed_trace"),
        (f"http://a:1 {LOAD} --timed-trace-sec-multiplier 2", "--timed-trace-sec-multiplier: it goes with --dataset-name"),
        (f"http://a:1 {LOAD} --self-timed", "--self-timed: it goes with --dataset-name timed_trace"),
        ("http://a:1 --dataset-name timed_trace --dataset-path f --timed-trace-chunk-hash-size 0", "chunk_hash_size must be"),
        (f"http://a:1 {LOAD} --random-range-ratio 2", "2 cannot be used"),
        (f"http://a:1 {LOAD} --burstiness 0", "--burstiness"),
        (f"http://a:1 {LOAD} --ramp-up-strategy cubic", "there is no strategy 'cubic'"),
        (f"http://a:1 {LOAD} --ramp-up-strategy linear", "--ramp-up-start-rps: is missing"),
        (f"http://a:1 {LOAD} --predict nothing.yaml", "nothing.yaml"),
        (f"http://a:1 {LOAD} --predict nothing.yaml --max-concurrency 2", "a simulation does not know it"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_sent(maitred, flags, said):
    result = maitred("bench", *flags.split())
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


@pytest.mark.parametrize(
    ("flags", "arrivals"),
    [
        ("", [0, 250_000, 500_000]),
        ("--timed-trace-sec-multiplier 0.1 --timed-trace-chunk-hash-size 32", [0, 25_000, 50_000]),
        ("--num-prompts 2 --self-timed --request-rate inf", [0, 250_000]),
    ],
)
def test_a_timed_trace_has_the_units_that_vllm_reads(maitred, url, tmp_path, flags, arrivals):
    rows = [{"timestamp": 7 + n / 4, "input_length": 40, "output_length": 2, "hash_ids": [0, n, 9]} for n in range(3)]
    (tmp_path / "timed.jsonl").write_text("\n".join(map(json.dumps, rows)))
    named = f"--dataset-name timed_trace --dataset-path timed.jsonl {flags}"
    result = maitred("bench", url, *named.split(), "--trace-output", "maitred:sent.csv")
    assert result.code == 0, result.err
    sent = open_trace(f"maitred:{tmp_path / 'sent.csv'}")
    assert [job.request.arrival for job in sent] == arrivals


def test_a_ramp_divides_the_gaps_by_the_rate_at_their_place():
    from maitred.core.request import Request
    from maitred.workload import Job
    from maitred.workload.transforms import ramp_up

    jobs = [Job(Request(id=n, arrival=n * 1_000_000, prompt_tokens=1), 1) for n in range(4)]
    arrivals = [job.request.arrival for job in ramp_up(jobs, 4, "linear", 1.0, 3.0)]
    assert arrivals == [0, 666_667, 1_166_667, 1_566_667]
    doubling = [job.request.arrival for job in ramp_up(jobs[:3], 2, "exponential", 1.0, 4.0)]
    assert doubling == [0, 500_000, 750_000]


def test_the_name_of_vllm_for_the_model_is_the_one_that_is_asked_for(maitred, url):
    result = maitred("bench", url, *LOAD.split(), "--served-model-name", "emulated")
    assert result.code == 0, result.err
    assert result.out.startswith(f"measured: emulated at {url}; ")
    result = maitred("bench", url, *LOAD.split(), "--served-model-name", "absent")
    assert result.code == 2
    assert "absent" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(("rate", "from_sending"), [("inf", True), ("500", False)])
def test_requests_that_are_all_planned_at_once_are_those_of_a_closed_loop(maitred, url, tmp_path, rate, from_sending):
    """As in vllm bench serve, whose names these are, latencies count from sending then."""
    flags = f"--request-rate {rate} --max-concurrency 2 --num-prompts 12 --random-input-len 40 --random-output-len 5"
    result = maitred("bench", url, *flags.split(), "--save-result", "--result-filename", "v.json")
    assert result.code == 0, result.err
    assert ("latencies from sending" in result.out) == from_sending
    written = json.loads((tmp_path / "v.json").read_text())
    spread = max(written["start_times"]) - min(written["start_times"])
    if from_sending:
        assert spread > 5 * min(written["latencies"])  # six requests of each of two clients, one after the other


def test_a_measured_result_is_one_like_any_other(tmp_path):
    def workload():
        return maitred.synthetic(rate=200, num_requests=15, input_tokens=40, output_tokens=6)

    with serving(engine()) as url:
        runs = [maitred.bench(url, workload(), headers=[("X-Trace", "1")], chat=chat) for chat in (False, True)]
    live = runs[0]
    assert live.summary().total.completed == 15
    assert live.setup.in_one_line().startswith(f"measured: emulated at {url}; completions, streaming; seed 42")
    assert live.to_frame().height == 15
    live.report(tmp_path / "r.html")
    assert "What was measured" in (tmp_path / "r.html").read_text()
    simulated = [maitred.simulate(workload(), instance=maitred.InstanceConfig(latency="linear:2000,0,10"))] * 2
    found = maitred.compare_results(simulated, runs, names=("simulated", "measured"), metrics=["ttft_mean_ms", "tpot_mean_ms"])
    (pairing,) = found.pairings
    assert [each.metric for each in pairing.differences] == ["ttft_mean_ms", "tpot_mean_ms"]
    assert pairing.differences[0].b == pytest.approx(sum(r.summary().total.ttft.mean for r in runs) / 2_000)
    assert "2 runs, the same workload" in str(found)
    assert "model error" not in str(found)


def test_sides_with_different_numbers_of_runs_cannot_be_compared():
    run = maitred.simulate(maitred.synthetic(rate=5, num_requests=2))
    with pytest.raises(ConfigError, match="as many runs"):
        maitred.compare_results([run], [run, run])
    with pytest.raises(ConfigError, match="as many runs"):
        maitred.compare_results(run)


STEPS = InstanceConfig(max_num_seqs=8)


def planned() -> list[Job]:
    return list(synthetic(rate=9, num_requests=60, class_mix="interactive:1,bulk:2"))


def late(jobs: list[Job]) -> list[Job]:
    """Return the jobs, each sent up to 20 ms after its plan."""
    rng = Random(5)
    moved = [replace(job, request=replace(job.request, arrival=job.request.arrival + rng.randrange(20_000))) for job in jobs]
    return sorted(moved, key=lambda job: job.request.arrival)


def measured(jobs: list[Job]) -> Results:
    """Return what clients would have seen of an engine that is exactly as simulated, with a sender that was late."""
    seen = simulate(late(jobs), ClusterConfig(), STEPS)
    plan = {job.request.id: job.request.arrival for job in jobs}
    return replace(seen, queued=seen.arrival, arrival=np.array([plan[number] for number in seen.request_id.tolist()]))


def test_a_late_sender_is_no_error_of_the_prediction() -> None:
    found = list(predict(planned(), Candidate(instance=STEPS), measured(planned()), seed=42))
    assert {group.name for group in found} == {"all", "interactive", "bulk"}
    for group in found:
        assert [line.error for line in group.lines] == pytest.approx([0.0] * len(group.lines))


def test_jobs_that_were_not_sent_are_left_out() -> None:
    sent = as_measured(planned(), measured(planned()[:20]))
    assert isinstance(sent, list)
    assert {job.request.id for job in sent} == set(range(20))


def test_it_measures_the_sender_beside_a_bare_client(monkeypatch, capsys):
    script = Path(__file__).parents[3] / "bench" / "sender.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--requests", "8", "--events", "3", "--rate", "40", "--secs", "0.2"])
    measured = runpy.run_path(str(script))
    monkeypatch.setitem(measured["main"].__globals__, "ROUNDS", 1)
    measured["main"]()
    assert "beyond it" in capsys.readouterr().out
