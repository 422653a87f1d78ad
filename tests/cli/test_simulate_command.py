"""`maitred simulate`, from the command line to the files it writes."""

from __future__ import annotations

import gc
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BETA = ("--beta-coeffs", "1000,10,100")
"""A step takes 1000 µs, 10 more per prefill token, 100 more per decode."""


def results(path: str = "r.json") -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def test_the_azure_sample_by_hand(maitred: Any, samples: Path) -> None:
    """No request waits for another, but requests 1 and 2 arrive together and share their first step.

    0: 100 tokens in: 1000 + 1000 = 2000; two decodes of 1100.           1: with 2, 250 in: 3500; a single token.
    2: as 1, then nine decodes of 1100.   3: 1000 in: 11000, one decode.  4: 10 in: 1100, four decodes.
    """
    result = maitred("simulate", "--trace", f"azure:{samples / 'azure_tiny.csv'}", *BETA, "--results-path", "r.json")
    assert result.code == 0
    assert [(row["request_id"], row["ttft_us"], row["e2e_us"]) for row in results()] == [
        (0, 2_000, 4_200),
        (1, 3_500, 3_500),
        (2, 3_500, 13_400),
        (3, 11_000, 12_100),
        (4, 1_100, 5_500),
    ]
    assert results()[3] == {"request_id": 3, "ttft_us": 11_000, "e2e_us": 12_100, "input_tokens": 1000, "output_tokens": 2}


def test_chunked_prefill_and_the_metrics_by_hand(maitred: Any, samples: Path) -> None:
    """With a budget of 500 tokens, request 3 takes two steps of 6000 µs to its first token. The run ends at 2 s and 5500 µs."""
    maitred(
        "simulate", "--trace", samples / "azure_tiny.csv", *BETA, "--max-num-batched-tokens", 500,
        "--slo-ttft-ms", 3.5, "--metrics-path", "m.json", "--results-path", "r.json",
    )  # fmt: skip
    assert results()[3]["ttft_us"] == 12_000
    figures = results("m.json")
    assert figures["injected_requests"] == figures["completed_requests"] == 5
    assert figures["simulated_duration_s"] == 2.0055
    assert figures["ttft_mean_ms"] == pytest.approx((2 + 3.5 + 3.5 + 12 + 1.1) / 5)
    assert figures["ttft_p50_ms"] == 3.5
    assert figures["slo_attainment"] == 0.8
    assert figures["total_output_tokens"] == 3 + 1 + 10 + 2 + 5


def test_goodput_is_shown_against_a_usual_slo_when_none_is_given(maitred: Any, samples: Path) -> None:
    """With steps of 3 s no first token comes within 2 s."""
    slow = maitred("simulate", "--trace", samples / "azure_tiny.csv", "--beta-coeffs", "3000000,0,0")
    quick = maitred("simulate", "--trace", samples / "azure_tiny.csv", *BETA)
    assert "SLO: TTFT ≤ 2,000 ms, TPOT ≤ 200 ms" in quick.out
    within = [next(line.split()[-1] for line in result.out.splitlines() if "within SLO" in line) for result in (slow, quick)]
    assert within == ["0.0%", "100.0%"]


def test_sjf_lets_the_short_prompt_pass(maitred: Any, tmp_path: Path) -> None:
    """One request runs at a time. Of those that wait, the long prompt arrived first."""
    (tmp_path / "t.csv").write_text(
        "arrival_secs,class,prompt_tokens,output_tokens\n0,default,50,2\n0.0001,default,900,2\n0.0002,default,10,2\n",
        encoding="utf-8",
    )
    order = {}
    for scheduler in ("fcfs", "sjf"):
        maitred("simulate", "--trace", "t.csv", "--max-num-seqs", 1, "--scheduler", scheduler, "--results-path", "r.json")
        ended = {row["request_id"]: 100 * row["request_id"] + row["e2e_us"] for row in results()}
        order[scheduler] = sorted(ended, key=ended.__getitem__)
    assert order == {"fcfs": [0, 1, 2], "sjf": [0, 2, 1]}


def test_the_table_is_on_stdout_and_nothing_else_is(maitred: Any, samples: Path) -> None:
    result = maitred("simulate", "--trace", samples / "azure_tiny.csv", *BETA)
    assert result.code == 0
    assert "TTFT ms" in result.out
    assert "\x1b" not in result.out
    assert "5 requests in" in result.err
    assert "requests in" not in result.out


