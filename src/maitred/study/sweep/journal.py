"""The journal: what a sweep has done, a line for each run, on disk before the next one counts.

    DIR/sweep.json     which sweep it is: its hash
    DIR/runs.jsonl     the runs, as they were done: {"run": ID, "point": {...}, "seed": ..., "figures": {...}}

A run is known by its content (`task.Run.id`), so one that was done is never done again, whatever stopped the sweep in between.
A line that was being written when the machine went down is none.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import msgspec

from maitred import __version__
from maitred.core.errors import ConfigError

_HEADER_FILE: Final = "sweep.json"
RUNS_FILE: Final = "runs.jsonl"


class JournalLine(msgspec.Struct, frozen=True):
    """A run that is done."""

    run: str
    point: dict[str, Any]
    seed: int
    latency_scale: float
    figures: dict[str, float | None]


class _JournalHeader(msgspec.Struct, frozen=True):
    maitred: str
    sweep: str
    """Hash of all that it is made of."""


class InMemoryJournal:
    """For a sweep that leaves nothing behind."""

    def __init__(self) -> None:
        self.done: dict[str, dict[str, float | None]] = {}
        """The figures of runs, by id."""

    def record(self, line: JournalLine) -> None:
        self.done[line.run] = line.figures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class FileJournal(InMemoryJournal):
    """In a folder. To be used in a `with`."""

    def __init__(self, folder: Path, said: list[Any], *, resume: bool) -> None:
        """`said`: all that the sweep is made of. Without `resume`, the folder must not hold a sweep; with it, this one or none.

        Raises ConfigError for another one, and for a folder that cannot be read or written.
        """
        super().__init__()
        self._folder = folder
        about = _JournalHeader(__version__, hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            before = self._read_header()
            if before is None:
                (folder / _HEADER_FILE).write_bytes(msgspec.json.encode(about) + b"\n")
            else:
                self._check(before, about, resume)
            self._file = self._open_runs()
        except OSError as error:
            raise self._unusable(error) from error

    def _read_header(self) -> _JournalHeader | None:
        """Which sweep is there; None: none of which anything is done."""
        path, runs = self._folder / _HEADER_FILE, self._folder / RUNS_FILE
        if not (path.exists() and runs.exists() and runs.stat().st_size):
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=_JournalHeader)
        except msgspec.DecodeError as error:
            raise ConfigError("this is not what a sweep writes", where=str(path), hint="name another --out") from error

    def _check(self, before: _JournalHeader, now: _JournalHeader, resume: bool) -> None:
        if not resume:
            hint = "--resume goes on with it; else name another --out"
            raise ConfigError("it holds a sweep already", where=str(self._folder), hint=hint)
        if before.maitred != now.maitred:
            what = f"its runs were made by maitred {before.maitred}, and this is {now.maitred}"
            raise ConfigError(what, where=str(self._folder), hint="name another --out")
        if before.sweep != now.sweep:
            what = "it holds another sweep: the specification, its base or the environment has changed since"
            raise ConfigError(what, where=str(self._folder), hint="name another --out")

    def _open_runs(self) -> BinaryIO:
        path = self._folder / RUNS_FILE
        file = path.open("a+b")
        file.seek(0)
        whole = file.read()
        complete = whole[: whole.rfind(b"\n") + 1]
        for number, row in enumerate(complete.splitlines(), 1):
            try:
                super().record(msgspec.json.decode(row, type=JournalLine))
            except msgspec.DecodeError as error:
                file.close()
                raise ConfigError("this is not a run", where=f"{path}:{number}", hint="remove the line") from error
        file.truncate(len(complete))
        return file

    def record(self, line: JournalLine) -> None:
        """Raises ConfigError when the disk is full or gone."""
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unusable(error) from error
        super().record(line)

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot be used: {(error.strerror or str(error)).lower()}", where=str(self._folder))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
