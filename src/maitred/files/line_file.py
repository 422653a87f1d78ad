"""LineFile: a file that whole lines are appended to, while others move it away, cut it short, or fill its disk.

    a write fails     what it has left of a line is cut off again; `num_written` says how much of the lines is in the file
    copytruncate      a file that has become empty gets its header again
    mv, then reopen   the lines that follow are in a new file under the old name
    a kill            half a line at the end of a file of ours is cut off before the first line that is appended

A file that is made is for its owner alone, unless the configuration says otherwise (`GatewayConfig.file_mode`), also when it
is made anew under its name. One that is there keeps its permissions.

It blocks while the disk does, so it belongs into a thread (`AppendFile`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from maitred.core.errors import ConfigError, describe_os_error
from maitred.files import open_output

log = logging.getLogger("maitred.gateway")
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT
PRIVATE: Final = 0o600
"""Permissions of a file that its owner alone may read."""
_MAX_TAIL_BYTES: Final = 1 << 20
"""Longest half of a line that is looked for."""


class _HalfLine(NamedTuple):
    """Half a line at the end of a file: from where to where, in bytes."""

    begins: int
    ends: int


_NO_HALF_LINE: Final = _HalfLine(0, 0)


class LineFile:
    """A file of lines that is open for appending."""

    def __init__(
        self, path: Path, *, where: str, header: bytes = b"", begins: tuple[bytes, ...] = (), mode: int = PRIVATE
    ) -> None:
        """`where` is the key that names the file. `header` is the first line of every such file, and a file that has another
        is refused; without one, a file of ours begins with one of `begins`. `mode` is for a file that is made. Raises
        ConfigError if it cannot be written."""
        self.num_written = 0
        """Bytes of the last `append` that are in the file: whole lines."""
        self.path: Path | None = path
        self._where, self._header, self._begins = where, header, (header,) if header else begins
        self._mode = mode
        self._is_regular, self._has_header, self._half_line = False, False, _NO_HALF_LINE
        self._standard: int | None = None
        self._descriptor = self._open(path)

    @classmethod
    def of_standard(cls, descriptor: int, where: str, mode: int = PRIVATE) -> LineFile:
        """Return the file that a descriptor of this process, such as standard error, is open for. It is opened again by its
        name, if it has one; the descriptor leads to the new file then."""
        file = cls.__new__(cls)
        file.num_written = 0
        file.path = _path_of(descriptor)
        file._where, file._header, file._begins, file._standard = where, b"", (), descriptor
        file._mode = mode
        file._descriptor = os.dup(descriptor)
        file._is_regular, file._has_header, file._half_line = file.path is not None, True, _NO_HALF_LINE
        if file._is_regular:  # A shell opens it without for `2> FILE`, and after copytruncate a hole would be left in front.
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
        return file

    def append(self, lines: bytes) -> None:
        """Append whole lines. Raises OSError; `num_written` is set in any case."""
        self.num_written = 0
        if self._half_line is not _NO_HALF_LINE:  # Only now, because a start that fails changes no file.
            self._cut_off_half_line()
        is_empty = self._is_regular and self._header and not os.fstat(self._descriptor).st_size
        if is_empty or not self._has_header:
            self._write(self._header)
            self._has_header = True
        self.num_written = 0
        self._write(lines)

    def reopen(self) -> None:
        """Open the file under its name again: it may have been moved. Raises ConfigError, and keeps the old file then."""
        if self.path is None:
            return
        opened = self._open(self.path)
        os.close(self._descriptor)
        self._descriptor = opened
        if self._standard is not None:
            os.dup2(opened, self._standard)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def _open(self, path: Path) -> int:
        try:
            descriptor = open_output(path, _FLAGS, self._mode)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {describe_os_error(error)}", where=self._where) from error
        self._look_at(path, descriptor)
        return descriptor

    def _look_at(self, path: Path, descriptor: int) -> None:
        """Note the kind of a file that was opened, and check its content. Closes it, and raises ConfigError, if it is wrong."""
        try:
            self._half_line = _NO_HALF_LINE
            self._is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            self._has_header = self._is_regular or not self._header  # A pipe has a reader that knows nothing of earlier ones.
            if self._is_regular and self._begins:
                self._check_content(path, descriptor)
        except OSError as error:
            os.close(descriptor)
            raise ConfigError(f"cannot read {path}: {describe_os_error(error)}", where=self._where) from error
        except ConfigError:
            os.close(descriptor)
            raise

    def _check_content(self, path: Path, descriptor: int) -> None:
        """Raise ConfigError for a file with another header. Note half a line at the end of a file of ours."""
        with path.open("rb") as file:
            begins = file.read(max(map(len, self._begins)))
            # A kill may have left half of its first line.
            if not begins.startswith(self._begins) and not any(ours.startswith(begins) for ours in self._begins):
                if self._header:
                    hint = "name a new file, or one that was written for this"
                    raise ConfigError(f"{path} holds something else", where=self._where, hint=hint)
                return
            size = os.fstat(descriptor).st_size
            file.seek(max(0, size - _MAX_TAIL_BYTES))
            tail = file.read(_MAX_TAIL_BYTES)
        self._half_line = _HalfLine(size - len(tail) + tail.rfind(b"\n") + 1, size)

    def _cut_off_half_line(self) -> None:
        """Remove half a line from the end of the file, if nobody else has written to it meanwhile."""
        half, self._half_line = self._half_line, _NO_HALF_LINE
        if half.begins < half.ends == os.fstat(self._descriptor).st_size:
            log.warning("%s ended in half a line, which is removed: %d bytes", self.path, half.ends - half.begins)
            os.ftruncate(self._descriptor, half.begins)

    def _write(self, lines: bytes) -> None:
        rest, done = memoryview(lines), 0
        try:
            while done < len(lines):
                done += os.write(self._descriptor, rest[done:])
        except OSError:
            self.num_written = lines.rfind(b"\n", 0, done) + 1
            self._cut_off(done - self.num_written)
            raise
        self.num_written = done

    def _cut_off(self, num_bytes: int) -> None:
        """Remove half a line from the end. In a pipe it stays: the reader that had it is gone."""
        if num_bytes and self._is_regular:
            with suppress(OSError):  # then the next `_open` finds it
                os.ftruncate(self._descriptor, max(0, os.fstat(self._descriptor).st_size - num_bytes))


def _path_of(descriptor: int) -> Path | None:
    """Return the name of the regular file that a descriptor is open for, or None if it is none, or not known."""
    try:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        ours, named = os.fstat(descriptor), path.stat()
    except OSError:
        return None
    is_same = (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
    return path if is_same and stat.S_ISREG(ours.st_mode) else None