def test_quiet_is_silent(maitred: Any, samples: Path) -> None:
    result = maitred("simulate", "--trace", samples / "azure_tiny.csv", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_garbage_is_collected_afterwards_as_it_was_before(maitred: Any) -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    assert maitred("simulate", "--trace", "sample:mixed", "--quiet").code == 0
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() <= frozen, "what the run has made would never be collected"


def test_mooncake_and_the_sample_that_comes_along(maitred: Any, samples: Path) -> None:
    maitred("simulate", "--trace", f"mooncake:{samples / 'mooncake_tiny.jsonl'}", "--results-path", "r.json")
    assert [row["output_tokens"] for row in results()] == [4, 2, 1]
    result = maitred("simulate", "--trace", "sample:mixed", "--num-instances", 2, "--metrics-path", "m.json")
    assert result.code == 0
    assert set(results("m.json")["per_class"]) == {"interactive", "bulk"}
    assert results("m.json")["completed_requests"] == 476


def test_synthetic_runs_repeat_byte_for_byte(maitred: Any) -> None:
    workload = ("--rate", 50, "--num-requests", 200, "--input-tokens", "lognormal:300,200", "--output-tokens", "uniform:1,99")

    def run(seed: int, *more: str) -> tuple[str, str]:
        classes = ("--class-mix", "interactive:1,bulk:2")
        result = maitred("simulate", *workload, *classes, "--seed", seed, *more, "--results-path", "r")
        assert result.code == 0
        return result.out, Path("r").read_text(encoding="utf-8")

    assert run(7) == run(7) == run(7, "--step-by-step")
    assert run(7) != run(8)
    assert "interactive" in run(7)[0]


def test_capacity_holds_requests_back_at_the_gateway_and_the_log_has_the_reasons(maitred: Any) -> None:
    workload = ("--rate", 1000, "--num-requests", 20, "--input-tokens", 100, "--output-tokens", 50, "--results-path", "r.json")
    maitred("simulate", *workload)
    free = max(row["ttft_us"] for row in results())
    result = maitred("simulate", *workload, "--capacity", 2, "--decision-log", "log.jsonl")
    assert result.code == 0
    assert max(row["ttft_us"] for row in results()) > 5 * free
    entries = [json.loads(line) for line in Path("log.jsonl").read_text(encoding="utf-8").splitlines()]
    decided = [entry["decision"] for entry in entries if "decision" in entry and entry["room"] == "admission"]
    assert {decision["subject"] for decision in decided} == set(range(20))


def test_a_config_file_is_heeded_and_flags_win(maitred: Any, samples: Path) -> None:
    Path("c.yaml").write_text(
        "instance: {latency: {model: linear, beta: [1000, 10, 100]}, max_num_batched_tokens: 500}\n", encoding="utf-8"
    )
    common = ("simulate", "--trace", samples / "azure_tiny.csv", "--config", "c.yaml", "--results-path", "r.json")
    maitred(*common)
    assert results()[3]["ttft_us"] == 12_000
    maitred(*common, "--max-num-batched-tokens", 2000)
    assert results()[3]["ttft_us"] == 11_000
    maitred(*common, "--latency", "linear:1,0,0")
    assert results()[3]["ttft_us"] == 2


def test_a_horizon_leaves_the_rest_unfinished(maitred: Any, samples: Path) -> None:
    maitred("simulate", "--trace", samples / "azure_tiny.csv", *BETA, "--horizon-secs", 0.26, "--metrics-path", "m.json")
    figures = results("m.json")
    assert (figures["injected_requests"], figures["completed_requests"], figures["unfinished_requests"]) == (3, 2, 1)
    assert figures["simulated_duration_s"] == 0.26


def test_max_requests_stops_reading(maitred: Any, samples: Path) -> None:
    maitred("simulate", "--trace", samples / "azure_tiny.csv", "--max-requests", 2, "--results-path", "r.json")
    assert len(results()) == 2


def test_nothing_at_all_is_a_table_of_dashes(maitred: Any) -> None:
    result = maitred("simulate", "--rate", 1, "--num-requests", 0, "--results-path", "r.json", "--slo-e2e-ms", 1)
    assert result.code == 0
    assert "–" in result.out
    assert "nan" not in result.out
    assert results() == []


def test_a_bad_row_is_one_line_with_its_place_and_what_to_do(maitred: Any) -> None:
    Path("t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,12,nine\n", encoding="utf-8")
    result = maitred("simulate", "--trace", "azure:t.csv", "--results-path", "r.json")
    assert result.code == 2
    assert result.err == (
        "maitred: error: t.csv:2: GeneratedTokens is 'nine' "
        "(it must be a whole number of tokens from 1 to 100000000; --skip-bad-rows leaves such rows out)\n"
    )
    assert list(Path().iterdir()) == [Path("t.csv")]


def test_skipped_rows_are_counted_and_the_first_is_named(maitred: Any) -> None:
    rows = "2023-11-16 18:17:03,12,9\n2023-11-16 18:17:02,12,9\nx\n2023-11-16 18:17:04,12,9\n"
    Path("t.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}", encoding="utf-8")
    result = maitred("simulate", "--trace", "azure:t.csv", "--skip-bad-rows", "--quiet", "--results-path", "r.json")
    assert result.code == 0
    assert result.err.startswith("maitred: 2 rows were skipped; the first: t.csv:3: it arrived before the row above it")
    assert len(results()) == 2


MISTAKES = [
    ([], "there is no workload (give --trace FORMAT:FILE, --workload-spec FILE, --programs N, or --rate RATE (or --con"),
    (["--rate", "5"], "--num-requests is missing (give"),
    (["--num-requests", "5"], "--rate is missing (give"),
    (["--trace", "sample:mixed", "--rate", "5"], "--rate does not go with --trace (give"),
    (["--trace", "sample:mixed", "--output-tokens", "5"], "--output-tokens does not go with --trace"),
    (["--rate", "5", "--num-requests", "5", "--skip-bad-rows"], "--skip-bad-rows does not go with --rate"),
    (["--rate", "0", "--num-requests", "5"], "--rate: a rate of 0 cannot be used"),
    (["--rate", "5", "--num-requests", "5", "--input-tokens", "normal:5"], "--input-tokens: 'normal:5' has 1 number (write"),
    (["--trace", "azure:none.csv"], "none.csv: cannot be read: no such file or directory"),
    (["--trace", "sample:mixed", "--class-mix", "bulc:1"], "did you mean 'bulk'?"),
    (["--trace", "sample:mixed", "--max-requests", "-1"], "--max-requests: -1 requests cannot be read"),
    (["--trace", "sample:mixed", "--scheduler", "fcsf"], "did you mean 'fcfs'?"),
    (["--trace", "sample:mixed", "--routing-policy", "least-load"], "did you mean 'least-loaded'?"),
    (["--trace", "sample:mixed", "--num-instances", "0"], "--num-instances: cluster.num_instances must be from 1 to 10,000"),
    (["--trace", "sample:mixed", "--num-instances", "10000000"], "must be from 1 to 10,000, not 10000000"),
    (["--trace", "sample:mixed", "--latency", "linear:5"], "--latency-model: cannot read the latency model 'linear:5'"),
    (["--trace", "sample:mixed", "--beta-coeffs", "5"], "--beta-coeffs: linear takes three β, not 1"),
    (["--rate", "5", "--num-requests", "-5"], "--num-requests: -5 requests cannot be made"),
    (["--rate", "5", "--num-requests", "5", "--class-mix", "bulc:1"], "--class-mix: unknown class 'bulc'"),
    (["--trace", "sample:mixed", "--beta-coeffs", "1,2,3", "--latency", "linear:1,2,3"], "two names for one thing"),
    (["--trace", "sample:mixed", "--horizon-secs", "nan"], "nan cannot be used (from a microsecond up to 1e+11)"),
    (["--trace", "sample:mixed", "--horizon-secs", "inf"], "inf cannot be used (from a microsecond up to 1e+11)"),
    (["--trace", "sample:mixed", "--horizon-secs", "1e-7"], "--horizon-secs: 1e-07 cannot be used"),
    (["--trace", "sample:mixed", "--slo-ttft-ms", "1e12"], "1e+12 cannot be used (from a microsecond up to 1e+11)"),
    (["--trace", ""], "'' names no trace (write it as FORMAT:FILE)"),
    (["--trace", "sample:mixed", "--slo-tpot-ms", "-1"], "--slo-tpot-ms: -1 cannot be used"),
    (["--trace", "sample:mixed", "--results-path", "no/r.json"], "--results-path: there is no directory no (create it first)"),
    (["--trace", "sample:mixed", "--results-path", "a", "--metrics-path", "./a"], "is already what --results-path writes to"),
    (["--trace", "sample:mixed", "--config", "none.yaml"], "none.yaml"),
    (["--tracee", "x"], "--tracee"),
]


@pytest.mark.parametrize(("flags", "what"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_no_file(maitred: Any, flags: list[str], what: str) -> None:
    result = maitred("simulate", *flags)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("maitred: error: ")
    assert result.err.count("\n") == 1
    assert what in result.err
    assert list(Path().iterdir()) == []


def test_a_bad_output_path_is_found_before_the_trace_is_simulated(maitred: Any) -> None:
    """The second row is invalid, but the run ends before it is read."""
    Path("t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nrubbish\n", encoding="utf-8")
    assert "--metrics-path" in maitred("simulate", "--trace", "azure:t.csv", "--metrics-path", "no/m.json").err


@pytest.mark.parametrize("flag", ["--results-path", "--metrics-path"])
def test_what_is_read_is_not_written_over(maitred: Any, flag: str) -> None:
    text = "arrival_secs,class,prompt_tokens,output_tokens\n0,default,50,2\n"
    Path("t.csv").write_text(text, encoding="utf-8")
    Path("c.yaml").touch()
    Path("link").symlink_to("t.csv")
    run = ("simulate", "--trace", "t.csv", "--config", "c.yaml", flag)
    assert maitred(*run, "link").err == f"maitred: error: {flag}: link is already what --trace reads (name another file)\n"
    assert f"{flag}: c.yaml is already what --config reads" in maitred(*run, "c.yaml").err
    assert Path("t.csv").read_text(encoding="utf-8") == text


def test_help_is_grouped_and_names_every_flag_once(maitred: Any) -> None:
    result = maitred("simulate", "--help-all", env={"COLUMNS": "120"})
    assert result.code == 0
    for group in ("Workload: a recorded trace", "Workload: synthetic", "Cluster", "Instance: order", "Service level objective"):
        assert result.out.count(group) == 1
    words = result.out.replace("│", " ").split()
    assert "lognormal:MEAN,SD (both of the lengths)" in " ".join(words)
    assert words[words.index("--quiet") + 1] == "No"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("simulate", "--hardware GPU The kind of GPU: a name in the catalogue, any case. Default: H100."),
        ("simulate", "KV blocks. Default: what fits on --hardware beside --model, and without a model 27,000."),
        ("simulate", "--admission-latency µs Time from the arrival of a request until admission decides, in µs. Default: 0."),
        ("simulate", "--enable-prefix-caching Keep the KV blocks of a prompt"),
        ("serve", "--backend URL Base URL of each OpenAI-compatible engine, as http://host:port. Repeatable."),
    ],
)
def test_help_has_the_text_the_unit_and_the_default_of_a_key(maitred: Any, command: str, text: str) -> None:
    result = maitred(command, "--help-all", env={"COLUMNS": "400"})
    assert text in " ".join(result.out.replace("│", " ").split())


def simulate_in_a_process(*flags: str, stderr: int) -> subprocess.CompletedProcess[bytes]:
    code = "from maitred.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", *flags]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False)


