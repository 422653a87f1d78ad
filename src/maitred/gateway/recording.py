"""Recording: the traffic that a gateway sees, as a trace that a simulation can replay.

    arrival, class, tenant, model, session, stream, what the client allowed     from the request
    prompt and output tokens                                                    from the `usage` in the answer

An answer that does not say its usage is estimated: the prompt as admission does, a stream at a token per event (and no more
than the client allowed, for the first and the last event of a chat may hold none), any other body by its bytes. A row is
written when a request has ended; one without a whole answer is recorded with what became of it, so that whoever reads the
trace knows what it lacks. No text is recorded.

What passes is looked at and not changed. Times are those of the wall clock at the start, carried on by the monotonic one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from maitred.errors import ConfigError
from maitred.gateway.append_file import AppendFile
from maitred.kv.keys import BYTES_PER_TOKEN
from maitred.request import Request
from maitred.units import Micros
from maitred.wire.asgi import Message, Send
from maitred.workload.formats.maitred import COMPLETED, HEADER, row_of
from maitred.workload.writing import csv_line

_TAIL: Final = 4_096
"""Bytes at the end of an answer in which its usage is looked for."""
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})\b')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')
_EVENT: Final = b"\ndata:"


class Recording:
    def __init__(self, path: str) -> None:
        """Raises ConfigError if `path` cannot be written, or holds something else."""
        header = csv_line(HEADER).encode()
        begun = _begun(path, header)
        self._file = AppendFile(path, where="gateway.record", what="requests")
        if not begun:
            self._file.write(header)
        self._epoch: Micros = (time.time_ns() - time.monotonic_ns()) // 1000

    def start(self) -> None:
        self._file.start()

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def of(self, request: Request, send: Send) -> Iterator[Recorded]:
        """Its answer goes through `Recorded.send`; at the end of the block it has ended, whatever became of it."""
        recorded = Recorded(send, request.stream)
        try:
            yield recorded
        finally:
            prompt, output = recorded.tokens(request.prompt_tokens, request.max_output_tokens)
            here = replace(request, arrival=request.arrival + self._epoch)
            self._file.write(row_of(here, prompt, output, recorded.outcome).encode("utf-8", "replace"))


class Recorded:
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
        self._look(message["body"])
        await self._send(message)
        self._complete = not message.get("more_body", False)

    @property
    def outcome(self) -> str:
        """`completed`, `status_NNN`, or `broken_off`: the client left, or the answer did not reach its end."""
        if not self._complete:
            return "broken_off"
        return COMPLETED if self._status == 200 else f"status_{self._status}"

    def tokens(self, estimated_prompt: int, most_output: int | None) -> tuple[int, int]:
        """Of the prompt and of the answer, at least 1 each. `most_output`: what the client allowed; None: it did not say."""
        prompt, output = _PROMPT.findall(self._tail), _OUTPUT.findall(self._tail)
        events = self._events - 1  # the last one says that it is the last
        seen = events if self._stream else self._bytes // BYTES_PER_TOKEN
        estimate = seen if most_output is None else min(seen, most_output)
        return max(1, int(prompt[-1]) if prompt else estimated_prompt), max(1, int(output[-1]) if output else estimate)

    def _look(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._stream:
            self._events += (self._tail[1 - len(_EVENT) :] + piece).count(_EVENT)
        self._tail = (self._tail + piece)[-_TAIL:] if len(piece) < _TAIL else piece[-_TAIL:]


def _begun(path: str, header: bytes) -> bool:
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
