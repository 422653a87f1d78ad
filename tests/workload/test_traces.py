"""Traces: rows become jobs exactly, every kind of file opens, and errors name the row."""

from __future__ import annotations

import gzip
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.workload import FORMATS, BadRows, Job, open_trace
from maitred.workload.load import Load, as_key, make_self_contained

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.9799607,374,44\r\n"
    "2023-11-17 00:00:00.0000001,396,109\r\n"
    "2023-11-17 00:00:04.0000000,879,55"
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def jobs(spec: object, bad_rows: BadRows = BadRows.REFUSE) -> list[Job]:
    with open_trace(str(spec), bad_rows=bad_rows) as trace:
        return list(trace)


def error_of(spec: object) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        jobs(spec)
    return raised.value


def test_azure_as_published(write: Write) -> None:
    """With CRLF, 100 ns, no newline after the last row, and over midnight: arrivals are exact in µs and start at 0."""
    read = jobs(f"azure:{write(AZURE)}")
    assert [job.request.arrival for job in read] == [0, 20_040, 4_020_040]
    assert [(job.request.prompt_tokens, job.output_tokens) for job in read] == [(374, 44), (396, 109), (879, 55)]
    assert [job.request.id for job in read] == [0, 1, 2]


def test_names_of_columns_may_be_in_quotes_as_values_may(write: Write) -> None:
    text = '"TIMESTAMP","ContextTokens","GeneratedTokens"\n"2023-11-16 00:00:00","7","5"\n'
    assert [(job.request.prompt_tokens, job.output_tokens) for job in jobs(write(text))] == [(7, 5)]


def test_a_byte_order_mark_is_no_part_of_the_first_line(write: Write) -> None:
    assert len(jobs(write(b"\xef\xbb\xbf" + AZURE.encode()))) == 3


def test_a_column_that_is_there_twice_is_an_error_if_it_is_read(write: Write) -> None:
    text = "arrival_secs,class,prompt_tokens,note,output_tokens,note,class\n1,bulk,8,x,1,y,interactive\n"
    assert "trace:1: the header has the column class twice (leave one of them out)" in str(error_of(write(text)))
    assert len(jobs(write(text.replace("note,class", "note,more")))) == 1


def test_azure_columns_go_by_name_and_times_may_carry_a_zone(write: Write) -> None:
    text = "GeneratedTokens,Model,TIMESTAMP,ContextTokens\n5,a,2024-05-10 00:00:00+00:00,7\n6,a,2024-05-10 00:00:01.5+00:00,8\n"
    read = jobs(f"azure:{write(text)}")
    assert [(job.request.arrival, job.request.prompt_tokens, job.output_tokens) for job in read] == [
        (0, 7, 5),
        (1_500_000, 8, 6),
    ]


def test_gzip_is_told_by_content_not_by_name(write: Write) -> None:
    plain = jobs(f"azure:{write(AZURE, 'plain.csv.gz')}")
    zipped = jobs(f"azure:{write(gzip.compress(AZURE.encode()), 'zipped.csv')}")
    assert plain == zipped
    assert len(plain) == 3


def test_mooncake_times_are_milliseconds_and_hash_ids_become_a_prefix(samples: Path) -> None:
    first, second, third = jobs(f"mooncake:{samples / 'mooncake_tiny.jsonl'}")
    assert [job.request.arrival for job in (first, second, third)] == [0, 0, 3_000_000]
    assert [job.output_tokens for job in (first, second, third)] == [4, 2, 1]
    assert first.request.prefix is not None
    assert second.request.prefix is not None
    ours, theirs = first.request.prefix.block_keys(128), second.request.prefix.block_keys(128)
    assert (len(ours), len(theirs)) == (8, 5)
    assert list(ours[:4]) == list(theirs[:4])
    assert not set(ours[4:]) & set(theirs[4:])


def test_mooncake_without_hash_ids_has_no_prefix(write: Write) -> None:
    path = write('{"timestamp": 27.5, "input_length": 1, "output_length": 1}')
    (job,) = jobs(f"mooncake:{path}")
    assert job.request.prefix is None


def test_our_own_format_carries_classes(write: Write) -> None:
    text = "arrival_secs,class,prompt_tokens,output_tokens\n10.5, Bulk ,9,8\n10.500001,system,7,6\n"
    first, second = jobs(f"maitred:{write(text)}")
    assert (first.request.priority_class, second.request.priority_class) == (PriorityClass.BULK, PriorityClass.SYSTEM)
    assert second.request.arrival == 1


