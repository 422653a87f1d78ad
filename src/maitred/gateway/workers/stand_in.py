"""StandIn: accepts the connections of workers that do not serve just now.

The system spreads clients over the sockets of all workers, whoever looks at them. Those that it gives to the socket of a worker
which has ended, or stands still, would wait until it is started anew, or goes on. So each worker has inherited the sockets of
all, and accepts from those of the workers that the parent does not name as serving.

    worker 2 is killed     its link to the parent breaks; the parent names 1 and 3; both accept from the socket of 2 as well
    worker 2 stands still  likewise, when it has said nothing for a lease (3 s)
    worker 2 is to end     it accepts no more and says so, long before its link breaks; likewise
    worker 2 serves again  the parent names 1, 2 and 3
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from maitred.wire.acceptor import Acceptor
from maitred.wire.handshakes import TlsAcceptor
from maitred.wire.machine import SystemListener
from maitred.wire.server import OpenPort, make_acceptor
from maitred.wire.server_context import ServerContext


class StandIn:
    """Stands in for the other workers, from `start` until the server stops."""

    def __init__(self, ports: Mapping[str, Sequence[OpenPort]]) -> None:
        """`ports` are those of the other workers, by their names."""
        self._ports = ports
        self._server: ServerContext | None = None
        self._on_closed: Callable[[], object] = lambda: None
        self._wanted: set[str] = set()
        self._acceptors: dict[str, list[Acceptor | TlsAcceptor]] = {}
        """What accepts for each worker that does not serve."""
        self._task: asyncio.Task[None] | None = None

    def start(self, server: ServerContext, on_closed: Callable[[], object] = lambda: None) -> None:
        """Accept for `server` from now on, which closes this when it accepts no more. Then `on_closed` is called."""
        self._server, self._on_closed = server, on_closed
        server.acceptors.append(self)

    def follow(self, serving: Collection[str]) -> None:
        """Accept for all workers but these."""
        self._wanted = self._ports.keys() - {*serving}
        if self._task is None and self._server is not None:
            self._task = asyncio.get_running_loop().create_task(self._settle(self._server))

    def close(self) -> None:
        """Accept no more, and let go of all sockets."""
        self._server, self._wanted = None, set()
        for name in [*self._acceptors]:
            self._stop(name)
        for port in (port for ports in self._ports.values() for port in ports):
            port.socket.close()
        self._on_closed()

    async def _settle(self, server: ServerContext) -> None:
        while self._server is not None and (changed := self._wanted ^ self._acceptors.keys()):
            name = min(changed)
            if name in self._acceptors:
                self._stop(name)
            else:
                await self._begin(name, server)
        self._task = None

    async def _begin(self, name: str, server: ServerContext) -> None:
        acceptors = self._acceptors[name] = []
        for port in self._ports[name]:
            assert isinstance(port.socket, SystemListener)
            acceptor = make_acceptor(server, OpenPort(port.socket.twin(), port.listener))
            acceptors.append(acceptor)
            await acceptor.start()
        if self._server is None:  # The server has stopped meanwhile.
            self._stop(name)

    def _stop(self, name: str) -> None:
        for acceptor in self._acceptors.pop(name, ()):
            acceptor.close()
