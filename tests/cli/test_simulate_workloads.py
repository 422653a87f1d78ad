"""`maitred simulate`: synthetic workloads (specifications, closed loops, kinds of work, scales), and flags for the behaviour of
all clients, with figures computed by hand: a step takes 1000 µs, 10 more per prefill token, 100 more per decode.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maitred.cli.terminal import request_progress
from maitred.workload import open_trace
from maitred.workload.load import Load

SPEC = """\
num_requests: 40
goodput_slo_targets:
  critical: {ttft_ms: 0.001}
clients:
  - id: chat
    rate: 4
    slo_class: critical
    arrival: {process: constant}
    input_distribution: 100
    output_distribution: 10
    reasoning: {multi_turn: {max_rounds: 4, think_time_us: 1000000, context_growth: accumulate}}
"""
RUN = ("--quiet", "--results-path", "r.json")


def results() -> list[dict[str, Any]]:
    return msgspec.json.decode(Path("r.json").read_bytes(), type=list[dict[str, Any]])


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "w.yaml").write_text(SPEC)
    return Path("w.yaml")


def test_a_specification_runs_and_its_targets_count(maitred: Any, spec: Path) -> None:
    result = maitred("simulate", "--workload-spec", spec, "--results-path", "r.json", env={"COLUMNS": "200"})
    assert result.code == 0
    assert {row["input_tokens"] for row in results()} == {100, 210, 320, 430}
    assert len(results()) == 40
    assert "SLO: critical: TTFT ≤ 0.001 ms" in result.out
    assert re.search(r"within SLO +0\.0%", result.out)


def test_its_seed_holds_unless_another_is_given(maitred: Any, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("seed: 9\n" + SPEC.replace("constant", "poisson"))

    def run(*more: str) -> bytes:
        assert maitred("simulate", "--workload-spec", "w.yaml", *RUN, *more).code == 0
        return Path("r.json").read_bytes()

    assert run() == run("--seed", "9") != run("--seed", "42")


def test_fewer_requests_of_a_specification(maitred: Any, spec: Path) -> None:
    assert maitred("simulate", "--workload-spec", spec, "--num-requests", "7", *RUN).code == 0
    assert len(results()) == 7


def test_users_wait_for_their_outputs(maitred: Any) -> None:
    """Two users are served side by side: each sends 10 requests, one after the other, with a think time of 1 s."""
    result = maitred("simulate", "--concurrency", "2", "--think-time-ms", "1000", "--num-requests", "20", "--input-tokens", "8",
                   "--output-tokens", "2", "--metrics-path", "m.json", *RUN)  # fmt: skip
    assert result.code == 0
    assert len(results()) == 20
    span = msgspec.json.decode(Path("m.json").read_bytes())["simulated_duration_s"]
    assert span == pytest.approx(9.5, abs=0.6)


def test_lengths_by_kind_and_by_blis_flags(maitred: Any) -> None:
    def prompts(*flags: str) -> list[int]:
        assert maitred("simulate", "--rate", "50", "--num-requests", "300", *flags, *RUN).code == 0
        return [row["input_tokens"] for row in results()]

    chat = prompts("--workload", "chatbot")
    assert 230 < sum(chat) / len(chat) < 282
    assert max(chat) <= 800
    assert {*prompts("--workload", "chatbot", "--prompt-tokens", "700", "--prompt-tokens-stdev", "0")} == {700}
    narrow = prompts(
        "--prompt-tokens", "300", "--prompt-tokens-stdev", "50", "--prompt-tokens-min", "290", "--prompt-tokens-max", "310"
    )
    assert (min(narrow), max(narrow)) == (290, 310)


def test_arrival_processes_and_scales(maitred: Any) -> None:
    """With outputs of one token, E2E is much less than the gap of 250 ms, so the last request ends soon after its arrival."""

    def span(*flags: str) -> float:
        tiny = ("--num-requests", "8", "--input-tokens", "8", "--output-tokens", "1", "--metrics-path", "m.json")
        assert maitred("simulate", "--rate", "4", "--arrival", "constant", *tiny, *RUN, *flags).code == 0
        return float(msgspec.json.decode(Path("m.json").read_bytes())["simulated_duration_s"])

    assert span() == pytest.approx(2, abs=0.05)
    assert span("--rate-scale", "4") == pytest.approx(0.5, abs=0.05)
    assert span("--time-scale", "4") == pytest.approx(8, abs=0.05)


def test_traces_are_scaled_too(maitred: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_secs,class,prompt_tokens,output_tokens\n0,bulk,8,1\n10,bulk,8,1\n")

    def span(*flags: str) -> float:
        assert maitred("simulate", "--trace", "maitred:t.csv", "--metrics-path", "m.json", *RUN, *flags).code == 0
        return float(msgspec.json.decode(Path("m.json").read_bytes())["simulated_duration_s"])

    assert span() == pytest.approx(10, abs=0.05)
    assert span("--rate-scale", "2") == pytest.approx(5, abs=0.05)
    assert span("--time-scale", "2") == pytest.approx(20, abs=0.05)


WRONG_WORKLOADS = [
    (["--workload-spec", "w.yaml", "--rate", "5"], "--rate does not go with --workload-spec"),
    (["--workload-spec", "w.yaml", "--trace", "sample:mixed"], "does not go with"),
    (["--workload-spec", "w.yaml", "--num-requests", "0"], "--num-requests: 0 requests cannot be made (1 or more)"),
    (["--workload-spec", "w.yaml", "--results-path", "w.yaml"], "--results-path: w.yaml is already what --workload-spec reads"),
    (["--workload-spec", "none.yaml"], "none.yaml: cannot be read: no such file or directory"),
    (["--workload-spec", "w.yaml", "--rate-scale", "0"], "--rate-scale: 0 cannot be used (a factor from 1e-06"),
    (["--workload-spec", "w.yaml", "--time-scale", "-1"], "--time-scale: -1 cannot be used"),
    (["--workload-spec", "bad.yaml"], "bad.yaml:1: unknown key 'cleints' (did you mean 'clients'?)"),
    (["--concurrency", "5"], "--num-requests is missing"),
    (["--concurrency", "0", "--num-requests", "5"], "--concurrency: there cannot be 0 users (from 1 to 100,000)"),
    (["--concurrency", "5", "--num-requests", "5", "--rate", "5"], "--rate does not go with --concurrency"),
    (["--concurrency", "5", "--num-requests", "5", "--arrival", "poisson"], "--arrival does not go with --concurrency"),
    (["--concurrency", "5", "--num-requests", "5", "--rate-scale", "2"], "--rate-scale does not go with --concurrency"),
    (
        ["--concurrency", "5", "--num-requests", "5", "--think-time-ms", "nan"],
        "--think-time-ms: nan ms cannot be thought (from 0 to 1e+12)",
    ),
    (["--rate", "5", "--num-requests", "5", "--input-tokens", ""], "--input-tokens: '' is not a length in tokens"),
    (["--rate", "5", "--num-requests", "5", "--arrival", ""], "--arrival: unknown arrival process ''"),
    (["--rate", "5", "--num-requests", "5", "--think-time-ms", "5"], "--think-time-ms does not go with --rate"),
    (
        ["--rate", "5", "--num-requests", "5", "--workload", "chatbt"],
        "--workload: unknown kind of workload 'chatbt' (did you mean 'chatbot'?)",
    ),
    (
        ["--rate", "5", "--num-requests", "5", "--arrival", "gama:2"],
        "--arrival: unknown arrival process 'gama' (did you mean 'gamma'?)",
    ),
    (
        ["--rate", "5", "--num-requests", "5", "--prompt-tokens", "normal:5,5", "--prompt-tokens-min", "2"],
        "--prompt-tokens-min: 'normal:5,5' has a spread of its own (it goes with a mean, such as 512)",
    ),
    (
        ["--rate", "5", "--num-requests", "5", "--prompt-tokens-max", "1"],
        "--prompt-tokens-max: 'gaussian:512,256,2,1': max must be between 2 and",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_WORKLOADS)
def test_mistakes_are_one_line(maitred: Any, spec: Path, arguments: list[str], message: str) -> None:
    Path("bad.yaml").write_text("cleints: []\n")
    result = maitred("simulate", *arguments)
    assert result.code == 2
    assert result.err.startswith("maitred: error: ")
    assert message in result.err
    assert result.err.count("\n") == 1


BETA = ("--beta-coeffs", "1000,10,100")
HEADER = "request_id,slo_class,session_id,prefix_group,prefix_length,input_tokens,output_tokens,arrival_time_us,deadline_us\n"


def run(maitred: Any, *flags: object) -> Any:
    result = maitred("simulate", *flags, *BETA, "--quiet", "--metrics-path", "m.json", "--results-path", "r.json")
    assert result.code == 0, result.err
    return json.loads(Path("m.json").read_text(encoding="utf-8"))


def rows() -> dict[int, tuple[int, int]]:
    found = json.loads(Path("r.json").read_text(encoding="utf-8"))
    return {row["request_id"]: (row["ttft_us"], row["e2e_us"]) for row in found}


def test_clients_leave_when_their_time_is_up(maitred: Any) -> None:
    """A request has 100 prompt and 2 output tokens: 2000 + 1100 µs. One runs at a time: they end at 3100, 6200 and 9300 µs."""
    Path("t.csv").write_text(HEADER + "0,,,,0,100,2,0,0\n1,,,,0,100,2,0,0\n2,,,,0,100,2,0,8000\n", encoding="utf-8")
    common = ("--trace", "blis:t.csv", "--max-num-seqs", 1)
    assert run(maitred, *common)["timed_out_requests"] == 1
    assert run(maitred, *common, "--timeout", 0.005)["timed_out_requests"] == 2
    assert rows() == {0: (2_000, 3_100)}
    assert run(maitred, *common, "--timeout", 0)["timed_out_requests"] == 0
    assert run(maitred, *common, "--timeout", 0.0075)["timed_out_requests"] == 1
    assert run(maitred, *common, "--timeout", 0.005, "--time-scale", 2)["timed_out_requests"] == 0


def test_users_in_a_closed_loop_wait_for_the_think_time(maitred: Any) -> None:
    """Two users share one place, and leave after 3.5 ms. The first is done at 3.1 ms and sends again. The second leaves at 3.5
    ms, during a step that lasts until 5.1 ms. That is too late for the first user, which leaves at 6.6 ms."""
    loop = ("--concurrency", 2, "--num-requests", 6, "--prompt-tokens", 100, "--output-tokens", 2, "--max-num-seqs", 1)
    assert run(maitred, *loop)["timed_out_requests"] == 0
    figures = run(maitred, *loop, "--timeout-secs", 0.0035)
    assert (figures["completed_requests"], figures["timed_out_requests"], figures["injected_requests"]) == (1, 2, 3)


@pytest.mark.parametrize("load", [("--rate", 1), ("--concurrency", 1)])
def test_prompts_begin_alike(maitred: Any, load: tuple[object, ...]) -> None:
    """Each prompt has 160 tokens that all prompts share, ten blocks, and 40 tokens of its own."""
    flags = (*load, "--num-requests", 3, "--prompt-tokens", 40, "--output-tokens", 2, "--prefix-tokens", 160)
    assert run(maitred, *flags)["total_input_tokens"] == 600
    assert [ttft for ttft, _ in rows().values()] == [3_000, 3_000, 3_000]
    assert run(maitred, *flags, "--enable-prefix-caching")["total_cached_tokens"] == 320
    assert [ttft for ttft, _ in rows().values()] == [3_000, 1_400, 1_400]


def test_routers_see_the_prefix_of_the_flags(maitred: Any) -> None:
    load = ("simulate", "--rate", 1, "--num-requests", 3, "--num-instances", 2, "--routing-policy", "weighted")
    flags = (*load, "--routing-scorers", "prefix-affinity:1", "--enable-prefix-caching", "--quiet")
    assert "the scorer prefix-affinity looks at" in maitred(*flags).err
    assert maitred(*flags, "--prefix-tokens", 160).err == ""


def test_the_two_files_of_blis_are_named_apart(maitred: Any) -> None:
    """The header is in another folder. The second round contains the first, 100 + 2 tokens, and 58 new tokens."""
    Path("headers").mkdir()
    header = "trace_version: 2\nsession_context_growth: accumulate\ngoodput_slo_targets: {standard: {ttft_ms: 2}}\n"
    Path("headers/h.yaml").write_text(header, encoding="utf-8")
    Path("d.csv").write_text(HEADER + "0,standard,s,,0,100,2,0,0\n1,standard,s,,0,58,2,50000,0\n", encoding="utf-8")
    assert run(maitred, "--trace-data", "d.csv")["total_input_tokens"] == 158
    figures = run(maitred, "--trace-data", "d.csv", "--trace-header", "headers/h.yaml")
    assert figures["total_input_tokens"] == 100 + 160
    assert figures["slo_attainment"] == 0.5
    assert rows() == {0: (2_000, 3_100), 1: (2_600, 3_700)}
    over = maitred("simulate", "--trace-data", "d.csv", "--trace-header", "headers/h.yaml", "--results-path", "headers/h.yaml")
    assert "headers/h.yaml is already what --trace reads" in over.err


MISTAKES = [
    (["--rate", "5", "--timeout", "-1"], "--timeout-secs: -1 cannot be used (seconds from a microsecond to 1e+09; 0: clients"),
    (["--rate", "5", "--prefix-tokens", "-1"], "--prefix-tokens: prompts cannot begin with -1 tokens (from 0 to 100,000,000)"),
    (["--concurrency", "5", "--prefix-tokens", "-1"], "--prefix-tokens: prompts cannot begin with -1 tokens"),
    (["--rate", "5", "--trace-header", "h.yaml"], "--trace-header does not go with --rate"),
    (
        ["--rate", "5", "--prompt-tokens-stdev", "-1"],
        "--prompt-tokens-stdev: 'gaussian:512,-1,2,7000': std_dev must be between",
    ),
    (["--rate", "5", "--pd-decider", "often"], "--pd-decider: cluster.disaggregation.decider: 'often' cannot be chosen"),
    (["--rate", "5", "--admission-latency", "-1"], "--admission-latency: cluster.admission_latency_ms must be from 0"),
    (["--rate", "5", "--alpha-coeffs", "1", "--beta-coeffs", "1,2,3"], "--alpha-coeffs: --alpha-coeffs are three numbers"),
    (
        ["--rate", "5", "--prefill-routing-scorers", "x:1"],
        "--prefill-routing-scorers: cluster.disaggregation.prefill_scorers: unk",
    ),
    (["--rate", "5", "--horizon", "9" * 20], "--horizon: 99999999999999999999 µs cannot be used (from 1 to 1e+17)"),
    (["--rate", "5", "--trace-output", ""], "--trace-output: "),
    (
        ["--rate", "5", "--enable-prefix-caching", "--no-prefix-caching"],
        "--no-enable-prefix-caching: contradicts --enable-prefix-caching (give one of them)",
    ),
    (["--rate", "5", "--model", "llama"], "--model: unknown model 'llama' (did you mean 'llama-3-8b'?"),
    (["--rate", "5", "--model", "llama-3.1-8b", "--hardware", "B1"], "--hardware: unknown hardware 'B1'"),
    (
        ["--rate", "5", "--model", "llama-3.1-8b", "--tp", "3"],
        "--tensor-parallel-size: tensor_parallel_size must divide the",
    ),
    (
        ["--rate", "5", "--model-config-folder", "d"],
        "d/config.json: cannot read the model's configuration: no such file",
    ),
    (["--rate", "5", "--model", "llama-3.1-8b", "--hardware-config", "g"], "g: cannot read kinds of GPU: no such file or dir"),
    (
        ["--rate", "5", "--results-path", "r.xlsx"],
        "--results-path: r.xlsx has the suffix of a format that is not written",
    ),
    (["--rate", "5", "--latency-model", ""], "--latency-model: latency model '' cannot be read"),
    (
        ["--rate", "5", "--workload", "chatbot", "--prompt-tokens", "normal:9,1", "--output-tokens", "uniform:1,9"],
        "--workload: it has no effect: the lengths are said without it (leave it out, or --input-tokens or --output-tokens)",
    ),
]


@pytest.mark.parametrize(("flags", "what"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_a_mistake_names_its_flag(maitred: Any, flags: list[str], what: str) -> None:
    result = maitred("simulate", *flags, "--num-requests", 5)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"maitred: error: {what}")
    assert result.err.count("\n") == 1
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--trace-header", "none.yaml"], "none.yaml: cannot be read: no such file or directory"),
        (["--trace-header", "t.csv"], "t.csv: this is no header of a BLIS trace"),
        (["--max-requests", "9" * 20], "--max-requests: 99999999999999999999 requests cannot be read (from 0 to 1e+12)"),
        (["--prefix-tokens", "5"], "--prefix-tokens does not go with --trace"),
    ],
)
def test_so_does_one_about_a_trace(maitred: Any, flags: list[str], what: str) -> None:
    Path("t.csv").write_text(HEADER + "0,,,,0,100,2,0,0\n", encoding="utf-8")
    result = maitred("simulate", "--trace", "blis:t.csv", *flags)
    assert result.err.startswith(f"maitred: error: {what}")


def test_only_blis_has_a_header_of_its_own(maitred: Any, samples: Path) -> None:
    result = maitred("simulate", "--trace", samples / "azure_tiny.csv", "--trace-header", "h.yaml")
    assert result.err.startswith("maitred: error: only a trace of BLIS has a header in a file of its own")


def test_an_id_beyond_64_bits_is_a_bad_row(maitred: Any) -> None:
    Path("t.csv").write_text(HEADER + f"0,,,,0,100,2,0,0\n{2**63},,,,0,100,2,0,0\n", encoding="utf-8")
    result = maitred("simulate", "--trace", "blis:t.csv")
    assert result.err.startswith(f"maitred: error: t.csv:3: its id is {2**63} (it must be at most {2**63 - 1}; --skip-bad")
    Path("t.csv").write_text(HEADER + f"{2**63 - 1},,,,0,100,2,0,0\n", encoding="utf-8")
    assert run(maitred, "--trace", "blis:t.csv")["completed_requests"] == 1


def test_progress_ends_with_a_trace_of_fewer_requests_than_may_be_read(samples: Path) -> None:
    shown: list[tuple[float, str]] = []
    with open_trace(f"azure:{samples / 'azure_tiny.csv'}") as trace:
        progress = request_progress(Load(max_requests=1_000), trace, lambda *seen: shown.append(seen))
        progress(900)
        progress(len(list(trace)))
    assert shown == [(0.9, "900 requests"), (1.0, "5 requests")]


def test_a_prefix_cache_over_prompts_that_nobody_knows_is_warned_of(maitred: Any) -> None:
    azure = str(Path(__file__).parents[1] / "samples" / "azure_tiny.csv")
    assert (
        "does not say what its prompts have in common" in maitred("simulate", "--trace", azure, "--enable-prefix-caching").err
    )
    assert "in common" not in maitred("simulate", "--trace", azure).err
