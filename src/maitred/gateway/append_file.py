"""AppendFile: a file that lines are appended to, which can never hold up the event loop.

    the event loop   keeps lines in memory, `MAX_PENDING_BYTES` at most
    a thread         writes them, every quarter of a second (`BackgroundWriter`)

Serving comes first. A disk that hangs, or a pipe that nothing reads, stops the thread and not the gateway: lines pile up to the
limit, and from there on they are dropped, counted and logged. A failure, such as a full disk, ends the recording for good.

A decision log with a gap cannot be replayed. So the first line that it has to drop ends it as well (`ends_with_gap`), even if
the disk has space again, or recovers. The rows of a recorded trace stand for themselves: recording goes on behind a gap.

Example: lines of 100 bytes, 10,000 a second, and a disk that hangs for a minute. A limit of 16 MiB is reached after 17 s; the
decision log ends there, and a trace lacks the rows of 43 s.
"""

from __future__ import annotations

import errno
import logging
import os
from io import FileIO
from pathlib import Path
from typing import Final

from maitred.core.errors import ConfigError
from maitred.gateway.background_writer import BackgroundWriter, BatchSource

MAX_PENDING_BYTES: Final = 16 * 1024 * 1024
"""Size of the lines that may wait for the thread; as many may be with the thread."""
log = logging.getLogger("maitred.gateway")


class AppendFile(BatchSource[bytes]):
    """A file that lines are appended to, from within one event loop."""

    def __init__(self, path: str, *, where: str, what: str, ends_with_gap: bool, file: FileIO | None = None) -> None:
        """`where` is the config key that names the file, `what` says for the log what is recorded. `file` is open already, and
        called `path` in messages; None: `path` is opened. Raises ConfigError."""
        self.failed = False
        """Whether a failure, or a gap, has ended the recording."""
        self._num_dropped = 0
        self._num_lost = 0  # Those of the batch that failed; the thread sets it.
        self._is_broken = self._is_closed = False
        self._path, self._what, self._ends_with_gap = Path(path), what, ends_with_gap
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._is_dropping = False
        self._file = _open_for_append(self._path, where) if file is None else file
        self._writer = BackgroundWriter(self, what)

    @property
    def num_dropped(self) -> int:
        """Lines that were not written."""
        return self._num_dropped + self._num_lost

    def start(self) -> None:
        """Write from now on what has been and will be appended, inside this event loop."""
        self._writer.start()

    def write(self, line: bytes) -> None:
        """Append `line`, or drop and count it. Never raises, and never waits."""
        if self.failed:
            self._num_dropped += 1
        elif self._pending_bytes + len(line) > MAX_PENDING_BYTES:
            self._drop()
        else:
            self._pending_bytes += len(line)
            self._pending.append(line)

    async def close(self) -> None:
        """Write what is left, and close the file, unless the disk hangs for 5 s."""
        await self._writer.close()
        self._is_closed = True
        if self._writer.is_idle:  # Otherwise the thread is in the middle of a write, and closes the file when that ends.
            self._file.close()

    def take_batch(self) -> bytes | None:
        if not self._pending:
            return None
        if self._is_dropping:
            self._is_dropping = False
            log.warning("%s are recorded again in %s; dropped so far: %d", self._what, self._path, self.num_dropped)
        batch = b"".join(self._pending)
        self._pending, self._pending_bytes = [], 0
        return batch

    def write_batch(self, batch: bytes) -> None:
        try:
            self._write(batch)
        finally:
            if self._is_closed:
                self._file.close()

    def _write(self, batch: bytes) -> None:
        if self._is_broken:
            self._num_lost += batch.count(b"\n")
            return
        rest = memoryview(batch)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._is_broken = self.failed = True
            self._num_lost = bytes(rest).count(b"\n")
            log.error("%s are recorded no more: cannot write %s: %s", self._what, self._path, error.strerror)

    def give_back(self, batch: bytes) -> None:
        """Do nothing: after a failure nothing more is written."""

    def _drop(self) -> None:
        self._num_dropped += 1
        if self._is_dropping:
            return
        if self._ends_with_gap:
            self.failed = True
            log.error("%s are recorded no more: %s takes no more lines for now, and would have a gap", self._what, self._path)
        else:
            self._is_dropping = True
            log.error("%s are dropped: %s takes no more lines for now", self._what, self._path)


def _open_for_append(path: Path, where: str) -> FileIO:
    try:
        return open(path, "ab", buffering=0, opener=_open_without_waiting)
    except OSError as error:
        problem = "nothing reads this pipe" if error.errno == errno.ENXIO else error.strerror
        raise ConfigError(f"cannot write {path}: {problem}", where=where) from error


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file. A pipe without a reader is an error: by default the start would wait for one, and say nothing."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    os.set_blocking(descriptor, True)
    return descriptor
