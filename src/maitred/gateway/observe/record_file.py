"""RecordFile: the file of a recording, from one gateway or from several processes of one.

**Order.** Rows stand in the order of arrival, and a row is complete only when its request has ended. So rows are held until all
requests that arrived earlier have ended: `MAX_HELD` at most, and none for longer than `MAX_HELD_SECS`. A stream of an hour
does not hold up the others; its own row comes late. A kill loses the rows that are held; an orderly end writes them.

    1 arrives, 2 arrives, 2 ends (held), 3 arrives, 1 ends: rows 1 and 2 are written; 3 ends: row 3

Times are those of the wall clock at the start, advanced by the monotonic clock.

What came before in the same program is known here, because its requests may come to several processes.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, NamedTuple

from msgspec.structs import replace

from maitred.core.units import SECOND, Micros
from maitred.files import named_path
from maitred.files.append_file import AppendFile
from maitred.files.line_file import PRIVATE, LineFile
from maitred.gateway.observe.recording import RecordingRow, RecordSink
from maitred.wire.clock import Clock
from maitred.workload.formats.maitred import RECORDED_COLUMNS, format_row
from maitred.workload.trace_writer import csv_line

MAX_HELD: Final = 65_536
"""Rows that are held; a reader of a recording sorts as many."""
MAX_HELD_SECS: Final = 300
_MAX_PROGRAMS: Final = 100_000
"""Programs of which the last end is known; beyond, the one that ended first is forgotten, and goes on as a new one."""


class _LastEnd(NamedTuple):
    """The end of the last request of a program."""

    at: Micros
    """On the monotonic clock."""
    tokens: int | None
    """Of its prompt and its response, or None if they are not known."""


class _HeldRow(NamedTuple):
    """A row that waits for requests that arrived earlier."""

    arrival: Micros
    number: int
    ended_at: Micros
    row: bytes


def open_rows(path: str, file_mode: int) -> LineFile:
    """Return the file of a recording, open for appending. Raises ConfigError if it cannot be written, or holds something
    else."""
    where = "gateway.record"
    return LineFile(named_path(path, where), where=where, header=csv_line(RECORDED_COLUMNS).encode(), mode=file_mode)


class RecordFile(RecordSink):
    """Appends a row for each request that has ended."""

    def __init__(self, path: str, clock: Clock, file_mode: int = PRIVATE) -> None:
        """`file_mode` is for a file that is made. Raises ConfigError if `path` cannot be written, or holds something other than
        a recording."""
        self._file = AppendFile(open_rows(path, file_mode), "requests")
        self._epoch: Micros = clock.wall() - clock.now()
        self._last_ends: dict[tuple[str, str], _LastEnd] = {}
        """By tenant and program, the latest end last."""
        self._held: list[_HeldRow] = []
        """A heap by arrival."""
        self._num_taken = 0

    def start(self) -> None:
        self._file.start()

    async def close(self) -> None:
        """Write all rows that are held, and close the file."""
        while self._held:
            self._file.write(heappop(self._held).row)
        await self._file.close()

    def reopen(self) -> None:
        self._file.reopen()

    @property
    def num_dropped(self) -> int:
        return self._file.num_dropped

    def take(self, recorded: RecordingRow, oldest: Micros) -> None:
        self.hold(recorded)
        self.release(oldest, recorded.ended_at)

    def hold(self, recorded: RecordingRow) -> None:
        """Take a row, and hold it."""
        self._num_taken += 1
        row = self._row(recorded).encode("utf-8", "replace")
        heappush(self._held, _HeldRow(recorded.request.arrival, self._num_taken, recorded.ended_at, row))

    def release(self, oldest: Micros, now: Micros) -> None:
        """Write the rows of requests that arrived before `oldest`, that of the oldest that has not ended, and those that have
        been held for too long at `now`."""
        latest, held = now - MAX_HELD_SECS * SECOND, self._held
        # Strictly before: a request that is still open may have arrived at the same microsecond, with a smaller id.
        while held and (held[0].arrival < oldest or len(held) > MAX_HELD or held[0].ended_at <= latest):
            self._file.write(heappop(held).row)

    def _row(self, recorded: RecordingRow) -> str:
        think_time, continues = self._note_end(recorded)
        request = replace(recorded.request, arrival=recorded.request.arrival + self._epoch)
        facts = (recorded.prompt, recorded.output, recorded.outcome, think_time, continues, recorded.measured)
        return format_row(request, *facts)

    def _note_end(self, recorded: RecordingRow) -> tuple[Micros | None, bool | None]:
        """Note the end of a request of a program. Return the think time before it, and whether its prompt continues the last
        one, each None if that is not known."""
        request, think_time, continues = recorded.request, None, None
        if not request.program:
            return None, None
        before = self._last_ends.pop((request.tenant, request.program), None)
        if before is None:
            continues = False
        else:
            continues = None if before.tokens is None else recorded.prompt >= before.tokens
            think_time = request.arrival - before.at if before.at <= request.arrival else None
        total = None if recorded.output is None else recorded.prompt + recorded.output
        self._last_ends[request.tenant, request.program] = _LastEnd(recorded.ended_at, total)
        if len(self._last_ends) > _MAX_PROGRAMS:
            del self._last_ends[next(iter(self._last_ends))]
        return think_time, continues
