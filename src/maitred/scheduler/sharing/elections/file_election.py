"""An election on one machine: who has the lock on a file leads, until its process ends or lets go of it.

The file holds the epoch, the leader and its gateways, as JSON. The lock is on a second file beside it, because the first one is
replaced as a whole. The system frees the lock with the process, so there is no lease to wait for: the next leader begins
at once. Where there is no file yet, nobody has led, and nothing has to be learned. A leader that is stopped (SIGSTOP) goes on
leading, as nobody can take its lock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import msgspec

from maitred.core.errors import describe_os_error
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.sharing.elections.election import Candidate, Election, ElectionError, Term

T = TypeVar("T")


class _Record(msgspec.Struct):
    epoch: int = 0
    leader: Candidate | None = None
    gateways: list[GatewayId] = []


class FileElection(Election):
    """An election by a file."""

    lease = None
    names_gateways = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None
        self._record = _Record()

    async def campaign(self, candidate: Candidate, floor: int) -> Term | None:
        return await self._in_thread(lambda: self._campaign(candidate, floor))

    async def renew(self, gateways: Collection[GatewayId]) -> bool:
        named = sorted(gateways)
        if named != self._record.gateways:
            record = msgspec.structs.replace(self._record, gateways=named)
            await self._in_thread(lambda: self._write(record))
            self._record = record
        return self._descriptor is not None

    async def resign(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def leader(self) -> Candidate | None:
        return (await self._in_thread(self._read)).leader

    async def close(self) -> None:
        await self.resign()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except OSError as error:
            raise ElectionError(f"the election in {self._path} cannot be used: {describe_os_error(error)}") from error
        except msgspec.MsgspecError as error:
            raise ElectionError(f"{self._path} is no file of an election: {error}") from error

    def _campaign(self, candidate: Candidate, floor: int) -> Term | None:
        import fcntl

        descriptor = os.open(self._lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            before = self._read()
            self._record = _Record(max(before.epoch, floor) + 1, candidate, before.gateways)
            self._write(self._record)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return Term(self._record.epoch, before.gateways)

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
