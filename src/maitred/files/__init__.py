"""Files that users name, opened and read so that no path, whatever it leads to, holds up a process.

A path in a configuration or a flag may lead to a directory, a socket, a pipe that nothing writes, `/dev/zero`, or 80 GB. Each
of these is an error that says what the path leads to:

    read_file      a regular file, whole, up to `MAX_BYTES`: what is read while requests are served
    read_input     the same, or a stream (`<(...)`, /dev/stdin), which must end within `STREAM_SECS`
    InputFile      `read_input` for a file that people write, up to `MAX_TEXT_BYTES`
    InputFiles     the same for files that are read more than once: a stream is read once, and its content kept
    open_input     a file or stream of any size, such as a trace, to be read piece by piece
    open_output    a file, a device, or a pipe that something reads
    named_path     the path that a key names, which is not empty
    check_output   a file that is to be made: whether it can
    check_file     a file that a library opens by itself
    check_own_file    the same for a file whose name we have made: no link is followed there

A named pipe whose other end is not open within `PEER_SECS` is an error: by default, `open` would wait for ever and say nothing.
What is wrong is raised as an OSError whose `strerror` completes "cannot be read: ...".

These waits are in the system, for another process, so the system times them: the clock of an event loop, which may be made up,
says nothing of them. They come before anything is served, or in a thread that the loop was asked for.

Files that are written for as long as a gateway serves have modules of their own:

    append_file          lines, from an event loop that no disk may hold up
    line_file            whole lines, while the file is moved or its disk fills
    background_writer    one batch after the other, in threads
    daemon_threads       threads for work that may hang
    undo                 what a start that fails has made, taken back
    computed             results that are kept in the cache folder of the user, by their inputs
    rotated              the lines of a log that was rotated, from all its files, also compressed ones
    scratch              folders that are gone afterwards, also where a process was killed
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading
import time
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Final

from maitred.core.errors import ConfigError
from maitred.files.undo import open_or_make

MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest file that is read whole; a measured step table has some megabytes."""
MAX_TEXT_BYTES: Final = 1024 * 1024
"""Largest file that people write, such as a configuration: parsing a megabyte of YAML takes seconds."""
STREAM_SECS: Final = 10.0
"""Seconds within which a stream that is read whole must have ended."""
PEER_SECS: Final = 1.0
"""Seconds that the program at the other end of a named pipe has to open it."""
_NOT_BLOCKING: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0)
_PIECE_BYTES: Final = 1 << 16
_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def named_path(name: str, where: str) -> Path:
    """Return the path that a key names. Raises ConfigError for an empty text, which as a path is the working directory."""
    if not name:
        raise ConfigError("'' names no file", where=where, hint="name a file, or leave the key out")
    return Path(name)


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError for a path that leads to anything else, and for a larger file."""
    _check_kind(path, _mode(path))  # before it is opened: opening a device or a pipe may do something
    with BufferedReader(FileIO(os.open(path, os.O_RDONLY | _NOT_BLOCKING))) as file:
        status = os.fstat(file.fileno())
        _check_kind(path, status.st_mode)
        if status.st_size > max_bytes:
            raise _too_large(max_bytes)
        pieces, size = list[bytes](), 0
        while piece := file.read(_PIECE_BYTES):  # The size is not all that comes: of /proc/..., or of a file that grows.
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
        return b"".join(pieces)


def read_input(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file, or all that comes through a stream. Raises OSError, also for a stream that has not
    ended within `STREAM_SECS`."""
    if not _is_stream(_mode(path)):
        return read_file(path, max_bytes)
    descriptor = _open_to_read(path)
    try:
        os.set_blocking(descriptor, False)
        return _read_to_end(descriptor, max_bytes)
    finally:
        os.close(descriptor)


