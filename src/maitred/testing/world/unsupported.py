"""What programs may ask of an event loop and a world does not have: it raises, rather than reach the system below."""

from __future__ import annotations

import asyncio
from typing import Any


class UnsupportedCalls(asyncio.AbstractEventLoop):
    """The calls of an event loop that lead to the system."""

    def _refuse(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("this call leads to the operating system, and there is none in a world in memory")

    add_reader = add_writer = _refuse  # type: ignore[assignment]
    remove_reader = remove_writer = _refuse
    connect_read_pipe = connect_write_pipe = subprocess_exec = subprocess_shell = _refuse
    create_datagram_endpoint = create_unix_connection = create_unix_server = start_tls = _refuse
    sendfile = sock_sendfile = sock_accept = sock_connect = sock_sendall = sock_recv = sock_recv_into = _refuse
    sock_recvfrom = sock_recvfrom_into = sock_sendto = getnameinfo = set_default_executor = _refuse

    def get_debug(self) -> bool:
        """Return False: handles keep no traces of where they were made."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Do nothing."""
