"""Dialer: connects a gateway to the scheduler that leads, over a Unix socket, TCP or TLS.

Which addresses there are says a `Finder`: a list that was configured, or who leads as the election has it. Of several addresses
one leads, and the others say that they do not, or are down. So each try that comes to nothing is followed by the next address
(`turn`), and the one that has welcomed this gateway is kept as long as it does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from maitred.core.errors import describe_os_error
from maitred.scheduler.addresses import LinkAddress
from maitred.wire.tls import ReloadedContext

_CONNECT_SECS: Final = 3.0
"""How long a connection, and its handshake of TLS, may take to be made."""


class FinderError(OSError):
    """Nobody says where the scheduler is that leads, with words for the log."""


class Finder(Protocol):
    """What knows where schedulers are."""

    has_several: bool
    """Whether it names several, of which some may not lead."""

    problem: str | None = None
    """Why it names the scheduler that led when that could be found out last, or None if it leads."""

    async def addresses(self) -> Sequence[LinkAddress]:
        """Return where the scheduler that leads may be, one address at least. Raises FinderError if none leads, or if that
        cannot be found out."""
        ...


class KnownAddresses(Finder):
    """A finder of addresses that do not change."""

    def __init__(self, *addresses: LinkAddress) -> None:
        self._addresses, self.has_several = addresses, len(addresses) > 1

    async def addresses(self) -> Sequence[LinkAddress]:
        return self._addresses


class Dialer:
    """Connects to one scheduler after the other."""

    def __init__(self, finder: Finder, tls: ReloadedContext | None = None) -> None:
        """`tls` is what connections over TCP are made with, or None for plain ones."""
        self._finder, self.tls = finder, tls
        self._turn = 0
        self.address: LinkAddress | None = None
        """The address of the last try, or None before the first one."""

    @property
    def has_several(self) -> bool:
        """Whether there are several addresses, whoever leads."""
        return self._finder.has_several

    def turn(self) -> None:
        """Take the next address for the next connection."""
        self._turn += 1

    async def connect(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Make a connection. Raises OSError; then the next try takes the next address."""
        try:
            async with asyncio.timeout(_CONNECT_SECS):
                addresses = await self._finder.addresses()
                self.address = addresses[self._turn % len(addresses)]
                await self._open(self.address, make_protocol)
        except OSError:
            self.turn()
            raise
        except UnicodeError as error:  # of a name that no resolver can be asked for
            self.turn()
            raise FinderError(f"{self.address} is the address of no scheduler: {error}") from error

    async def _open(self, address: LinkAddress, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        if address.port is None:
            await loop.create_unix_connection(make_protocol, address.host)
        else:
            tls = None if self.tls is None else self.tls.current
            limit = None if tls is None else _CONNECT_SECS
            await loop.create_connection(make_protocol, address.host, address.port, ssl=tls, ssl_handshake_timeout=limit)

    def explain(self, problem: str) -> str:
        """Return why there is no link with what the address may be wrong by."""
        return problem if self._finder.problem is None else f"{problem}, and {self._finder.problem}"

    def describe(self, error: OSError) -> str:
        """Return in words why `connect` has failed."""
        return str(error) if isinstance(error, FinderError) else self.explain(self._describe(error))

    def _describe(self, error: OSError) -> str:
        if isinstance(error, ssl.SSLError):
            problem = getattr(error, "verify_message", "") or error.reason or str(error)
            return f"no link to the scheduler at {self.address}: TLS: {problem}"
        problem = "it does not answer" if isinstance(error, TimeoutError) else describe_os_error(error)
        return f"no scheduler can be reached at {self.address}: {problem}"
