"""Reading a text file as numbered lines: plain or gzipped, by its content and not by its name, never held in memory as a whole.

The next line can be looked at before it is taken, without opening the file twice, so pipes work too. Blank lines count as lines
and are skipped. A file that cannot be opened, or that does not begin as text, raises ConfigError at once; a file that turns out
to be damaged later raises ConfigError at its line. Bytes that are not UTF-8 affect their line only: they become lone surrogates
(`is_text` detects them), and the reader of the rows decides what to do.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from maitred.core.errors import ConfigError, describe_os_error, describe_read_error
from maitred.files import open_input

_GZIP_MAGIC = b"\x1f\x8b"

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Enough for a trace row with millions of prompt tokens in small blocks. A file without line ends cannot fill the memory."""


class LineReader:
    """An iterator of the lines of a file that are not blank, without their ends (LF or CRLF; the last line needs none)."""

    def __init__(self, path: Path) -> None:
        """Raise ConfigError if the file cannot be read."""
        self.path = path
        self.line_number = 0
        """The number of the line that was returned last, counted from 1 as in an editor."""
        self.next_line_number = 0
        """The number of the line that comes next."""
        try:
            self._raw = open_input(path)
        except OSError as error:
            raise ConfigError(f"cannot be read: {describe_os_error(error)}", where=str(path)) from error
        self._file: BinaryIO = self._raw
        try:
            self._start()
        except OSError as error:
            self.close()
            raise ConfigError(f"cannot be read: {describe_os_error(error)}", where=str(path)) from error
        except ConfigError:
            self.close()
            raise

    def _start(self) -> None:
        self._size = os.fstat(self._raw.fileno()).st_size
        if self._raw.peek(2)[:2] == _GZIP_MAGIC:
            self._file = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=self._raw)))
        self._lookahead = self._read_nonblank_line()
        if not is_text(self.next_line):
            hint = "a trace is a text file, plain or gzipped"
            raise ConfigError("this is not text (UTF-8)", where=f"{self.path}:{self.next_line_number}", hint=hint)

    @property
    def next_line(self) -> str:
        """The next line, which is not taken; empty at the end of the file."""
        return self._lookahead or ""

    @property
    def location(self) -> str:
        """The file and the number of the line that was returned last, for error messages."""
        return f"{self.path}:{self.line_number}"

    @property
    def fraction_read(self) -> float:
        """The part of the file that has been read, 0 to 1; always 0 for a pipe, which has no known length."""
        if self._raw.closed:
            return 1.0
        return self._raw.tell() / self._size if self._size else 0.0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._lookahead
        if line is None:
            self.close()
            raise StopIteration
        self.line_number = self.next_line_number
        self._lookahead = self._read_nonblank_line()
        return line

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def _read_nonblank_line(self) -> str | None:
        """Return the next line that is not blank, or None at the end of the file."""
        while line := self._read_line():
            encoding = "utf-8-sig" if self.next_line_number == 1 else "utf-8"
            text = line.decode(encoding, "surrogateescape").rstrip("\r\n")
            if text and not text.isspace():
                return text
        return None

    def _read_line(self) -> bytes:
        self.next_line_number += 1
        where = f"{self.path}:{self.next_line_number}"
        try:
            line = self._file.readline(MAX_LINE_BYTES)
        except EOFError as error:
            raise ConfigError("the gzip file ends in the middle", where=where, hint="is the download complete?") from error
        except (OSError, zlib.error) as error:
            raise ConfigError(f"cannot be read: {describe_read_error(error)}", where=where) from error
        if len(line) == MAX_LINE_BYTES:
            raise ConfigError("this line has no end", where=where, hint="a trace is a text file of one row per line")
        return line


def is_text(line: str) -> bool:
    """Return whether a line from `LineReader` was valid UTF-8 in the file."""
    if line.isascii():
        return True
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True
