"""What a scheduler knows of its gateways: which are there, since when each was heard, and what each of them asks and holds.

    state   what happens                      then    does
    ------  --------------------------------  ------  --------------------------------------------------------------
    LIVE    beats                             LIVE
    LIVE    its connection is lost or cut     GONE    its waiting requests leave; its slots are *unaccounted*
    LIVE    no beat for a lease               GONE    likewise, and its connection is cut
    GONE    says hello again                  LIVE    its slots are its own again, and it asks anew for what waits
    GONE    nothing of it holds a slot        -       is forgotten

What of its slots a gateway that is gone still uses, it cannot say. It may go on with what it has, and may start what it was
granted until its lease is over (`certain_from`). From then on the engines can tell (`unaccounted`).

A gateway is a name and a boot: two processes of one name, one after the other or at once, are two gateways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from maitred.admission import Ticket
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES
from maitred.core.errors import InvariantError
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.scheduler.link.messages import Failed
from maitred.scheduler.link.terms import RequestTerms

GatewayId: TypeAlias = tuple[str, str]
"""The name and the boot of a gateway."""
UNKNOWN_GATEWAY: Final[GatewayId] = ("", "")
"""Stands for gateways that may hold slots, and of which no name is known."""
ConnectionId: TypeAlias = int


class BookedMemory:
    """The memory of one request of an agent program, as long as it waits for it or has it."""

    __slots__ = ("gateway", "lease", "number")

    def __init__(self, gateway: BookedGateway, number: int) -> None:
        self.gateway = gateway
        self.number = number
        """Its number at its gateway."""
        self.lease: Any = None
        """What decides about memory keeps here what it has granted."""


class BookedRequest:
    """One request of a gateway, as long as it waits or holds a slot."""

    __slots__ = (
        *("attempt", "backend", "failure", "gateway", "memory", "number", "place", "request", "streaming_since", "terms"),
        *("ticket", "tried"),
    )

    def __init__(
        self, gateway: BookedGateway, number: int, attempt: int, terms: RequestTerms, request: Request, ticket: Ticket
    ) -> None:
        self.gateway = gateway
        self.number, self.attempt = number, attempt
        """Its number at its gateway, and how often it has asked for a place."""
        self.terms = terms
        self.request = request
        """What routing sees of it."""
        self.ticket = ticket
        """What admission knows of it, under a number of its own."""
        self.backend = -1
        """Where it is, or -1 while it is nowhere."""
        self.streaming_since: Micros | None = None
        """When the news came that its response has begun, µs."""
        self.tried: list[int] = []
        """The backends that have failed it since it last got a slot."""
        self.failure: Failed | None = None
        """How a backend has failed it last, or None if none has."""
        self.memory: BookedMemory | None = gateway.memories.get(terms.memory) if terms.memory else None
        """Its memory, if it is of an agent program."""
        self.place: Any = None
        """What its placer keeps of where it is."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a slot."""
        return not self.holds_slot

    @property
    def holds_slot(self) -> bool:
        """Whether it holds a slot; otherwise it waits for one."""
        return self.ticket.state in SLOT_HOLDING_STATES


class BookedGateway:
    """One gateway."""

    __slots__ = ("connection", "heard_at", "id", "known_until", "last_number", "lease", "memories", "requests")

    def __init__(self, id: GatewayId, lease: Micros) -> None:  # noqa: A002 - as everywhere
        self.id = id
        self.lease = lease
        self.connection: ConnectionId | None = None
        """Its connection, or None while it is gone."""
        self.heard_at: Micros = 0
        """When its last beat or hello was received, µs."""
        self.known_until: Micros = 0
        """All that it had to say before this instant, µs, has come."""
        self.last_number = -1
        """The highest number of a request that it has named: a submission of an earlier one comes twice."""
        self.requests: dict[int, BookedRequest] = {}
        self.memories: dict[int, BookedMemory] = {}
        """The memories of its requests of agent programs, by their numbers."""

    def on_marked(self, instant: Micros, now: Micros) -> None:
        """Note the answer to a mark of this instant."""
        self.known_until = max(self.known_until, min(instant, now))

    def connect(self, connection: ConnectionId, now: Micros) -> None:
        """Note that it has said hello."""
        self.connection, self.heard_at = connection, now

    def die(self, now: Micros) -> None:
        """Note that its process has ended: it starts nothing from now on."""
        self.heard_at, self.lease = now, 0

    @property
    def certain_from(self) -> Micros:
        """From when on it starts nothing that was granted before, µs: its own lease counts from an earlier instant."""
        return self.heard_at + self.lease


