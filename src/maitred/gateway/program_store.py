"""The programs of a gateway in a SQLite file, so that the next gateway knows where their KV is, and which backends are drained.

One row for each program that has an id, and one for each backend that is drained. Changes are written many in one transaction.
The file is in WAL mode: a process that is killed loses at most the changes of the last moments, and a transaction is in the
file whole or not at all.

Times in the file are those of the wall clock (µs since 1970), because no monotonic clock lasts longer than the machine is up.

One file belongs to one gateway: a second one would overwrite the places that the first one has given. A lock on `FILE.lock`
says so, and goes with the process, however that ends.

A file that is no such database is moved aside and begun anew: what it held cannot be read, and programs without a record are
only placed as if they were new.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Annotated, Final, NamedTuple, TypeAlias

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.programs import ProgramKey

log = logging.getLogger("maitred.gateway")
_VERSION: Final = 1
"""Of the table; a file with another one is begun anew."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**60)]


class StoredProgram(NamedTuple):
    """One row."""

    tenant: str
    name: str
    model: str
    priority_class: PriorityClass
    parent: str
    backend: str
    """The URL, or empty if the program was paused."""
    rank: _Count
    """The data-parallel rank, 0 if the backend has none."""
    tokens: _Count
    characters: _Count
    inherited_tokens: _Count
    step_count: _Count
    tool_count: _Count
    tool_mean: Annotated[float, msgspec.Meta(ge=0)]
    """µs."""
    created_at: _Count
    """µs since 1970."""
    last_active: _Count
    """µs since 1970."""


_COLUMNS: Final = ", ".join(StoredProgram._fields)
_CREATE: Final = f"CREATE TABLE IF NOT EXISTS programs ({_COLUMNS}, PRIMARY KEY (tenant, name, model)) WITHOUT ROWID"
_SELECT: Final = f"SELECT {_COLUMNS} FROM programs ORDER BY created_at"  # noqa: S608  (no value in it comes from outside)
_INSERT: Final = f"INSERT OR REPLACE INTO programs VALUES ({', '.join('?' * len(StoredProgram._fields))})"  # noqa: S608
_DELETE: Final = "DELETE FROM programs WHERE tenant = ? AND name = ? AND model = ?"
_CREATE_DRAINED: Final = "CREATE TABLE IF NOT EXISTS drained (backend PRIMARY KEY) WITHOUT ROWID"
ProgramChanges: TypeAlias = dict[ProgramKey, StoredProgram | None]
"""The programs that have changed; None: the program is forgotten."""


class StateChanges(NamedTuple):
    """What has changed since the last transaction."""

    programs: ProgramChanges
    drained: Sequence[str] | None = None
    """The URLs of all drained backends, or None if they are the same."""


class ProgramStore:
    """One file. Its connection belongs to the thread that writes."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError if `path` cannot be opened or made, or another gateway has it."""
        self.path = Path(path)
        self._connection: sqlite3.Connection | None = None
        with ExitStack() as on_error:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = on_error.enter_context(_lock(self.path))
                self.found: Sequence[StoredProgram]
                """The programs of the last run, in the order of creation."""
                self.drained: Sequence[str]
                """The URLs of the backends that were drained at its end."""
                self.found, self.drained = self._read_or_begin_anew()
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"cannot keep programs in {path}: {error}", where="programs.state") from error
            on_error.pop_all()

    def write(self, changes: StateChanges) -> None:
        """Write changes in one transaction. Called in the thread of the writer. Raises sqlite3.Error."""
        if self._connection is None:
            self._connection = self._open()
        with self._connection:
            self._connection.executemany(_DELETE, [key for key, stored in changes.programs.items() if stored is None])
            self._connection.executemany(_INSERT, [stored for stored in changes.programs.values() if stored is not None])
            if changes.drained is not None:
                self._connection.execute("DELETE FROM drained")
                self._connection.executemany("INSERT INTO drained VALUES (?)", [(url,) for url in changes.drained])

    def close(self) -> None:
        """Close the file, after the writer has ended."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._lock.close()

    def _open(self) -> sqlite3.Connection:
        # The writer's thread uses it, and after that has ended, `close`.
        connection = sqlite3.connect(self.path, timeout=5.0, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # A killed process loses nothing; a power cut the last moments.
        return connection

    def _read_or_begin_anew(self) -> tuple[Sequence[StoredProgram], Sequence[str]]:
        try:
            return self._read()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # It cannot be opened or written: its content is not at fault.
                raise
            self._move_aside(error)
            return self._read()

    def _read(self) -> tuple[Sequence[StoredProgram], Sequence[str]]:
        """Return all rows that make sense, and make the tables if there are none."""
        with closing(self._open()) as connection, connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if tables and (version != _VERSION or ("programs",) not in tables):
                raise sqlite3.DatabaseError("it holds something else")
            connection.execute(_CREATE)
            connection.execute(_CREATE_DRAINED)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            rows = connection.execute(_SELECT).fetchall()
            drained = connection.execute("SELECT backend FROM drained").fetchall()
        return [row for row in map(_parse_row, rows) if row is not None], [str(url) for (url,) in drained]

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = self.path.with_name(self.path.name + ".unreadable")
        log.error("%s cannot be read (%s): it is now %s, and programs of the last run are not known", self.path, error, aside)
        self.path.replace(aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _lock(path: Path) -> IO[bytes]:
    """Return an open file whose lock stands for `path`; closing it gives the lock up. Raises ConfigError if another gateway has
    it, and OSError."""
    file = path.with_name(path.name + ".lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        hint = "give each gateway a file of its own with --state, or none with --state none"
        raise ConfigError(f"another gateway keeps its programs in {path}", where="programs.state", hint=hint) from error
    return file


def _parse_row(row: tuple[object, ...]) -> StoredProgram | None:
    """Return a row, or None for one that makes no sense."""
    try:
        return msgspec.convert(row, StoredProgram)
    except msgspec.ValidationError:
        return None
