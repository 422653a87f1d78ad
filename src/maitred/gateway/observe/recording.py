"""TrafficRecorder: the traffic of a gateway as a trace that `maitred simulate` replays, and `maitred validate` compares with.
There is one row for each request that generates:

    arrival, class, tenant, model, session, stream, output limit     from the request
    prompt, output and cached tokens                                 from the `usage` of the answer
    backend, when it was sent there, TTFT, the end                   as measured, in seconds from the arrival
    think time, whether the prompt continues the last one            from the last request of the same program
    request id                                                       as in the answer and in the other logs (`request_ids`)

The gateway asks the backend for the usage of a stream if the client has not, and keeps what answers that from the client. Where
a backend reports none, the tokens are estimated, and the row says so: those of the prompt as in admission, those of a streamed
answer as its number of events minus one (the last event says that it is the last), at most the client's limit, those of any
other body from its size. A stream of 21 events with `max_tokens: 16`, say, counts as 16 tokens.

What is not known is left empty: the length of an answer that broke off, failed or never was, the TTFT of an answer that is no
stream.
No text is recorded: a prompt counts as one that continues the last prompt of its program, and the response to it, if it has
at least as many tokens as both.

**Order.** Rows stand in the order of arrival, and a row is complete only when its request has ended. So rows are held until all
requests that arrived earlier have ended: `MAX_HELD` at most, and none for longer than `MAX_HELD_SECS`. A stream of an hour
does not hold up the others; its own row comes late. A kill loses the rows that are held; an orderly end writes them.

    1 arrives, 2 arrives, 2 ends (held), 3 arrives, 1 ends: rows 1 and 2 are written; 3 ends: row 3

Times are those of the wall clock at the start, advanced by the monotonic clock.
"""

from __future__ import annotations

from heapq import heappop, heappush
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from maitred.core.request import Request, RequestId
from maitred.core.units import SECOND, Micros
from maitred.files.append_file import AppendFile
from maitred.files.line_file import PRIVATE, LineFile
from maitred.gateway.observe.request_record import RequestRecord
from maitred.wire.clock import Clock
from maitred.workload.formats.maitred import COMPLETED, RECORDED_COLUMNS, Measured, format_row
from maitred.workload.lengths import MAX_TOKENS
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
    request_id: RequestId
    ended_at: Micros
    row: bytes


class TrafficRecorder:
    """Appends a row for each request that has ended."""

    def __init__(self, path: str, clock: Clock, file_mode: int = PRIVATE) -> None:
        """`file_mode` is for a file that is made. Raises ConfigError if `path` cannot be written, or holds something other than
        a recording."""
        header = csv_line(RECORDED_COLUMNS).encode()
        self._file = AppendFile(LineFile(Path(path), where="gateway.record", header=header, mode=file_mode), "requests")
        self._epoch: Micros = clock.wall() - clock.now()
        self._last_ends: dict[tuple[str, str], _LastEnd] = {}
        """By tenant and program, the latest end last."""
        self._open: dict[RequestId, Micros] = {}
        """When the requests arrived that have not ended, in this order."""
        self._held: list[_HeldRow] = []
        """A heap by arrival."""

    def start(self) -> None:
        self._file.start()

    async def close(self) -> None:
        """Write all rows that are held, and close the file."""
        while self._held:
            self._file.write(heappop(self._held).row)
        await self._file.close()

    def reopen(self) -> None:
        """Open the file anew: it may have been moved."""
        self._file.reopen()

    @property
    def num_dropped(self) -> int:
        """Rows that were not written."""
        return self._file.num_dropped

    def open_row(self, request: Request) -> None:
        """Take note of a request that has arrived, and of which a row will be written."""
        self._open[request.id] = request.arrival

    def write_row(self, record: RequestRecord) -> None:
        """Record a request that has ended, in whatever way."""
        request = record.request
        del self._open[request.id]
        row = self._row(record).encode("utf-8", "replace")
        heappush(self._held, _HeldRow(request.arrival, request.id, record.ended_at, row))
        # Strictly before: a request that is still open may have arrived at the same microsecond, with a smaller id.
        oldest = next(iter(self._open.values()), record.ended_at + 1)
        latest = record.ended_at - MAX_HELD_SECS * SECOND
        held = self._held
        while held and (held[0].arrival < oldest or len(held) > MAX_HELD or held[0].ended_at <= latest):
            self._file.write(heappop(held).row)

    def _row(self, record: RequestRecord) -> str:
        request = record.request
        prompt, output, is_reported = record.prompt_tokens, record.output_tokens, True
        if prompt is None:
            prompt, is_reported = request.prompt_tokens, False
        if output is None and record.outcome == COMPLETED:
            output, is_reported = record.estimated_output(), False
        prompt, output = _plausible(prompt), None if output is None else _plausible(output)
        total = None if output is None else prompt + output
        think_time, continues = self._note_end(record, prompt, total)
        measured = Measured(
            tokens_from="usage" if is_reported else "estimate",
            cached_tokens=None if record.reported is None else record.reported.cached_tokens,
            backend="" if record.backend is None else record.backend.url,
            sent=None if record.sent_at is None else record.sent_at - request.arrival,
            ttft=None if record.first_token_at is None else record.first_token_at - request.arrival,
            e2e=record.ended_at - request.arrival,
            request_id=request.client_id,
        )
        request = replace(request, arrival=request.arrival + self._epoch)
        return format_row(request, prompt, output, record.outcome, think_time, continues, measured)

    def _note_end(self, record: RequestRecord, prompt: int, total: int | None) -> tuple[Micros | None, bool | None]:
        """Note the end of a request of a program. Return the think time before it, and whether its prompt continues the last
        one, each None if that is not known."""
        request, think_time, continues = record.request, None, None
        if not request.program:
            return None, None
        before = self._last_ends.pop((request.tenant, request.program), None)
        if before is None:
            continues = False
        else:
            continues = None if before.tokens is None else prompt >= before.tokens
            think_time = request.arrival - before.at if before.at <= request.arrival else None
        self._last_ends[request.tenant, request.program] = _LastEnd(record.ended_at, total)
        if len(self._last_ends) > _MAX_PROGRAMS:
            del self._last_ends[next(iter(self._last_ends))]
        return think_time, continues


def _plausible(tokens: int) -> int:
    return min(max(1, tokens), MAX_TOKENS)
