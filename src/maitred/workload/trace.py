"""Traces: recorded workloads, streamed from files of any size.

A trace is named as `FORMAT:FILE` (`azure:conv.csv`, `mooncake:conversation.jsonl.gz`), as `FILE` alone if its first line tells
the format, or as `sample:NAME` if it comes with maitred. Rows become jobs in the order of arrival. The first job usually
arrives at time 0 (`TraceFormat.time_origin`). Ids are those of the trace, or 0, 1, 2, ...

A row that cannot be used, or that goes back in time, is an error that names its line. `BadRows.SKIP` counts such rows and
continues. Rows are never repaired: a trace that is silently sorted or patched is not the one that was recorded. A trace without
any usable row is an error too, because it is the wrong file and not a workload without requests.

Some formats are not written in the order of arrival, and say by how many places a row may be late (`TraceFormat.max_disorder`).
The reader holds that many rows back and sorts them. Example with `max_disorder = 1` and arrivals 1, 3, 2, 4: row 1 is held, 3
releases 1, 2 releases 2, 4 releases 3, and the end of the file releases 4. A row that is later than that is a bad row. Rows
with the same arrival keep the order of the file.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from heapq import heappop, heappush, heappushpop
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from maitred.core.errors import ConfigError, located, nearest_name_hint
from maitred.core.units import Micros
from maitred.workload.job import Job
from maitred.workload.line_reader import LineReader, is_text
from maitred.workload.session_replay import SessionReplay
from maitred.workload.spec_parts import GoodputTargets
from maitred.workload.trace_format import (
    FORMATS,
    NotReplayedError,
    RowError,
    RowParser,
    TraceFormat,
    TraceRow,
    join_hints,
    row_to_job,
    split_header,
)

MAX_ID: Final = (1 << 63) - 1
"""The largest id: results have columns of 64 bits."""

SAMPLE: Final = "sample"
"""What stands in the place of a format before the name of a trace that comes with maitred."""

_SAMPLES = Path(__file__).parent / "samples"
_FORMAT = re.compile(r"(?P<format>[\w-]+\([^)]*\)|[\w.]+:[A-Z_]\w*(?:\([^)]*\))?):(?P<file>.+)", re.DOTALL)
"""A format with parameters, or a class that is a format, followed by the file."""


def sort_by_arrival(rows: Iterable[TraceRow], max_disorder: int, on_late_row: Callable[[RowError], None]) -> Iterator[TraceRow]:
    """Yield the rows by arrival. A row that comes too late goes to `on_late_row` and, if that returns, is left out."""
    if max_disorder == sys.maxsize:
        # All rows are read before the first one is yielded, and one sort is cheaper than a heap.
        backwards = sorted(rows, key=attrgetter("arrival"))
        backwards.reverse()
        while backwards:
            yield backwards.pop()
        return
    held: list[tuple[Micros, int, TraceRow]] = []
    latest: Micros | None = None
    for index, row in enumerate(rows):
        if latest is not None and row.arrival < latest:
            on_late_row(RowError("it arrived before the row above it", "rows must be in order of arrival"))
            continue
        # The index keeps rows with the same arrival in the order of the file, and rows themselves are never compared.
        if len(held) == max_disorder:
            latest, _, first = heappushpop(held, (row.arrival, index, row))
            yield first
        else:
            heappush(held, (row.arrival, index, row))
    while held:
        yield heappop(held)[2]


class UniqueIds:
    """A check that the ids of a trace, if it has ids, occur once.

    Ids are stored as ranges, so ids without gaps take almost no memory, in whatever order they come.
    """

    def __init__(self) -> None:
        self._has_ids: bool | None = None
        # Range i is from `_firsts[i]` to before `_ends[i]`. Ranges are in order, with a gap between any two.
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def check(self, row: TraceRow) -> None:
        """Raise RowError for an id that is missing, too large or occurs again."""
        if self._has_ids is None:
            self._has_ids = row.id is not None
        if self._has_ids and row.id is None:
            raise RowError("its id is no whole number", "those of the rows above are")
        if self._has_ids and row.id is not None:
            if row.id > MAX_ID:
                raise RowError(f"its id is {row.id}", f"it must be at most {MAX_ID}")
            self._add(row.id)

    def _add(self, number: int) -> None:
        firsts, ends = self._firsts, self._ends
        index = bisect_right(firsts, number)  # of the first range that begins after the number
        if index and number < ends[index - 1]:
            raise RowError(f"its id is {number}, as that of a row above", "ids must occur once")
        extends_previous = bool(index) and ends[index - 1] == number
        extends_next = index < len(firsts) and firsts[index] == number + 1
        if extends_previous and extends_next:
            ends[index - 1] = ends.pop(index)
            del firsts[index]
        elif extends_previous:
            ends[index - 1] = number + 1
        elif extends_next:
            firsts[index] = number
        else:
            firsts.insert(index, number)
            ends.insert(index, number + 1)


class BadRows(Enum):
    """What happens to rows that cannot be used."""

    REFUSE = "refuse"
    SKIP = "skip"


class Trace:
    """The jobs of a trace file, once, in the order of arrival. Close it, use it in a `with` block, or read it to the end."""

    def __init__(
        self, lines: LineReader, trace_format: TraceFormat, parse: RowParser, bad_rows: BadRows, *, knows_prompts: bool = True
    ) -> None:
        self.knows_prompts = knows_prompts
        """Whether the file can say what its prompts have in common."""
        self._reader = lines
        self._format = trace_format
        self._parse = parse
        self._bad_rows = bad_rows
        self.num_skipped = 0
        """Rows left out so far: bad rows (`BadRows.SKIP`) and rows that are not replayed (`NotReplayedError`)."""
        self.first_skipped: ConfigError | None = None
        """The error of the first row that was left out, with its place."""

    def __iter__(self) -> Iterator[Job]:
        """Yield the jobs. Raises ConfigError at a bad row, unless such rows are skipped, and at the end if no row was
        usable."""
        origin: Micros | None = None
        timed = filter(self._has_arrival, self._usable_rows())
        for index, row in enumerate(sort_by_arrival(timed, self._format.max_disorder, self._reject)):
            if origin is None:
                origin = self._format.time_origin(row.arrival)
            yield row_to_job(row, index if row.id is None else row.id, row.arrival - origin)
        if origin is None:
            raise self._no_rows_error()

    def closed_loop(
        self,
        *,
        think_time: Micros | None = None,
        max_sessions: int | None = None,
        max_rows: int | None = None,
        rate_scale: float = 1.0,
    ) -> SessionReplay:
        """Return the same requests as a closed loop: in a session each request waits for the previous answer
        (`session_replay`). Use it instead of iterating over the trace.

        `think_time` replaces the think times of the trace; `max_sessions` limits the sessions that are open at once; `max_rows`
        limits the rows that are read; `rate_scale` makes the starts of sessions that many times as dense. Raises ConfigError
        for `max_sessions` if the rows of a session do not stand together, and the errors of reading the trace.
        """
        if max_sessions is not None and not self._format.is_grouped_by_session:
            hint = "only a trace with its sessions one after another, such as agentic, can begin one when another ends"
            raise ConfigError("this trace cannot limit its sessions", where=str(self.path), hint=hint)
        rows = self._usable_rows()
        if not self._format.is_grouped_by_session:
            rows = sort_by_arrival(rows, self._format.max_disorder, self._reject)
        return SessionReplay(
            islice(self._require_rows(rows), max_rows),
            self._format,
            think_time=think_time,
            max_sessions=max_sessions,
            rate_scale=rate_scale,
        )

    def _require_rows(self, rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
        empty = True
        for row in rows:
            empty = False
            yield row
        if empty:
            raise self._no_rows_error()

    def _has_arrival(self, row: TraceRow) -> bool:
        if not row.has_arrival:
            problem = "it has no time of its own, but comes after an answer"
            self._reject(RowError(problem, "--session-mode closed-loop waits for it"))
        return row.has_arrival

    def _usable_rows(self) -> Iterator[TraceRow]:
        """Yield the usable rows in the order of the file."""
        ids = UniqueIds()
        try:
            for line in self._reader:
                for row in self._parse_line(line):
                    try:
                        ids.check(row)
                    except RowError as bad:
                        self._reject(bad)
                    else:
                        yield row
        finally:
            self.close()

    def _parse_line(self, line: str) -> Sequence[TraceRow]:
        """Return the usable rows of one line."""
        try:
            if not is_text(line):
                raise RowError("this row is not text (UTF-8)", "is the file damaged?")
            parsed = self._parse(line)
        except RowError as bad:
            self._reject(bad)
            return ()
        if isinstance(parsed, TraceRow):
            return (parsed,)
        for row in parsed:
            if isinstance(row, RowError):
                self._reject(row)
        return [row for row in parsed if isinstance(row, TraceRow)]

    def _reject(self, row: RowError) -> None:
        if self._bad_rows is BadRows.REFUSE and not isinstance(row, NotReplayedError):
            hint = join_hints(row.hint, "--skip-bad-rows leaves such rows out")
            raise ConfigError(row.problem, where=self._reader.location, hint=hint) from row
        self.num_skipped += 1
        self.first_skipped = self.first_skipped or ConfigError(row.problem, where=self._reader.location, hint=row.hint)

    def _no_rows_error(self) -> ConfigError:
        what = f"no row could be used; the first: {self.first_skipped}" if self.first_skipped else "there is no row in it"
        return ConfigError(what, where=str(self.path))

    @property
    def path(self) -> Path:
        return self._reader.path

    @property
    def files(self) -> Sequence[Path]:
        """All files that the trace is read from: its rows first, then its companion files that exist."""
        return (self.path, *(path for path in self._format.companion_files(self.path) if path.is_file()))

    @property
    def goodput_slo_targets(self) -> Mapping[str, GoodputTargets]:
        """Targets by SLO class that the trace has."""
        return self._format.goodput_slo_targets

    @property
    def fraction_read(self) -> float:
        """The part of the file that has been read, 0 to 1; always 0 for a pipe."""
        return self._reader.fraction_read

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_trace(spec: str, *, bad_rows: BadRows = BadRows.REFUSE, header: Path | None = None) -> Trace:
    """Open the trace that users name `spec` (see above). `header` is the header file of a format that has one, if the header is
    not beside the trace. Raises ConfigError if the trace cannot be opened or has a wrong header."""
    if not isinstance(spec, str):
        raise ConfigError(f"{spec!r} is no trace", where="trace", hint="a text: FILE or FORMAT:FILE")
    written, file = split_trace_spec(spec)
    if written == SAMPLE:
        return _open_file(_sample_path(file), FORMATS.create("maitred"), bad_rows, header)
    with located(lambda where: where or spec):
        trace_format = FORMATS.create(written) if written else None
    if not file:
        raise ConfigError(f"{spec!r} names no trace", hint="write it as FORMAT:FILE")
    return _open_file(Path(file), trace_format, bad_rows, header)


def split_trace_spec(spec: str) -> tuple[str, str]:
    """Return the format, with its parameters, and the file that users name `spec`.

    The format is `sample` for a trace that comes with maitred, and empty if the first line tells it. Raises ConfigError for a
    format that is not known.
    """
    prefix, colon, rest = spec.partition(":")
    if colon and (prefix == SAMPLE or prefix in FORMATS):
        return prefix, rest
    if not colon or _path_exists(Path(spec)):
        return "", spec
    if written := _FORMAT.fullmatch(spec):
        return written["format"], written["file"]
    hint = join_hints(nearest_name_hint(prefix, [*FORMATS, SAMPLE]), "write it as FORMAT:FILE")
    raise ConfigError(f"unknown trace format {prefix!r}", where=spec, hint=hint)


def _path_exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _open_file(path: Path, trace_format: TraceFormat | None, bad_rows: BadRows, header: Path | None) -> Trace:
    lines = LineReader(path)
    try:
        if not lines.next_line:
            raise ConfigError("the file is empty", where=str(path), hint="a trace has a row per request")
        if lines.next_line.lstrip().startswith("["):
            hint = "a trace in JSON has an object in each line: jq -c '.[]' makes such a file"
            raise ConfigError("a JSON array begins here", where=f"{path}:{lines.next_line_number}", hint=hint)
        trace_format = trace_format or _detect_format(lines)
        if header is not None:
            trace_format.set_header_file(header)
        knows_prompts = trace_format.knows_prompts(lines.next_line)
        parse = trace_format.make_parser(lines)
    except RowError as bad:
        lines.close()
        raise ConfigError(bad.problem, where=lines.location, hint=bad.hint) from bad
    except ConfigError:
        lines.close()
        raise
    return Trace(lines, trace_format, parse, bad_rows, knows_prompts=knows_prompts)


def _detect_format(lines: LineReader) -> TraceFormat:
    known = {name: FORMATS.create(name) for name in FORMATS}
    matching = [trace_format for trace_format in known.values() if trace_format.recognises(lines.next_line)]
    if len(matching) == 1:
        return matching[0]
    hint = f"name it as FORMAT:{lines.path}; formats: {', '.join(known)}"
    problem = _near_miss(lines.next_line, known) or "the first line does not tell the format"
    raise ConfigError(problem, where=f"{lines.path}:{lines.next_line_number}", hint=hint)


def _near_miss(line: str, known: Mapping[str, TraceFormat]) -> str:
    """Describe why a first line is almost that of a known format, or return nothing if it looks like none."""
    found = split_header(line)
    for name, each in known.items():
        columns = [] if each.example.startswith("{") else [column for column in split_header(each.example) if column != "..."]
        lacking = [column for column in columns if column not in found]
        if 0 < 2 * len(lacking) <= len(columns):
            return f"the header has no column {', '.join(lacking)} of the format {name}"
    return ""


def sample_names() -> list[str]:
    """Return the names of the sample traces that come with maitred."""
    return sorted(path.stem for path in _SAMPLES.glob("*.csv"))


def sample_jobs(name: str) -> Iterator[Job]:
    """Return the jobs of a sample trace. Raises ConfigError for an unknown name."""
    return iter(open_trace(f"sample:{name}"))


def _sample_path(name: str) -> Path:
    if name not in sample_names():
        raise ConfigError(f"there is no sample {name!r}", where=f"sample:{name}", hint=nearest_name_hint(name, sample_names()))
    return _SAMPLES / f"{name}.csv"
