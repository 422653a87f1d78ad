"""The order and the ids of a trace's rows.

Rows are in order of arrival, or nearly: some formats are written in another order, and say by how many places a row may be late
(`TraceFormat.max_disorder`). That many are held back and sorted; a row that is later than that is a bad one. Rows of the same
instant keep the order of the file.

Traces: recorded workloads, streamed from files of any size.

A trace is named as `FORMAT:FILE` (`azure:conv.csv`, `mooncake:conversation.jsonl.gz`), as `FILE` alone where its first line
tells the format, or as `sample:NAME` for one that comes with maitred. Rows become jobs in order of arrival, usually with the
first at time 0 (`TraceFormat.time_origin`), with the trace's own ids or 0, 1, 2, ...

A row that cannot be used, or that goes back in time, is an error that names its line; `BadRows.SKIP` counts it instead and
goes on. It is never mended: a trace that is quietly sorted or patched is not the one that was recorded. A trace of which no
row can be used is an error too: it is the wrong file, and not a workload in which nothing happens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from heapq import heappop, heappush, heappushpop
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from maitred.core.errors import ConfigError, nearest_name_hint
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
)

MAX_ID: Final = (1 << 63) - 1
"""Results have columns of 64 bits."""


def sort_by_arrival(rows: Iterable[TraceRow], max_disorder: int, on_late_row: Callable[[RowError], None]) -> Iterator[TraceRow]:
    """The rows by arrival. One that comes too late is handed to `refuse` and, if that returns, left out."""
    ahead: list[tuple[Micros, int, TraceRow]] = []
    latest: Micros | None = None
    for place, row in enumerate(rows):
        if latest is not None and row.arrival < latest:
            on_late_row(RowError("it arrived before the row above it", "rows must be in order of arrival"))
            continue
        if len(ahead) == max_disorder:
            latest, _, first = heappushpop(ahead, (row.arrival, place, row))
            yield first
        else:
            heappush(ahead, (row.arrival, place, row))
    while ahead:
        yield heappop(ahead)[2]


class UniqueIds:
    """Sees to it that the ids of a trace, where it has some, occur once.

    What has been seen is kept as ranges, so ids without gaps, in whatever order, are next to nothing.
    """

    def __init__(self) -> None:
        self._has_ids: bool | None = None
        self._firsts: list[int] = []
        self._ends: list[int] = []
        """Range i is from `_firsts[i]` to before `_ends[i]`; in order, with a gap between any two."""

    def check(self, row: TraceRow) -> None:
        """Raises RowError for an id that cannot be one."""
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
        place = bisect_right(firsts, number)  # of the first range that begins after it
        if place and number < ends[place - 1]:
            raise RowError(f"its id is {number}, as that of a row above", "ids must occur once")
        follows = bool(place) and ends[place - 1] == number
        precedes = place < len(firsts) and firsts[place] == number + 1
        if follows and precedes:
            ends[place - 1] = ends.pop(place)
            del firsts[place]
        elif follows:
            ends[place - 1] = number + 1
        elif precedes:
            firsts[place] = number
        else:
            firsts.insert(place, number)
            ends.insert(place, number + 1)


_SAMPLES = Path(__file__).parent / "samples"
_FORMAT = re.compile(r"(?P<format>[\w-]+\([^)]*\)|[\w.]+:[A-Z_]\w*(?:\([^)]*\))?):(?P<file>.+)", re.DOTALL)
"""A format with parameters, or a class that is one, and the file."""


class BadRows(Enum):
    """What becomes of rows that cannot be used."""

    REFUSE = "refuse"
    SKIP = "skip"


class Trace:
    """The jobs of a trace file, once, in order of arrival. Close it, use it in a `with`, or read it to the end."""

    def __init__(self, lines: LineReader, trace_format: TraceFormat, parse: RowParser, bad_rows: BadRows) -> None:
        self._reader = lines
        self._format = trace_format
        self._parse = parse
        self._bad_rows = bad_rows
        self.num_skipped = 0
        """Rows left out so far: bad ones (`BadRows.SKIP`), and those that their format leaves out (`NotReplayedError`)."""
        self.first_skipped: ConfigError | None = None
        """What was wrong with the first of them, and where."""

    def __iter__(self) -> Iterator[Job]:
        """Raises ConfigError at a row that cannot be used, unless they are skipped, and at the end if there was no other."""
        origin: Micros | None = None
        timed = filter(self._has_arrival, self._usable_rows())
        for number, row in enumerate(sort_by_arrival(timed, self._format.max_disorder, self._reject)):
            if origin is None:
                origin = self._format.time_origin(row.arrival)
            yield row_to_job(row, number if row.id is None else row.id, row.arrival - origin)
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
        """The same requests, but in a session each waits for the answer before it (see `session_replay`); instead of reading
        the trace itself. `think` replaces the pauses of the trace; `limit`: that many sessions at once; `most`: rows to read;
        `rate_scale`: sessions begin so much more densely. Raises ConfigError for a `limit` where sessions do not stand
        together, and as reading the trace does."""
        if max_sessions is not None and not self._format.is_grouped_by_session:
            hint = "only a trace whose sessions stand one after another, such as agentic, can begin one when another ends"
            raise ConfigError("this trace cannot limit its sessions", where=str(self.path), hint=hint)
        rows = (
            self._usable_rows()
            if self._format.is_grouped_by_session
            else sort_by_arrival(self._usable_rows(), self._format.max_disorder, self._reject)
        )
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
            what = "it has no time of its own, but comes after an answer"
            self._reject(RowError(what, "--session-mode closed-loop waits for it"))
        return row.has_arrival

    def _usable_rows(self) -> Iterator[TraceRow]:
        """Those that can be used, in the order of the file."""
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
        """The rows of one line that can be used."""
        try:
            parsed = self._parse(_require_text(line))
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
            raise ConfigError(row.what, where=self._reader.location, hint=hint) from row
        self.num_skipped += 1
        self.first_skipped = self.first_skipped or ConfigError(row.what, where=self._reader.location, hint=row.hint)

    def _no_rows_error(self) -> ConfigError:
        what = f"no row could be used; the first: {self.first_skipped}" if self.first_skipped else "there is no row in it"
        return ConfigError(what, where=str(self.path))

    @property
    def path(self) -> Path:
        return self._reader.path

    @property
    def files(self) -> Sequence[Path]:
        """All that it is read from: its rows first, and what belongs beside them."""
        return (self.path, *(path for path in self._format.companion_files(self.path) if path.is_file()))

    @property
    def goodput_slo_targets(self) -> Mapping[str, GoodputTargets]:
        """By class, what it says itself is good enough."""
        return self._format.goodput_slo_targets

    @property
    def fraction_read(self) -> float:
        """How much of the file has been read, 0..1; always 0 for a pipe."""
        return self._reader.fraction_read

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _require_text(line: str) -> str:
    if not is_text(line):
        raise RowError("this row is not text (UTF-8)", "is the file damaged?")
    return line


def open_trace(spec: str, *, bad_rows: BadRows = BadRows.REFUSE, header: Path | None = None) -> Trace:
    """The trace that users name `spec` (see above); `header` of its format, where that is in a file that stands elsewhere.

    Raises ConfigError if it cannot be opened or is not what it should be.
    """
    prefix, colon, rest = spec.partition(":")
    if colon and prefix == "sample":
        return _open_file(_sample_path(rest), FORMATS.create("maitred"), bad_rows, header)
    if colon and prefix in FORMATS:
        return _open_file(_trace_path(rest, spec), FORMATS.create(prefix), bad_rows, header)
    if colon and not _path_exists(Path(spec)):
        if written := _FORMAT.fullmatch(spec):
            return _open_file(_trace_path(written["file"], spec), FORMATS.create(written["format"]), bad_rows, header)
        hint = join_hints(nearest_name_hint(prefix, [*FORMATS, "sample"]), "write it as FORMAT:FILE")
        raise ConfigError(f"unknown trace format {prefix!r}", where=spec, hint=hint)
    return _open_file(_trace_path(spec, spec), None, bad_rows, header)


def _trace_path(path: str, spec: str) -> Path:
    if not path:
        raise ConfigError(f"{spec!r} names no trace", hint="write it as FORMAT:FILE")
    return Path(path)


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
        trace_format = trace_format or _detect_format(lines)
        if header is not None:
            trace_format.set_header_file(header)
        parse = trace_format.make_parser(lines)
    except RowError as bad:
        lines.close()
        raise ConfigError(bad.what, where=lines.location, hint=bad.hint) from bad
    except ConfigError:
        lines.close()
        raise
    return Trace(lines, trace_format, parse, bad_rows)


def _detect_format(lines: LineReader) -> TraceFormat:
    known = {name: FORMATS.create(name) for name in FORMATS}
    matching = [trace_format for trace_format in known.values() if trace_format.recognises(lines.next_line)]
    if len(matching) == 1:
        return matching[0]
    hint = f"name it as FORMAT:{lines.path}; formats: {', '.join(known)}"
    raise ConfigError("the first line does not tell the format", where=f"{lines.path}:{lines.next_line_number}", hint=hint)


def sample_names() -> list[str]:
    return sorted(path.stem for path in _SAMPLES.glob("*.csv"))


def sample_jobs(name: str) -> Iterator[Job]:
    """The jobs of a sample trace that comes with maitred (`mixed`). Raises ConfigError for an unknown name."""
    return iter(open_trace(f"sample:{name}"))


def _sample_path(name: str) -> Path:
    if name not in sample_names():
        raise ConfigError(f"there is no sample {name!r}", where=f"sample:{name}", hint=nearest_name_hint(name, sample_names()))
    return _SAMPLES / f"{name}.csv"
