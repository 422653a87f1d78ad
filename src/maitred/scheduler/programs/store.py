"""The programs of a gateway in a SQLite file, so that the next gateway knows where their KV is, and which backends are drained.

One row for each program that has an id, and one for each backend that is drained. Changes are written many in one transaction.
The file is in WAL mode: a process that is killed loses at most the changes of the last moments, and a transaction is in the
file whole or not at all.

Times in the file are those of the wall clock (µs since 1970), because no monotonic clock lasts longer than the machine is up.

One file belongs to one gateway: a second one would overwrite the places that the first one has given. A lock on `FILE.lock`
says so, and goes with the process, however that ends. No link is followed at `FILE.lock` and the other names that are made of
`FILE`: it could lead to a file of someone else.

SQLite would make files that all users may read, so the database is made before it is opened. SQLite gives its own files
beside it the same permissions.

A file whose content is at fault is moved aside (`FILE.unreadable`) and begun anew: programs without a
record are only placed as if they were new. SQLite reports damage in many words, some of which it also has for a disk that is
full or a file that is not ours to write. So the content is at fault if the files may be read and written, nothing else has
locked them, and a fresh database in the same folder works; otherwise the gateway does not start.

    one byte is flipped          moved aside, whatever SQLite calls it
    another program locks it     an error, and the file stays
    chmod 444, or a full disk    an error, and the file stays
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import chain, count
from pathlib import Path
from typing import IO, Annotated, Final, NamedTuple, TypeAlias

import msgspec

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.request import PriorityClass
from maitred.files import check_file, check_own_file
from maitred.files.line_file import PRIVATE
from maitred.files.undo import make_folders, open_or_make, rename, undo_on_failure
from maitred.programs import ProgramKey

log = logging.getLogger("maitred.gateway")
_WRITE_LOGS: Final = ("-wal", "-shm", "-journal")
"""Endings of the files in which SQLite keeps what it has not yet written to the file itself."""
_HEADER_BYTES: Final = 100
"""Size of the header of a database."""
_UNREADABLE: Final = (sqlite3.Error, ValueError, OverflowError, MemoryError)
"""What reading damaged pages raises."""
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LOCK_SECS: Final = 5.0
"""Seconds for which another program may hold the file."""
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

    def __init__(self, path: str, mode: int = PRIVATE) -> None:
        """`mode` is for files that are made. Raises ConfigError if `path` cannot be opened or made, or another gateway has
        it."""
        self.path, self._mode = Path(path), mode
        self._connection: sqlite3.Connection | None = None
        with ExitStack() as on_error:
            try:
                make_folders(self.path.parent)
                check_file(self.path)
                for suffix in (".lock", *_WRITE_LOGS):
                    check_own_file(_beside(self.path, suffix))
                self._lock = on_error.enter_context(_lock(self.path, mode))
                self.found: Sequence[StoredProgram]
                """The programs of the last run, in the order of creation."""
                self.drained: Sequence[str]
                """The URLs of the backends that were drained at its end."""
                self.found, self.drained = self._read_or_begin_anew()
            except OSError as error:
                problem = f"cannot keep programs in {path}: {describe_os_error(error)}"
                raise ConfigError(problem, where="programs.state") from error
            except sqlite3.Error as error:
                raise ConfigError(f"cannot keep programs in {path}: {error}", where="programs.state") from error
            on_error.pop_all()
            undo_on_failure(self.close)

    def write(self, changes: StateChanges) -> None:
        """Write changes in one transaction. Called in the thread of the writer. Raises sqlite3.Error."""
        if self._connection is None:
            self._connection = _open(self.path, self._mode)
        try:
            with self._connection as connection:
                _write_changes(connection, changes)
        except sqlite3.Error:
            self._disconnect()  # After a failure of the disk, only a file that is opened anew may work again.
            raise

    def close(self) -> None:
        """Close the file, after the writer has ended."""
        self._disconnect()
        self._lock.close()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read_or_begin_anew(self) -> tuple[Sequence[StoredProgram], Sequence[str]]:
        if self.path.exists() and not self.path.stat().st_size:
            log.warning("%s is empty: programs of the last run are not known", self.path)
        try:
            return _read(self.path, self._mode)
        except _UNREADABLE as error:
            self._check_access(error)
            fresh = _beside(self.path, ".new")
            for suffix in ("", *_WRITE_LOGS):
                _beside(fresh, suffix).unlink(missing_ok=True)
            begun = _read(fresh, self._mode)
            self._move_aside(error)
            rename(fresh, self.path)
            return begun

    def _check_access(self, error: Exception) -> None:
        """Raise ConfigError if the file could not be read for another reason than its content."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED:
            hint = "close what has it open, or name another file with --state"
            raise ConfigError(f"another program has locked {self.path}", where="programs.state", hint=hint) from error
        files = [path for suffix in ("", *_WRITE_LOGS) if (path := _beside(self.path, suffix)).exists()]
        for path in (self.path.parent, *files):
            if not os.access(path, os.R_OK | os.W_OK):
                problem = f"cannot keep programs in {self.path}: {path} may not be read and written"
                raise ConfigError(problem, where="programs.state") from error

    def _move_aside(self, error: Exception) -> None:
        aside = _free_name(_beside(self.path, ".unreadable"))
        log.error("%s cannot be read (%s): it is now %s, and programs of the last run are not known", self.path, error, aside)
        for suffix in _WRITE_LOGS:  # They go first: beside a fresh database they would be taken for its own.
            if (path := _beside(self.path, suffix)).exists():
                rename(path, _beside(aside, suffix))
        rename(self.path, aside)