class InputFile:
    """A file or stream that is read once (a `ReadableFile`)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_bytes(self) -> bytes:
        """Return its content. Raises OSError."""
        return read_input(self._path, MAX_TEXT_BYTES)

    def __str__(self) -> str:
        return str(self._path)


class InputFiles:
    """Files that are read again and again, such as those of a configuration.

    What came through a stream at the first time is kept, because it comes only once. A path that led to a file at the first
    time must lead to one later, too: a reload waits for no stream.
    """

    def __init__(self) -> None:
        self._streamed: dict[Path, bytes | OSError] = {}
        """What has come through each stream, or why nothing has: a second wait would be in vain, too."""
        self._regular: set[Path] = set()

    def read(self, path: Path) -> bytes:
        """Return the content of a file, or what a stream has brought. Raises OSError."""
        if path in self._regular:
            return read_file(path, MAX_TEXT_BYTES)
        if path not in self._streamed:
            if not _is_stream(_mode(path)):
                content = read_file(path, MAX_TEXT_BYTES)
                self._regular.add(path)
                return content
            self._streamed[path] = _content_or_error(path)
        came = self._streamed[path]
        if isinstance(came, OSError):
            raise came
        return came

    def at(self, path: Path) -> KeptFile:
        """Return one of the files as a `ReadableFile`."""
        return KeptFile(self, path)


class KeptFile:
    """One of `InputFiles` (a `ReadableFile`)."""

    def __init__(self, files: InputFiles, path: Path) -> None:
        self._files, self._path = files, path

    def read_bytes(self) -> bytes:
        """Return its content. Raises OSError."""
        return self._files.read(self._path)

    def __str__(self) -> str:
        return str(self._path)


def open_input(path: Path) -> BufferedReader:
    """Open a file or stream of any size. Raises OSError, also for a device that never ends, such as `/dev/zero`."""
    file = FileIO(_open_to_read(path))
    status = os.fstat(file.fileno())
    if stat.S_ISCHR(status.st_mode) and not file.isatty() and status.st_rdev != os.stat(os.devnull).st_rdev:  # noqa: PTH116
        file.close()
        raise OSError(errno.EINVAL, "it is a device, where a file is needed", str(path))
    return BufferedReader(file)


def open_output(path: Path, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of a file that is written, opened with `flags` (`O_WRONLY`, ...). A file that is made gets `mode`,
    less what umask takes away, and is removed if the start fails (`undo`). Raises OSError, as for a pipe that nothing reads."""
    deadline = time.monotonic() + PEER_SECS
    while True:
        try:
            opening = open_or_make if flags & os.O_CREAT else os.open
            descriptor = opening(path, flags | _NOT_BLOCKING, mode)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if not stat.S_ISFIFO(path.stat().st_mode):
                raise OSError(errno.ENXIO, f"it is {_kind(path.stat().st_mode)}", str(path)) from error
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "nothing reads this pipe", str(path)) from error
            time.sleep(0.02)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def check_output(path: Path) -> None:
    """Raise OSError if `open_output` could not write here: a directory, or a folder that is not there or not ours to write in.
    Nothing is made."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    folder = Path(os.path.realpath(path)).parent  # a link that leads nowhere yet makes the file where it leads
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.path.lexists(path) and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def check_file(path: Path) -> None:
    """Raise OSError if `path` leads to anything but a regular file; nothing may be there yet."""
    with contextlib.suppress(FileNotFoundError):
        _check_kind(path, path.stat().st_mode)


def check_own_file(path: Path) -> None:
    """Raise OSError if `path`, which no user has named, leads to anything but a regular file, or is a symbolic link: who may
    write in the folder could have put it there to have another file overwritten. Nothing may be there yet."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{path.name} is a symbolic link, and a file is needed", str(path))
    check_file(path)


def _open_to_read(path: Path) -> int:
    """Return a descriptor that blocks while a stream is silent."""
    mode = _mode(path)
    if stat.S_ISFIFO(mode):
        return _open_pipe(path)
    if not _is_stream(mode):
        _check_kind(path, mode)
    descriptor = os.open(path, os.O_RDONLY | _NOT_BLOCKING)
    os.set_blocking(descriptor, True)
    return descriptor


def _mode(path: Path) -> int:
    """Return the mode of what is read. Raises OSError, in words of our own for the name that other programs have for what is
    piped in."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        if str(path) != "-":
            raise
        raise FileNotFoundError(errno.ENOENT, "no such file: what is piped in is /dev/stdin", "-") from None


def _open_pipe(path: Path) -> int:
    """Open a pipe to read, when something has opened it to write.

    A thread waits in `open`. If that takes too long, opening the other end wakes the thread.
    """
    opened: list[int | OSError] = []

    def wait() -> None:
        try:
            opened.append(os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
        except OSError as error:
            opened.append(error)

    waiting = threading.Thread(target=wait, daemon=True, name="opens a pipe")
    waiting.start()
    waiting.join(PEER_SECS)
    if waiting.is_alive():
        with contextlib.suppress(OSError):  # gone meanwhile
            os.close(os.open(path, os.O_WRONLY | _NOT_BLOCKING))
        waiting.join(PEER_SECS)
        for descriptor in opened:
            if isinstance(descriptor, int):
                os.close(descriptor)
        raise OSError(errno.ENXIO, "nothing writes to this pipe", str(path))
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def _read_to_end(descriptor: int, max_bytes: int) -> bytes:
    """Return all that comes through a descriptor that does not block."""
    deadline, pieces, size = time.monotonic() + STREAM_SECS, list[bytes](), 0
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while size <= max_bytes:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise OSError(errno.ETIMEDOUT, f"its end did not come within {STREAM_SECS:g} s")
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except BlockingIOError:
            continue
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    raise _too_large(max_bytes)


def _content_or_error(path: Path) -> bytes | OSError:
    try:
        return read_input(path, MAX_TEXT_BYTES)
    except OSError as error:
        return error


def _is_stream(mode: int) -> bool:
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _check_kind(path: Path, mode: int) -> None:
    """Raise OSError for anything but a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, where a file is needed", str(path))


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")


def _too_large(max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {max_bytes >> 20:,} MiB")
