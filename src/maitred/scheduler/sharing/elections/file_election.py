"""An election on one machine: who has the lock on a file leads, until its process ends or lets go of it.

The file holds the epoch, the leader and its gateways, as JSON. The lock is on a second file beside it, because the first one is
replaced as a whole. The system frees the lock with the process, so there is no lease to wait for: the next leader begins
at once. Where there is no file yet, nobody has led, and nothing has to be learned. A leader that is stopped (SIGSTOP) goes on
leading, as nobody can take its lock.

The file may be on a disk that hangs (NFS). Then it is asked in one thread, which nothing can end, and no more is asked until
that is over. A lock that is had in the end by a campaign which was given up is let go, and a leader that resigns has its lock
until what it was writing is written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from maitred.core.errors import describe_os_error
from maitred.files.daemon_threads import DAEMON_THREADS
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.sharing.elections.election import Election, ElectionCandidate, ElectionError, Term

T = TypeVar("T")


class _Record(msgspec.Struct):
    epoch: int = 0
    leader: ElectionCandidate | None = None
    gateways: list[GatewayId] = []


class _Won(NamedTuple):
    """What a campaign has, for as long as `descriptor` is open."""

    descriptor: int
    record: _Record
    before: Sequence[GatewayId]
    """The gateways of the term before."""


def _ignore(asked: asyncio.Future[Any]) -> None:
    """Take note of how it went, so that nothing is logged of it."""
    if not asked.cancelled():
        asked.exception()


def _let_go(asked: asyncio.Future[_Won | None]) -> None:
    """Let go of the lock that a campaign has had in the end."""
    _ignore(asked)
    if not asked.cancelled() and asked.exception() is None and (won := asked.result()) is not None:
        os.close(won.descriptor)


class FileElection(Election):
    """An election by a file."""

    lease = None
    names_gateways = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None
        self._record = _Record()
        self._asked: asyncio.Future[Any] | None = None
        """What the file was asked last."""

    async def campaign(self, candidate: ElectionCandidate, floor: int) -> Term | None:
        won = await self._in_thread(lambda: self._campaign(candidate, floor), _let_go)
        if won is None:
            return None
        self._descriptor, self._record = won.descriptor, won.record
        return Term(won.record.epoch, [*won.before])

    async def renew(self, gateways: Collection[GatewayId]) -> bool:
        named = sorted(gateways)
        if named != self._record.gateways:
            record = msgspec.structs.replace(self._record, gateways=named)
            await self._in_thread(lambda: self._write(record))
            self._record = record
        return self._descriptor is not None

    async def resign(self) -> None:
        """Let another one lead, as soon as nothing is being written any more: it would overwrite the record of the next."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if self._asked is None or self._asked.done():
            os.close(descriptor)
        else:
            self._asked.add_done_callback(lambda asked: os.close(descriptor))

    async def leader(self) -> ElectionCandidate | None:
        return (await self._in_thread(self._read)).leader

    async def close(self) -> None:
        await self.resign()

    async def _in_thread(self, work: Callable[[], T], give_up: Callable[[asyncio.Future[T]], object] = _ignore) -> T:
        """Run `work` in a thread and return its result. If the caller is cancelled meanwhile, `give_up` is called with the
        future in the end. Raises ElectionError."""
        if self._asked is not None and not self._asked.done():
            raise ElectionError(f"the election in {self._path} cannot be used: the file does not answer (does a disk hang?)")
        asked = self._asked = asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, work)
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(give_up)
            raise
        except OSError as error:
            raise ElectionError(f"the election in {self._path} cannot be used: {describe_os_error(error)}") from error
        except msgspec.MsgspecError as error:
            raise ElectionError(f"{self._path} is no file of an election: {error}") from error

    def _campaign(self, candidate: ElectionCandidate, floor: int) -> _Won | None:
        import fcntl

        descriptor = os.open(self._lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            before = self._read()
            record = _Record(max(before.epoch, floor) + 1, candidate, before.gateways)
            self._write(record)
        except BaseException:
            os.close(descriptor)
            raise
        return _Won(descriptor, record, before.gateways)

    def _read(self) -> _Record:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except FileNotFoundError:
            return _Record()

    def _write(self, record: _Record) -> None:
        written = self._path.with_name(self._path.name + ".new")
        written.touch(0o600)
        written.write_bytes(msgspec.json.encode(record))
        written.replace(self._path)
