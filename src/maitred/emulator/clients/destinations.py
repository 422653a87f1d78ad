"""Destinations: the servers to which a load is sent, one or several, which may come and go while it runs.

Requests go to them in turn (round robin). One that goes gets no new request: what it has in flight goes on, and its idle
connections are closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from ssl import SSLContext

from maitred.emulator.clients.connection import LoadConnection
from maitred.wire.origin import Origin
from maitred.wire.tls import trusting_context


class Destination:
    """One server."""

    def __init__(self, origin: Origin, tls: SSLContext | None) -> None:
        self.origin, self.authority, self.tls = origin, origin.authority, tls
        self.is_there = True
        self._idle: list[LoadConnection] = []

    def take_connection(self) -> LoadConnection | None:
        """Return the connection that is idle for the shortest time, or None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    def give_back(self, connection: LoadConnection) -> None:
        """Keep a connection for the next request, or close it if the server has gone."""
        if self.is_there:
            self._idle.append(connection)
        else:
            connection.close()

    def leave(self) -> None:
        """The server goes."""
        self.is_there = False
        while (connection := self.take_connection()) is not None:
            connection.close()


class Destinations:
    """All servers that are there now. A server is called by its URL."""

    def __init__(self, origins: Iterable[Origin] = ()) -> None:
        """Raises ConfigError if the environment names trusted authorities that cannot be read."""
        self._tls: SSLContext | None = None
        """Of all servers: to make one takes tens of milliseconds."""
        self._in_turn = deque[Destination]()
        for origin in origins:
            self._append(origin)

    @property
    def origins(self) -> list[Origin]:
        """Where the servers are, that of the next request first."""
        return [each.origin for each in self._in_turn]

    def next(self) -> Destination | None:
        """Return the server of the next request, or None if none is there. O(1)."""
        if not self._in_turn:
            return None
        found = self._in_turn[0]
        self._in_turn.rotate(-1)
        return found

    # What discovery finds.

    def add(self, url: str) -> None:
        """A server comes. Raises ConfigError for no URL."""
        self._append(Origin.parse(url))

    def leave(self, url: str) -> None:
        """A server goes."""
        for each in [each for each in self._in_turn if str(each.origin) == url]:
            self._in_turn.remove(each)
            each.leave()

    def rejoin(self, url: str) -> None:
        """A server that went is back."""
        self.add(url)

    def forget_when_idle(self, url: str) -> None:
        """Nothing is known any more of a server that went."""

    def _append(self, origin: Origin) -> None:
        if origin.tls and self._tls is None:
            self._tls = trusting_context()
        self._in_turn.append(Destination(origin, self._tls if origin.tls else None))
