"""Traces: recorded workloads, streamed from files of any size.

A trace is named as `FORMAT:FILE` (`azure:conv.csv`, `mooncake:conversation.jsonl.gz`), as `FILE` alone where its first line
tells the format, or as `sample:NAME` for one that comes with maitred. Rows become jobs in order of arrival, usually with the
first at time 0 (`TraceFormat.origin`), with the trace's own ids or 0, 1, 2, ...

A row that cannot be used, or that goes back in time, is an error that names its line; `BadRows.SKIP` counts it instead and
goes on. It is never mended: a trace that is quietly sorted or patched is not the one that was recorded. A trace of which no
row can be used is an error too: it is the wrong file, and not a workload in which nothing happens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from maitred.errors import ConfigError, nearest
from maitred.units import Micros
from maitred.workload.job import Job
from maitred.workload.lines import Lines, is_text
from maitred.workload.ordering import Ids, in_order
from maitred.workload.row import FORMATS, NotReplayedError, Row, RowError, RowParser, TraceFormat, job_of, joined
from maitred.workload.session_replay import ClosedLoop
from maitred.workload.spec_parts import GoodputTargets

_SAMPLES = Path(__file__).parent / "samples"
_FORMAT = re.compile(r"(?P<format>[\w-]+\([^)]*\)|[\w.]+:[A-Z_]\w*(?:\([^)]*\))?):(?P<file>.+)", re.DOTALL)
"""A format with parameters, or a class that is one, and the file."""


class BadRows(Enum):
    """What becomes of rows that cannot be used."""

    REFUSE = "refuse"
    SKIP = "skip"


class Trace:
    """The jobs of a trace file, once, in order of arrival. Close it, use it in a `with`, or read it to the end."""

    def __init__(self, lines: Lines, trace_format: TraceFormat, parse: RowParser, bad_rows: BadRows) -> None:
        self._lines = lines
        self._format = trace_format
        self._parse = parse
        self._bad_rows = bad_rows
        self.skipped = 0
        """Rows left out so far: bad ones (`BadRows.SKIP`), and those that their format leaves out (`NotReplayedError`)."""
        self.first_skipped: ConfigError | None = None
        """What was wrong with the first of them, and where."""

    def __iter__(self) -> Iterator[Job]:
        """Raises ConfigError at a row that cannot be used, unless they are skipped, and at the end if there was no other."""
        origin: Micros | None = None
        timed = filter(self._is_timed, self._rows())
        for number, row in enumerate(in_order(timed, self._format.disorder, self._bad)):
            if origin is None:
                origin = self._format.origin(row.at)
            yield job_of(row, number if row.id is None else row.id, row.at - origin)
        if origin is None:
            raise self._useless()

    def closed_loop(
        self,
        *,
        think: Micros | None = None,
        limit: int | None = None,
        most: int | None = None,
        rate_scale: float = 1.0,
    ) -> ClosedLoop:
        """The same requests, but in a session each waits for the answer before it (see `session_replay`); instead of reading
        the trace itself. `think` replaces the pauses of the trace; `limit`: that many sessions at once; `most`: rows to read;
        `rate_scale`: sessions begin so much more densely. Raises ConfigError for a `limit` where sessions do not stand
        together, and as reading the trace does."""
        if limit is not None and not self._format.by_session:
            hint = "only a trace whose sessions stand one after another, such as agentic, can begin one when another ends"
            raise ConfigError("this trace cannot limit its sessions", where=str(self.path), hint=hint)
        rows = self._rows() if self._format.by_session else in_order(self._rows(), self._format.disorder, self._bad)
        return ClosedLoop(islice(self._not_empty(rows), most), self._format, think=think, limit=limit, rate_scale=rate_scale)

    def _not_empty(self, rows: Iterable[Row]) -> Iterator[Row]:
        empty = True
        for row in rows:
            empty = False
            yield row
        if empty:
            raise self._useless()

    def _is_timed(self, row: Row) -> bool:
        if not row.timed:
            what = "it has no time of its own, but comes after an answer"
            self._bad(RowError(what, "--session-mode closed-loop waits for it"))
        return row.timed

    def _rows(self) -> Iterator[Row]:
        """Those that can be used, in the order of the file."""
        ids = Ids()
        try:
            for line in self._lines:
                for row in self._parsed(line):
                    try:
                        ids.check(row)
                    except RowError as bad:
                        self._bad(bad)
                    else:
                        yield row
        finally:
            self.close()

    def _parsed(self, line: str) -> Sequence[Row]:
        """The rows of one line that can be used."""
        try:
            parsed = self._parse(_text(line))
        except RowError as bad:
            self._bad(bad)
            return ()
        if isinstance(parsed, Row):
            return (parsed,)
        for row in parsed:
            if isinstance(row, RowError):
                self._bad(row)
        return [row for row in parsed if isinstance(row, Row)]

    def _bad(self, row: RowError) -> None:
        if self._bad_rows is BadRows.REFUSE and not isinstance(row, NotReplayedError):
            hint = joined(row.hint, "--skip-bad-rows leaves such rows out")
            raise ConfigError(row.what, where=self._lines.place, hint=hint) from row
        self.skipped += 1
        self.first_skipped = self.first_skipped or ConfigError(row.what, where=self._lines.place, hint=row.hint)

    def _useless(self) -> ConfigError:
        what = f"no row could be used; the first: {self.first_skipped}" if self.first_skipped else "there is no row in it"
        return ConfigError(what, where=str(self.path))

    @property
    def path(self) -> Path:
        return self._lines.path

    @property
    def files(self) -> Sequence[Path]:
        """All that it is read from: its rows first, and what belongs beside them."""
        return (self.path, *(path for path in self._format.beside(self.path) if path.is_file()))

    @property
    def goodput_slo_targets(self) -> Mapping[str, GoodputTargets]:
        """By class, what it says itself is good enough."""
        return self._format.goodput_slo_targets

    @property
    def share_read(self) -> float:
        """How much of the file has been read, 0..1; always 0 for a pipe."""
        return self._lines.share_read

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _text(line: str) -> str:
    if not is_text(line):
        raise RowError("this row is not text (UTF-8)", "is the file damaged?")
    return line


def open_trace(spec: str, *, bad_rows: BadRows = BadRows.REFUSE, header: Path | None = None) -> Trace:
    """The trace that users name `spec` (see above); `header` of its format, where that is in a file that stands elsewhere.

    Raises ConfigError if it cannot be opened or is not what it should be.
    """
    prefix, colon, rest = spec.partition(":")
    if colon and prefix == "sample":
        return _opened(_sample_path(rest), FORMATS.create("maitred"), bad_rows, header)
    if colon and prefix in FORMATS:
        return _opened(_named(rest, spec), FORMATS.create(prefix), bad_rows, header)
    if colon and not _exists(Path(spec)):
        if written := _FORMAT.fullmatch(spec):
            return _opened(_named(written["file"], spec), FORMATS.create(written["format"]), bad_rows, header)
        hint = joined(nearest(prefix, [*FORMATS, "sample"]), "write it as FORMAT:FILE")
        raise ConfigError(f"unknown trace format {prefix!r}", where=spec, hint=hint)
    return _opened(_named(spec, spec), None, bad_rows, header)


def _named(path: str, spec: str) -> Path:
    if not path:
        raise ConfigError(f"{spec!r} names no trace", hint="write it as FORMAT:FILE")
    return Path(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _opened(path: Path, trace_format: TraceFormat | None, bad_rows: BadRows, header: Path | None) -> Trace:
    lines = Lines(path)
    try:
        if not lines.first:
            raise ConfigError("the file is empty", where=str(path), hint="a trace has a row per request")
        trace_format = trace_format or _guessed(lines)
        if header is not None:
            trace_format.with_header(header)
        parse = trace_format.begin(lines)
    except RowError as bad:
        lines.close()
        raise ConfigError(bad.what, where=lines.place, hint=bad.hint) from bad
    except ConfigError:
        lines.close()
        raise
    return Trace(lines, trace_format, parse, bad_rows)


def _guessed(lines: Lines) -> TraceFormat:
    known = {name: FORMATS.create(name) for name in FORMATS}
    matching = [trace_format for trace_format in known.values() if trace_format.recognises(lines.first)]
    if len(matching) == 1:
        return matching[0]
    hint = f"name it as FORMAT:{lines.path}; formats: {', '.join(known)}"
    raise ConfigError("the first line does not tell the format", where=f"{lines.path}:{lines.next_number}", hint=hint)


def sample_names() -> list[str]:
    return sorted(path.stem for path in _SAMPLES.glob("*.csv"))


def sample(name: str) -> Iterator[Job]:
    """The jobs of a sample trace that comes with maitred (`mixed`). Raises ConfigError for an unknown name."""
    return iter(open_trace(f"sample:{name}"))


def _sample_path(name: str) -> Path:
    if name not in sample_names():
        raise ConfigError(f"there is no sample {name!r}", where=f"sample:{name}", hint=nearest(name, sample_names()))
    return _SAMPLES / f"{name}.csv"
