"""Requests as a data frame, against the five (`told` in conftest)."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import polars as pl
import pytest

from maitred.core.errors import ConfigError
from maitred.report import check_rows_path, write_results
from maitred.report.export import to_frame
from maitred.sim import Results


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
