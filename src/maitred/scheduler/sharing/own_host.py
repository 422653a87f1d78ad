"""OwnHost: the way of a gateway to the scheduler of its own process, over a pair of sockets.

The gateway says and hears the same as one in another process, so there is one seam between what decides and what forwards.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

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
        loop = asyncio.get_running_loop()
        theirs, ours = socket.socketpair()
        await loop.create_unix_connection(lambda: HostConnection(self._host), sock=theirs)
        await loop.create_unix_connection(make_protocol, sock=ours)
