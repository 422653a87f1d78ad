"""Traffic that several workers record, as one file: each sends its rows to the parent, which puts all in order and writes them.

A row is kept here until the parent has said that it has it, so a link that breaks loses none. The parent holds a row until no
worker has a request that arrived earlier; each says so with every row, and once a second. What a worker that is killed has
not sent is lost with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from maitred.core.units import Micros
from maitred.gateway.observe.record_file import RecordFile
from maitred.gateway.observe.recording import RecordingRow, RecordSink
from maitred.gateway.workers.notes import NoteKind
from maitred.scheduler.interface import GatewayId, LinkNote

log = logging.getLogger("maitred.gateway")
_MOST_KEPT: Final = 65_536
"""Rows that are kept for a parent that does not take them; beyond, the oldest are lost."""


class RecordNote(msgspec.Struct, frozen=True):
    """A row, or none, and when the oldest request of its worker arrived that has not ended, on the clock of the machine."""

    oldest: Micros
    recorded: RecordingRow | None = None


class RecordRelay(RecordSink):
    """Sends the rows of a worker to its parent."""

    def __init__(self) -> None:
        self.send: Callable[[LinkNote], object] = _drop
        """Says something to the parent, if there is a link."""
        self._kept: dict[int, LinkNote] = {}
        """The rows that the parent has not said to have, by number."""
        self._last_number = 0
        self._num_dropped = 0

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def reopen(self) -> None:
        pass

    @property
    def num_dropped(self) -> int:
        return self._num_dropped

    def take(self, recorded: RecordingRow, oldest: Micros) -> None:
        self._last_number += 1
        note = LinkNote(NoteKind.RECORD, self._last_number, msgspec.msgpack.encode(RecordNote(oldest, recorded)))
        self._kept[self._last_number] = note
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
            if not self._num_dropped:
                log.error("rows of the recording are lost: the process that writes them does not take them")
            self._num_dropped += 1
        self.send(note)

    def tell_oldest(self, oldest: Micros) -> None:
        """Say when the oldest request arrived that has not ended, without a row."""
        self.send(LinkNote(NoteKind.RECORD, 0, msgspec.msgpack.encode(RecordNote(oldest))))

    def on_taken(self, number: int) -> None:
        """Note that the parent has a row."""
        self._kept.pop(number, None)

    def send_again(self) -> None:
        """Send all that the parent may not have, on a link that is there again."""
        for note in [*self._kept.values()]:
            self.send(note)


class RecordOfWorkers:
    """Writes the rows of all workers."""

    def __init__(self, file: RecordFile, tell: Callable[[LinkNote, GatewayId], object]) -> None:
        """`tell` says something to a worker."""
        self._file, self._tell = file, tell
        self._last_numbers: dict[GatewayId, int] = {}
        self._oldest: dict[GatewayId, Micros] = {}

    def on_note(self, worker: GatewayId, number: int, payload: bytes, present: Collection[GatewayId], now: Micros) -> None:
        """Take what a worker says. `present` are the workers that are connected."""
        note = msgspec.msgpack.decode(payload, type=RecordNote)
        self._oldest[worker] = note.oldest
        if note.recorded is not None:
            if number > self._last_numbers.get(worker, 0):
                self._last_numbers[worker] = number
                self._file.hold(note.recorded)
            self._tell(LinkNote(NoteKind.RECORD, number, b""), worker)
        for gone in self._oldest.keys() - set(present):
            del self._oldest[gone]
        self._file.release(min(self._oldest.values(), default=now), now)


def _drop(note: LinkNote) -> None:
    """Do nothing: there is no link yet."""
