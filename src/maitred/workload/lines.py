"""Text files as numbered lines: plain or gzipped, by content and not by name, never held whole.

The first line can be looked at before it is taken, without opening the file twice, so pipes work too. A file that cannot be
opened is a ConfigError at once; one that turns out to be broken later is a ConfigError at its line.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from maitred.errors import ConfigError

_GZIP_MAGIC = b"\x1f\x8b"

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes. A row of a trace with millions of prompt tokens in small blocks fits; a file that is no text does not fill memory."""


class Lines:
    """Iterates over the lines of a file, without their line ends (LF or CRLF; the last one needs none)."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be read."""
        self.path = path
        self.number = 0
        """Of the line that was given last, counted from 1 as an editor does."""
        try:
            raw = path.open("rb")
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
        self._raw = raw
        self._size = os.fstat(raw.fileno()).st_size
        zipped = raw.peek(2)[:2] == _GZIP_MAGIC
        self._file: BinaryIO = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw))) if zipped else raw
        try:
            self._ahead: str | None = self._read()
        except ConfigError:
            self.close()
            raise

    @property
    def first(self) -> str:
        """The next line, not taken; empty at the end of the file."""
        return self._ahead or ""

    @property
    def place(self) -> str:
        """Where the line that was given last is, as a user would point at it."""
        return f"{self.path}:{self.number}"

    @property
    def share_read(self) -> float:
        """How far into the file we are, 0..1; always 0 for a pipe, whose length nobody knows."""
        if self._raw.closed:
            return 1.0
        return self._raw.tell() / self._size if self._size else 0.0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._ahead
        if line is None:
            self.close()
            raise StopIteration
        self.number += 1
        self._ahead = self._read()
        return line

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def _read(self) -> str | None:
        where = f"{self.path}:{self.number + 1}"
        try:
            line = self._file.readline(LONGEST_LINE)
            text = line.decode("utf-8-sig")
        except EOFError as error:
            raise ConfigError("the gzip file ends in the middle", where=where, hint="is the download complete?") from error
        except (OSError, zlib.error) as error:
            raise ConfigError(f"cannot be read: {error}", where=where) from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                "this is not text (UTF-8)", where=where, hint="a trace is a text file, plain or gzipped"
            ) from error
        if len(line) == LONGEST_LINE:
            raise ConfigError("this line has no end", where=where, hint="a trace is a text file of one row per line")
        return text.rstrip("\r\n") if line else None
