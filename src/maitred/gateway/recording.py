"""The file behind a record of what goes on. Serving comes first: when it cannot be written any more, recording ends and serving
goes on.

A record with a gap is none (a decision log cannot be run again), so after the first failure nothing more is written, even if
the disk has room again.

Recording: the traffic that a gateway sees, as a trace that a simulation can replay.

    arrival, class, tenant, model, session, stream, what the client allowed     from the request
    prompt and output tokens                                                    from the `usage` in the answer

An answer that does not say its usage is estimated: the prompt as admission does, a stream at a token per event (and no more
than the client allowed, for the first and the last event of a chat may hold none), any other body by its bytes. A row is
written when a request has ended; one without a whole answer is recorded with what became of it, so that whoever reads the
trace knows what it lacks. No text is recorded.

What passes is looked at and not changed. Times are those of the wall clock at the start, carried on by the monotonic one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.kv.block_hashes import BYTES_PER_TOKEN
from maitred.wire.asgi import Message, Send
from maitred.workload.formats.maitred import ALL_COLUMNS, COMPLETED, format_row
from maitred.workload.trace_writer import csv_line

FLUSH_SECS = 1.0
"""How long a line may lie in the buffer."""
log = logging.getLogger("maitred.gateway")


class AppendFile:
    """Appends to `path`."""

    def __init__(self, path: str, *, where: str, what: str) -> None:
        """`where` is the key that names the file, `what` is recorded there. Raises ConfigError if it cannot be opened."""
        self.failed = False
        """Whether recording has ended before its time."""
        self._path, self._what = path, what
        self._timer: asyncio.TimerHandle | None = None
        self._file: BinaryIO | None = _open_for_append(path, where)

    def start(self) -> None:
        """Flush every second, from now on and inside this loop."""
        self._flush()
        if self._file is not None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECS, self.start)

    def write(self, line: bytes) -> None:
        """Never raises."""
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """What is written after this is lost."""
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        log.error("%s are recorded no more: cannot write %s: %s", self._what, self._path, error.strerror)
        file, self._file = self._file, None
        self.failed = True
        assert file is not None
        with contextlib.suppress(OSError):
            file.close()  # it tries once more to write what it holds


def _open_for_append(path: str, where: str) -> BinaryIO:
    try:
        return Path(path).open("ab")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", where=where) from error


_TAIL_BYTES: Final = 4_096
"""Bytes at the end of an answer in which its usage is looked for."""
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})\b')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')
_EVENT: Final = b"\ndata:"


class TrafficRecorder:
    def __init__(self, path: str) -> None:
        """Raises ConfigError if `path` cannot be written, or holds something else."""
        header = csv_line(ALL_COLUMNS).encode()
        begun = _has_recording(path, header)
        self._file = AppendFile(path, where="gateway.record", what="requests")
        if not begun:
            self._file.write(header)
        self._epoch: Micros = (time.time_ns() - time.monotonic_ns()) // 1000

    def start(self) -> None:
        self._file.start()

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def record_request(self, request: Request, send: Send) -> Iterator[RecordedResponse]:
        """Its answer goes through `RecordedResponse.send`; at the end of the block it has ended, whatever became of it."""
        recorded = RecordedResponse(send, request.stream)
        try:
            yield recorded
        finally:
            prompt, output = recorded.count_tokens(request.prompt_tokens, request.max_output_tokens)
            here = replace(request, arrival=request.arrival + self._epoch)
            self._file.write(format_row(here, prompt, output, recorded.outcome).encode("utf-8", "replace"))


class RecordedResponse:
    """One answer as it passes."""

    __slots__ = ("_bytes", "_complete", "_events", "_send", "_status", "_stream", "_tail")

    def __init__(self, send: Send, stream: bool) -> None:
        self._send = send
        self._stream = stream
        self._status = 0
        self._complete = False
        self._bytes = 0
        self._events = 0
        self._tail = b"\n"

    async def send(self, message: Message) -> None:
        """Hand it on."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            await self._send(message)
            return
        self._observe(message["body"])
        await self._send(message)
        self._complete = not message.get("more_body", False)

    @property
    def outcome(self) -> str:
        """`completed`, `status_NNN`, or `broken_off`: the client left, or the answer did not reach its end."""
        if not self._complete:
            return "broken_off"
        return COMPLETED if self._status == 200 else f"status_{self._status}"

    def count_tokens(self, estimated_prompt: int, max_output: int | None) -> tuple[int, int]:
        """Of the prompt and of the answer, at least 1 each. `most_output`: what the client allowed; None: it did not say."""
        prompt, output = _PROMPT.findall(self._tail), _OUTPUT.findall(self._tail)
        events = self._events - 1  # the last one says that it is the last
        seen = events if self._stream else self._bytes // BYTES_PER_TOKEN
        estimate = seen if max_output is None else min(seen, max_output)
        return max(1, int(prompt[-1]) if prompt else estimated_prompt), max(1, int(output[-1]) if output else estimate)

    def _observe(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._stream:
            self._events += (self._tail[1 - len(_EVENT) :] + piece).count(_EVENT)
        self._tail = (self._tail + piece)[-_TAIL_BYTES:] if len(piece) < _TAIL_BYTES else piece[-_TAIL_BYTES:]


def _has_recording(path: str, header: bytes) -> bool:
    """Whether there is a recording in it already."""
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
