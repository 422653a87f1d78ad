"""KeysFile: API keys of tenants in a file of their own, which is read again as it changes.

    keys:
      - {api_key: sk-live-1, tenant: acme}
      - {api_key: "sha256:HEX", tenant: acme, class: interactive, expires: 2027-01-31}

Memory holds hashes alone, and an error names a place in the file and never a key. A file that cannot be read, or is wrong,
changes nothing: the keys before it stay valid, and the log says so once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from maitred.admission import parse_class
from maitred.admission.terms.tenants import KEY_TENANT_PREFIX, tenant_problem
from maitred.core.errors import ConfigError
from maitred.core.units import SECOND
from maitred.core.yaml_schema import read_struct
from maitred.files import MAX_TEXT_BYTES, read_file
from maitred.files.daemon_threads import DAEMON_THREADS
from maitred.gateway import error_responses
from maitred.gateway.access.auth import Caller, KeyRights, KeyTable
from maitred.gateway.config import HASH_PREFIX, hash_api_key
from maitred.wire.clock import Clock

log = logging.getLogger("maitred.gateway")
LOOK_SECS: Final = 5.0
"""Seconds between two looks whether the file has changed."""
_SOON: Final = 7 * 86_400 * SECOND
_MAX_NAMED: Final = 8
_FIRST_YEAR: Final = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())
_Stamp: TypeAlias = tuple[int, ...]
"""By what a file is known to be as it was; empty if there is none."""


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of the file. Raises ValueError, without the key, for what cannot be one."""

    api_key: str
    """As it is, or as sha256:HEX."""
    tenant: str
    """The id of its tenant; a request with the key belongs to `auth:ID`."""
    priority_class: Literal["bulk", "default", "interactive", "system"] | None = msgspec.field(default=None, name="class")
    """The highest class that its requests can have, in place of that of its tenant, and the class of those that name none.
    Null: as for other keys."""
    expires: str | None = None
    """When it ceases to be valid: a date, or a date and a time, in UTC where it says no other. Null: never."""

    def __post_init__(self) -> None:
        try:
            msgspec.structs.force_setattr(self, "api_key", hash_api_key(self.api_key))
        except ValueError as error:
            raise ValueError(f"api_key {error}") from None
        problem = tenant_problem(KEY_TENANT_PREFIX + self.tenant)
        if problem:
            raise ValueError(problem)
        self.expires_at()

    def expires_at(self) -> int | None:
        """Return when it ceases to be valid, µs since 1970, or None for never."""
        if self.expires is None:
            return None
        try:
            when = datetime.fromisoformat(self.expires)
        except ValueError:
            raise ValueError("expires must be as 2027-01-31, or 2027-01-31T18:00:00Z") from None
        return int((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp() * SECOND)


class KeyList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. Raises ValueError for a key that is there twice."""

    keys: list[KeyEntry]

    def __post_init__(self) -> None:
        seen = dict[str, int]()
        for number, entry in enumerate(self.keys):
            if entry.api_key in seen:
                raise ValueError(f"keys[{number}] is the same key as keys[{seen[entry.api_key]}]")
            seen[entry.api_key] = number


class FileKey(msgspec.Struct, frozen=True, gc=False):
    """What a key stands for, and until when."""

    caller: Caller
    expires_at: int | None
    """µs since 1970, or None for never."""


class _Regular:
    """A file that is read again (a `ReadableFile`)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_bytes(self) -> bytes:
        """Return its content. Raises OSError."""
        return read_file(self._path, MAX_TEXT_BYTES)

    def __str__(self) -> str:
        return str(self._path)


def read_keys(path: Path) -> Mapping[bytes, FileKey]:
    """Return the keys of a file by their SHA-256. Raises ConfigError."""
    table = dict[bytes, FileKey]()
    for entry in read_struct(_Regular(path), KeyList).keys:
        cap = None if entry.priority_class is None else parse_class(entry.priority_class)
        caller = Caller(KEY_TENANT_PREFIX + entry.tenant, KeyRights.TENANT, cap)
        table[bytes.fromhex(entry.api_key.removeprefix(HASH_PREFIX))] = FileKey(caller, entry.expires_at())
    return table


def expiry_warning(keys: Iterable[FileKey], now: int) -> str | None:
    """Return which keys have expired at `now`, µs since 1970, or will within a week; None if none. Keys are told by their
    tenants."""
    ends = sorted((key.expires_at, key.caller.tenant) for key in keys if key.expires_at is not None)
    past = [_in_words(*end) for end in ends if end[0] <= now]
    soon = [_in_words(*end) for end in ends if now < end[0] <= now + _SOON]
    said = [f"{what}: {_listed(named)}" for what, named in (("have expired", past), ("expire within a week", soon)) if named]
    return f"keys that {'; that '.join(said)}" if said else None


def _in_words(expires_at: int, tenant: str) -> str:
    # With an offset from UTC it may be in the year before, which is none.
    when = datetime.fromtimestamp(max(expires_at // SECOND, _FIRST_YEAR), UTC)
    return f"{tenant} ({when:%Y-%m-%dT%H:%MZ})"


def _listed(named: Sequence[str]) -> str:
    more = len(named) - _MAX_NAMED
    return ", ".join(named[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


class KeysFile:
    """The keys of one file (a `CallerSource`)."""

    name = "the keys file"

    def __init__(self, path: str, clock: Clock) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._path, self._clock = Path(path), clock
        self._seen = self._stamp()
        self._read: Mapping[bytes, FileKey] | ConfigError = read_keys(self._path)
        """The keys in the file as it was seen last, or what is wrong with it."""
        self._table = KeyTable(self._read)

    def find(self, key: bytes, digest: bytes) -> Caller | None:
        """Return whose key this is, or None if it is not of this file. Raises ApiError 401 for one that has expired."""
        found = self._table.find(digest)
        if found is None:
            return None
        if found.expires_at is not None and self._clock.wall() >= found.expires_at:
            raise error_responses.expired_api_key()
        return found.caller

    @property
    def is_local(self) -> bool:
        """It is a file."""
        return True

    async def pause(self) -> None:
        """Return when the file should be looked at again."""
        await asyncio.sleep(LOOK_SECS)

    async def refresh(self) -> bool:
        """Read the file again if it has changed, and return whether it has. Raises ConfigError, and changes nothing then; also
        while the file stays as wrong as it was."""
        # Nothing of this object is written in the thread: who waits for it may have given up.
        found = await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, self._read_changed)
        if found is not None:
            self._seen, self._read = found
        if isinstance(self._read, ConfigError):
            raise self._read.with_traceback(None)  # It would grow with each look.
        if found is not None:
            self._table = KeyTable(self._read)
            warning = expiry_warning(self._read.values(), self._clock.wall())
            if warning is not None:
                log.warning("%s has %s", self._path, warning)
        return found is not None

    def _read_changed(self) -> tuple[_Stamp, Mapping[bytes, FileKey] | ConfigError] | None:
        stamp = self._stamp()  # First: what is written meanwhile is seen by the next look.
        if stamp == self._seen:
            return None
        try:
            return stamp, read_keys(self._path)
        except ConfigError as error:
            return stamp, error

    def _stamp(self) -> _Stamp:
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino
