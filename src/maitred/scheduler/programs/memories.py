"""Tell the programs core what is known of the KV memory of each backend, and find the backend that it has chosen.

The core numbers memories. A backend has one, or one for each data-parallel rank that its engine reports:

    index = number of the backend + number of backends * rank

so that the memory of a backend without ranks has the backend's own number. With two backends, of which the second has three
ranks, backend 0 is memory 0, and the ranks of backend 1 are the memories 1, 3 and 5. A request that is granted memory 5 goes to
backend 1 with the header `x-data-parallel-rank: 2`. Backends that come later are numbered likewise from `_FIRST_OF_FOUND` on,
as if there were `_MOST_FOUND` of them, so that no index changes when one comes.

**Shared tokens.** Programs with the same system prompt share its KV blocks, and the sum of their tokens counts them several
times. vLLM and SGLang report which share of their blocks running requests use, so (ThunderAgent's formula)

    shared = reasoning tokens - usage * capacity

This is true only while all tokens that are counted are in the memory, and it is believed in no other case:

- an engine with waiting requests has not yet computed what they bring, nor has one that runs fewer requests than there are
  reasoning programs;
- a usage of 0 while requests run is a gauge that the engine does not set;
- a prompt that is being computed in chunks is in memory in part. So a program is left out while a stream that it has asked for
  has not begun. Of an answer that is not streamed nothing is seen before its end; its prompt soon is there whole, so the least
  of the last three readings counts;
- the tokens of the largest program are in memory once in any case: nothing is shared by one program, and the sum of all tokens
  without the largest program's bounds what several share.

What other clients of the engine use makes the usage larger and the result smaller, which is safe. Blocks of acting programs
are cached and count as free, so what acting programs share with each other is not measured.

What is left out is used all the same, as far as it is computed, so the result is too small rather than too large.

Example: three reasoning programs of 4,000 tokens, a usage of 0.45 and a capacity of 20,000: 9,000 are used, 3,000 are shared,
and 8,000 would be the most that is believed. A fourth program of 8,000, of whose prompt 1,000 tokens are computed, makes the
usage 0.5: at least 2,000 are shared.

**A restart** of an engine loses all KV. Its programs lose their places as if it had been down for a moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import ceil
from typing import Final, NamedTuple

from maitred.programs import BackendMemory, BackendStatus, ProgramPhase
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.engines.report import KvMemory
from maitred.wire.messages import Headers

_READINGS: Final = 3
"""Readings of which the least shared tokens count."""
DATA_PARALLEL_RANK_HEADER: Final = b"x-data-parallel-rank"


class MemoryTarget(NamedTuple):
    """Where a memory is."""

    backend: Backend
    rank: int | None
    """The data-parallel rank to ask for, or None if the engine chooses."""


def with_rank(headers: Headers, rank: int) -> Headers:
    """Return the headers of a request for this data-parallel rank."""
    kept = [header for header in headers if header[0] != DATA_PARALLEL_RANK_HEADER]
    return [*kept, (DATA_PARALLEL_RANK_HEADER, b"%d" % rank)]


class _Known(NamedTuple):
    """What the core has been told of one memory."""

    models: tuple[str, ...]
    status: BackendStatus
    capacity: int | None
    shared_tokens: int


_FIRST_OF_FOUND: Final = 1 << 20
_MOST_FOUND: Final = 1 << 16
_ONE_UNKNOWN: Final = (KvMemory(),)


class ProgramMemories:
    """The memories of all backends of a gateway: a `BackendObserver`, from which it does not inherit, because that is compiled
    and this is not."""

    def __init__(self, fleet: FleetView, driver: RealTimePrograms) -> None:
        self._fleet = fleet
        self._driver = driver
        self._core = driver.core
        self._num_configured = len(fleet.seats)
        self._known: dict[int, _Known] = {}
        """By index."""
        self._indices: dict[int, tuple[int, ...]] = {}
        """The memories of each backend that has been up."""
        self._readings: dict[int, deque[int]] = {}
        """The last measurements of shared tokens, by index."""
        self._last_read: dict[int, KvMemory] = {}
        """What each was measured on last, by index."""

    def target(self, index: int) -> MemoryTarget:
        """Return where the memory with this index is."""
        if index < _FIRST_OF_FOUND:
            rank, number = divmod(index, self._num_configured)
        else:
            rank, later = divmod(index - _FIRST_OF_FOUND, _MOST_FOUND)
            number = self._num_configured + later
        has_ranks = len(self._indices.get(number, ())) > 1
        return MemoryTarget(self._fleet.seats[number], rank if has_ranks else None)

    def indices_of(self, backend: Backend) -> tuple[int, ...]:
        """Return the memories of a backend, none if it has never been up."""
        return self._indices.get(backend.index, ())

    def index_of(self, backend: Backend, rank: int | None) -> int:
        """Return the index of a memory."""
        later = backend.index - self._num_configured
        if later < 0:
            return backend.index + self._num_configured * (rank or 0)
        return _FIRST_OF_FOUND + later + _MOST_FOUND * (rank or 0)

    def on_backend_polled(self, backend: Backend) -> None:
        """Pass on what is known of a backend, if it differs from what was."""
        if not backend.was_ever_healthy:
            return
        memories = self._memories_of(backend)
        indices = tuple(self.index_of(backend, memory.rank) for memory in memories)
        for gone in set(self._indices.get(backend.index, ())) - set(indices):
            self._tell(gone, _Known((), BackendStatus.DOWN, None, 0))
        self._indices[backend.index] = indices
        status, models = _status_of(backend), tuple(backend.models)
        for index, memory in zip(indices, memories, strict=True):
            shared = self._shared_tokens(index, memory) if status is not BackendStatus.DOWN else 0
            configured = self._core.config.backend_capacity_tokens
            self._tell(index, _Known(models, status, memory.capacity if configured is None else configured, shared))

    def on_backend_restarted(self, backend: Backend) -> None:
        """Note that the KV of a backend is lost."""
        for index in self.indices_of(backend):
            self._readings.pop(index, None)
            known = self._known[index]
            self._tell(index, known._replace(status=BackendStatus.DOWN))

    def _memories_of(self, backend: Backend) -> tuple[KvMemory, ...]:
        """Return the memories that a backend reports. One that is down keeps its ranks, of which nothing else is known."""
        if backend.kv is not None:
            return backend.kv.memories
        known = self._indices.get(backend.index, ()) if not backend.healthy else ()
        return tuple(KvMemory(rank=self.target(index).rank) for index in known) or _ONE_UNKNOWN

    def _tell(self, index: int, known: _Known) -> None:
        # The core lets shared tokens shrink with its programs, so the same number may be news.
        if self._known.get(index) == known and not known.shared_tokens:
            return
        self._known[index] = known
        self._driver.set_backend(index, *known)

    def _shared_tokens(self, index: int, memory: KvMemory) -> int:
        readings = self._readings.setdefault(index, deque(maxlen=_READINGS))
        if self._last_read.get(index) is not memory:  # Polls are more frequent than readings.
            self._last_read[index] = memory
            registered = next((known for known in self._core.backends if known.index == index), None)
            prefilling = self._driver.prefilling(index)
            readings.append(0 if registered is None else measure_shared_tokens(registered, memory, prefilling))
        return min(readings) if len(readings) == _READINGS else 0


def measure_shared_tokens(registered: BackendMemory, reported: KvMemory, prefilling: Collection[int]) -> int:
    """Return the tokens that reasoning programs share, at least, according to one reading; 0 if the reading does not show it.
    `prefilling` has the serial numbers of programs that may not be in memory whole."""
    if reported.capacity is None or not reported.usage or reported.running is None or reported.waiting != 0:
        return 0
    reasoning = [program for program in registered.programs if program.phase is ProgramPhase.REASONING]
    if reported.running < len(reasoning):
        return 0
    tokens = [program.unshared_tokens for program in reasoning if program.serial not in prefilling]
    counted = sum(tokens)
    return max(0, min(counted - ceil(reported.usage * reported.capacity), counted - max(tokens, default=0)))


def _status_of(backend: Backend) -> BackendStatus:
    if not backend.healthy:
        return BackendStatus.DOWN
    return BackendStatus.DRAINING if backend.is_draining or backend.is_left else BackendStatus.UP
