"""Backends as Envoy knows them: an address with a port. A backend that is named is looked up (`wire.resolver`)."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.scheduler.interface import Backend
from maitred.wire.errors import UpstreamLimits
from maitred.wire.machine import Machine
from maitred.wire.resolver import HostAddresses


class Endpoints:
    """The endpoints of all backends, kept up to date from `start` to `close`."""

    def __init__(self, backends: Sequence[Backend], limits: UpstreamLimits, machine: Machine) -> None:
        self._backends, self._limits, self._machine = backends, limits, machine
        self._addresses: list[HostAddresses] = []

    def start(self) -> None:
        """Begin to look up names, inside the event loop."""
        limits, look_up = self._limits, self._machine.look_up
        self._addresses = [
            HostAddresses(backend.origin.host, limits.dns_ttl_secs, limits.connect_secs, look_up) for backend in self._backends
        ]

    async def of(self, backend: Backend) -> str | None:
        """Return address and port of a backend, or None if its name cannot be resolved."""
        known = await self._addresses[backend.index].addresses()
        return _endpoint(known[0], backend.origin.port) if known else None

    def known(self, backend: Backend) -> frozenset[str]:
        """Return every endpoint that a backend is known to have."""
        return frozenset(_endpoint(address, backend.origin.port) for address in self._addresses[backend.index].known)

    def close(self) -> None:
        """Look up nothing more."""
        for addresses in self._addresses:
            addresses.close()


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