def test_our_own_format_may_carry_tenants_and_what_clients_asked_for(write: Write) -> None:
    header = "tenant,arrival_secs,class,prompt_tokens,output_tokens,max_output_tokens,stream\n"
    path = write(header + "auth:acme,0,bulk,9,8,100,false\n,1,bulk,7,6,,\n")
    first, second = (job.request for job in jobs(f"maitred:{path}"))
    assert (first.tenant, first.max_output_tokens, first.stream) == ("auth:acme", 100, False)
    assert (second.tenant, second.max_output_tokens, second.stream) == ("", None, True)
    path = write(header + ",0,bulk,9,8,,no\n")
    assert "stream is 'no'" in error_of(f"maitred:{path}").problem


def test_a_tenant_that_no_policy_could_name_is_a_bad_row(write: Write) -> None:
    path = write("arrival_secs,class,prompt_tokens,output_tokens,tenant\n0,bulk,1,1,acme\n")
    error = error_of(f"maitred:{path}")
    assert error.problem == "tenant 'acme' matches no tenant: write auth:acme, header:acme, ip:ADDRESS or anonymous"
    assert error.hint == "empty, if the tenant is not known; --skip-bad-rows leaves such rows out"


def test_the_first_line_tells_the_format(write: Write, samples: Path) -> None:
    assert jobs(write(AZURE)) == jobs(f"azure:{write(AZURE)}")
    assert jobs(samples / "mooncake_tiny.jsonl") == jobs(f"mooncake:{samples / 'mooncake_tiny.jsonl'}")
    assert len(jobs(write("arrival_secs,class,prompt_tokens,output_tokens\n0,bulk,1,1\n"))) == 1


def test_a_file_whose_name_has_a_colon_is_a_file(write: Write) -> None:
    assert len(jobs(write(AZURE, "2023:code.csv"))) == 3


def test_a_pipe_is_read_once_and_serves(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(AZURE.encode()),))
    feeder.start()
    assert len(jobs(pipe)) == 3
    feeder.join()


def test_an_ambiguous_first_line_lists_the_formats(write: Write) -> None:
    error = error_of(write("time,tokens\n1,2\n"))
    assert "trace:1: the first line does not tell the format" in str(error)
    assert all(name in error.hint for name in ("azure", "maitred", "mooncake"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("arrival_secs,class,prompt_tokens", "the header has no column output_tokens of the format maitred"),
        ("ContextTokens,GeneratedTokens", "the header has no column TIMESTAMP of the format azure"),
        ('[{"timestamp": 0}]', "a JSON array begins here"),
    ],
)
def test_a_first_line_that_nearly_tells_the_format_says_what_it_lacks(write: Write, line: str, said: str) -> None:
    path = write(f"{line}\n1,2\n")
    assert f"trace:1: {said}" in str(error_of(path))
    if line.startswith("["):
        assert f"trace:1: {said}" in str(error_of(f"maitred:{path}"))


def test_an_unknown_format_suggests_the_nearest() -> None:
    assert error_of("azur:conv.csv").hint == "did you mean 'azure'? Write it as FORMAT:FILE"
    assert error_of("qqq:conv.csv").hint == f"valid: {', '.join(sorted([*FORMATS, 'sample']))}; write it as FORMAT:FILE"


@pytest.mark.parametrize("spec", ["azure:no/such.csv", "no/such.csv"])
def test_a_missing_file_is_named_at_once(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"no/such\.csv: cannot be read: no such file"):
        open_trace(spec)


def test_a_directory_or_an_empty_file_is_no_trace(tmp_path: Path, write: Write) -> None:
    assert "is a directory" in str(error_of(f"azure:{tmp_path}"))
    assert "empty" in str(error_of(write("")))
    assert "empty" in str(error_of(write("\n \r\n\n")))


def test_what_is_no_text_is_said_to_be_none(write: Write) -> None:
    assert "not text" in str(error_of(f"azure:{write(b'PK' + bytes([3, 4, 255, 254]))}"))


def test_a_row_that_is_no_text_is_a_bad_row_like_others(write: Write) -> None:
    header = b"TIMESTAMP,ContextTokens,GeneratedTokens,Model\n"
    path = write(header + b"2023-11-17 00:00:00,1,2,\xff\n2023-11-17 00:00:00,3,4,\xc3\xa9\n")
    assert str(error_of(f"azure:{path}")).startswith(f"{path}:2: this row is not text (UTF-8) (is the file damaged?")
    with open_trace(f"azure:{path}", bad_rows=BadRows.SKIP) as trace:
        assert [job.request.prompt_tokens for job in trace] == [3]
        assert trace.num_skipped == 1


