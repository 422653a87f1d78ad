"""TrafficRecorder: the traffic of a gateway as a trace that `maitred simulate` replays, one row for each request when it has
ended:

    arrival, class, tenant, model, session, stream, output limit     from the request
    prompt and output tokens                                         from the `usage` at the end of the response
    think time, whether the prompt continues the last one            from the last request of the same program

Without a `usage`, the tokens are estimated: those of the prompt as in admission; those of a streamed answer as its number of
events minus one (the last event says that it is the last), at most the client's limit; those of any other body from its size.
A stream of 21 events with `max_tokens: 16`, say, counts as 16 tokens. A request without a whole response is recorded with
its outcome, so that a reader of the trace knows what it lacks. No text is recorded: a prompt counts as one that continues the
last prompt of its program, and the response to it, if it has at least as many tokens as both.

The recorder only observes what is sent. Times are those of the wall clock at the start, advanced by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.gateway.append_file import AppendFile
from maitred.kv.block_hashes import BYTES_PER_TOKEN
from maitred.programs import Usage
from maitred.wire.exchange import ResponseWriter
from maitred.wire.framing import Headers
from maitred.workload.formats.maitred import ALL_COLUMNS, COMPLETED, format_row
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.trace_writer import csv_line

_TAIL_BYTES: Final = 4_096
"""Size of the end of a response in which `usage` is looked for."""
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})\b')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')
_EVENT: Final = b"\ndata:"


_MAX_PROGRAMS: Final = 100_000
"""Programs of which the last end is known; beyond, the one that ended first is forgotten, and goes on as a new one."""


class _LastEnd(NamedTuple):
    """The end of the last request of a program."""

    at: Micros
    """On the monotonic clock."""
    tokens: int
    """Of its prompt and its response."""


class TrafficRecorder:
    """Appends a row for each request that has ended."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError if `path` cannot be written, or holds something other than a recording."""
        header = csv_line(ALL_COLUMNS).encode()
        has_rows = _has_recording(path, header)
        self._file = AppendFile(path, where="gateway.record", what="requests", ends_with_gap=False)
        if not has_rows:
            self._file.write(header)
        self._epoch: Micros = (time.time_ns() - time.monotonic_ns()) // 1000
        self._last_ends: dict[tuple[str, str], _LastEnd] = {}
        """By tenant and program, the latest end last."""

    def start(self) -> None:
        self._file.start()

    async def close(self) -> None:
        await self._file.close()

    @property
    def num_dropped(self) -> int:
        """Rows that were not written."""
        return self._file.num_dropped

    def write_row(self, recorded: RecordedResponse) -> None:
        """Record a request that has ended, in whatever way."""
        prompt, output = recorded.count_tokens()
        request = recorded.request
        think_time = continues = None
        if request.program:
            before = self._last_ends.pop((request.tenant, request.program), None)
            continues = before is not None and prompt >= before.tokens
            if before is not None and before.at <= request.arrival:
                think_time = request.arrival - before.at
            self._last_ends[request.tenant, request.program] = _LastEnd(time.monotonic_ns() // 1000, prompt + output)
            if len(self._last_ends) > _MAX_PROGRAMS:
                del self._last_ends[next(iter(self._last_ends))]
        request = replace(request, arrival=request.arrival + self._epoch)
        row = format_row(request, prompt, output, recorded.outcome, think_time, continues)
        self._file.write(row.encode("utf-8", "replace"))


class RecordedResponse:
    """Stands between one response and its writer, and observes what is sent."""

    __slots__ = ("_bytes", "_complete", "_events", "_status", "_tail", "_writer", "request", "usage")

    def __init__(self, request: Request, writer: ResponseWriter) -> None:
        self.request = request
        self.usage: Usage | None = None
        """What the backend has reported, if the gateway has read it: it may have kept it from the client."""
        self._writer = writer
        self._status = 0
        self._complete = False
        self._bytes = 0
        self._events = 0
        self._tail = b"\n"  # The first event has no line end before it.

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Observe the beginning of a response, and send it."""
        self._status = status
        self._observe(piece)
        busy = self._writer.start_response(status, headers, piece, more)
        self._complete = not more
        return busy

    def send_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Observe a piece, and send it."""
        self._observe(piece)
        busy = self._writer.send_piece(piece, more)
        self._complete = not more
        return busy

    @property
    def outcome(self) -> str:
        """`completed`, `status_NNN`, or `broken_off` if the client disconnected or the response did not reach its end."""
        if not self._complete:
            return "broken_off"
        return COMPLETED if self._status == 200 else f"status_{self._status}"

    def count_tokens(self) -> tuple[int, int]:
        """Return the tokens of the prompt and of the answer, each from 1 to `MAX_TOKENS`: a trace may hold no others."""
        prompt, output = self._reported_tokens()
        return _plausible(prompt), _plausible(output)

    def _reported_tokens(self) -> tuple[int, int]:
        usage = self.usage
        if usage is not None and 0 < usage.prompt_tokens <= usage.total_tokens:
            return usage.prompt_tokens, usage.total_tokens - usage.prompt_tokens
        prompt, output = _PROMPT.findall(self._tail), _OUTPUT.findall(self._tail)
        limit = self.request.max_output_tokens
        seen = self._events - 1 if self.request.stream else self._bytes // BYTES_PER_TOKEN
        estimate = seen if limit is None else min(seen, limit)
        return int(prompt[-1]) if prompt else self.request.prompt_tokens, int(output[-1]) if output else estimate

    def _observe(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self.request.stream:
            # An event mark may begin in one piece and end in the next. The last bytes of the former are searched again, one
            # fewer than a whole mark, so that none counts twice.
            self._events += (self._tail[1 - len(_EVENT) :] + piece).count(_EVENT)
        self._tail = (self._tail + piece)[-_TAIL_BYTES:] if len(piece) < _TAIL_BYTES else piece[-_TAIL_BYTES:]


def _plausible(tokens: int) -> int:
    return min(max(1, tokens), MAX_TOKENS)


def _has_recording(path: str, header: bytes) -> bool:
    """Return whether the file at `path` is a recording already."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            first = file.readline(len(header) + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", where="gateway.record") from error
    if first and first != header:
        raise ConfigError(
            f"{path} holds something else", where="gateway.record", hint="name a new file, or a recording of ours"
        )
    return bool(first)