def _open(path: Path, mode: int) -> sqlite3.Connection:
    if not path.exists():  # An open file must not be closed here: that would end SQLite's locks on it.
        os.close(open_or_make(path, os.O_RDWR | os.O_CLOEXEC, mode))
    # The writer's thread uses it, and after that has ended, `close`.
    connection = sqlite3.connect(path, timeout=_LOCK_SECS, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # A killed process loses nothing; a power cut the last moments.
    except BaseException:
        connection.close()
        raise
    return connection


def _read(path: Path, mode: int) -> tuple[Sequence[StoredProgram], Sequence[str]]:
    """Return all rows that make sense, and make the tables if there are none. Raises an error of `_UNREADABLE`."""
    if path.exists() and 0 < path.stat().st_size < _HEADER_BYTES:  # SQLite would take it for an empty one.
        raise sqlite3.DatabaseError("it is cut off")
    with closing(_open(path, mode)) as connection, connection:
        damage = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if damage != "ok":
            raise sqlite3.DatabaseError(" ".join(str(damage).split()))
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        if tables and (version != _VERSION or ("programs",) not in tables):
            raise sqlite3.DatabaseError("it holds something else")
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA user_version = {_VERSION}")  # Finds out whether the file may be written.
        if ("drained",) in tables:
            connection.rollback()  # A start that fails changes no file.
        else:
            connection.execute(_CREATE)
            connection.execute(_CREATE_DRAINED)
        rows = connection.execute(_SELECT).fetchall()
        drained = connection.execute("SELECT backend FROM drained").fetchall()
    programs = [row for row in map(_parse_row, rows) if row is not None]
    if len(programs) < len(rows):
        log.error("%s: %d of its %d programs make no sense and are not known", path, len(rows) - len(programs), len(rows))
    return programs, [str(url) for (url,) in drained]


def _write_changes(connection: sqlite3.Connection, changes: StateChanges) -> None:
    connection.executemany(_DELETE, [key for key, stored in changes.programs.items() if stored is None])
    connection.executemany(_INSERT, [stored for stored in changes.programs.values() if stored is not None])
    if changes.drained is not None:
        connection.execute("DELETE FROM drained")
        connection.executemany("INSERT INTO drained VALUES (?)", [(url,) for url in changes.drained])


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _free_name(path: Path) -> Path:
    """Return `path`, or with the first number behind it that is not taken: what was moved aside before stays."""
    names = chain([path], (_beside(path, f".{number}") for number in count(2)))
    return next(name for name in names if not name.exists())


def _lock(path: Path, mode: int) -> IO[bytes]:
    """Return an open file whose lock stands for `path`; closing it gives the lock up. Nothing is written to it. Raises
    ConfigError if another gateway has it, and OSError."""
    name = _beside(path, ".lock")
    while True:
        file = os.fdopen(open_or_make(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            hint = "give each gateway a file of its own with --state, or none with --state none"
            raise ConfigError(f"another gateway keeps its programs in {path}", where="programs.state", hint=hint) from error
        if name.exists() and os.path.samestat(os.fstat(file.fileno()), name.stat()):
            return file
        file.close()  # A gateway whose start has failed has made and removed it.


def _parse_row(row: tuple[object, ...]) -> StoredProgram | None:
    """Return a row, or None for one that makes no sense."""
    try:
        return msgspec.convert(row, StoredProgram)
    except msgspec.ValidationError:
        return None
