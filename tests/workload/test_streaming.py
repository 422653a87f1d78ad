"""Traces are read as they are needed, in every format, as recorded and in a closed loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from maitred.workload import FORMATS, open_trace
from maitred.workload.formats.blis import WRITTEN_COLUMNS

ROWS = 100_000
Line = Callable[[int], str]


def blis(n: int) -> str:
    said = {"request_id": n, "arrival_time_us": n, "input_tokens": 9, "output_tokens": 1}
    return ",".join(str(said.get(column, "")) for column in WRITTEN_COLUMNS)


FILES: dict[str, tuple[str, Line]] = {
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", lambda n: f"2023-11-17 00:00:00.{n:07d},1,2"),
    "aiperf": ("", lambda n: f'{{"session_id": "s{n % 7}", "timestamp": {n}, "input_length": 1, "output_length": 1}}'),
    "bailian": ("", lambda n: f'{{"chat_id": {n}, "timestamp": {n}, "input_length": 1, "output_length": 1}}'),
    "blis": (",".join(WRITTEN_COLUMNS), blis),
    "burstgpt": ("Timestamp,Session ID,Model,Request tokens,Response tokens", lambda n: f"{n},s{n % 7},m,1,1"),
    "maitred": ("arrival_secs,class,prompt_tokens,output_tokens", lambda n: f"{n},bulk,1,1"),
    "mooncake": ("", lambda n: f'{{"timestamp": {n}, "input_length": 1, "output_length": 1}}'),
    "timed_trace": ("", lambda n: f'{{"timestamp": {n}, "input_length": 1, "output_length": 1}}'),
}


def test_every_format_that_is_in_order_of_time_is_among_these() -> None:
    """`agentic` has a test of its own."""
    beside = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    missing = set(FORMATS) - set(FILES) - {"agentic"}
    assert set(FILES) <= set(FORMATS)
    assert {name for name in missing if f'check_trace_format("{name}' not in beside} == set()


@pytest.fixture(scope="module", params=FILES)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    name = request.param
    path = tmp_path_factory.mktemp("traces") / name
    header, line = FILES[name]
    with path.open("w") as text:
        text.writelines(f"{row}\n" for row in (header, *map(line, range(ROWS))) if row)
    yield name, path
    path.unlink()


def lines_read(jobs: Iterable[object], trace: object, count: int) -> int:
    assert len(list(islice(jobs, count))) == count
    return int(trace._reader.line_number)  # type: ignore[attr-defined]


def test_jobs_come_after_no_more_rows_than_may_be_out_of_order(file: tuple[str, Path]) -> None:
    name, path = file
    with open_trace(f"{name}:{path}") as trace:
        assert lines_read(trace, trace, 1_000) <= 1_000 + FORMATS.get(name)().max_disorder + 2


def test_a_closed_loop_reads_no_further(file: tuple[str, Path]) -> None:
    """Seven sessions start at once; later rows are not read before they are needed."""
    name, path = file
    with open_trace(f"{name}:{path}") as trace:
        assert lines_read(trace.closed_loop(), trace, 7) <= 7 + FORMATS.get(name)().max_disorder + 2
