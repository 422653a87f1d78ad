"""What systemd, or a service manager that speaks as it does, passes to a process, and is told by it.

    sockets in (sd_listen_fds)     LISTEN_PID, LISTEN_FDS: listening sockets as descriptors 3, 4, ...; each is used where a
                                   socket with its port number would be opened, so the unit and the configuration must agree
    states out (sd_notify)         NOTIFY_SOCKET: READY=1 when connections are accepted, RELOADING=1 until a reload has ended,
                                   STOPPING=1 from the signal on

A socket that systemd keeps open outlives the process: clients that connect during a restart wait in its queue and are served
by the next process, and none is refused.

The variables are taken out of the environment: workers, and an Envoy, are none of the manager's business.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final, Self

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.units import Micros

log = logging.getLogger("maitred.wire")
FIRST_DESCRIPTOR: Final = 3
"""The number of the first socket (SD_LISTEN_FDS_START)."""
_WHERE: Final = "LISTEN_FDS"


class ServiceManager:
    """The manager that has started this process; without arguments, one that passes nothing and is told nothing."""

    def __init__(self, notify_address: str | None = None, sockets: MutableMapping[int, socket.socket] | None = None) -> None:
        """`notify_address` is the path of its datagram socket, or `@` and an abstract name. `sockets` listen, by port."""
        self._notify_address = notify_address
        self._sockets = sockets if sockets is not None else {}

    @classmethod
    def of_process(cls, env: MutableMapping[str, str], pid: int) -> Self:
        """Return the manager of the process `pid` by its environment, and remove the variables. Raises ConfigError for sockets
        that cannot be served."""
        address = env.pop("NOTIFY_SOCKET", None)
        named = {name: env.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
        # Those of a process that has started this one, and has left its variables there, are not ours.
        number = _number(named["LISTEN_FDS"]) if named["LISTEN_PID"] == str(pid) else 0
        return cls(address or None, _adopt(range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + number)))

    @property
    def ports(self) -> list[int]:
        """The ports of sockets that were passed and that nothing has taken."""
        return sorted(self._sockets)

    def take(self, port: int) -> socket.socket | None:
        """Return the socket that was passed for a port, which is the caller's from now on, or None."""
        return self._sockets.pop(port, None)

    def require_all_taken(self, where: str) -> None:
        """Raise ConfigError if a socket was passed for a port on which nothing is served. `where` names the keys of ports."""
        if self._sockets:
            port = self.ports[0]
            problem = f"a socket was passed that listens on port {port}, and nothing is served on that port"
            raise ConfigError(problem, where=_WHERE, hint=f"ListenStream= of the socket unit, and {where}, need one number")

    def tell_ready(self) -> None:
        """Say that the start, or a reload, has ended."""
        self._tell("READY=1")

    def tell_reloading(self, now: Micros) -> None:
        """Say that a reload begins. `now` is an instant of the monotonic clock."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def tell_stopping(self) -> None:
        """Say that the end begins."""
        self._tell("STOPPING=1")

    def _tell(self, state: str) -> None:
        if self._notify_address is None:
            return
        address = self._notify_address
        target = "\0" + address[1:] if address.startswith("@") else address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # A manager that does not read holds up no request.
                sender.sendto(state.encode(), target)
        except OSError as error:
            said, problem = state.partition("\n")[0], describe_os_error(error)
            log.warning("the service manager at %s was not told %s: %s", address, said, problem)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"{text!r} is no number of sockets", where=_WHERE, hint="systemd sets it; leave it to systemd")
    # Six digits are more descriptors than a process has, so that one of them is missing where there were more.
    return int(text[:6])


def _adopt(descriptors: range) -> dict[int, socket.socket]:
    """Return the sockets by the port on which they listen. Raises ConfigError."""
    found = dict[int, socket.socket]()
    for descriptor in descriptors:
        try:
            os.set_inheritable(descriptor, False)
            passed = socket.socket(fileno=descriptor)
            is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise ConfigError(f"descriptor {descriptor} is no socket: {describe_os_error(error)}", where=_WHERE) from error
        if passed.family not in (socket.AF_INET, socket.AF_INET6) or passed.type != socket.SOCK_STREAM or not is_listening:
            problem = f"descriptor {descriptor} is no TCP socket that listens"
            raise ConfigError(problem, where=_WHERE, hint="ListenStream=PORT or ADDRESS:PORT in the socket unit, and Accept=no")
        found[passed.getsockname()[1]] = passed
    return found
