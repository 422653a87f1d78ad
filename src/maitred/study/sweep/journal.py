"""Journal: the completed runs of a sweep, a line for each run, on disk before the run counts.

    DIR/sweep.json     the identity of the sweep: its hash, and those of its traces
    DIR/runs.jsonl     the runs in the order of completion: {"run": ID, "point": {...}, "seed": ..., "figures": {...}}

A run is known by its content (`StudyRun.id`), so a completed run is never repeated, whatever stopped the sweep. An incomplete
last line, as a power failure leaves it, is ignored.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import msgspec

from maitred import __version__
from maitred.core.errors import JSON_ERRORS, ConfigError, describe_os_error
from maitred.files import read_file

_HEADER_FILE: Final = "sweep.json"
RUNS_FILE: Final = "runs.jsonl"


class JournalLine(msgspec.Struct, frozen=True):
    """A completed run."""

    run: str
    point: dict[str, Any]
    seed: int
    latency_scale: float
    figures: dict[str, float | None]


class _JournalHeader(msgspec.Struct, frozen=True):
    """The content of `sweep.json`."""

    maitred: str
    sweep: str
    """Hash of everything that the sweep is made of, beside its traces."""
    traces: dict[str, str] = {}
    """The hash of each file of its traces, by its path."""


class InMemoryJournal:
    """The journal of a sweep that leaves no files."""

    def __init__(self) -> None:
        self.done: dict[str, dict[str, float | None]] = {}
        """The figures of the completed runs, by id."""

    def record(self, line: JournalLine) -> None:
        self.done[line.run] = line.figures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


_MAX_RUNS_BYTES: Final = 1 << 40
"""All that disks hold: each line of the runs was written by a sweep."""


class FileJournal(InMemoryJournal):
    """A journal in a folder, to be used in a `with`."""

    def __init__(self, folder: Path, content: list[Any], traces: dict[str, str], *, resume: bool) -> None:
        """`content` is everything that the sweep is made of, beside the files of `traces`, each with its hash. With `resume`
        the folder may hold this very sweep, otherwise none.

        Raises ConfigError for another sweep, and for a folder that cannot be read or written.
        """
        super().__init__()
        self._folder = folder
        identity = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
        header = _JournalHeader(__version__, identity, traces)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            before = self._read_header()
            if before is None:
                (folder / _HEADER_FILE).write_bytes(msgspec.json.encode(header) + b"\n")
            else:
                self._check(before, header, resume)
            self._file = self._open_runs()
        except OSError as error:
            raise self._unusable(error) from error

    def _read_header(self) -> _JournalHeader | None:
        """Return the header in the folder, or None if it holds no completed run."""
        path, runs = self._folder / _HEADER_FILE, self._folder / RUNS_FILE
        # A folder without a completed run is free for any sweep: nothing in it could be lost.
        if not (path.exists() and runs.exists() and runs.stat().st_size):
            return None
        try:
            return msgspec.json.decode(read_file(path), type=_JournalHeader)
        except JSON_ERRORS as error:
            raise ConfigError("this is not the header of a sweep", where=str(path), hint="name another --out") from error

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
        changed = sorted(path for path, _ in before.traces.items() ^ now.traces.items())
        if changed:
            what = f"its runs have not read {changed[0]} as it is now: the trace has changed since, or another is in its place"
            raise ConfigError(what, where=str(self._folder), hint="name another --out")

    def _open_runs(self) -> BinaryIO:
        path = self._folder / RUNS_FILE
        written = read_file(path, _MAX_RUNS_BYTES) if path.exists() else b""
        # A power failure may have cut off the last line, and only that one: a line is on disk before the next one is written.
        complete = written[: written.rfind(b"\n") + 1]
        for number, row in enumerate(complete.splitlines(), 1):
            try:
                super().record(msgspec.json.decode(row, type=JournalLine))
            except JSON_ERRORS as error:
                raise ConfigError("this is not a run", where=f"{path}:{number}", hint="remove the line") from error
        file = path.open("a+b")
        file.truncate(len(complete))
        return file

    def record(self, line: JournalLine) -> None:
        """Write a line. Raises ConfigError if the disk is full or gone."""
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unusable(error) from error
        super().record(line)

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot be used: {describe_os_error(error)}", where=str(self._folder))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
