"""`maitred simulate` on synthetic workloads: specifications, closed loops, kinds of work, scales."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

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


MISTAKES = [
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


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_are_one_line(maitred: Any, spec: Path, arguments: list[str], message: str) -> None:
    Path("bad.yaml").write_text("cleints: []\n")
    result = maitred("simulate", *arguments)
    assert result.code == 2
    assert result.err.startswith("maitred: error: ")
    assert message in result.err
    assert result.err.count("\n") == 1
