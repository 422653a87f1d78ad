"""The connections of a scheduler's end of the links: those that are there, and those that are to be closed."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.core.errors import InvariantError
from maitred.core.units import SECOND, Micros
from maitred.scheduler.link.channel import Channel
from maitred.scheduler.link.gateway_books import BookedGateway, ConnectionId
from maitred.scheduler.link.messages import AnyMessage, Hello, HelloPart

_HELLO_TIMEOUT: Final[Micros] = 3 * SECOND


class Cut(msgspec.Struct, frozen=True):
    """A connection to be closed, after `last_bytes` have been tried to be written."""

    connection: ConnectionId
    reason: str
    last_bytes: bytes
    is_lasting: bool = False
    """Whether the peer would come to the same again."""
    gateway: str = ""
    """The name of the gateway, if the peer had said hello."""


class GatewayConnection:
    """One connection."""

    __slots__ = ("_parts", "accepted_at", "channel", "early", "gateway")

    def __init__(self, channel: Channel, accepted_at: Micros) -> None:
        self.channel = channel
        self.accepted_at = accepted_at
        self.gateway: BookedGateway | None = None
        """Who is at its other end, after the hello."""
        self.early: list[tuple[AnyMessage, Micros]] = []
        """What a gateway has said that is not named in the election yet, and when that came: a hello, and what came after."""
        self._parts: list[HelloPart] = []

    def take_hello(self, said: AnyMessage) -> Hello | None:
        """Return a hello with all its parts, or None if more is to come. Raises ValueError for another message."""
        if isinstance(said, HelloPart):
            self._parts.append(said)
            return None
        if not isinstance(said, Hello):
            raise ValueError("a hello comes before it")
        requests = chain(said.requests, *(part.requests for part in self._parts))
        memories = chain(said.memories, *(part.memories for part in self._parts))
        notes = chain(said.notes, *(part.notes for part in self._parts))
        self._parts = []
        return replace(said, requests=[*requests], memories=[*memories], notes=[*notes])


class Connections:
    """All connections of a scheduler."""

    def __init__(self) -> None:
        self.links: dict[ConnectionId, GatewayConnection] = {}
        self._speaking: dict[ConnectionId, None] = {}
        self._cuts: list[Cut] = []

    def say(self, gateway: BookedGateway, message: AnyMessage) -> None:
        """Say something to a gateway, if it is connected."""
        connection = gateway.connection
        if connection is not None and (link := self.links.get(connection)) is not None:
            link.channel.say(message)
            self._speaking[connection] = None

    def gateway_at(self, connection: ConnectionId) -> BookedGateway | None:
        """Return the gateway at a connection that has said hello, or None."""
        link = self.links.get(connection)
        return None if link is None else link.gateway

    def note_speaking(self, connection: ConnectionId) -> None:
        """Note that a channel may have something to say by itself."""
        self._speaking[connection] = None

    def take_speaking(self) -> Collection[ConnectionId]:
        """Return the connections on which something may be to be said, since this was called last."""
        speaking, self._speaking = self._speaking, {}
        return speaking

    def late(self, now: Micros) -> list[ConnectionId]:
        """Return the connections that have not said hello in time."""
        return [number for number, link in self.links.items() if link.gateway is None and now >= _hello_due_at(link)]

    def next_late_at(self) -> Micros | None:
        """Return when the next of those that have said no hello is late, µs, or None if there is none."""
        return min((_hello_due_at(link) for link in self.links.values() if link.gateway is None), default=None)

    def note_written(self, connection: ConnectionId, num_bytes: int) -> None:
        """Note that bytes have left the process."""
        if connection in self.links:
            self.links[connection].channel.note_written(num_bytes)

    def cut(self, connection: ConnectionId, reason: str, *, is_lasting: bool) -> GatewayConnection:
        """Forget a connection, which is to be closed, and return it."""
        link = self.links.pop(connection)
        link.channel.close(reason, is_lasting=is_lasting)
        name = "" if link.gateway is None else link.gateway.id[0]
        self._cuts.append(Cut(connection, reason, link.channel.take_bytes(), link.channel.is_lasting, name))
        return link

    def take_cuts(self) -> list[Cut]:
        """Return the connections that are to be closed, since this was called last."""
        cuts, self._cuts = self._cuts, []
        return cuts

    def check(self, gateways: Collection[BookedGateway]) -> None:
        """Raise InvariantError if these gateways are not the ones at the connections, each at its own. For tests; O(n)."""
        at = {number: link.gateway for number, link in self.links.items() if link.gateway is not None}
        if at != {gateway.connection: gateway for gateway in gateways}:
            raise InvariantError(f"at connections are {[one.id for one in at.values()]}, not {[one.id for one in gateways]}")


def _hello_due_at(link: GatewayConnection) -> Micros:
    return link.accepted_at + _HELLO_TIMEOUT
