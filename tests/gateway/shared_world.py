"""Several gateways that share one scheduler over a Unix socket, in one process; backends and clients as in `world`."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from world import CHAT, MACHINE, Backend, ClientConnection, admission_config

from maitred.core.decisions import DecisionLog
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.scheduler.interface import Dialer, HostedScheduler, KnownAddresses, LinkAddress, RemoteScheduler, SchedulerParts
from maitred.wire.client import UpstreamClient
from maitred.wire.machine import Machine
from maitred.wire.server import running_server

SECRET = b"a secret of a test"


class SharedWorld:
    """The scheduler, and the gateways that ask it, of which each request may take another."""

    def __init__(self, scheduler: HostedScheduler, host: Any, backends: Sequence[Backend]) -> None:
        self.scheduler, self.host, self.backends = scheduler, host, backends
        self.gateways: list[Gateway] = []
        self.urls: list[str] = []
        self._turns = cycle(range(0))
        self._connections: list[ClientConnection] = []

    def add(self, gateway: Gateway, url: str) -> None:
        self.gateways.append(gateway)
        self.urls.append(url)
        self._turns = cycle(range(len(self.urls)))

    async def connect(self, number: int | None = None) -> ClientConnection:
        """Return a connection to a gateway, by its number, or to each in turn."""
        url = self.urls[next(self._turns) if number is None else number]
        host, port = url.removeprefix("http://").split(":")
        self._connections.append(ClientConnection(*await asyncio.open_connection(host, int(port), limit=1 << 26)))
        return self._connections[-1]

    async def start_request(self, body: object = None, *, at: int | None = None, **headers: str) -> ClientConnection:
        connection = await self.connect(at)
        await connection.send_request(CHAT, body, **headers)
        return connection

    async def request(self, body: object = None, *, at: int | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return await (await self.start_request(body, at=at, **headers)).read_response()

    @property
    def in_flight(self) -> int:
        """Requests that hold a slot, as the scheduler has it."""
        return sum(not request.is_waiting for request in self.host.requests)

    @property
    def waiting(self) -> int:
        return sum(request.is_waiting for request in self.host.requests)

    async def wait_until(self, true: Callable[[], object]) -> None:
        while not true():
            await asyncio.sleep(0.001)  # what is looked at has no event of its own

    async def wait_until_idle(self) -> None:
        """Wait until no request is left anywhere, and check the books."""
        await self.wait_until(lambda: not self.host.requests)
        for scheduler in (self.scheduler, *(gateway.scheduler for gateway in self.gateways)):
            for check in scheduler.checks().values():
                check()
        for backend in self.scheduler.fleet.backends:
            assert not backend.requests
            assert backend.in_flight == 0

    def close(self) -> None:
        for connection in self._connections:
            connection.disconnect()


@contextlib.asynccontextmanager
async def shared_world(
    *backends: Backend,
    gateways: int = 3,
    slots: int | None = 64,
    admission: dict[str, Any] | None = None,
    routing: RoutingConfig | None = None,
    programs: ProgramsConfig | None = None,
    decisions: DecisionLog | None = None,
    **config: Any,
) -> AsyncIterator[SharedWorld]:
    """Run gateways that share a scheduler before `backends`; at the end, wait until no request is left. `decisions` is the
    log of the scheduler."""
    backends = backends or (Backend(),)
    for backend in backends:
        await backend.start()
    settings = GatewayConfig(
        backends=tuple(backend.url for backend in backends),
        slots_per_backend=slots,
        **{"health_interval_secs": 0.01, "health_timeout_secs": 10.0, **config},
    )
    rules, machine, routes = admission_config(**(admission or {})), MACHINE.get() or Machine(), routing or RoutingConfig()
    programs = programs or ProgramsConfig()
    client = UpstreamClient(settings.upstream, machine)
    parts = SchedulerParts(
        config=settings,
        admission=rules,
        routing=routes,
        programs=programs,
        client=client,
        clock=machine.clock,
        decisions=decisions,
    )
    scheduler = HostedScheduler(parts)
    try:
        with tempfile.TemporaryDirectory() as folder:
            address = LinkAddress(str(Path(folder, "link")), None)
            host = scheduler.host(SECRET)
            await host.start(address.host)
            host.leadership.lead_alone()
            scheduler.start()
            here = SharedWorld(scheduler, host, backends)
            async with contextlib.AsyncExitStack() as stack:
                for number in range(gateways):
                    make = partial(
                        RemoteScheduler, dialer=Dialer(KnownAddresses(address)), name=f"gateway-{number}", secret=SECRET
                    )
                    gateway = Gateway(settings, rules, routes, programs, make_scheduler=make, machine=machine)
                    here.add(gateway, await stack.enter_async_context(running_server(gateway, machine=machine)))
                await here.wait_until(
                    lambda: all(len(gateway.scheduler.fleet.healthy) == len(backends) for gateway in here.gateways)
                )
                try:
                    yield here
                finally:
                    here.close()
                await here.wait_until_idle()
            await host.close()
            await scheduler.close()
            await client.close()
    finally:
        for backend in backends:
            await backend.stop()
