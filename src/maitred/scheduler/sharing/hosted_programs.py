"""HostedPrograms: the memories of agent programs' requests that are served by gateways in other processes.

Each has a lease at the driver of the programs, as a request of this process has (`RealTimePrograms`). What is decided about
it is told to its gateway, which waits for it there (`RemotePrograms`). No request is granted memory before the programs of the
last run are known; those that come earlier are kept, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros
from maitred.programs import ProgramRecord, ProgramRequest
from maitred.scheduler.drivers.programs import MemoryLease, RealTimePrograms
from maitred.scheduler.link.gateway_books import BookedMemory
from maitred.scheduler.link.linked_programs import MemoryHost
from maitred.scheduler.link.messages import EndProgram, Memory
from maitred.scheduler.link.terms import LiveMemory, ProgramTerms


class HostedLease(MemoryLease):
    """A request of a gateway that waits for memory or has it."""

    __slots__ = ("_tell",)

    def __init__(self, request: ProgramRequest, terms: ProgramTerms, now: Micros, tell: Callable[[], object]) -> None:
        """`tell` is called when something is decided about it."""
        super().__init__(request, now, asks_for_stream=terms.asks_for_stream, ends_program=terms.ends_program)
        self._tell = tell

    def set_memory(self, memory: int | None) -> None:
        super().set_memory(memory)
        self._tell()


class HostedPrograms(MemoryHost):
    """Hands the requests of all gateways to the driver of the programs."""

    def __init__(self, driver: RealTimePrograms, next_id: Callable[[], RequestId], flush_soon: Callable[[], object]) -> None:
        """`next_id` returns an id for a request that no other has had, and `flush_soon` has written what was said."""
        self._driver, self._next_id, self._flush_soon = driver, next_id, flush_soon
        self._kept: list[Callable[[], None]] = []
        """What is to be done when the programs of the last run are known."""
        self._restoring: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._restoring is not None:
            self._restoring.cancel()

    def begin(self, memory: BookedMemory, terms: ProgramTerms, now: Micros) -> None:
        if not self._driver.restored.is_set():
            self._keep(lambda: self._begin_late(memory, terms))
            return
        request = ProgramRequest(
            id=self._next_id(),
            client_id=terms.client_id,
            model=terms.model,
            tenant=terms.tenant,
            program=terms.program,
            parent=terms.parent,
            priority_class=PriorityClass(terms.priority_class),
            characters=terms.characters,
            prompt_tokens=terms.prompt_tokens,
        )
        lease = memory.lease = HostedLease(request, terms, now, lambda: self.tell(memory))
        self._driver.begin_lease(lease, now)

    def take_over(self, memory: BookedMemory, live: LiveMemory, now: Micros) -> None:
        if not self._driver.restored.is_set():
            self._keep(lambda: self._take_over_late(memory, live))
            return
        terms, began_at = live.terms, now - live.age
        if terms.program:  # One that is known already is where it is.
            record = ProgramRecord(
                tenant=terms.tenant,
                name=terms.program,
                model=terms.model,
                priority_class=PriorityClass(terms.priority_class),
                parent=terms.parent,
                backend=live.memory,
                characters=terms.characters,
                created_at=began_at,
                last_active=now,
            )
            self._driver.adopt([record])
        self.begin(memory, terms, now)

    def tell(self, memory: BookedMemory) -> None:
        lease = memory.lease
        if lease is not None:
            self.say(memory.gateway, Memory(memory.number, lease.memory, lease.refusal or ""))
            self._flush_soon()

    def progress(self, memory: BookedMemory, tokens: int) -> None:
        if memory.lease is not None:
            self._driver.add_progress(memory.lease, tokens)

    def end(self, memory: BookedMemory, ended: EndProgram | None, now: Micros) -> None:
        lease = memory.lease
        if lease is None:
            return
        if ended is not None:
            lease.usage, lease.is_stream = ended.usage, ended.is_stream
            lease.first_data_at = None if ended.since_first_data is None else now - ended.since_first_data
        self._driver.end(lease, now)

    def _keep(self, begin: Callable[[], None]) -> None:
        self._kept.append(begin)
        if self._restoring is None:
            self._restoring = asyncio.get_running_loop().create_task(self._begin_kept())

    async def _begin_kept(self) -> None:
        await self._driver.restored.wait()
        kept, self._kept, self._restoring = self._kept, [], None
        for begin in kept:
            begin()

    def _begin_late(self, memory: BookedMemory, terms: ProgramTerms) -> None:
        if memory.gateway.memories.get(memory.number) is memory:
            self.begin(memory, terms, self._driver.clock.now())

    def _take_over_late(self, memory: BookedMemory, live: LiveMemory) -> None:
        if memory.gateway.memories.get(memory.number) is memory:
            self.take_over(memory, live, self._driver.clock.now())
