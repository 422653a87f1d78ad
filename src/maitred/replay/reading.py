"""The lines of a decision log, as a replay reads them: what each is, and whether it is what was written.

A seal has the checksum of the lines after the last one, or after the version line of the process that wrote them. Lines at the
end of a process that was killed have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

import msgspec

from maitred.core.decisions import LOG_ROOM, LOG_VERSION
from maitred.core.errors import JSON_ERRORS, MaitredError

_NOTHING: Final = msgspec.Raw()


class LogError(MaitredError):
    """A log that cannot be read: something else, or one of a version that is not known."""


class LogPlace(msgspec.Struct, frozen=True):
    """Where a line stands."""

    file: str
    line: int
    """From 1 on."""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line:,}"


class Entry(msgspec.Struct):
    """What a line says of itself. Lines of rooms have further fields."""

    room: str
    input: str | None = None
    raised: str | None = None
    at: int = 0
    version: int | None = None
    gap: int | None = None
    seal: str | None = None
    decision: msgspec.Raw = _NOTHING
    change: msgspec.Raw = _NOTHING
    note: msgspec.Raw = _NOTHING


class Broken(msgspec.Struct, frozen=True):
    """A line that is not what was written, and why that is known."""

    problem: str


class Torn(msgspec.Struct, frozen=True):
    """A line of which the end is missing, as a kill leaves it."""

    num_bytes: int


NEWLINE: Final = b"\n"
_decode: Final = msgspec.json.Decoder(Entry).decode
LogLine = tuple[LogPlace, bytes, Entry | Broken | Torn]


class LogReader:
    """Reads lines with their places, checks the seals, and counts."""

    def __init__(self, lines: Iterable[tuple[str, int, bytes]]) -> None:
        """`lines` are files, line numbers from 1 on, and lines with their newline."""
        self._lines = lines
        self.num_lines = 0
        self.num_unsealed = 0
        """Lines that no seal covers: those of old versions, and the last ones of a process that was killed."""
        self.num_processes = 0
        """Version lines: each is the begin of a process."""
        self._open_lines = self._checksum = 0
        self._is_whole = False
        """Whether the lines since the last seal, or since a version line, are all here."""

    def __iter__(self) -> Iterator[LogLine]:
        for file, number, line in self._lines:
            self.num_lines += 1
            yield LogPlace(file, number), line, self._read(line)
        self.num_unsealed += self._open_lines

    def _read(self, line: bytes) -> Entry | Broken | Torn:
        if not line.endswith(NEWLINE):
            return Torn(len(line))
        try:
            entry = _decode(line)
        except JSON_ERRORS as error:
            return Broken(f"it is no line of a decision log: {error}")
        if entry.room == LOG_ROOM:
            return self._read_own(line, entry)
        self._count(line)
        return entry

    def _read_own(self, line: bytes, entry: Entry) -> Entry | Broken:
        if entry.seal is not None:
            found, was_whole, self._is_whole = f"{self._checksum:08x}", self._is_whole, True
            self._checksum = self._open_lines = 0
            if was_whole and found != entry.seal:
                return Broken(f"the lines before it are not those that were written: their checksum is {found}")
            return entry
        if entry.version is not None:
            if entry.version > LOG_VERSION:
                raise LogError(f"the log has version {entry.version}, and this maitred reads logs up to version {LOG_VERSION}")
            self.num_processes += 1
            self.num_unsealed += self._open_lines
            self._checksum, self._open_lines, self._is_whole = 0, 0, True
        elif entry.gap is None:
            return Broken("it says nothing that a log says of itself")
        self._count(line)
        return entry

    def _count(self, line: bytes) -> None:
        self._checksum = crc32(line, self._checksum)
        self._open_lines += 1


def plain(value: Any) -> Any:
    """Return a struct of a core as what JSON has."""
    return msgspec.to_builtins(value, enc_hook=str)
