"""Backends as Envoy knows them: an address with a port. A backend that is named is looked up (`wire.resolver`)."""

from __future__ import annotations

from maitred.scheduler.interface import Backend, FleetView
from maitred.wire.errors import UpstreamLimits
from maitred.wire.machine import Machine
from maitred.wire.resolver import HostAddresses


class Endpoints:
    """The endpoints of all backends, kept up to date from `start` to `close`, also of those that come later."""

    def __init__(self, fleet: FleetView, limits: UpstreamLimits, machine: Machine) -> None:
        self._fleet, self._limits, self._machine = fleet, limits, machine
        self._hosts: dict[str, HostAddresses] = {}

    def start(self) -> None:
        """Begin to look up names, inside the event loop."""
        for backend in self._fleet.backends:
            self._addresses(backend)
        self._fleet.on_removed.append(self._on_removed)

    async def of(self, backend: Backend) -> str | None:
        """Return address and port of a backend, or None if its name cannot be resolved."""
        known = await self._addresses(backend).addresses()
        return _endpoint(known[0], backend.origin.port) if known else None

    def known(self, backend: Backend) -> frozenset[str]:
        """Return every endpoint that a backend is known to have."""
        return frozenset(_endpoint(address, backend.origin.port) for address in self._addresses(backend).known)

    def close(self) -> None:
        """Look up nothing more."""
        for addresses in self._hosts.values():
            addresses.close()

    def _addresses(self, backend: Backend) -> HostAddresses:
        host = backend.origin.host
        found = self._hosts.get(host)
        if found is None:
            limits = self._limits
            found = HostAddresses(host, limits.dns_ttl_secs, limits.connect_secs, self._machine.look_up)
            self._hosts[host] = found
        return found

    def _on_removed(self, backend: Backend) -> None:
        host = backend.origin.host
        if host in self._hosts and all(each is backend or each.origin.host != host for each in self._fleet.backends):
            self._hosts.pop(host).close()


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
