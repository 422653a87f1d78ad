"""Steps and timelines in the formats that engines and benchmarks write, and measured runs: profile, KV blocks, shared
prefixes.
"""

from __future__ import annotations

import gzip
import json
from math import inf
from pathlib import Path

import pytest
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import ConfigError
from maitred.study.calibration.importers import is_steps, read_any_steps, read_any_timeline
from maitred.study.calibration.layer_profile import read_profile
from maitred.study.calibration.measured_run import MeasuredRun, read_measured_run
from maitred.study.calibration.measurements import MeasuredRequest, MeasuredStep, read_steps, timeline_jobs

LOG = """\
(EngineCore pid=7) INFO 11-22 20:00:00 [kv_cache_utils.py:1] GPU KV cache size: 10,000 tokens
(APIServer pid=6) INFO 11-22 20:00:01 [loggers.py:199] Engine 000: Iteration(0): 2 context requests, 301 context tokens, \
0 generation requests, 0 generation tokens, iteration elapsed time: 9.81 ms, GPU KV cache usage: 3.0%
(APIServer pid=6) INFO 11-22 20:00:01 [loggers.py:199] Engine 000: Iteration(1): 1 context requests, 100 context tokens, \
2 generation requests, 2 generation tokens, iteration elapsed time: 12.00 ms, GPU KV cache usage: 4.1%
(APIServer pid=6) INFO 11-22 20:00:02 [loggers.py:199] Engine 000: Iteration(2): 0 context requests, 0 context tokens, \
0 generation requests, 0 generation tokens, iteration elapsed time: 0.10 ms (dummy), GPU KV cache usage: 0.0%
(APIServer pid=6) INFO 11-22 20:00:02 [loggers.py:1] something else
"""


def test_the_log_of_vllm_has_the_steps(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(LOG)
    assert is_steps(path)
    first, second = read_any_steps(path)
    assert (first.us, first.shape.num_decodes, first.shape.prefill_tokens) == (9810, 0, 301)
    assert [(chunk.num_tokens, chunk.num_computed_tokens) for chunk in first.shape.chunks] == [(151, 0), (150, 0)]
    assert (second.us, second.shape.num_decodes, second.shape.prefill_tokens) == (12_000, 2, 100)
    assert second.shape.context_tokens == 310  # 4.1 % of 10,000 tokens, less the 100 that this step computes


BENCH = {
    "input_lens": [10, 20, 30],
    "output_lens": [3, 2, 0],
    "ttfts": [0.5, 0.25, 0.0],
    "itls": [[0.1, 0.2], [0.05], []],
    "start_times": [100.0, 99.0, 101.0],
    "errors": ["", "", "timed out"],
}


def test_the_result_of_vllm_bench_is_a_timeline_of_clients(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"old": 1}) + "\n" + json.dumps(BENCH))  # as with --append-result
    assert not is_steps(path)
    first, second = read_any_timeline(path)
    assert (first.prompt_tokens, first.sent, first.first_token, first.last_token) == (20, 99.0, 99.25, 99.3)
    assert second.ttft == pytest.approx(0.5)
    assert second.latency == pytest.approx(0.8)
    assert second.seen_by_client


def test_figures_that_vllm_has_no_value_for_are_no_mistake(tmp_path):
    path = tmp_path / "result.json.gz"
    written = {"mean_tpot_ms": float("nan"), "request_rate": float("inf"), **BENCH, "errors": [None, "", "timed out"]}
    with gzip.open(path, "wt") as file:
        json.dump(written, file)  # NaN and Infinity, as vLLM writes them
    assert not is_steps(path)
    assert [row.sent for row in read_any_timeline(path)] == [99.0, 100.0]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.5, None, True, "0.5", 1e300])
@pytest.mark.parametrize("name", ["ttfts", "start_times", "itls", "input_lens", "output_lens"])
def test_a_list_with_a_wrong_number_is_one_error_with_its_place(tmp_path, name, wrong):
    path = tmp_path / "result.json"
    column = [*BENCH[name]]
    column[1] = [0.05, wrong] if name == "itls" else wrong
    path.write_text(json.dumps({**BENCH, name: column}))
    with pytest.raises(ConfigError) as raised:
        read_any_timeline(path)
    assert str(raised.value).startswith(str(path))
    assert "request 1" in str(raised.value) or f"{name}[1]" in str(raised.value)