def test_a_progress_bar_shows_where_stderr_is_a_terminal(samples: Path) -> None:
    terminal, end = pty.openpty()
    try:
        done = simulate_in_a_process("--rate", "100", "--num-requests", "3000", stderr=end)
        shown = os.read(terminal, 100_000).decode()
    finally:
        os.close(end)
        os.close(terminal)
    assert done.returncode == 0
    assert "simulating" in shown
    assert b"\x1b" not in done.stdout


def test_results_can_go_down_a_pipe() -> None:
    done = simulate_in_a_process("--trace", "sample:mixed", "--results-path", "/dev/stdout", "--quiet", stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(json.loads(done.stdout)) == 476


def test_a_redirected_descriptor_is_appended_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    command = [
        sys.executable,
        "-m",
        "maitred",
        "simulate",
        "--trace",
        "sample:mixed",
        "--quiet",
        "--results-path",
        "/dev/stdout",
    ]
    with log.open("ab") as appending:
        subprocess.run(command, stdout=appending, timeout=60, check=True)
    before, written = log.read_text(encoding="utf-8").split("\n", 1)
    assert before == "before"
    assert len(json.loads(written)) == 476


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_half_written_behind(tmp_path: Path, number: signal.Signals) -> None:
    """The trace comes from a pipe that stays open after one row, so the run waits until a signal ends it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "maitred", "simulate", "--trace", f"maitred:{pipe}", "--results-path", "out.json"]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and so would be what is started here
    try:
        running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGHUP, before)
    with running, pipe.open("wb", buffering=0) as feed:
        feed.write(b"arrival_secs,class,prompt_tokens,output_tokens\n0,bulk,1,1\n1,bulk,1,1\n")
        for _ in range(1000):
            if list(tmp_path.glob(".out.json.*.part")):
                break
            time.sleep(0.01)
        assert list(tmp_path.glob(".out.json.*.part"))
        time.sleep(0.1)  # the file exists a moment before the code that discards it knows of it
        running.send_signal(number)
        _, stderr = running.communicate(timeout=30)
    assert (running.returncode, stderr) == (128 + number, b"")
    assert list(tmp_path.iterdir()) == [pipe]
