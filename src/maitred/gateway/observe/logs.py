"""The log of a gateway on standard error: its lines, as text or JSON, and their way out.

    2026-11-22T20:01:02.345Z WARNING backend http://10.0.0.1:8000 is down: connection refused
    {"time":"2026-11-22T20:01:02.345Z","level":"warning","logger":"maitred.gateway","message":"backend ... is down: ..."}

While the gateway serves, lines are collected in memory and written by a thread four times a second (`AppendFile`): a terminal
or a pipe that nothing reads must not hold up requests. When 16 MiB wait, further lines are dropped, and counted in
`maitred_dropped_lines_total{file="log"}`. Before it serves and after it, they are written at once. Where standard error is a
file (`2>> FILE`), SIGHUP opens it anew, as `mv` and logrotate expect it.

A line of text is a line: what cannot be printed stands as an escape (`core.printing`). A traceback follows its line; in JSON
it is a member. No message of the gateway has a key in it, nor the value of a header that may hold one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator

from maitred.core.printing import printable
from maitred.files.append_file import AppendFile
from maitred.files.line_file import PRIVATE, LineFile
from maitred.gateway.config import GatewayConfig, LogFormat
from maitred.wire.clock import Clock


class LogOutput:
    """Where the lines of the log and of the access log go."""

    def __init__(self, log_format: LogFormat = "text", descriptor: int = 2, file_mode: int = PRIVATE) -> None:
        """`descriptor` is that of a file that is open for writing; `file_mode` is for a file that is made in its place."""
        self.is_json = log_format == "json"
        self._descriptor, self._file_mode = descriptor, file_mode
        self._file: AppendFile | None = None

    @property
    def num_dropped(self) -> int:
        """Lines that were not written since `start`."""
        return 0 if self._file is None else self._file.num_dropped

    def start(self) -> None:
        """Write in a thread from now on, inside this event loop."""
        file = LineFile.of_standard(self._descriptor, "gateway.log_format", self._file_mode)
        self._file = AppendFile(file, "lines of the log")
        self._file.start()

    def reopen(self) -> None:
        """Open the file of the log anew, if it is one: it may have been moved."""
        if self._file is not None:
            self._file.reopen()

    async def close(self) -> None:
        """Write what is left, and every line at once from now on."""
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    def flush(self) -> None:
        """Write at once what still waits for the thread, if the event loop has ended without `close`."""
        file, self._file = self._file, None
        if file is not None and (batch := file.take_batch()) is not None:
            self.write(batch)

    def write(self, line: bytes) -> None:
        """Write a line, with its end. Never raises."""
        if self._file is not None:
            self._file.write(line)
            return
        with contextlib.suppress(OSError):  # There is nowhere to say so.
            os.write(self._descriptor, line)


class LogHandler(logging.Handler):
    """Writes records as lines to an output."""

    def __init__(self, output: LogOutput, clock: Clock, origin: str = "") -> None:
        """`origin` is the process that logs, where several write one log; "": there is no other."""
        super().__init__()
        self._output, self._clock, self._origin = output, clock, origin

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            self._output.write(self._line(record).encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> str:
        message, (second, micros) = record.getMessage(), divmod(self._clock.wall(), 1_000_000)
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)) + f".{micros // 1000:03d}Z"
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        if not message.startswith(self._origin):
            message = f"{self._origin}: {message}"
        if self._output.is_json:
            fields = {"time": when, "level": record.levelname.lower(), "logger": record.name, "message": message}
            return json.dumps(fields | ({"exception": trace} if trace else {}), separators=(",", ":")) + "\n"
        lines = [f"{when} {record.levelname} {printable(message)}", *map(printable, trace.split("\n") if trace else ())]
        return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def log_to_stderr(config: GatewayConfig, clock: Clock = Clock(), origin: str = "") -> Iterator[LogOutput]:
    """Send the log of this process to standard error while the block runs, and yield its output: what maitred logs from
    `log_level` up, and warnings of all other libraries. `origin` begins each message, if it is not empty."""
    output = LogOutput(config.log_format, file_mode=config.file_mode)
    root, own, handler = logging.getLogger(), logging.getLogger("maitred"), LogHandler(output, clock, origin)
    before = own.level
    root.addHandler(handler)
    own.setLevel(config.log_level.upper())
    try:
        yield output
    finally:
        output.flush()
        own.setLevel(before)
        root.removeHandler(handler)
