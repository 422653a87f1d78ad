"""MemoryMachine: a machine of a world, with one program on it; and the disk of that machine.

A program runs in a context that names its machine (`run`): what it opens has the address and the descriptors of the machine,
and what it does in threads is up to the machine's disk. The files themselves are real, in a folder of the test:

    slow    work takes `slow_secs` longer
    full    it raises OSError ENOSPC, and does nothing
    hung    it does not begin before `heal`
    torn    `tear` cuts a file short within its last bytes, as a crash may leave it
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.network import MemoryListener, Network
from maitred.testing.world.place import PLACE, Place
from maitred.testing.world.threads import ThreadFate
from maitred.wire.clock import Clock
from maitred.wire.machine import BACKLOG, ListeningSocket, Machine

T = TypeVar("T")
EPOCH_NS: Final = 1_800_000_000_000_000_000
"""The time of day at which the clocks of all loops began."""


class Disk:
    """A disk: what becomes of work in threads."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.slow_secs = 0.0
        self.is_full = self.is_hung = False
        self.met_trouble = False
        """Whether the work that began last was late, held up or failed."""
        self._loop = loop

    @property
    def is_well(self) -> bool:
        """Whether it works at once."""
        return not (self.slow_secs or self.is_full or self.is_hung)

    def heal(self) -> None:
        """Work well again, and begin what was held up."""
        was_hung = self.is_hung
        self.slow_secs, self.is_full, self.is_hung = 0.0, False, False
        self._loop.release_threads(self)
        self.met_trouble |= was_hung

    def begin(self) -> ThreadFate:
        """Return the fate of work that begins now."""
        self.met_trouble = not self.is_well
        trouble = self if self.met_trouble else None
        if self.is_hung:
            return ThreadFate(None, trouble=trouble)
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if self.is_full else None
        return ThreadFate(self._loop.thread_delay() + self.slow_secs, error, trouble)


def tear(path: Path, random: Random, most: int = 4_096) -> int:
    """Cut a file short by up to `most` bytes, and return by how many."""
    size = path.stat().st_size
    lost = random.randint(0, min(most, size))
    os.truncate(path, size - lost)
    return lost


class MemoryMachine(Machine):
    """A machine with an address, descriptors, a disk and the clock of its world."""

    def __init__(self, loop: VirtualLoop, network: Network, name: str, address: str, max_descriptors: int = 1 << 20) -> None:
        super().__init__(Clock(lambda: loop.micros * 1000, lambda: EPOCH_NS + loop.micros * 1000, lambda: 0))
        self.name = name
        self.random = loop.draws.of(f"machine {name}")
        self.disk = Disk(loop)
        self.place = Place(address, max_descriptors)
        network.hosts[name] = [address]
        self.network = network
        self._loop = loop

    def run(self, program: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a program here."""
        context = contextvars.copy_context()
        context.run(PLACE.set, self.place)
        context.run(self._loop.thread_fate.set, self._thread_fate)
        task: asyncio.Task[T] = self._loop.create_task(program, name=self.name, context=context)
        return task

    def crash(self) -> None:
        """Reset all connections and listen no more, within this instant."""
        self.network.close_listeners(self.place)
        for transport in list(self.place.transports.values()):
            transport.abort()

    def kill(self) -> None:
        """End the program at once, as SIGKILL does: nothing of it runs any more, and the system closes what it had open. The
        next one that runs here begins with nothing but the disk."""
        place = self.place
        self._loop.drop(place)
        self.network.close_listeners(place)
        self.network.reset_half_made(place)
        for transport in list(place.transports.values()):
            transport.vanish()
        self.place = Place(place.address, place.descriptors.limit)

    def listen(self, host: str, port: int) -> ListeningSocket:
        """Return a listening socket. Raises OSError."""
        listener: MemoryListener = self.network.listen(host, port, self.place, BACKLOG)
        return listener  # type: ignore[return-value]  # what it accepts goes to the loop, as with sockets

    def look_up(self, host: str) -> list[str]:
        """Return the addresses of a host. Raises OSError."""
        return self.network.addresses_of(host)

    def watch_sockets(self, loop: asyncio.AbstractEventLoop) -> MemorySocketWatch:
        """Return a watch on the sockets of this machine."""
        return MemorySocketWatch(self.place)

    def descriptor_limit(self) -> int:
        """Return how many descriptors the program may have."""
        return self.place.descriptors.limit

    def lowest_free_descriptor(self) -> int:
        """Return the number that the next descriptor will have. Raises OSError if none is left."""
        return self.place.descriptors.lowest_free()

    def _thread_fate(self, work: Callable[..., object]) -> ThreadFate:
        is_look_up = getattr(work, "__self__", None) is self
        return ThreadFate(self._loop.thread_delay()) if is_look_up else self.disk.begin()


class MemorySocketWatch:
    """What a machine knows of its sockets beyond what asyncio says (`SocketWatch`)."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def watch(self, descriptor: int, on_hangup: Callable[[], object]) -> None:
        """Call `on_hangup` once if the peer hangs up."""
        transport = self._place.transports.get(descriptor)
        if transport is not None:
            transport.watch_hangup(on_hangup)

    def stop_watching(self, descriptor: int) -> None:
        """Watch this socket no more."""
        transport = self._place.transports.get(descriptor)
        if transport is not None:
            transport.watch_hangup(None)

    def num_queued_bytes(self, descriptor: int) -> int:
        """Return how many bytes the system keeps for the peer."""
        transport = self._place.transports.get(descriptor)
        return 0 if transport is None else transport.num_queued_bytes()

    def close(self) -> None:
        """Do nothing: nothing is held."""
