"""`maitred convert` and `maitred formats`, and sessions that wait in `maitred simulate`."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

BETA = ("--beta-coeffs", "1000,10,100")


def results(path: str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def test_a_converted_trace_runs_as_the_one_it_was_made_of(maitred: Any, samples: Path) -> None:
    source = samples / "azure_tiny.csv"
    assert maitred("convert", source, "blis:t.csv.gz").err == "5 requests\n"
    assert maitred("convert", "t.csv.gz", "maitred:m.csv").code == 0
    assert Path("t.yaml").read_text(encoding="utf-8").startswith("trace_version: 2\n")
    assert gzip.decompress(Path("t.csv.gz").read_bytes()).startswith(b"request_id,client_id,")
    for number, trace in enumerate((source, "blis:t.csv.gz", "maitred:m.csv")):
        assert maitred("simulate", "--trace", trace, *BETA, "--results-path", f"r{number}.json").code == 0
    assert results("r0.json") == results("r1.json") == results("r2.json")


def test_lost_information_is_reported(maitred: Any, samples: Path) -> None:
    result = maitred("convert", samples / "mooncake_tiny.jsonl", "blis:t.csv", "--max-requests", 2)
    assert result.err.splitlines() == [
        "maitred: warning: the format cannot say of a request what its prompt shares with others: 2 times",
        "2 requests",
    ]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("azure:t.csv", "OUT: unknown format 'azure' for writing (write it as blis:FILE or maitred:FILE)"),
        ("blsi:t.csv", "OUT: unknown format 'blsi' for writing (did you mean 'blis'? write it as"),
        ("t.csv", "OUT: 't.csv' names no format and file"),
        ("blis:no/t.csv", "there is no directory no"),
        ("blis:t.yaml", "its header would be t.yaml itself"),
    ],
)
def test_a_target_that_is_none(maitred: Any, samples: Path, target: str, message: str) -> None:
    ended = maitred("convert", samples / "azure_tiny.csv", target)
    assert (ended.code, message in ended.err) == (2, True), ended.err
    assert not list(Path().iterdir())


def test_nothing_is_left_of_a_conversion_that_fails(maitred: Any) -> None:
    Path("s.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-17 00:00:00,1,2\nrubbish\n")
    assert maitred("convert", "s.csv", "blis:t.csv").code == 2
    assert [path.name for path in Path().iterdir()] == ["s.csv"]
    assert maitred("convert", "s.csv", "blis:s.csv").err.startswith("maitred: error: s.csv: this is the trace itself")


def test_formats_are_listed_with_an_example_each(maitred: Any) -> None:
    out = maitred("formats").out
    assert "azure: The Azure LLM inference traces of 2023 and 2024.\n    TIMESTAMP,ContextTokens,GeneratedTokens\n" in out
    assert all(f"\n{name}: " in f"\n{out}" for name in ("agentic", "aiperf", "bailian", "blis", "burstgpt", "timed_trace"))


def test_a_session_waits_for_its_answers_and_thinks(maitred: Any) -> None:
    """A prompt of 100 tokens takes 2000 µs to the only token of its output, one of 210 takes 3100 µs. Think time is 5 ms. As
    recorded, the turns come 1 ms apart and overlap."""
    turns = [
        {"session_id": "a", "timestamp": 0, "input_length": 100, "output_length": 1},
        {"session_id": "a", "timestamp": 1, "input_length": 109, "output_length": 1},
    ]
    Path("t.jsonl").write_text("\n".join(json.dumps(turn) for turn in turns))
    run = ("simulate", "--trace", "t.jsonl", *BETA, "--results-path", "r.json", "--metrics-path", "m.json")
    assert maitred(*run, "--session-mode", "closed-loop", "--think-time-ms", 5, "--class-mix", "bulk:1").code == 0
    assert [row["e2e_us"] for row in results("r.json")] == [2_000, 3_100]
    assert results("m.json")["simulated_duration_s"] == 0.0101
    assert maitred(*run).code == 0
    assert [row["e2e_us"] for row in results("r.json")] == [2_000, 4_100]
    assert maitred(*run, "--session-mode", "closed-loop", "--max-requests", 1).code == 0
    assert len(results("r.json")) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--session-mode", "closed"), "--session-mode: unknown session mode 'closed'"),
        (("--think-time-ms", 5), "--think-time-ms: no request waits for an answer (it goes with --session-mode closed-loop)"),
        (("--session-mode", "closed-loop", "--think-time-ms", -1), "--think-time-ms: -1 cannot be used"),
        (("--session-mode", "closed-loop", "--concurrent-sessions", 0), "--concurrent-sessions: 0 sessions cannot be open"),
        (("--session-mode", "closed-loop", "--concurrent-sessions", 3), "this trace cannot limit its sessions"),
    ],
)
def test_flags_of_sessions_that_cannot_be(maitred: Any, samples: Path, flags: tuple[object, ...], message: str) -> None:
    ended = maitred("simulate", "--trace", samples / "azure_tiny.csv", *flags)
    assert (ended.code, message in ended.err) == (2, True), ended.err


def test_a_synthetic_workload_written_down_runs_again_as_it_was(maitred: Any) -> None:
    made = ("--rate", 50, "--num-requests", 40, "--class-mix", "bulk:1,interactive:1")
    result = maitred("simulate", *made, *BETA, "--trace-output", "kept", "--results-path", "r0.json")
    assert (result.code, Path("kept.yaml").exists()) == (0, True)
    assert maitred("simulate", "--trace", "kept.csv", *BETA, "--results-path", "r1.json").code == 0
    assert len(results("r0.json")) == 40
    assert results("r0.json") == results("r1.json")


def test_a_request_that_shares_nothing_loses_nothing(maitred: Any) -> None:
    Path("t.csv").write_text("request_id,prefix_group,prefix_length,input_tokens,output_tokens,arrival_time_us\n0,,0,9,9,0\n")
    assert maitred("convert", "blis:t.csv", "maitred:m.csv").err == "1 requests\n"
    Path("t.csv").write_text("request_id,prefix_group,prefix_length,input_tokens,output_tokens,arrival_time_us\n0,g,8,9,9,0\n")
    assert maitred("convert", "blis:t.csv", "maitred:m.csv").err == "1 requests\n"
    assert Path("m.csv").read_text().splitlines()[0].endswith(",prefix_group,prefix_tokens")


@pytest.mark.parametrize("target", ["acc", "maitred:acc.csv"])
def test_sessions_that_accumulate_are_written_with_what_their_rounds_share(maitred: Any, target: str) -> None:
    Path("w.yaml").write_text(
        "version: '2'\nnum_requests: 60\nclients:\n- {id: chat, rate: 20, input_distribution: 200, output_distribution: 40,\n"
        "   adapter: lora-1, reasoning: {multi_turn: {max_rounds: 3, think_time_us: 500000, context_growth: accumulate}}}\n"
    )
    flags = ("--num-instances", 2, "--enable-prefix-caching", "--routing-policy", "session-affinity", "--json", *BETA)
    ran = maitred("simulate", "--workload-spec", "w.yaml", *flags, "--trace-output", target)
    replayed = maitred("simulate", "--trace", "acc.csv", *flags)
    assert (ran.code, replayed.code, "warning" in ran.err) == (0, 0, False), ran.err + replayed.err
    found = [json.loads(result.out)["cache_hit_rate"] for result in (ran, replayed)]
    assert found[0] == found[1] > 0.3


@pytest.mark.parametrize("target", ["kept", "blis:kept.csv.gz"])
def test_what_became_of_requests_is_written_where_blis_has_columns_for_it(maitred: Any, target: str) -> None:
    """One request runs at a time, with 100 prompt tokens. The first has two output tokens in 2000 + 1100 µs, the second one;
    the client of the third leaves at 7500 µs; the fourth would arrive after the run."""
    columns = "request_id,prefix_group,streaming,input_tokens,output_tokens,arrival_time_us,deadline_us\n"
    rows = "0,,true,100,2,0,0\n1,,false,100,2,0,0\n2,,true,100,2,1,7500\n3,,true,100,2,90000,0\n"
    Path("t.csv").write_text(columns + rows, encoding="utf-8")
    result = maitred(
        "simulate", "--trace", "blis:t.csv", *BETA, "--max-num-seqs", 1, "--horizon", 80_000, "--trace-output", target
    )
    assert result.code == 0, result.err
    text = Path("kept.csv").read_text() if target == "kept" else gzip.decompress(Path("kept.csv.gz").read_bytes()).decode()
    measured = ("first_chunk_time_us", "last_chunk_time_us", "num_chunks", "status", "error_message")
    assert [tuple(row[name] for name in measured) for row in csv.DictReader(text.splitlines())] == [
        ("2000", "3100", "2", "ok", ""),
        ("6200", "6200", "1", "ok", ""),
        ("0", "0", "0", "timeout", "timed_out"),
        ("0", "0", "0", "error", "not_arrived"),
    ]
    again = maitred("simulate", "--trace", f"blis:kept.csv{'' if target == 'kept' else '.gz'}", *BETA, "--metrics-path", "m")
    assert again.code == 0


def test_turns_that_waited_are_written_when_they_came(maitred: Any) -> None:
    """Outputs take 2000 and 3100 µs, with 10 ms between. Two other sessions begin at 4 and 8 ms, before the second turn."""
    turns = [
        {"session_id": "a", "timestamp": 0, "input_length": 100, "output_length": 1},
        {"session_id": "a", "timestamp": 1, "input_length": 109, "output_length": 1},
        {"session_id": "b", "timestamp": 4, "input_length": 10, "output_length": 1},
        {"session_id": "c", "timestamp": 8, "input_length": 10, "output_length": 1},
    ]
    Path("t.jsonl").write_text("\n".join(json.dumps(turn) for turn in turns))
    wait = ("--session-mode", "closed-loop", "--think-time-ms", 10)
    maitred("simulate", "--trace", "t.jsonl", *wait, *BETA, "--trace-output", "maitred:k.csv")
    rows = [line.split(",") for line in Path("k.csv").read_text().splitlines()[1:]]
    assert [(row[0], row[2], row[8]) for row in rows] == [
        ("0.000000", "100", "a"),
        ("0.004000", "10", "b"),
        ("0.008000", "10", "c"),
        ("0.012000", "210", "a"),
    ]


def test_a_trace_that_cannot_be_written_is_an_error_before_the_run(maitred: Any) -> None:
    result = maitred("simulate", "--rate", 1, "--num-requests", 1, "--trace-output", "azure:t.csv")
    assert (result.code, "--trace-output: unknown format 'azure' for writing" in result.err) == (2, True)


ROW = "arrival_secs,class,prompt_tokens,output_tokens\n0,default,50,2\n"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("maitred:t.csv", "--trace-output: t.csv is already what --trace reads (name another file)"),
        ("t", "--trace-output: t.csv is already what --trace reads"),
        ("maitred:c.yaml", "--trace-output: c.yaml is already what --config reads"),
        ("blis:c.csv", "--trace-output: c.yaml is already what --config reads"),
        ("maitred:r.json", "--results-path: r.json is already what --trace-output writes to"),
    ],
)
def test_a_trace_is_not_written_over_what_the_run_reads_or_writes(maitred: Any, target: str, message: str) -> None:
    Path("t.csv").write_text(ROW)
    Path("c.yaml").touch()
    run = ("simulate", "--trace", "t.csv", "--config", "c.yaml", "--results-path", "r.json")
    ended = maitred(*run, "--trace-output", target)
    assert (ended.code, message in ended.err) == (2, True), ended.err
    assert (Path("t.csv").read_text(), Path("c.yaml").read_text()) == (ROW, "")


def test_the_header_of_a_trace_is_not_written_over(maitred: Any) -> None:
    Path("m.csv").write_text(ROW)
    assert maitred("convert", "m.csv", "blis:t.csv").code == 0
    header = "trace_version: 2\nsession_context_growth: accumulate\n"
    Path("t.yaml").write_text(header)
    result = maitred("convert", "t.csv", "blis:t.csv.gz").err
    assert result == "maitred: error: t.yaml: this is the trace itself, or its header (name another file)\n"
    run = ("simulate", "--trace", "t.csv", "--metrics-path", "t.yaml")
    assert "--metrics-path: t.yaml is already what --trace reads" in maitred(*run).err
    assert Path("t.yaml").read_text() == header
    assert not Path("t.csv.gz").exists()
