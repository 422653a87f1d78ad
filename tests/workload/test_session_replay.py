"""Closed-loop replay: arrivals by hand, sub-agents, and how far a trace is read, in every format, as recorded and in a closed
loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.core.units import MILLISECOND
from maitred.workload import FORMATS, Job, ReactiveWorkload, open_trace
from maitred.workload.formats.blis import WRITTEN_COLUMNS
from maitred.workload.formats.maitred import MaitredFormat
from maitred.workload.session_replay import SessionReplay
from maitred.workload.trace_format import TraceRow

SERVICE = 1_000
Served = list[tuple[int, str, int]]


class Plain(MaitredFormat):
    """Rows without think times."""


class Pauses(MaitredFormat):
    """Rows with think times."""

    has_think_times = True


class Whole(MaitredFormat):
    """Rows with think times, grouped by session."""

    has_think_times = True
    is_grouped_by_session = True


def row(at: int, program: str = "", think: int | None = None, parent: str = "") -> TraceRow:
    return TraceRow(at, 1, 1, program=program, think_time=think, parent_program=parent)


def served(
    loop: ReactiveWorkload, service: int = SERVICE, completes: Callable[[Job], bool] = lambda job: True
) -> tuple[Served, int]:
    """Serve each job within `service` µs, and return (arrival, program, id) of all and the largest number of open sessions. The
    driver reads one job ahead, as the simulator does."""
    source, latest = iter(loop), -1
    out: Served = []
    heap: list[tuple[int, int, int, Job]] = []
    of_source: set[int] = set()
    busy: set[str] = set()
    most = 0

    def read() -> None:
        job = next(source, None)
        if job is not None:
            assert job.request.arrival >= latest
            heappush(heap, (job.request.arrival, 1, job.request.id, job))
            of_source.add(job.request.id)

    read()
    while heap:
        latest, kind, number, job = heappop(heap)
        if kind == 1:
            out.append((latest, job.request.program, number))
            assert job.request.program not in busy or not job.request.program
            busy.add(job.request.program)
            most = max(most, len(busy))
            heappush(heap, (latest + service, 0, number, job))
            if number in of_source:
                read()
            continue
        busy.discard(job.request.program)
        for follows in loop.on_request_end(job.request, completes(job), 1, latest):
            assert follows.request.arrival >= latest
            heappush(heap, (follows.request.arrival, 1, follows.request.id, follows))
    assert len({number for _, _, number in out}) == len(out)
    return out, most


def arrivals(rows: Sequence[TraceRow], kind: type[MaitredFormat] = Plain, **options: int) -> Served:
    out, _ = served(SessionReplay(rows, kind(), **options))
    return [(at, program, 0) for at, program, _ in out]


def test_without_pauses_the_gaps_between_arrivals_are_those_after_answers() -> None:
    """Session a has requests at 0 and at 300. An answer takes 1000, so the second request comes at 1300; b does not wait for
    it."""
    out = arrivals([row(0, "a"), row(200, "b"), row(300, "a"), row(350, "a"), row(400)])
    assert [(at, program) for at, program, _ in out] == [(0, "a"), (200, "b"), (400, ""), (1_300, "a"), (2_350, "a")]


def test_a_pause_may_bring_a_request_before_its_recorded_time() -> None:
    out = arrivals([row(0, "a"), row(5_000, "b"), row(90_000, "a", think=10)], Pauses)
    assert [(at, program) for at, program, _ in out] == [(0, "a"), (1_010, "a"), (5_000, "b")]


def test_one_pause_for_all() -> None:
    out = arrivals([row(0, "a"), row(5_000, "b"), row(90_000, "a")], think_time=7)
    assert [(at, program) for at, program, _ in out] == [(0, "a"), (1_007, "a"), (5_000, "b")]


@pytest.mark.parametrize(("scale", "begun", "second"), [(2, 1_000, 500), (0.5, 4_000, 2_000)])
def test_sessions_begin_more_densely_and_think_as_long(scale: float, begun: int, second: int) -> None:
    """The second request of a comes 300 after the answer, which takes 1000, at any rate of sessions."""
    rows = [row(1_000, "x"), row(2_000, "a"), row(2_300, "a"), row(3_000, "b")]
    out, _ = served(SessionReplay(rows, Plain(), rate_scale=scale))
    expected = [(0, "x"), (second, "a"), (begun, "b"), (second + 1_300, "a")]
    assert [(at, program) for at, program, _ in out] == sorted(expected)


def test_a_request_without_an_answer_ends_its_session() -> None:
    rows = [row(0, "a"), row(10, "b"), row(20, "a"), row(30, "b"), row(5_000, "a")]
    out, _ = served(SessionReplay(rows, Plain()), completes=lambda job: job.request.program == "b")
    assert [(at, program) for at, program, _ in out] == [(0, "a"), (10, "b"), (1_030, "b")]


def test_a_sub_agent_starts_after_a_request_of_its_parent_which_goes_on_beside_it() -> None:
    rows = [
        row(0, "a", 0),
        row(500, "a/1", 50, parent="a"),
        row(600, "a/1", 60),
        row(700, "a", 5_000),
        row(0, "b", 0),
    ]
    out = arrivals(rows, Whole)
    assert [(at, program) for at, program, _ in out] == [(0, "a"), (0, "b"), (1_050, "a/1"), (2_110, "a/1"), (6_000, "a")]


def test_a_session_begins_when_another_is_over_with_all_its_sub_agents() -> None:
    """Session a ends at 1000, its sub-agent at 3050; b starts then."""
    rows = [row(0, "a", 0), row(500, "a/1", 2_000 - 950, parent="a"), row(0, "b", 0), row(0, "b", 100), row(0, "c", 0)]
    out, most = served(SessionReplay(rows, Whole(), max_sessions=1))
    assert [(at, program) for at, program, _ in out] == [(0, "a"), (2_050, "a/1"), (3_050, "b"), (4_150, "b"), (5_150, "c")]
    assert most == 1


def test_a_session_without_an_answer_makes_room_too() -> None:
    rows = [row(0, "a", 0), row(5, "a", 5), row(0, "b", 0)]
    out, _ = served(SessionReplay(rows, Whole(), max_sessions=1), completes=lambda job: job.request.program != "a")
    assert [(at, program) for at, program, _ in out] == [(0, "a"), (1_000, "b")]


def test_of_sessions_that_stand_together_no_more_is_read_than_is_open() -> None:
    """Each session has three rows. When the first request is sent, one row has been read ahead, and no other session."""
    read: list[str] = []

    def rows() -> list[TraceRow]:
        return [row(n, f"s{session}", 1) for session in range(50) for n in range(3)]

    def watched() -> Iterator[TraceRow]:
        for one in rows():
            read.append(one.program)
            yield one

    loop = SessionReplay(watched(), Whole(), max_sessions=2)
    source = iter(loop)
    next(source)
    assert set(read) <= {"s0", "s1"}
    served_all, most = served(SessionReplay(rows(), Whole(), max_sessions=2))
    assert (len(served_all), most) == (150, 2)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.sampled_from("abcde"), st.none() | st.integers(0, 3_000)), max_size=60),
    st.sampled_from([1, 100, 5_000]),
    st.sampled_from([Plain, Pauses]),
)
def test_every_row_is_sent_once_and_never_before_the_answer_it_waits_for(
    trace: list[tuple[int, str, int | None]], service: int, kind: type[MaitredFormat]
) -> None:
    at, rows = 0, []
    for gap, program, think in trace:
        at += gap
        rows.append(row(at, program, think if kind is Pauses else None))
    out, most = served(SessionReplay(rows, kind()), service)
    assert sorted(program for _, program, _ in out) == sorted(row.program for row in rows)
    assert most <= 5
    for program in "abcde":
        times = [at for at, owner, _ in out if owner == program]
        thinks = [row.think_time for row in rows if row.program == program][1:]
        assert all(b - a >= service + (pause or 0) for a, b, pause in zip(times, times[1:], thinks, strict=False))


def test_aiperfs_delays_are_pauses(tmp_path: Path) -> None:
    turn = {"session_id": "a", "input_length": 5, "output_length": 1}
    path = tmp_path / "trace"
    path.write_text("\n".join(json.dumps(line) for line in ({**turn, "timestamp": 0}, {**turn, "delay": 100})))
    with open_trace(str(path)) as trace:
        out, _ = served(trace.closed_loop())
    assert [at for at, _, _ in out] == [0, SERVICE + 100 * MILLISECOND]


def test_sessions_that_do_not_stand_together_cannot_be_limited(samples: Path) -> None:
    with open_trace(str(samples / "azure_tiny.csv")) as trace, pytest.raises(ConfigError, match="cannot limit its sessions"):
        trace.closed_loop(max_sessions=3)


def test_an_empty_trace_is_an_error_here_too(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
    with open_trace(str(tmp_path / "t")) as trace, pytest.raises(ConfigError, match="there is no row in it"):
        trace.closed_loop()


MORE_ROWS = 10_000
"""In a file, beyond those that may be out of order."""
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
    rows = range(FORMATS.get(name)().max_disorder + MORE_ROWS)
    with path.open("w") as text:
        text.writelines(f"{row}\n" for row in (header, *map(line, rows)) if row)
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
