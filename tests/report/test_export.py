"""Result files and data frames: BLIS's keys, complete or absent."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from maitred.core.errors import ConfigError
from maitred.report import OutputFile, Slo, check_rows_path, summarise, write_metrics, write_requests, write_results
from maitred.report.export import to_frame
from maitred.sim import Outcome, Results


def requests_of(results: Results) -> Any:
    parts: list[bytes] = []
    write_requests(results, parts.append)
    return json.loads(b"".join(parts))


def metrics_of(results: Results, slo: Slo | None = None) -> Any:
    parts: list[bytes] = []
    write_metrics(summarise(results, slo), parts.append)
    return json.loads(b"".join(parts), parse_constant=pytest.fail)


def test_one_object_per_completed_request(five: Results) -> None:
    assert requests_of(five) == [
        {"request_id": 0, "ttft_us": 100_000, "e2e_us": 500_000, "input_tokens": 10, "output_tokens": 5},
        {"request_id": 1, "ttft_us": 200_000, "e2e_us": 200_000, "input_tokens": 20, "output_tokens": 1},
        {"request_id": 2, "ttft_us": 400_000, "e2e_us": 1_400_000, "input_tokens": 30, "output_tokens": 11},
    ]


def test_requests_are_sorted_by_id_whatever_their_order_of_arrival(make: Any, five_rows: Any) -> None:
    shuffled = make((five_rows[2], five_rows[0], five_rows[1]), 2_000_000)
    assert [row["request_id"] for row in requests_of(shuffled)] == [0, 1, 2]


def test_more_requests_than_one_slice(make: Any, five_rows: Any) -> None:
    many = make(five_rows[:1] * 25_001, 1)
    many.request_id[:] = np.arange(25_001)
    assert [row["request_id"] for row in requests_of(many)] == list(range(25_001))


def test_the_figures_under_blis_keys(five: Results) -> None:
    figures = metrics_of(five, Slo(ttft_ms=200))
    expected = {
        "injected_requests": 5, "completed_requests": 3, "rejected_requests": 1, "unfinished_requests": 1,
        "timed_out_requests": 0, "dropped_unservable": 0, "total_input_tokens": 110, "total_output_tokens": 20,
        "total_cached_tokens": 22, "prefix_cache_hit_rate": 0.2,
        "simulated_duration_s": 2.0, "responses_per_sec": 1.5, "tokens_per_sec": 10.0,
        "ttft_mean_ms": 375.0, "ttft_p99_ms": 788.0, "tpot_mean_ms": 100.0, "e2e_mean_ms": 700.0, "e2e_p99_ms": 1382.0,
        "preemption_count": 3, "goodput_rps": 1.0, "completed_share": 0.6, "slo_attainment": 0.4,
    }  # fmt: skip
    assert {key: figures[key] for key in expected} == pytest.approx(expected)
    assert figures["slo"] == {"ttft_ms": 200.0, "tpot_ms": None, "e2e_ms": None}
    assert figures["per_class"]["bulk"]["completed_requests"] == 1
    assert figures["per_class"]["interactive"]["slo_attainment"] == 1.0


def test_slots_taken_back_and_retries_are_counted_by_class(preempting: Results) -> None:
    figures = metrics_of(preempting)
    for of, expected in (
        (figures, (1, 1)),
        (figures["per_class"]["bulk"], (1, 1)),
        (figures["per_class"]["interactive"], (0, 0)),
    ):
        assert (of["preempted_requests"], of["retry_count"]) == expected
        ends = ("completed_requests", "rejected_requests", "preempted_requests", "dropped_unservable", "timed_out_requests")
        assert sum(of[end] for end in (*ends, "aborted_requests", "unfinished_requests")) == of["injected_requests"]


def test_nothing_is_null_in_json_never_nan(none: Results) -> None:
    figures = metrics_of(none)
    assert figures["ttft_mean_ms"] is None
    assert figures["responses_per_sec"] is None
    assert figures["goodput_rps"] is None
    assert requests_of(none) == []


def test_a_run_where_nothing_completed_is_an_empty_list(make: Any, five_rows: Any) -> None:
    results = make(five_rows[3:], 2_000_000)
    assert Outcome.COMPLETED not in set(results.outcome)
    assert requests_of(results) == []


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"before")
    with suppress(KeyboardInterrupt), OutputFile(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before"
    with OutputFile(path) as file:
        file.write(b"whole")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"whole"
    assert [left.name for left in tmp_path.iterdir()] == ["out.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with OutputFile(tmp_path / "link") as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    with OutputFile(pipe) as file:
        file.write(b"x")
    reader.join()
    assert received == [b"x"]


def test_a_bad_path_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--results-path: there is no directory .*missing"):
        OutputFile(tmp_path / "missing" / "out.json", where="--results-path")
    with pytest.raises(ConfigError, match="is a directory"):
        OutputFile(tmp_path)


def test_a_name_that_is_too_long_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--results-path: cannot write .*: File name too long"):
        OutputFile(tmp_path / ("n" * 300), where="--results-path")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every directory")
def test_a_directory_that_one_may_not_enter_is_told_in_one_line(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    with pytest.raises(ConfigError, match="Permission denied"):
        OutputFile(closed / "out.json")


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"before")
    path.chmod(0o600)
    with OutputFile(path) as file:
        file.write(b"after")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"after", 0o600)


def test_a_descriptor_is_written_to_where_it_stands(tmp_path: Path) -> None:
    """As `>> log` opens it: earlier content stays, and the descriptor stays open."""
    log = tmp_path / "log"
    log.write_bytes(b"before ")
    with log.open("ab") as appending:
        with OutputFile(Path(f"/dev/fd/{appending.fileno()}")) as file:
            file.write(b"ours ")
        appending.write(b"after")
    assert log.read_bytes() == b"before ours after"
    assert list(tmp_path.iterdir()) == [log]


def test_a_descriptor_that_is_not_open_is_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match="cannot write /dev/fd/999999: Bad file descriptor"):
        OutputFile(Path("/dev/fd/999999"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_is_told_in_one_line() -> None:
    file = OutputFile(Path("/dev/full"), where="--results-path")
    with pytest.raises(ConfigError, match="--results-path: cannot write /dev/full: No space left"), file:
        file.write(b"x" * 100_000)


def test_a_row_per_request_blis_columns_first(told: Results) -> None:
    frame = to_frame(told)
    assert frame.columns[:5] == ["request_id", "ttft_us", "e2e_us", "input_tokens", "output_tokens"]
    assert frame.height == 5
    assert frame.row(2, named=True) == {
        "request_id": 2, "ttft_us": 400_000, "e2e_us": 1_400_000, "input_tokens": 30, "output_tokens": 11, "tpot_us": 100_000.0,
        "outcome": "completed", "class": "bulk", "slo_class": "batch", "tenant": "globex", "model": "llama", "instance": 0,
        "arrived_at_us": 200_000, "queued_at_us": None, "scheduled_at_us": 230_000, "first_token_at_us": 600_000,
        "finished_at_us": 1_600_000, "cached_tokens": 14, "wasted_tokens": 12, "preemptions": 2, "retries": 0,
    }  # fmt: skip


def test_null_is_what_there_was_not(told: Results) -> None:
    frame = to_frame(told)
    assert frame["ttft_us"].to_list() == [100_000, 200_000, 400_000, None, 800_000]
    assert frame["e2e_us"].to_list() == [500_000, 200_000, 1_400_000, None, None]
    assert frame["tpot_us"].to_list() == [100_000, None, 100_000, None, None]
    assert frame["instance"].to_list() == [0, 1, 0, None, 1]
    assert frame["outcome"].to_list() == ["completed", "completed", "completed", "rejected", "unfinished"]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_files_say_the_same_and_the_same_bytes_twice(told: Results, suffix: str) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    for written in (first, second):
        write_results(told, Path(f"x{suffix}"), written.append)
    assert first == second
    read = pl.read_parquet(BytesIO(first[0])) if suffix == ".parquet" else pl.read_csv(BytesIO(first[0]))
    assert read.columns == to_frame(told).columns
    assert read["ttft_us"].to_list() == [100_000, 200_000, 400_000, None, 800_000]


def test_a_run_without_requests(none: Results) -> None:
    assert to_frame(none).shape == (0, 21)


def test_without_polars_one_line_says_what_to_install(told: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigError, match=r"a data frame: needs polars, .* \(pip install 'maitred\[frames\]'\)"):
        to_frame(told)
    with pytest.raises(ConfigError, match="--results-path: needs polars"):
        check_rows_path(Path("r.csv"), where="--results-path")
    check_rows_path(Path("r.json"), where="--results-path")
