"""`maitred calibrate` and `maitred validate` on the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maitred.config import load
from maitred.instance.latency import LinearLatency

Maitred = Callable[..., tuple[Any, str, str]]
RUNS = Path(__file__).parents[2] / "vectors" / "vllm_timelines"
RUN = RUNS / "RTXPRO6000_Llama-3.1-8B"
STEPS = "prefill_tokens,decode_tokens,context_tokens,step_ms\n" + "".join(
    f"{p},{d},{d * 500},{(5000 + 20 * p + 50 * d) / 1000}\n" for p in (0, 100, 500, 2000) for d in (1, 8, 64)
)


def test_measured_steps_become_a_configuration(maitred: Maitred) -> None:
    Path("steps.csv").write_text(STEPS)
    code, said, _ = maitred("calibrate", "steps.csv", "--out", "latency.yaml")

    assert code == 0
    assert "linear: 5000 + 20 · prefill tokens + 50 · decode tokens µs" in said
    assert "12 measurements, relative error" in said
    assert "excellent" in said
    instance = load(Path("latency.yaml")).instance
    assert instance.latency == LinearLatency((5000, 20, 50))
    assert instance.latency_error == pytest.approx(0, abs=1e-3)


def test_the_plot_of_residuals_says_how_many_it_draws_at_its_edge(maitred: Maitred) -> None:
    short = "0,8,4000,0.1\n"  # predicted to take more than twice as long
    Path("steps.csv").write_text(STEPS + short)
    assert maitred("calibrate", "steps.csv", "--plot", "with.svg")[0] == 0
    assert "1 beyond ±100% drawn at the edge" in Path("with.svg").read_text()
    Path("steps.csv").write_text(STEPS)
    assert maitred("calibrate", "steps.csv", "--plot", "without.svg")[0] == 0
    assert "beyond" not in Path("without.svg").read_text()


def test_a_table_lies_beside_its_configuration_and_simulates(maitred: Maitred) -> None:
    Path("steps.csv").write_text(STEPS)
    code, said, _ = maitred("calibrate", "steps.csv", "--latency-model", "table", "--out", "latency.yaml")

    assert (code, "written: latency.yaml and latency.table.json" in said) == (0, True)
    assert maitred("simulate", "--config", "latency.yaml", "--num-requests", 20, "--rate", 5)[0] == 0


def test_layer_profiles_become_a_table_in_an_engine_of_which_the_figures_are_the_same(maitred: Maitred) -> None:
    code, said, _ = maitred("calibrate", RUN, "--out", "latency.yaml")

    assert (code, "300 measurements" in said) == (0, True)
    (of_folder,) = json.loads(maitred("validate", RUN, "--json")[1])
    (of_files,) = json.loads(maitred("validate", "--measured", RUN / "requests.csv", "--config", "latency.yaml", "--json")[1])
    assert [line["predicted"] for line in of_files["lines"]] == pytest.approx(
        [line["predicted"] for line in of_folder["lines"]], rel=1e-3
    )
    engine = load(Path("latency.yaml")).instance
    assert (engine.max_num_seqs, engine.async_scheduling, engine.enable_prefix_caching) == (128, True, True)


def test_coefficients_lie_beside_the_model_and_the_gpus_they_are_of(maitred: Maitred) -> None:
    Path("steps.csv").write_text(STEPS)
    on = ("--model", "qwen3-8b", "--hardware", "A100", "--tensor-parallel-size", 2)
    assert maitred("calibrate", "steps.csv", "--latency-model", "trained-physics", *on, "--out", "latency.yaml")[0] == 0

    engine = load(Path("latency.yaml")).instance
    assert (engine.model, engine.hardware, engine.tensor_parallel_size) == ("qwen3-8b", "A100", 2)
    assert maitred("simulate", "--config", "latency.yaml", "--num-requests", 5, "--rate", 5)[0] == 0


def test_answers_of_one_token_have_no_time_per_token(maitred: Maitred) -> None:
    header = "input_tokens,output_tokens,queued_ts,first_token_ts,last_token_ts\n"
    Path("engine.yaml").write_text("instance: {}")
    Path("t.csv").write_text(header + "10,1,1,2,2\n10,1,2,3,3\n")
    (found,) = json.loads(maitred("validate", "--measured", "t.csv", "--config", "engine.yaml", "--json")[1])
    assert {line["metric"] for line in found["lines"]} == {"ttft", "e2e"}

    Path("t.csv").write_text(header + "10,1,1,2,2\n10,11,2,3,4\n")  # 1 s for the ten after the first
    (found,) = json.loads(maitred("validate", "--measured", "t.csv", "--config", "engine.yaml", "--json")[1])
    tpot = [line for line in found["lines"] if line["metric"] == "tpot"]
    assert [line["measured"] for line in tpot] == pytest.approx([100.0] * 4)
    assert [line["predicted"] for line in tpot] == pytest.approx([5.06] * 4)  # linear: 5,000 µs and 60 for its one decode

    Path("t.csv").write_text(header + "10,5,1,2,2\n")  # all at once: nothing to be relative to
    assert maitred("validate", "--measured", "t.csv", "--config", "engine.yaml")[0] == 0


RECORDED = (
    "arrival_secs,class,prompt_tokens,output_tokens,tenant,max_output_tokens,stream,model,program,slo_class,"
    "think_secs,continues,outcome,tokens_from,cached_tokens,backend,sent_secs,ttft_secs,e2e_secs\n"
)


def recorded_row(at: str, tokens: str, outcome: str, source: str, times: str, backend: str = "http://a:1") -> str:
    return f"{at},default,{tokens},ip:1,,true,m,,,,,{outcome},{source},,{backend},{times}\n"


def test_a_recording_of_the_gateway_is_a_timeline(maitred: Maitred) -> None:
    """Two requests, of 100 and of 200 tokens of prompt, alone in the engine: 1 ms + 10 µs per token of prompt, then 1 ms a
    step. What cannot be compared is left out, and counted."""
    rows = [
        recorded_row("1000.0", "100,3", "completed", "usage", "0.5,0.502,0.504"),
        recorded_row("1002.0", "200,2", "completed", "usage", "0.0,0.003,0.004"),
        recorded_row("1003.0", "200,2", "completed", "estimate", "0.0,0.003,0.004"),
        recorded_row("1004.0", "200,", "broken_off", "estimate", "0.0,0.003,0.004"),
        recorded_row("1005.0", "200,2", "completed", "usage", "0.0,,0.004"),
    ]
    Path("r.csv").write_text(RECORDED + "".join(rows))
    Path("engine.yaml").write_text("instance: {latency: 'linear:1000,10,0'}\n")
    code, out, error = maitred("validate", "--measured", "r.csv", "--config", "engine.yaml", "--json")
    assert code == 0
    assert "left out of 5 requests" in error
    assert error.rstrip().endswith(": 3")
    (found,) = json.loads(out)
    assert found["requests"] == 2
    means = {line["metric"]: (line["measured"], line["predicted"]) for line in found["lines"] if line["statistic"] == "mean"}
    assert means["ttft"] == pytest.approx((2.5, 2.5))  # after 2 ms, and after 3 ms; counted from when they were sent
    assert means["e2e"] == pytest.approx((4.0, 4.0))


def test_recordings_that_are_no_timeline(maitred: Maitred) -> None:
    Path("engine.yaml").write_text("instance: {latency: 'linear:1000,10,0'}\n")
    one = recorded_row("1", "100,3", "completed", "usage", "0,0.1,0.2")
    other = recorded_row("2", "100,3", "completed", "usage", "0,0.1,0.2", "http://b:1")
    for rows, problem in (
        (one + other, "these are the requests of 2 engines: m at http://a:1, m at http://b:1"),
        (recorded_row("1", "9,9", "completed", "estimate", "0,0.1,0.2"), "there is no completed stream in it"),
        (one.replace(",0.1,", ",soon,"), "r.csv:2: ttft_secs should be a number"),
    ):
        Path("r.csv").write_text(RECORDED + rows)
        code, _, error = maitred("validate", "--measured", "r.csv", "--config", "engine.yaml")
        assert (code, problem in error.replace("\n", " ")) == (2, True), error


def test_a_timeline_becomes_linear(maitred: Maitred) -> None:
    code, said, _ = maitred("calibrate", RUN / "requests.csv")

    assert code == 0
    assert said.startswith("linear: 153")
    assert "excellent" in said


def test_what_no_measurement_tells_is_said(maitred: Maitred) -> None:
    decoding = [line for line in STEPS.splitlines() if not line[0].isdigit() or line.startswith("0,")]
    Path("steps.csv").write_text("\n".join(decoding))

    assert "warning: from these measurements a token of prefill costs nothing" in maitred("calibrate", "steps.csv")[1]
    Path("steps.csv").write_text(STEPS)
    assert "warning" not in maitred("calibrate", "steps.csv")[1]


def test_one_step_that_hung_moves_no_coefficient_and_widens_the_error(maitred: Maitred) -> None:
    first, second, rest = STEPS.split("\n", 2)
    hung = "0,8,4000,999999\n"  # 180,000 times as long as it should
    Path("steps.csv").write_text("\n".join([first, *[second] * 8, rest]) + hung)
    said = maitred("calibrate", "steps.csv", "--out", "latency.yaml")[1]

    instance = load(Path("latency.yaml")).instance
    assert isinstance(instance.latency, LinearLatency)
    assert instance.latency.beta == pytest.approx((5000, 20, 50), rel=0.02)
    assert "20 measurements" in said
    assert instance.latency_error == pytest.approx((0.05 * 0.95) ** 0.5, abs=0.001)  # 19 errors of 0, and one of -1


def test_json_lines(maitred: Maitred) -> None:
    rows = [{"prefill_tokens": p, "decode_tokens": 4, "step_us": 900 + p, "other": "x"} for p in (0, 10, 20, 40)]
    Path("steps.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")

    assert "· prefill tokens" in maitred("calibrate", "steps.jsonl")[1]


def test_the_errors_of_a_run_stand_beside_the_peers(maitred: Maitred) -> None:
    code, said, _ = maitred("validate", RUN, RUNS / "RTXPRO6000_Qwen3-32B")

    assert code == 0
    assert "TTFT p50" in said
    assert "error: mean 1.8%, worst 7.1%; the peer's: mean 2.3%, worst 8.6%" in said
    assert "error: mean 0.2%, worst 0.7%; the peer's: mean 1.1%, worst 1.7%" in said


def test_the_same_as_json(maitred: Maitred) -> None:
    (found,) = json.loads(maitred("validate", RUN, "--json")[1])

    assert found["worst_error"] == pytest.approx(0.071, abs=0.001)
    assert found["peer_worst_error"] == pytest.approx(0.0857, abs=0.001)
    assert [line["metric"] for line in found["lines"]] == ["ttft"] * 4 + ["tpot"] * 4 + ["e2e"] * 4


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (STEPS, ("--latency-model", "lineal"), "--latency-model: unknown latency model 'lineal' (did you mean 'linear'?)"),
        (STEPS, ("--latency-model", "trained-physics"), "--model: trained-physics is fitted for a model on a GPU"),
        ("a,b\n1,2\n", (), "steps.csv:1: there is no column 'input_tokens'"),
        ("", (), "steps.csv: the file is empty"),
        ("prefill_tokens,step_us\n1,2\n", (), "steps.csv:1: there is no column 'decode_tokens'"),
        ("prefill_tokens,decode_tokens,step_us\n1,2,x\n", (), "steps.csv:2: step_us should be a number, not 'x'"),
        ("prefill_tokens,decode_tokens,step_us\n1,2,nan\n", (), "steps.csv:2: step_us should be a number, not 'nan'"),
        ("prefill_tokens,decode_tokens,step_us\n1,2\n", (), "steps.csv:2: step_us should be a number, not None"),
        ("prefill_tokens,decode_tokens,step_us\n1,-2,3\n", (), "steps.csv:2: decode_tokens should be a whole number from 0"),
        ("prefill_tokens,decode_tokens,step_us\n1.5,2,3\n", (), "steps.csv:2: prefill_tokens should be a whole number from 0"),
        (
            "prefill_tokens,decode_tokens,step_us\n1e300,2,3\n",
            (),
            "steps.csv:2: prefill_tokens should be a whole number from 0",
        ),
        (
            "prefill_tokens,decode_tokens,step_ms\n1,2,-3\n",
            (),
            "steps.csv:2: a step takes some time, at most 1e+12 us, and step_ms is -3",
        ),
        ("prefill_tokens,decode_tokens,step_us\n0,0,3\n", (), "steps.csv:2: a step without tokens"),
        ("prefill_tokens,decode_tokens,step_us\n1,1,3\n", (), "1 steps are too few"),
        ("prefill_tokens,decode_tokens,step_us\n", (), "steps.csv: there are no steps in it"),
        (STEPS.split("\n500")[0], ("--latency-model", "table"), "6 steps are too few for a table"),
    ],
)
def test_what_is_wrong_with_measurements_is_said(maitred: Maitred, content: str, arguments: tuple[str], said: str) -> None:
    Path("steps.csv").write_text(content)
    code, _, error = maitred("calibrate", "steps.csv", *arguments)

    assert code == 2
    assert error.startswith(f"maitred: error: {said}")


def test_what_is_wrong_with_json_lines_is_said(maitred: Maitred) -> None:
    for line, said in (
        ("{", "steps.jsonl:1: no JSON"),
        ("[]", "steps.jsonl:1: a step is a JSON object"),
        ('{"prefill_tokens": 1, "step_us": 1}', "steps.jsonl:1: decode_tokens is missing"),
        ('{"prefill_tokens": true, "decode_tokens": 1, "step_us": 1}', "steps.jsonl:1: prefill_tokens should be a number"),
    ):
        Path("steps.jsonl").write_text(line + "\n")
        assert maitred("calibrate", "steps.jsonl")[2].startswith(f"maitred: error: {said}")


def test_what_is_wrong_with_a_timeline_is_said(maitred: Maitred) -> None:
    header = "input_tokens,output_tokens,queued_ts,first_token_ts,last_token_ts\n"
    for rows, said in (
        ("", "t.csv: there are no requests in it"),
        ("5,5,1,0.5,2\n", "t.csv:2: queued_ts, first_token_ts and last_token_ts should follow each other"),
        ("5,5,1,1,2\n", "t.csv:2: queued_ts, first_token_ts and last_token_ts should follow each other"),
        ("5,5.5,1,2,3\n", "t.csv:2: output_tokens should be a whole number from 0"),
        ("1e300,5,1,2,3\n", "t.csv:2: input_tokens should be a whole number from 0"),
        ("0,5,1,2,3\n", "t.csv:2: input_tokens and output_tokens must be at least 1"),
        ("5,1,1,2,3\n5,1,1,2,3\n5,1,1,2,3\n", "0 requests with two tokens or more are too few"),
    ):
        Path("t.csv").write_text(header + rows)
        assert maitred("calibrate", "t.csv")[2].startswith(f"maitred: error: {said}")
    Path("t.csv").write_text(header.replace("\n", ",scheduled_ts,prefix_blocks16_seen_before\n") + "5,5,1,2,3,9,0\n")
    assert "t.csv:2: scheduled_ts should be between queued_ts and first_token_ts" in maitred("calibrate", "t.csv")[2]
    Path("t.csv").write_text(header.replace("\n", ",prefix_blocks16_seen_before\n") + "5,5,1,2,3,-4\n")
    assert "t.csv:2: prefix_blocks16_seen_before should be a whole number from 0" in maitred("calibrate", "t.csv")[2]
    Path("t.csv").write_text(header + "5,5,1,2,3\n")
    assert "does not show enough for table" in maitred("calibrate", "t.csv", "--latency-model", "table")[2]
    for content, said in (("x", "x.csv:1: there is no column 'input_tokens'"), ("", "x.csv: the file is empty")):
        Path("x.csv").write_text(content)
        assert said in maitred("calibrate", "x.csv", "--latency-model", "table")[2]


def test_what_is_wrong_with_a_folder_is_said(maitred: Maitred, tmp_path: Path) -> None:
    assert "meta.json: cannot be read: no such file" in maitred("validate", ".")[2]
    assert "there is nothing to compare" in maitred("validate")[2]
    assert "there is nothing to compare" in maitred("validate", "--measured", "x.csv")[2]
    shutil.copytree(RUN, "run")
    Path("run/profile/tp1/attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,0,0,0,5\n")
    assert "attention.csv has no rows of decode-only steps" in maitred("validate", "run")[2]
    Path("run/profile/tp1/attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,5\n")
    assert "run: its layer profile is incomplete" in maitred("validate", "run")[2]
    shutil.rmtree("run/profile/tp1")
    assert "run/profile/tp1: there is no profile for 1 GPUs (there is no tpN at all)" in maitred("validate", "run")[2]
    Path("run/meta.json").write_text('{"engine_kwargs": {}, "model_config": {}, "cluster": {}}')
    assert "run/meta.json: it is not a valid meta.json: it has no " in maitred("validate", "run")[2]
    assert "layer profiles make a table" in maitred("calibrate", "run", "--latency-model", "linear")[2]
    assert "absent.csv: cannot be read: no such file" in maitred("calibrate", "absent.csv")[2]


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("engine_kwargs", "data_parallel_size", 0, "engine_kwargs.data_parallel_size: expected a whole number >= 1"),
        ("engine_kwargs", "max_num_seqs", 1_000_001, "max_num_seqs must be from 1 to 1,000,000"),
        ("engine_kwargs", "max_model_len", 1, "max_model_len must be at least 2"),
        ("model_config", "num_hidden_layers", 0, "model_config.num_hidden_layers: expected a whole number >= 1"),
        ("model_config", "num_experts", 3, "num_experts_per_tok must be from 1 to num_experts 3"),
        ("cluster", "link_bw", 0, "cluster.link_bw: expected a number > 0.0"),
    ],
)
def test_what_is_wrong_with_the_description_of_a_run_is_said(
    maitred: Maitred, tmp_path: Path, section: str, key: str, value: int, said: str
) -> None:
    (tmp_path / "profile").symlink_to(RUN / "profile")
    (tmp_path / "requests.csv").symlink_to(RUN / "requests.csv")
    meta = json.loads((RUN / "meta.json").read_text())
    meta[section][key] = value
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    code, _, error = maitred("validate", tmp_path)

    assert (code, error.count("\n")) == (2, 1)
    assert "meta.json" in error
    assert said in error


def test_requests_that_do_not_fit_are_said(maitred: Maitred) -> None:
    Path("small.yaml").write_text("instance: {max_model_len: 1000}")
    code, _, error = maitred("validate", "--measured", RUN / "requests.csv", "--config", "small.yaml")

    assert code == 2
    assert "of 300 requests cannot be served by this configuration" in error


def test_a_poor_fit_is_not_written_without_force(maitred: Maitred) -> None:
    rows = "".join(f"0,{n},{us}\n" for n, us in ((1, 90_000), (2, 500), (4, 70_000), (8, 800), (16, 60_000), (32, 300)))
    Path("steps.csv").write_text("prefill_tokens,decode_tokens,step_us\n" + rows)
    code, said, err = maitred("calibrate", "steps.csv", "--out", "latency.yaml")
    assert (code, Path("latency.yaml").exists()) == (2, False)
    assert ": poor" in said
    assert "the fit is poor" in err
    assert "--force" in err
    assert maitred("calibrate", "steps.csv", "--out", "latency.yaml", "--force")[0] == 0
    assert Path("latency.yaml").exists()


def test_several_files_their_residuals_and_what_clients_saw(maitred: Maitred) -> None:
    log = "".join(
        f"Iteration({n}): {1 if p else 0} context requests, {p} context tokens, {d} generation requests, "
        f"{d} generation tokens, "
        f"iteration elapsed time: {(5000 + 20 * p + 50 * d) / 1000:.2f} ms, GPU KV cache usage: 0.0%\n"
        for n, (p, d) in enumerate((p, d) for p in (0, 100, 500) for d in (1, 4, 16))
    )
    Path("a.log").write_text(log)
    Path("b.log").write_text(log)
    starts = [float(n) for n in range(12)]
    seen = {"input_lens": [100] * 12, "output_lens": [3] * 12, "ttfts": [0.0101] * 12, "itls": [[0.00505] * 2] * 12}
    Path("clients.json").write_text(json.dumps({**seen, "start_times": starts}))
    Path("engine.yaml").write_text("instance: {max_num_seqs: 32}")
    code, said, err = maitred(
        *("calibrate", "a.log", "b.log", "--clients", "clients.json", "--config", "engine.yaml"),
        *("--plot", "residuals.png", "--out", "latency.yaml"),
    )
    assert code == 0, err
    assert "18 measurements" in said
    assert "outside the steps: a request waits 3,100 µs" in said  # 10.1 ms, of which the step takes 7
    instance = load(Path("latency.yaml")).instance
    assert isinstance(instance.latency, LinearLatency)
    assert instance.latency.alpha == pytest.approx((3_100, 0, 0), abs=60)
    assert instance.max_num_seqs == 32
    assert Path("residuals.png").read_bytes().startswith(b"\x89PNG")
    assert error_of_prediction(maitred) < 0.02
    table = maitred(
        *("calibrate", "a.log", "b.log", "--latency-model", "table", "--clients", "clients.json", "--config", "engine.yaml"),
        *("--out", "latency.yaml"),
    )
    assert table[0] == 0, table[2]
    assert error_of_prediction(maitred) < 0.02  # the file of a table has its α too


def error_of_prediction(maitred: Maitred) -> float:
    (found,) = json.loads(maitred("validate", "--measured", "clients.json", "--config", "latency.yaml", "--json")[1])
    return float(found["worst_error"])


def test_alpha_alone_over_a_model_that_is_known(maitred: Maitred) -> None:
    seen = {"input_lens": [100] * 12, "output_lens": [3] * 12, "ttfts": [0.0101] * 12, "itls": [[0.00505] * 2] * 12}
    Path("clients.json").write_text(json.dumps({**seen, "start_times": [float(n) for n in range(12)]}))
    Path("engine.yaml").write_text('instance: {latency: "linear:5000,20,50", max_num_seqs: 7}')
    only = ("calibrate", "--alpha-only", "--clients", "clients.json")
    code, said, err = maitred(*only, "--config", "engine.yaml", "--out", "fitted.yaml")
    assert code == 0, err
    assert "outside the steps: a request waits 3,100 µs + 0 · prompt tokens (α)" in said
    fitted = load(Path("fitted.yaml")).instance
    assert fitted.latency == LinearLatency((5_000, 20, 50), (3_100, 0, 0))
    assert fitted.max_num_seqs == 7
    assert "needs an engine and what clients saw" in maitred(*only)[2]
    assert "there is nothing to fit" in maitred("calibrate")[2]
