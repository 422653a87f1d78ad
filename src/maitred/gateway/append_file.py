"""The file behind a record of what goes on. Serving comes first: when it cannot be written any more, recording ends and serving
goes on.

A record with a gap is none (a decision log cannot be run again), so after the first failure nothing more is written, even if
the disk has room again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import BinaryIO

from maitred.errors import ConfigError

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
        self._file: BinaryIO | None = _opened(path, where)

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
                self._fail(error)

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
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        log.error("%s are recorded no more: cannot write %s: %s", self._what, self._path, error.strerror)
        file, self._file = self._file, None
        self.failed = True
        assert file is not None
        with contextlib.suppress(OSError):
            file.close()  # it tries once more to write what it holds


def _opened(path: str, where: str) -> BinaryIO:
    try:
        return Path(path).open("ab")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", where=where) from error