class GatewayBooks:
    """All gateways of a scheduler, and their requests."""

    def __init__(self, lease: Micros) -> None:
        self.lease = lease
        """How long a gateway may start requests after a beat, µs."""
        self.gateways: dict[GatewayId, BookedGateway] = {}
        self.by_ticket: dict[RequestId, BookedRequest] = {}
        self._last_ticket = 0
        self._heard_until: Micros = 0
        """Before this instant, µs, no gateway is silent, whichever connects till then: a bound, because it is asked in each
        turn of the loop."""

    def gateway(self, id: GatewayId) -> BookedGateway:  # noqa: A002 - as everywhere
        """Return a gateway, which may be heard for the first time."""
        return self.gateways.setdefault(id, BookedGateway(id, self.lease))

    def next_ticket(self) -> RequestId:
        """Return a number for admission, which none has had."""
        self._last_ticket += 1
        return self._last_ticket

    def add(self, request: BookedRequest) -> None:
        """Note a request."""
        gateway = request.gateway
        gateway.requests[request.number] = self.by_ticket[request.ticket.id] = request
        gateway.last_number = max(gateway.last_number, request.number)

    def remove(self, request: BookedRequest) -> None:
        """Forget a request that has ended, and its gateway if that is gone and has no other. Idempotent."""
        gateway = request.gateway
        self.by_ticket.pop(request.ticket.id, None)
        if gateway.requests.get(request.number) is request:
            del gateway.requests[request.number]
        if gateway.connection is None:
            self.forget_if_gone(gateway)

    def forget_if_gone(self, gateway: BookedGateway) -> None:
        """Forget a gateway that is gone and holds nothing."""
        if gateway.connection is None and not gateway.requests:
            self.gateways.pop(gateway.id, None)

    def holders_at(self, backend: int) -> Iterator[BookedRequest]:
        """Yield the requests that hold slots at a backend. O(n)."""
        return (one for one in self.by_ticket.values() if one.backend == backend and one.holds_slot)

    @property
    def connected(self) -> list[BookedGateway]:
        """The gateways that are connected."""
        return [one for one in self.gateways.values() if one.connection is not None]

    def gone(self) -> list[BookedGateway]:
        """Return the gateways that are gone, and whose requests hold slots."""
        return [one for one in self.gateways.values() if one.connection is None]

    def silent(self, now: Micros) -> Sequence[BookedGateway]:
        """Return the gateways that are connected, and have not been heard for a lease."""
        if now < self._heard_until:
            return ()
        connected = self.connected
        self._heard_until = min((one.certain_from for one in connected if now < one.certain_from), default=now + self.lease)
        return [one for one in connected if now >= one.certain_from]

    def note_death(self, name: str, now: Micros) -> None:
        """Note that the process of a gateway has ended, which is gone: it starts nothing more, whatever its lease says."""
        for gateway in self.gateways.values():
            if gateway.id[0] == name and gateway.connection is None:
                gateway.die(now)

    def check(self) -> None:
        """Raise InvariantError if the requests of a gateway and those by ticket differ. For tests; O(n)."""
        for gateway in self.gateways.values():
            for request in gateway.requests.values():
                if self.by_ticket.get(request.ticket.id) is not request:
                    raise InvariantError(f"request {request.number} of {gateway.id} is not booked by its ticket")
                if gateway.memories.get(request.terms.memory) is not request.memory:
                    raise InvariantError(f"request {request.number} of {gateway.id} has a memory that has ended")
                if gateway.connection is None and not request.holds_slot:
                    raise InvariantError(f"request {request.number} of {gateway.id} waits, and its gateway is gone")
        if sum(len(gateway.requests) for gateway in self.gateways.values()) != len(self.by_ticket):
            raise InvariantError("a request is booked by its ticket, and its gateway does not have it")

    def next_silence_at(self) -> Micros | None:
        """Return when to look for silent gateways next, µs, or None if none is there."""
        return self._heard_until if self.gateways else None
