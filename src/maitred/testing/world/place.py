"""Place: where code runs. It is one program, on one machine, with its descriptors, its connections and its tasks.

Each callback has its place in its context, so whatever a program starts belongs to it: what it opens has the address of its
machine, and nothing of it runs any more when it is killed (`VirtualLoop.drop`).
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
from typing import Any, Final
from weakref import WeakSet


class Descriptors:
    """The descriptors of one program: the lowest free number is given first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used: set[int] = {0, 1, 2}
        self._lowest = 3

    @property
    def num_used(self) -> int:
        """Number of descriptors in use, standard streams included."""
        return len(self._used)

    def lowest_free(self) -> int:
        """Return the lowest free number. Raises OSError EMFILE if there is none."""
        if self._lowest >= self.limit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._lowest

    def take(self) -> int:
        """Take the lowest free number. Raises OSError EMFILE if there is none."""
        number = self.lowest_free()
        self._used.add(number)
        while self._lowest in self._used:
            self._lowest += 1
        return number

    def give_back(self, number: int) -> None:
        """Return a number."""
        self._used.discard(number)
        self._lowest = min(self._lowest, number)


class Place:
    """Where code runs: the address and the descriptors of the program. Each program's tasks carry it in their context."""

    def __init__(self, address: str, max_descriptors: int = 1 << 20) -> None:
        self.address = address
        self.descriptors = Descriptors(max_descriptors)
        self.transports: dict[int, Any] = {}
        """The open ends of connections of this program (`MemoryTransport`), by descriptor."""
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        """The tasks of this program, as long as they are kept by anything."""

    def add(self, transport: Any) -> None:
        """Keep an end of a connection that was opened here until it is closed."""
        self.transports[transport.descriptor] = transport
        transport.on_close = lambda: self._remove(transport.descriptor)

    def _remove(self, descriptor: int) -> None:
        self.transports.pop(descriptor, None)
        self.descriptors.give_back(descriptor)


ELSEWHERE: Final = "10.0.0.1"
PLACE: contextvars.ContextVar[Place | None] = contextvars.ContextVar("place", default=None)
"""Where the present callback runs."""


def here() -> Place:
    """Return where the present callback runs: a machine, or the one outside all of them."""
    place = PLACE.get()
    if place is None:
        place = Place(ELSEWHERE)
        PLACE.set(place)
    return place