@pytest.mark.parametrize("wrong", ["nan", "1.2.3", "inf", "-", "1e999"])
def test_a_step_of_the_log_with_a_wrong_number_is_an_error_with_its_line(tmp_path, wrong):
    path = tmp_path / "vllm.log"
    for shown in ("12.00", "4.1"):
        path.write_text(LOG.replace(f"{shown} ms", f"{wrong} ms") if shown == "12.00" else LOG.replace("4.1%", f"{wrong}%"))
        with pytest.raises(ConfigError, match=f"vllm.log:3: .* should be a number, not '{wrong}'"):
            read_any_steps(path)


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ("input_tokens,output_tokens,arrived_at_us,first_token_at_us,finished_at_us", "{},3,1000000,2000000,3000000"),
        ("input_tokens,output_tokens,arrived_at_us,first_token_at_us,finished_at_us", "7,3,{},2000000,3000000"),
        ("input_tokens,output_tokens,arrived_at_us,first_token_at_us,finished_at_us", "7,3,1000000,2000000,{}"),
        ("input_tokens,output_tokens,arrival_time_us,first_chunk_time_us,last_chunk_time_us", "7,{},1000000,2000000,3000000"),
        ("input_tokens,output_tokens,arrival_time_us,first_chunk_time_us,last_chunk_time_us", "7,3,{},2000000,3000000"),
        ("input_tokens,output_tokens,queued_ts,first_token_ts,last_token_ts", "7,3,1,2,{}"),
        ("prefill_tokens,decode_tokens,step_us", "7,3,{}"),
        ("prefill_tokens,decode_tokens,step_us", "{},3,9"),
    ],
)
@pytest.mark.parametrize("wrong", ["nan", "inf", "-5", "true", "null", "1e300"])
def test_a_wrong_number_in_a_column_is_an_error_with_its_line(tmp_path, columns, row, wrong):
    path = tmp_path / "m.csv"
    path.write_text(f"{columns}\n{row.format(wrong)}\n")
    with pytest.raises(ConfigError, match=r"m\.csv:2: "):
        read_any_steps(path) if is_steps(path) else read_any_timeline(path)


def test_the_requests_of_a_bench_and_a_measured_trace_are_timelines_of_clients(tmp_path):
    ours = tmp_path / "r.csv"
    header = "request_id,input_tokens,output_tokens,arrived_at_us,first_token_at_us,finished_at_us\n"
    ours.write_text(header + "1,10,3,2000000,2500000,3000000\n2,10,0,2500000,,2600000\n0,7,2,1000000,1100000,1200000\n")
    rows = read_any_timeline(ours)
    assert [row.prompt_tokens for row in rows] == [7, 10]
    assert rows[1].latency == pytest.approx(1.0)

    trace = tmp_path / "t.csv"
    header = "request_id,prefix_length,input_tokens,output_tokens,arrival_time_us,first_chunk_time_us,last_chunk_time_us\n"
    trace.write_text(header + "0,32,10,3,0,500000,1000000\n1,0,10,3,10,0,0\n")
    (row,) = read_any_timeline(trace)
    assert (row.prompt_tokens, row.ttft, row.latency) == (42, 0.5, 1.0)


