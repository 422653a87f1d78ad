"""What every trace format promises."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from maitred.core.errors import ConfigError
from maitred.testing.samples import blaming, factory_of
from maitred.workload import FORMATS, Job, TraceFormat
from maitred.workload.line_reader import LineReader, is_text
from maitred.workload.trace import BadRows, Trace

_NO_ROW = "nonsense"
_NO_ROWS = ("", _NO_ROW, "{}", "[1, 2]", ",,,,,,,,", '{"a": "b"}', "\udcff")


def check_trace_format(trace_format: str | Callable[[], TraceFormat], rows: Iterable[str]) -> None:
    """Raise AssertionError unless it reads `rows`, the lines of a file of this format with its header, gives requests in order
    of arrival, says at which line there is something that is no row, and no other format claims a file that it recognises."""
    make, lines = factory_of(trace_format, FORMATS), list(rows)
    with blaming(trace_format, 0):
        own = make()
        assert own.example, "it has no example"
        if own.recognises(lines[0]):
            claims = [name for name in FORMATS if FORMATS.create(name).recognises(lines[0])]
            others = [name for name in claims if not isinstance(own, type(FORMATS.create(name)))]
            assert not others, f"{others} claim its files too"
        for no_row in filter(is_text, _NO_ROWS):
            own.recognises(no_row)
        try:
            jobs = _read(make(), lines)
        except ConfigError as error:
            raise AssertionError(f"it cannot read its own rows: {error}") from error
        assert jobs, "it reads no request"
        arrivals = [job.request.arrival for job in jobs]
        assert arrivals == sorted(arrivals), f"requests come at {arrivals}"
        assert all(job.request.prompt_tokens >= 1 and job.output_tokens >= 1 for job in jobs), "a request of no tokens"
        for no_row in filter(None, _NO_ROWS):
            _check_bad_row(make(), lines, no_row)


def _check_bad_row(trace_format: TraceFormat, lines: list[str], row: str) -> None:
    try:
        _read(trace_format, [*lines, row])
    except ConfigError as error:
        if f":{len(lines) + 1}" not in error.where:
            raise AssertionError(f"of {row!r} it says {error}, and not in which line") from error
        return
    assert row != _NO_ROW, f"it takes {row!r} for a row"


def _read(trace_format: TraceFormat, lines: list[str]) -> list[Job]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
        found = LineReader(path)
        try:
            return list(Trace(found, trace_format, trace_format.make_parser(found), BadRows.REFUSE))
        finally:
            found.close()
