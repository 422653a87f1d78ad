"""The connections of a scheduler's end of the links: one that is there, and one that is to be closed."""

from __future__ import annotations

from itertools import chain

import msgspec
from msgspec.structs import replace

from maitred.core.units import Micros
from maitred.scheduler.link.channel import Channel
from maitred.scheduler.link.gateway_books import BookedGateway, ConnectionId
from maitred.scheduler.link.messages import AnyMessage, Hello, HelloPart


class Cut(msgspec.Struct, frozen=True):
    """A connection to be closed, after `last_bytes` have been tried to be written."""

    connection: ConnectionId
    reason: str
    last_bytes: bytes
    is_lasting: bool = False
    """Whether the peer would come to the same again."""
    was_welcome: bool = False
    """Whether the peer was a gateway that had said hello."""


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
        self._parts = []
        return replace(said, requests=[*requests], memories=[*memories])
