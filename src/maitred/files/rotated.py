"""The parts of a log that was rotated, in their order, line by line, decompressed as they are read.

    log.2.gz  log.1  log          by number: the larger, the older; the file without one is the newest
    log-20261126.gz  log          by date, as with `dateext` of logrotate
    a.jsonl  b.jsonl              others stay in the order in which they are named

A line is at most 64 MiB long, so that no file fills the memory.
"""

from __future__ import annotations

import gzip
import importlib
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from maitred.core.errors import ConfigError, describe_os_error
from maitred.files import open_input

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_SUFFIX: Final = re.compile(r"(?:\.(?P<number>\d{1,6})|-(?P<date>\d{8}(?:-?\d{1,6})?))?(?:\.(?:gz|zst))?$")
_NEWEST: Final = 2  # comes behind parts with a number (0) and with a date (1)
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def log_name(path: Path) -> str:
    """Return the name of the log of which a file is a part, without what its rotation has added."""
    return str(path.parent / (_SUFFIX.sub("", path.name) or path.name))


def in_order(paths: Iterable[Path], where: str = "LOG") -> dict[str, list[Path]]:
    """Return the parts of each log, the oldest first, by the name of the log. Raises ConfigError if a part is named twice."""
    parts: dict[str, list[Path]] = {}
    for path in named_once(paths, where):
        parts.setdefault(log_name(path), []).append(path)
    for each in parts.values():
        each.sort(key=_age)
    return parts


def named_once(paths: Iterable[Path], where: str) -> list[Path]:
    """Return the paths. Raises ConfigError if two are one file, or one numbered part of a log, such as `log.1` and the
    `log.1.gz` that is being made of it: what the part says would count twice."""
    found: dict[object, Path] = {}
    paths = list(paths)
    for path in paths:
        for identity in _identities(path):
            if identity in found:
                problem = f"{found[identity]} and {path} are the same file, or part of a log"
                raise ConfigError(problem, where=where, hint="name one of them")
            found[identity] = path
    return paths


def _identities(path: Path) -> Iterator[object]:
    with suppress(OSError, ValueError):  # Reading it will say what is wrong.
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            yield status.st_dev, status.st_ino
    if (age := _age(path))[0] != _NEWEST:
        yield log_name(path), age


def _age(path: Path) -> tuple[int, int, str]:
    found = _SUFFIX.search(path.name)
    if found is None or (found["number"] is None and found["date"] is None):
        return (_NEWEST, 0, "")
    return (0, -int(found["number"]), "") if found["number"] is not None else (1, 0, found["date"])


def read_lines(paths: Sequence[Path], where: str = "LOG") -> Iterator[tuple[str, int, bytes]]:
    """Yield the lines of files in turn: the file, the number of the line from 1 on, and the line with its newline. Raises
    ConfigError for a file that cannot be read."""
    for path in paths:
        name = str(path)
        try:
            with open_input(path) as file:
                for number, line in enumerate(_lines_of(_decompressed(file, name, where)), 1):
                    if len(line) > MAX_LINE_BYTES:
                        raise ConfigError(f"line {number} of {name} has more than {MAX_LINE_BYTES} bytes", where=where)
                    yield name, number, line
        except OSError as error:
            raise ConfigError(f"cannot read {name}: {describe_os_error(error)}", where=where) from error
        except _broken_errors() as error:
            raise ConfigError(f"cannot read {name}: it is not whole: {error}", where=where) from error


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line


def _decompressed(file: BufferedReader, name: str, where: str) -> BinaryIO:
    magic = file.peek(4)[:4]
    if magic.startswith(_GZIP_MAGIC):
        return BufferedReader(cast(Any, gzip.GzipFile(fileobj=file)), 1 << 18)
    if magic == _ZSTD_MAGIC:
        return cast(BinaryIO, BufferedReader(_zstd(name, where).ZstdFile(file), 1 << 18))
    return file


def _zstd(name: str, where: str) -> Any:
    if (library := _zstd_library()) is not None:
        return library
    hint = 'pip install "maitred[encodings]", or zstd -d'
    raise ConfigError(f"{name} is compressed with zstd, which this Python cannot read", where=where, hint=hint)


def _zstd_library() -> Any | None:
    for library in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            return importlib.import_module(library)
    return None


def _broken_errors() -> tuple[type[Exception], ...]:
    """Return the errors that reading a truncated or damaged compressed file raises."""
    library = _zstd_library()
    return (EOFError, zlib.error, *(() if library is None else (library.ZstdError,)))