@pytest.mark.parametrize("rows", ["", "\n\n"])
def test_a_trace_without_rows_is_an_error(write: Write, rows: str) -> None:
    path = write(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    assert str(error_of(f"azure:{path}")) == f"{path}: there is no row in it"


def test_a_trace_of_bad_rows_only_is_an_error_although_they_are_skipped(write: Write) -> None:
    path = write("TIMESTAMP,ContextTokens,GeneratedTokens\nrubbish\nmore,rubbish\n")
    with pytest.raises(ConfigError) as raised:
        jobs(f"azure:{path}", BadRows.SKIP)
    assert str(raised.value).startswith(f"{path}: no row could be used; the first: {path}:2: 1 field in 'rubbish' (")


@pytest.mark.parametrize("spec", ["", "azure:"])
def test_no_name_is_no_trace(spec: str) -> None:
    assert str(error_of(spec)) == f"{spec!r} names no trace (write it as FORMAT:FILE)"


@pytest.mark.parametrize("spec", ["n" * 300, "azure:" + "n" * 300])
def test_a_name_that_is_too_long_is_no_file(spec: str) -> None:
    assert "cannot be read: file name too long" in str(error_of(spec))
    assert "unknown trace format 'x'" in str(error_of(f"x:{spec}"))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux has a file that opens and cannot be read")
def test_a_file_that_opens_and_cannot_be_read_is_named() -> None:
    assert "/proc/self/mem: cannot be read: " in str(error_of("azure:/proc/self/mem"))


def test_a_gzip_file_cut_short_is_said_to_be_cut(write: Write) -> None:
    rows = "".join(f"2023-11-17 00:00:00.0{n:06d},{n},{n}\n" for n in range(1, 5000))
    zipped = gzip.compress(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}".encode())
    assert "ends in the middle" in str(error_of(f"azure:{write(zipped[: len(zipped) // 2])}"))


def test_a_wrong_header_is_an_error_of_line_1(write: Write) -> None:
    error = error_of(f"azure:{write('time,ContextTokens,GeneratedTokens')}")
    assert ":1: the header has no column TIMESTAMP" in str(error)
    assert "TIMESTAMP,ContextTokens,GeneratedTokens" in error.hint


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("2023-11-17 00:00:01,3O0,5", "ContextTokens is '3O0'"),
        ("2023-11-17 00:00:01,300,0", "GeneratedTokens is '0'"),
        ("2023-11-17 00:00:01,-3,5", "ContextTokens is '-3'"),
        ("2023-11-17 00:00:01,3.5,5", "ContextTokens is '3.5'"),
        ("2023-11-17 00:00:01,9999999999999999999,5", "ContextTokens is '9999999999999999999'"),
        ("17/11/2023,300,5", "TIMESTAMP is '17/11/2023'"),
        ("2023-11-17 00:00:01,300", "2 fields"),
        ("2023-11-16 00:00:00,300,5", "arrived before the row above it"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_can_be_skipped(write: Write, row: str, what: str) -> None:
    """The bad row is line 3 of the file, as an editor counts."""
    path = write(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-17 00:00:00,1,2\n{row}\n2023-11-17 00:00:02,3,4\n")
    error = error_of(f"azure:{path}")
    assert error.where == f"{path}:3"
    assert what in error.problem
    assert "--skip-bad-rows" in error.hint
    with open_trace(f"azure:{path}", bad_rows=BadRows.SKIP) as trace:
        assert [(job.request.id, job.request.arrival) for job in trace] == [(0, 0), (1, 2_000_000)]
        assert trace.num_skipped == 1
        assert trace.first_skipped is not None
        assert trace.first_skipped.where == f"{path}:3"
        assert "--skip-bad-rows" not in trace.first_skipped.hint


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ('{"timestamp": 0, "input_length": 600', "it ends in the middle of its JSON"),
        ("timestamp=0", "not JSON: invalid character (byte 4)"),
        ('{"timestamp": 0, "input_length": 600}', "it has no output_length"),
        ('{"timestamp": 0, "input_length": "600", "output_length": 1}', "input_length: expected a whole number, found text"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1}', "input_length: expected a whole number >= 1"),
        ('{"timestamp": 1e300, "input_length": 1, "output_length": 1}', "timestamp"),
        ('{"timestamp": 0, "input_length": 1200, "output_length": 1, "hash_ids": [4]}', "1 hash_ids for 1200 tokens"),
    ],
)
def test_a_bad_mooncake_row_is_named_by_its_line(write: Write, row: str, what: str) -> None:
    path = write(f'{{"timestamp": 0, "input_length": 1, "output_length": 1}}\n{row}\n')
    error = error_of(f"mooncake:{path}")
    assert error.where == f"{path}:2"
    assert what in error.problem


def test_blank_lines_are_nothing_but_count_as_lines(write: Write) -> None:
    path = write("\nTIMESTAMP,ContextTokens,GeneratedTokens\n\n2023-11-17 00:00:00,1,2\n  \t\nrubbish\n\n")
    assert error_of(path).where == f"{path}:6"
    assert error_of(write("\n\nx\n")).where == f"{path}:3"
    write(" \nx")
    assert error_of(f"azure:{path}").where == f"{path}:2"


def test_a_class_that_is_none_suggests_the_nearest(write: Write) -> None:
    path = write("arrival_secs,class,prompt_tokens,output_tokens\n0,bulky,1,1\n")
    error = error_of(f"maitred:{path}")
    assert error.hint == "did you mean 'bulk'? --skip-bad-rows leaves such rows out"


@pytest.mark.parametrize("secs", ["", "nan", "inf", "-1", "soon"])
def test_an_arrival_that_is_no_time_is_a_bad_row(write: Write, secs: str) -> None:
    path = write(f"arrival_secs,class,prompt_tokens,output_tokens\n{secs},bulk,1,1\n")
    error = error_of(f"maitred:{path}")
    assert f"arrival_secs is {secs!r}" in error.problem


def peak_of_reading(path: Path) -> int:
    """Return the most bytes that were allocated at once while all rows of a trace were read."""
    tracemalloc.start()
    with open_trace(f"azure:{path}") as trace:
        num_rows = sum(1 for _ in trace)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_rows > 900
    return peak


def test_memory_does_not_grow_with_the_file(write: Write) -> None:
    rows = [f"2023-11-17 00:00:00.{n:07d},{n},{n}\n" for n in range(1, 8_000)]
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    short, long = write(head + "".join(rows[:1_000]), "short"), write(head + "".join(rows), "long")
    assert long.stat().st_size > 250_000
    # What it takes to open any trace depends on what else is installed; and another thread may allocate during a reading.
    peaks = {path: min(peak_of_reading(path) for _ in range(3)) for path in (short, long)}
    assert peaks[long] - peaks[short] < 100_000


def test_how_far_a_trace_was_read(write: Write) -> None:
    with open_trace(f"azure:{write(AZURE)}") as trace:
        list(trace)
        assert trace.fraction_read == 1.0


OURS = """
from maitred.workload import TraceFormat, TraceRow


class Plain(TraceFormat):
    example = "7 20 3"

    def __init__(self, unit: int = 1) -> None:
        self.unit = unit

    def recognises(self, first_line):
        return False

    def make_parser(self, lines):
        return self.row

    def row(self, line):
        at, prompt, answer = map(int, line.split())
        return TraceRow(at * self.unit, prompt, answer)
"""


def test_a_format_of_ones_own_is_named_with_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain_format.py").write_text(OURS)
    (tmp_path / "trace.txt").write_text("7 20 3\n9 10 1\n")
    for spec, arrivals in (("plain_format:Plain:trace.txt", [0, 2]), ("plain_format:Plain(unit=50):trace.txt", [0, 100])):
        with open_trace(spec) as trace:
            assert [job.request.arrival for job in trace] == arrivals
    with pytest.raises(ConfigError, match=r"^plain_format:Plane:trace.txt: .*has no 'Plane' \(did you mean 'Plain'\?\)"):
        open_trace("plain_format:Plane:trace.txt")
    with pytest.raises(ConfigError, match=r"^azure\(zone=1\):trace.txt: trace format 'azure' has no parameter 'zone'"):
        open_trace("azure(zone=1):trace.txt")


def test_a_load_in_another_folder_keeps_the_parameters_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "timed.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 40, "output_length": 5}\n')
    written = f"timed_trace(sec_multiplier=0.001):{path}"
    assert make_self_contained(Load(trace=written), as_key).trace == written
