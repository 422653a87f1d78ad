"""Schedulers and gateways that are applications of their own, over TCP, in one loop; backends and clients as in `world`.

All are on the machine of the scenario: that of this process, or one in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import count
from typing import Any

import msgspec
from world import CHAT, MACHINE, Backend, ClientConnection, admission_config

from maitred.core.units import SECOND
from maitred.gateway import GatewayConfig
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.cluster.link_setup import connecting_context, link_secret, listening_context
from maitred.gateway.cluster.linked_gateway import LinkedGateway
from maitred.gateway.cluster.scheduler_gateway import LinkPort, SchedulerGateway
from maitred.programs import ProgramsConfig
from maitred.scheduler.interface import Degrading, Dialer, KnownAddresses, LinkAddress, RemoteScheduler, open_election
from maitred.scheduler.link_config import SchedulerConfig
from maitred.wire.machine import Machine
from maitred.wire.server import running_server
from maitred.wire.tasks import end_asking

SECRET = "a secret of a test"
SLOTS = 2
LEASE = SECOND * 3 // 2
"""Of gateways, and so the time for which a scheduler learns, µs: half of what it is otherwise."""
IDLE = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


class Cluster:
    """Schedulers and gateways in one event loop, and a backend that answers when it is told to."""

    def __init__(self, backend: Backend, link: SchedulerConfig) -> None:
        self.backend, self.link = backend, link
        self.machine = MACHINE.get() or Machine()
        self.settings = GatewayConfig(
            backends=(backend.url,), slots_per_backend=SLOTS, health_interval_secs=0.05, health_timeout_secs=10.0
        )
        self.rules = admission_config()
        self.programs = ProgramsConfig()
        self.schedulers: list[SchedulerGateway] = []
        self.gateways: list[LinkedGateway] = []
        self.urls: list[str] = []
        self.pages: dict[SchedulerGateway, str] = {}
        """Where the pages of a scheduler are."""
        self._stack = contextlib.AsyncExitStack()
        self._stops: dict[SchedulerGateway, contextlib.AsyncExitStack] = {}
        self._turn = count()
        self._connections: list[ClientConnection] = []

    def make_scheduler(self, listen: str, **changes: Any) -> SchedulerGateway:
        link, machine = msgspec.structs.replace(self.link, **changes), self.machine
        name, tls = f"s{len(self.schedulers)}", listening_context(link)
        port = LinkPort(LinkAddress.parse(listen), None, tls, link_secret(link), name, LEASE)
        election = open_election(link.election, link, machine.random)
        pages = ("127.0.0.1", 0)
        configs, at = (self.settings, self.rules, None, self.programs), {"port": port, "pages": pages}
        return SchedulerGateway(*configs, **at, link=link, election=election, machine=machine, reload=self._read_again)

    def _read_again(self) -> GatewaySettings:
        return GatewaySettings(gateway=self.settings, admission=self.rules, programs=self.programs)

    async def add_scheduler(self, listen: str = "127.0.0.1:0", **changes: Any) -> SchedulerGateway:
        scheduler = self.make_scheduler(listen, **changes)
        stop = contextlib.AsyncExitStack()
        self.pages[scheduler] = await stop.enter_async_context(running_server(scheduler, machine=self.machine))
        self._stops[scheduler] = stop
        self.schedulers.append(scheduler)
        return scheduler

    async def add_gateway(self, dialer: Dialer | None = None, **changes: Any) -> LinkedGateway:
        link = msgspec.structs.replace(self.link, **changes)
        where = KnownAddresses(*(each.link_address for each in self.schedulers if each.link_address))
        dialer = dialer or Dialer(where, connecting_context(link))
        degrading = Degrading(link.degraded, link.degraded_after_secs)
        make = partial(
            RemoteScheduler, dialer=dialer, name=f"g{len(self.gateways)}", secret=link_secret(link), degrading=degrading
        )
        gateway = LinkedGateway(
            *(self.settings, self.rules, None, self.programs),
            link=link,
            make_scheduler=make,
            machine=self.machine,
            reload=self._read_again,
        )
        self.urls.append(await self._stack.enter_async_context(running_server(gateway, machine=self.machine)))
        self.gateways.append(gateway)
        return gateway

    async def start_request(self, at: int | None = None, body: object = None) -> ClientConnection:
        url = self.urls[next(self._turn) % len(self.urls) if at is None else at]
        host, port = url.removeprefix("http://").split(":")
        connection = ClientConnection(*await asyncio.open_connection(host, int(port)))
        self._connections.append(connection)
        await connection.send_request(CHAT, body)
        return connection

    async def page(self, path: str, at: int = 0, method: str = "GET", body: object = b"") -> Any:
        return msgspec.json.decode((await self.ask(self.urls[at], path, method, body))[1])

    async def ask(self, url: str, path: str, method: str = "GET", body: object = b"") -> tuple[int, bytes]:
        host, port = url.removeprefix("http://").split(":")
        connection = ClientConnection(*await asyncio.open_connection(host, int(port)))
        self._connections.append(connection)
        await connection.send_request(path, body, method)
        status, _, answer = await connection.read_response()
        return status, answer

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.005)  # what is looked at has no event of its own

    async def linked(self) -> None:
        await self.until(
            lambda: all(each.scheduler.unlinked.mode == "linked" and each.scheduler.fleet.healthy for each in self.gateways)
        )

    def leader(self) -> SchedulerGateway | None:
        return next((each for each in self.schedulers if each.host and each.host.leadership.mode != "standby"), None)

    async def kill(self, scheduler: SchedulerGateway) -> None:
        """Let a scheduler end as a process that is killed: nobody is told, and the system closes what it had."""
        host = scheduler.host
        assert host is not None
        assert host.leadership.elector is not None
        assert host._server is not None
        await end_asking(host.leadership.elector._task)
        if hasattr(host.leadership.elector._election, "_descriptor"):
            await host.leadership.elector._election.resign()
        host.leadership.elector._term = None
        host._server.close()
        for connection in [*host._connections.values()]:
            connection.close(b"")
        self.schedulers.remove(scheduler)

    async def close(self) -> None:
        for connection in self._connections:
            connection.disconnect()
        await self._stack.aclose()
        for stop in self._stops.values():
            await stop.aclose()


@contextlib.asynccontextmanager
async def cluster(handler: Any = None, schedulers: int = 0, gateways: int = 0, **link: Any) -> AsyncIterator[Cluster]:
    backend = Backend(handler) if handler else Backend()
    backend.metrics = IDLE
    if isinstance(handler, HeldAnswers):
        handler.backend = backend
    await backend.start()
    here = Cluster(backend, SchedulerConfig(**{"secret": SECRET, **link}))
    try:
        for _ in range(schedulers):
            await here.add_scheduler()
        for _ in range(gateways):
            await here.add_gateway()
        yield here
    finally:
        await here.close()
        await backend.stop()


class HeldAnswers:
    """A backend that begins each answer at once, and ends it when it is told to."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.go_on = asyncio.Event()
        self.backend: Backend | None = None
        """The backend, which says how many requests there are."""

    async def __call__(self, received: Any) -> None:
        self._count(1)
        await received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        gone = asyncio.create_task(received.wait_until_disconnected())
        opened = asyncio.create_task(self.go_on.wait())
        await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, opened):
            task.cancel()
        await asyncio.wait({gone, opened})  # The next request of this connection is read by one task.
        self._count(-1)
        await received.send(b"cd")

    def _count(self, more: int) -> None:
        self.now += more
        self.most = max(self.most, self.now)
        if self.backend is not None:
            self.backend.metrics = IDLE.replace(b"running 0", b"running %d" % self.now)
