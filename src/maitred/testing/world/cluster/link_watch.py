"""LinkWatch: what is said on all links, read where it is sent, and what must hold of it.

epochs     no scheduler grants after one of a later epoch has, nor under the epoch of another
attempts   each attempt of a request is granted once
order      a request that waits is not overtaken by a younger one of its class and tenant at the same scheduler, by more than
           the links may delay; what a scheduler reads late, because it stood still or a way was cut, is asked when it reads
           it, since nothing tells it what came first
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from maitred.admission import Reason, TicketState
from maitred.core.units import MILLISECOND, Micros
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.link.messages import AnyMessage, Failed, Grant, Hello, HelloPart, Queue, Reject, Release, Submit, Yielded
from maitred.scheduler.link.terms import LiveRequest, RequestTerms, Standing
from maitred.testing.world.cluster.processes import SchedulerProcess
from maitred.testing.world.cluster.scenario import LINK_PORT
from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.transport import Connection

MAX_DISORDER: Final[Micros] = 100 * MILLISECOND
"""By how much a request may be younger than one that it overtakes: the delay of a link, and the rounding of ages."""

_VICTIM_LOST: Final = (Reason.BUDGET_SPENT, Reason.VICTIM_DECLINED)


class _Asked(msgspec.Struct, eq=False):
    """A request, as both ends of its links have told."""

    terms: RequestTerms
    submitted_at: Micros
    """When its gateway had it, by the time of the world."""
    since: Micros
    """The same, or when its scheduler has read that it asks."""
    waits: bool = True
    has_victim: bool = False
    """Whether it waits for the slot of its victim, and so for no other's turn."""
    is_first: bool = False
    """Whether it was a victim, or its backend was lost with its slot, or its own victim was not to be had: then it waits before
    all others of its class, also those of which nothing was known, and those that were first before it
    (`LaneQueue.push_front`)."""


class _Wire(msgspec.Struct, eq=False):
    """A connection of a gateway."""

    gateway: GatewayId | None = None
    named: list[LiveRequest] = []
    """The requests of the hello so far."""
    unread: dict[bool, bytearray] = msgspec.field(default_factory=lambda: {True: bytearray(), False: bytearray()})
    """Frames that are not whole, of each direction."""