def test_requests_that_did_not_complete_are_no_measurement(tmp_path):
    """An answer that broke off has a first token and an end, which is not that of the answer."""
    ours = tmp_path / "r.csv"
    ends = ("completed", "aborted", "timed_out", "rejected")
    rows = "".join(f"7,3,{number}000000,{number}500000,{number}700000,{end}\n" for number, end in enumerate(ends, 1))
    ours.write_text("input_tokens,output_tokens,arrived_at_us,first_token_at_us,finished_at_us,outcome\n" + rows)
    assert [row.sent for row in read_any_timeline(ours)] == [1.0]

    trace = tmp_path / "t.csv"
    header = "input_tokens,output_tokens,arrival_time_us,first_chunk_time_us,last_chunk_time_us,status\n"
    ends = ("error", "ok", "timeout", "")
    trace.write_text(header + "".join(f"7,3,{n}000000,{n}500000,{n}700000,{end}\n" for n, end in enumerate(ends, 1)))
    assert [row.sent for row in read_any_timeline(trace)] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("r.json", "{", "it is no result with every request"),
        ("r.json", json.dumps({**BENCH, "ttfts": [1.0]}), "its lists have different lengths"),
        ("r.json", json.dumps({**BENCH, "errors": ["x"] * 3}), "no request in it completed"),
        (
            "r.csv",
            "input_tokens,output_tokens,arrived_at_us,first_token_at_us,finished_at_us\n1,1,x,2,3\n",
            "r.csv:2: arrived_at_us should be a number, not 'x'",
        ),
        ("r.csv", "a,b\n1,2\n", "there is no column"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_any_timeline(path)


RUNS = Path(__file__).parents[2] / "vectors" / "vllm_timelines"
FILES = {
    "dense": "layer,tokens,time_us\nqkv,2,7\nqkv,1,5\n",
    "per_sequence": "layer,sequences,time_us\nsampler,1,3\n",
    "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,9\n",
    "skew_fit": "pc,n_label,skew_rate_label,kv_big_label,alpha\n"
    "0,n<=8,sr<=15%,kvB<=4k,0.25\n0,n<=8,sr<=15%,kvB>4k,0.5\n0,n<=8,sr<=40%,kvB<=4k,0.75\n128,n<=8,sr<=15%,kvB<=4k,1\n",
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "tp1").mkdir()
    for name, text in FILES.items():
        (tmp_path / "tp1" / f"{name}.csv").write_text(text)
    (tmp_path / "meta.yaml").write_text("skew_fit: {enabled: true}")
    return tmp_path


def test_curves_are_in_order(profile: Path) -> None:
    found = read_profile(profile, 1)

    assert found.dense == {"qkv": ((1.0, 5.0), (2.0, 7.0))}
    assert found.per_sequence == {"sampler": ((1.0, 3.0),)}
    assert found.attention == {(0, 0, 1, 16): 9.0}
    assert found.experts == {}


def test_what_unequal_lengths_cost_is_by_buckets(profile: Path) -> None:
    skew = read_profile(profile, 1).skew

    assert skew is not None
    assert skew.alphas_of(8, 0.15) == ((4096, 0.25), (inf, 0.5))
    assert skew.alphas_of(2, 0.16) == ((4096, 0.75), (inf, 0.0))  # never measured: nothing


def test_what_is_beyond_the_last_bucket_is_in_it(profile: Path) -> None:
    skew = read_profile(profile, 1).skew

    assert skew is not None
    assert skew.alphas_of(9, 0.9) == skew.alphas_of(8, 0.4)


def test_a_share_below_nothing_is_noise(profile: Path) -> None:
    path = profile / "tp1" / "skew_fit.csv"
    path.write_text(path.read_text().replace(",0.25", ",-0.25"))
    skew = read_profile(profile, 1).skew

    assert skew is not None
    assert skew.alphas_of(8, 0.15)[0] == (4096, 0.0)


def test_a_fit_without_buckets_is_said(profile: Path) -> None:
    path = profile / "tp1" / "skew_fit.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")

    with pytest.raises(ConfigError, match=r"skew_fit.csv: not a fit of unequal lengths"):
        read_profile(profile, 1)


def test_a_fit_that_is_off_does_not_count(profile: Path) -> None:
    (profile / "meta.yaml").write_text("skew_fit: {enabled: false}")

    assert read_profile(profile, 1).skew is None


def test_vllm_keeps_one_of_the_recorded_blocks_to_itself() -> None:
    assert read_measured_run(RUNS / "RTX4090_Llama-3.1-8B").instance().total_kv_blocks == 2588 - 1


def test_a_step_that_prefills_after_what_is_in_kv(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("prefill_tokens,decode_tokens,context_tokens,prefill_start,step_secs\n100,2,500,300,0.01\n")

    assert read_steps(path) == [MeasuredStep(BatchShape(2, 500, 100, (ChunkShape(100, 300, 400),)), pytest.approx(10_000))]


def test_a_prefix_is_that_of_the_first_request_that_is_long_enough() -> None:
    def row(sent: float, prompt: int, shared: int) -> MeasuredRequest:
        return MeasuredRequest(prompt, 5, sent, sent, sent, sent + 1, sent + 2, shared)

    jobs = timeline_jobs([row(3.0, 40, 0), row(3.5, 48, 0), row(4.0, 100, 3), row(4.5, 33, 2)])
    keys = [job.request.prefix.block_keys(16) for job in jobs if job.request.prefix is not None]

    assert [job.request.arrival for job in jobs] == [0, 500_000, 1_000_000, 1_500_000]
    assert [len(each) for each in keys] == [2, 3, 6, 2]
    assert keys[2][:3] == keys[1]
    assert keys[3] == keys[0]
    assert len({*keys[0], *keys[1], *keys[2]}) == 2 + 3 + 3


@pytest.mark.parametrize(
    ("version", "said", "ahead"),
    [
        ("0.19.0", None, True),
        ("0.14.0", None, True),
        ("v0.13.2", None, False),
        ("0.9.1", None, False),
        ("1.0", None, True),
        ("", None, True),
        ("0.19.0", False, False),
        ("0.9.1", True, True),
    ],
)
def test_an_engine_plans_ahead_if_it_was_told_to_or_its_version_does(version: str, said: bool | None, ahead: bool) -> None:
    meta = read_measured_run(RUNS / "RTX4090_Llama-3.1-8B").meta
    meta = replace(meta, vllm_version=version, engine_kwargs=replace(meta.engine_kwargs, async_scheduling=said))

    assert MeasuredRun(RUNS / "RTX4090_Llama-3.1-8B", meta).instance().async_scheduling is ahead
