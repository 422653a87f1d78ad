"""AppendFile: a file that lines are appended to, which can never hold up the event loop.

    the event loop   keeps lines in memory, `MAX_PENDING_BYTES` at most
    a thread         writes them, every quarter of a second (`BackgroundWriter`, `LineFile`)

Serving comes first. A disk that hangs or is full, or a pipe that nothing reads, stops the writing and not the gateway: lines
pile up to the limit, and from there on they are lost, counted and logged. What could not be written is tried again with every
batch, in the file as its name leads to it by then, so writing goes on by itself when the disk has room. Where the missing lines
would be, a decision log has a line that says how many there are: it can be replayed up to there.

Example: lines of 100 bytes, 10,000 a second, and a disk that is full for a minute. A limit of 16 MiB is reached after 17 s; the
rows of 43 s are lost. A disk that is full for 10 s loses none.

SIGHUP opens the file anew (`reopen`), as logrotate expects it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from maitred.core.errors import ConfigError
from maitred.files.background_writer import BackgroundWriter, BatchSource
from maitred.files.line_file import LineFile
from maitred.files.undo import undo_on_failure

MAX_PENDING_BYTES: Final = 16 * 1024 * 1024
"""Size of the lines that may wait for the thread; as many may be with the thread."""
log = logging.getLogger("maitred.gateway")


class AppendFile(BatchSource[bytes]):
    """A file that lines are appended to, from within one event loop."""

    def __init__(
        self,
        file: LineFile,
        what: str,
        *,
        gap_line: Callable[[int], bytes] | None = None,
        seal_line: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`what` says for the log what is written. `gap_line` makes the line that stands for a number of lost ones, `seal_line`
        the one that ends a batch, from the lines that it has after those of an earlier batch."""
        self.num_dropped = 0
        """Lines that were lost."""
        self._num_missing = 0
        """Those of them that were lost since the last line that was kept."""
        self._file = file
        self._name = f"{what} in {file.path or 'standard error'}"
        self._gap_line, self._seal_line = gap_line, seal_line
        self._num_sealed = 0
        """Bytes of the lines that wait which were given back, and so have their seal."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._num_written = 0
        """Bytes of the last batch that are in the file: none, if no thread could be had for it."""
        self._is_closed = self._wants_reopen = False
        self._writer = BackgroundWriter(self, self._name)
        undo_on_failure(file.close)

    @property
    def failed(self) -> bool:
        """Whether lines are not written at present, or are lost."""
        return self._writer.failed or self._num_missing > 0

    def start(self) -> None:
        """Write from now on what has been and will be appended, inside this event loop."""
        self._pending.append(b"")  # A batch, so that the file gets its header before the first line.
        self._writer.start()

    def write(self, line: bytes) -> None:
        """Append `line`, or lose and count it. Never raises, and never waits."""
        if self._num_missing or self._pending_bytes + len(line) > MAX_PENDING_BYTES:
            self._lose_line()
        else:
            self._pending_bytes += len(line)
            self._pending.append(line)

    def reopen(self) -> None:
        """Open the file under its name again before the next line is written. Lines before this call may be in either file."""
        self._wants_reopen = True

    async def close(self) -> None:
        """Write what is left, and close the file, unless the disk hangs for 5 s."""
        await self._writer.close()
        if lost := sum(lines.count(b"\n") for lines in self._pending):
            self.num_dropped += lost
            log.error("%s are lost at the end: %d", self._name, lost)
        self._is_closed = True
        if self._writer.is_idle:  # Otherwise the thread is in the middle of a write, and closes the file when that ends.
            self._file.close()

    def take_batch(self) -> bytes | None:
        may_end_gap = self._num_missing > 0 and not self._writer.failed
        if not self._pending and not self._wants_reopen and not may_end_gap:
            return None
        if may_end_gap:
            self._end_gap()
        batch = b"".join(self._pending)
        if self._seal_line is not None and len(batch) > self._num_sealed:
            batch += self._seal_line(batch[self._num_sealed :])
        self._pending, self._pending_bytes, self._num_written, self._num_sealed = [], 0, 0, 0
        return batch

    def write_batch(self, batch: bytes) -> None:
        try:
            self._reopen_if_wanted()
            try:
                self._file.append(batch)
            finally:
                self._num_written = self._file.num_written
        except OSError as error:
            raise OSError(error.strerror) from error
        finally:
            if self._is_closed:
                self._file.close()

    def give_back(self, batch: bytes) -> None:
        self._pending.insert(0, batch[self._num_written :])
        self._pending_bytes += len(self._pending[0])
        self._num_sealed = len(self._pending[0])

    def _reopen_if_wanted(self) -> None:
        """Open the file anew if that was asked for, and after a failure: a disk that was mounted again has another file. If it
        cannot be opened, the one that is open goes on."""
        if self._wants_reopen or self._writer.failed:
            was_asked, self._wants_reopen = self._wants_reopen, False
            try:
                self._file.reopen()
            except ConfigError as error:
                if was_asked:
                    log.error("%s go on in the file that is open: %s", self._name, error.problem)

    def _lose_line(self) -> None:
        if not self._num_missing:
            message = "%s are lost from now on: the disk or the reader takes none, and %d bytes wait"
            log.error(message, self._name, self._pending_bytes)
        self.num_dropped += 1
        self._num_missing += 1

    def _end_gap(self) -> None:
        """Go on after the lines that wait, which came before those that are missing."""
        log.warning("%s are written again; lost: %d", self._name, self._num_missing)
        if self._gap_line is not None:
            self._pending.append(self._gap_line(self._num_missing))
        self._num_missing = 0
