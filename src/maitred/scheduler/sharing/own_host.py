"""OwnHost: the way of a gateway to the scheduler of its own process.

The gateway says and hears the same as one in another process, so there is one seam between what decides and what forwards. What
one end writes reaches the other in the next turn of the event loop. A pair of sockets would do the same with eight system calls
and as many turns for each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from maitred.scheduler.addresses import LinkAddress
from maitred.scheduler.sharing.dialer import Dialer, KnownAddresses
from maitred.scheduler.sharing.host import SchedulerHost
from maitred.scheduler.sharing.host_connections import HostConnection


class _ThisProcess(LinkAddress):
    """The address of the scheduler of this process, for the log."""

    def __str__(self) -> str:
        return self.host


_HERE: Final = _ThisProcess("this process", None)


class OwnHost(Dialer):
    """Connects to the scheduler of this process."""

    def __init__(self, host: SchedulerHost) -> None:
        super().__init__(KnownAddresses(_HERE))
        self._host = host

    async def _open(self, address: LinkAddress, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        connect(HostConnection(self._host), make_protocol())


def connect(one: asyncio.Protocol, other: asyncio.Protocol) -> None:
    """Connect two protocols inside this event loop."""
    ends = _End(one), _End(other)
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    for end in ends:
        end.protocol.connection_made(end)


class _End(asyncio.Transport):
    """One end of a connection inside a process. What is written waits for the next turn, and never for longer: it has left this
    end, as what a socket has taken, and is delivered even if this end is aborted."""

    peer: _End

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._written: list[bytes] = []
        self._is_closing = self._is_lost = False

    def write(self, data: Any) -> None:
        if self._is_closing or not data:
            return
        self._written.append(data)
        if len(self._written) == 1:
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        written, self._written, peer = self._written, [], self.peer
        if peer._is_closing:  # It hears nothing more, as at a socket.
            return
        try:
            peer.protocol.data_received(written[0] if len(written) == 1 else b"".join(written))
        except Exception as error:  # A message may be lost, and its request would wait for ever: both ends begin again.
            what = {"message": "the link inside this process is cut", "exception": error, "protocol": peer.protocol}
            self._loop.call_exception_handler(what)
            peer.close()

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._end)  # behind what was written

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def _end(self) -> None:
        for end in (self, self.peer):
            if not end._is_lost:
                end._is_closing = end._is_lost = True
                self._loop.call_soon(end.protocol.connection_lost, None)  # If one raises, the other hears of it all the same.