class LinkWatch:
    """Reads all links of a world."""

    def __init__(self, loop: VirtualLoop, schedulers: Sequence[SchedulerProcess], say: Callable[[str], object]) -> None:
        """`say` is told what does not hold."""
        self.granting: set[str] = set()
        """The addresses of schedulers that have granted something since this was last emptied."""
        self.speaking: set[str] = set()
        """The addresses of processes that have said something since this was last emptied."""
        self.num_grants = 0
        self.highest_epoch = 0
        """The highest epoch that has granted."""
        self._loop, self._schedulers, self._say = loop, schedulers, say
        self._wires: dict[int, _Wire] = {}
        self._awaited: dict[type, list[asyncio.Future[str]]] = {}
        """What waits for messages of each kind."""
        self._booked: dict[str, int] = {}
        """The last ticket that each scheduler had given when the last turn of the loop ended."""
        self._known: dict[str, int] = {}
        """The same of the last turn before `_instant`: what is decided at an instant may be sent some turns later, then."""
        self._instant: Micros = 0
        self._leaders: dict[int, str] = {}
        """The scheduler that has granted under each epoch."""
        self._granted: set[tuple[GatewayId, int, int]] = set()
        self._asked: dict[tuple[GatewayId, int], _Asked] = {}
        self._unheard: dict[str, dict[tuple[GatewayId, int], _Asked]] = {}
        """What was asked of schedulers that have not read it yet, by their addresses."""
        self._decode = msgspec.msgpack.Decoder(list[AnyMessage]).decode

    async def next_sent(self, kind: type) -> str:
        """Wait until a message of this kind is sent, and return the address of the gateway that sends it, or that it is for."""
        sent: asyncio.Future[str] = self._loop.create_future()
        self._awaited.setdefault(kind, []).append(sent)
        return await sent

    def end_turn(self) -> None:
        """Note that a turn of the loop has ended."""
        self._begin_instant()
        for scheduler in self._schedulers:
            if (host := scheduler.host) is not None:
                self._booked[scheduler.address] = host.end.books._last_ticket
                gateways, unheard = host.end.books.gateways, self._unheard.get(scheduler.address, {})
                for (gateway, number), asked in [*unheard.items()]:
                    if gateway in gateways and gateways[gateway].last_number >= number:
                        asked.since = self._loop.micros
                        del unheard[gateway, number]

    def _begin_instant(self) -> None:
        if self._loop.micros != self._instant:
            self._instant, self._known = self._loop.micros, {**self._booked}

    def on_sent(self, connection: Connection, is_forth: bool, data: bytes) -> None:
        """Read what one end of a connection sends."""
        if not is_of_link(connection):
            return
        self.speaking.add(connection.source[0] if is_forth else connection.target[0])
        wire = self._wires.setdefault(connection.number, _Wire())
        unread = wire.unread[is_forth]
        unread += data
        while len(unread) >= 4 and len(unread) >= (end := 4 + int.from_bytes(unread[:4], "big")):
            for message in self._decode(unread[4:end]):
                self._take(wire, connection.target[0], message)
                for sent in self._awaited.pop(type(message), ()):
                    if not sent.done():
                        sent.set_result(connection.source[0])
            del unread[:end]

    def _take(self, wire: _Wire, scheduler: str, message: AnyMessage) -> None:
        gateway = wire.gateway
        if isinstance(message, HelloPart):
            wire.named += message.requests
        elif isinstance(message, Hello):
            wire.gateway = message.name, message.boot
            self._on_hello(wire.gateway, [*wire.named, *message.requests])
        elif gateway is None:
            return
        elif isinstance(message, Submit):
            key, now = (gateway, message.request), self._loop.micros
            self._asked[key] = self._unheard.setdefault(scheduler, {})[key] = _Asked(message.terms, now, now)
        elif isinstance(message, Yielded | Queue):
            if (asked := self._asked.get((gateway, message.request))) is not None:
                reason = message.reason if isinstance(message, Queue) else None
                asked.is_first |= reason is None or not asked.waits or reason in _VICTIM_LOST
                asked.waits = True
                asked.has_victim = reason == Reason.VICTIM_LEAVING
        elif isinstance(message, Failed):
            if (asked := self._asked.get((gateway, message.request))) is not None:
                asked.waits = False  # It keeps its slot, unless it is told to wait.
        elif isinstance(message, Grant):
            self._on_grant(gateway, scheduler, message)
        elif isinstance(message, Reject | Release):
            self._asked.pop((gateway, message.request), None)

    def _on_hello(self, gateway: GatewayId, named: Sequence[LiveRequest]) -> None:
        now = self._loop.micros
        for live in named:
            asked = self._asked.setdefault((gateway, live.request), _Asked(live.terms, now - live.age, now - live.age))
            asked.waits, asked.since = live.standing is Standing.WAITING, asked.submitted_at
            for unheard in self._unheard.values():
                unheard.pop((gateway, live.request), None)  # Now its age is told.

    def _on_grant(self, gateway: GatewayId, scheduler: str, grant: Grant) -> None:
        say, attempt = self._say, (gateway, grant.request, grant.attempt)
        self.num_grants += 1
        self.granting.add(scheduler)
        if grant.epoch < self.highest_epoch:
            say(f"{scheduler} grants under epoch {grant.epoch}, and epoch {self.highest_epoch} has granted")
        self.highest_epoch = max(self.highest_epoch, grant.epoch)
        if (leader := self._leaders.setdefault(grant.epoch, scheduler)) != scheduler:
            say(f"{scheduler} grants under epoch {grant.epoch}, and so does {leader}")
        if attempt in self._granted:
            say(f"attempt {grant.attempt} of request {grant.request} of {gateway} is granted twice")
        self._granted.add(attempt)
        asked = self._asked.get((gateway, grant.request))
        if asked is not None and asked.waits:
            asked.waits = False
            if asked.is_first or asked.has_victim:
                return
            self._check_order(gateway, grant, asked, scheduler)

    def _check_order(self, gateway: GatewayId, grant: Grant, asked: _Asked, scheduler: str) -> None:
        """Note whether a request is granted a slot before an older one of its class and tenant that the scheduler knows."""
        for request in self._waiting_at(scheduler):
            key = request.gateway.id, request.number
            older = self._asked.get(key)
            if older is None or not older.waits or key == (gateway, grant.request):
                continue
            if _kind(request.terms) == _kind(asked.terms) and older.since + MAX_DISORDER < asked.since:
                first, then = f"{grant.request} of {gateway}, asked at {asked.since}", f"{key}, asked at {older.since}"
                self._say(f"request {first}, is granted a slot before {then}")

    def _waiting_at(self, address: str) -> list[Any]:
        """Return the requests that wait at a scheduler, and of which it had heard before this instant: what it hears later at
        the instant may be after its decision, which is sent at the end of a turn. One that has a victim waits for that slot
        alone."""
        self._begin_instant()
        host, booked = next((each.host for each in self._schedulers if each.address == address), None), self._known
        if host is None:
            return []
        known = (one for one in host.requests if one.ticket.id <= booked.get(address, 0))
        return [one for one in known if one.ticket.state is TicketState.QUEUED]


def _kind(terms: RequestTerms) -> tuple[str, int, str]:
    return terms.model, terms.priority_class, terms.tenant


def is_of_link(connection: Connection) -> bool:
    """Return whether a connection is one of a gateway to a scheduler."""
    return connection.target[1] == LINK_PORT
