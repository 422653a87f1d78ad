"""A gateway between backends that answer as a test says and clients that see every byte.

    run               in virtual time (`virtual_time`)
    run_on_sockets    on uvloop and the sockets of the system, as in production

What a test says is the same in both. It runs on sockets if it needs the kernel, TLS, a process or a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
import uvloop

import virtual_time
from maitred.admission import AdmissionConfig
from maitred.gateway import GatewayConfig
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.app import Gateway
from maitred.gateway.observe.logs import LogOutput
from maitred.gateway.observe.state import GatewayState
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.shadow import ShadowRules
from maitred.wire.machine import Machine
from maitred.wire.server import running_server

T = TypeVar("T")
MACHINE, run = virtual_time.MACHINE, virtual_time.run
CHAT = "/v1/chat/completions"
ANSWER = b'{"answer":42}'
APART_SECS = 0.005
"""Longer than bytes are under way."""
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    """Return a response with a length."""
    fixed = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    return b"HTTP/1.1 " + status + b"\r\n" + fixed + headers + b"\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


NOT_FOUND = whole(b"{}", b"404 Not Found")


class BackendRequest:
    """A request that a backend has received, and the connection that it came on."""

    def __init__(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head, self.body = head, body
        self.reader, self.writer = reader, writer

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(line.split(b": ", 1) for line in self.head.split(b"\r\n")[1:] if line)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def wait_until_disconnected(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass


async def apart() -> None:
    """Let what is sent before and what is sent after this come in reads of their own: nothing tells a sender what the other end
    has read."""
    await asyncio.sleep(APART_SECS)


Responder = Callable[[BackendRequest], Awaitable[object]]


async def answer(received: BackendRequest) -> None:
    await received.send(whole(ANSWER))


class GatedAnswer:
    """A responder that answers once `open` is set."""

    def __init__(self, body: bytes = ANSWER) -> None:
        self.open, self._body = asyncio.Event(), body

    async def __call__(self, received: BackendRequest) -> None:
        await self.open.wait()
        await received.send(whole(self._body))


class Backend:
    """A healthy backend that serves `models` and answers each request by `respond`, which a test may change at any time.

    A responder that returns leaves the connection open; one that raises ConnectionError closes it.
    """

    created = 1
    """What it says of each model."""
    in_each_model = b""
    """Further keys of each model, in JSON and with a comma behind each."""

    def __init__(self, respond: Responder = answer, models: tuple[str, ...] = ("m",)) -> None:
        self.respond = respond
        self.models = models
        self.status = b"200 OK"
        self.info: object = None
        """Its answer to /server_info; None for 404."""
        self.health_polls = 0
        self.first_poll_secs = 0.0
        """How long the answer to its first poll takes."""
        self.info_polls: list[str] = []
        self.metrics: bytes | None = None
        """Its answer to /metrics; None for 404."""
        self.metrics_polls = 0
        self.received: list[BackendRequest] = []
        self.port = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, limit=1 << 26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:  # It was stopped before this connection was handed over.
            writer.close()
            return
        self._tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                received = BackendRequest(head[:-4], await _read_body(reader, head.lower()), reader, writer)
                await self._answer(received)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, received: BackendRequest) -> None:
        if received.head.startswith(b"GET /health"):
            self.health_polls += 1
            if self.health_polls == 1:
                await asyncio.sleep(self.first_poll_secs)
            await received.send(whole(b"{}", self.status))
        elif received.head.startswith(b"GET /v1/models"):
            listed = [{"id": model, "object": "model", "created": self.created, "owned_by": "test"} for model in self.models]
            page = msgspec.json.encode({"object": "list", "data": listed})
            await received.send(whole(page.replace(b'"owned_by"', self.in_each_model + b'"owned_by"')))
        elif b"server_info" in received.head.split(b"\r\n")[0]:
            self.info_polls.append(received.head.split(b" ")[1].decode())
            await received.send(NOT_FOUND if self.info is None else whole(msgspec.json.encode(self.info)))
        elif received.head.startswith(b"GET /metrics"):
            self.metrics_polls += 1
            await received.send(NOT_FOUND if self.metrics is None else whole(self.metrics))
        else:
            self.received.append(received)
            await self.respond(received)


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Return the body behind a head in lower case: in chunks, of a declared length, or none."""
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return body
    length = next((int(x[15:]) for x in head.split(b"\r\n") if x.startswith(b"content-length:")), 0)
    return await reader.readexactly(length)


class ClientConnection:
    """The connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send_request(self, path: str = CHAT, body: object = None, method: str = "POST", **headers: str) -> None:
        data = body if isinstance(body, bytes) else msgspec.json.encode({"model": "m"} if body is None else body)
        named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n{named}\r\n".encode() + data
        )
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        return int(lines[0].split(" ")[1]), dict(line.split(": ", 1) for line in lines[1:] if line)

    async def read_response(self) -> tuple[int, dict[str, str], bytes]:
        """Return a whole response, with a length or in chunks."""
        status, headers = await self.read_head()
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while piece := await self.read_chunk():
            body += piece
        return status, headers, body

    async def read_chunk(self) -> bytes:
        """Return the next chunk; b"" for the last. Raises IncompleteReadError if the connection ends instead."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    def disconnect(self) -> None:
        self.writer.close()


class GatewayWorld:
    """A gateway, its backends, and the connections of its clients."""

    def __init__(self, gateway: Gateway, urls: Sequence[str], backends: tuple[Backend, ...]) -> None:
        self.gateway, self.url, self.backends = gateway, urls[0], backends
        self.admin_url = urls[-1]
        """That of `admin_port`, if there is one."""
        self._connections: list[ClientConnection] = []

    async def connect(self, url: str | None = None) -> ClientConnection:
        host, port = (url or self.url).removeprefix("http://").split(":")
        self._connections.append(ClientConnection(*await asyncio.open_connection(host, int(port), limit=1 << 26)))
        return self._connections[-1]

    async def request(
        self, path: str = CHAT, body: object = None, method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request on a connection of its own, and return its response."""
        return await self.request_at(self.url, path, body, method, **headers)

    async def request_at(
        self, url: str, path: str, body: object = None, method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request to one of the ports, and return its response."""
        connection = await self.connect(url)
        await connection.send_request(path, body, method, **headers)
        return await connection.read_response()

    async def start_request(self, body: object = None, **headers: str) -> ClientConnection:
        connection = await self.connect()
        await connection.send_request(CHAT, body, **headers)
        return connection

    @property
    def state(self) -> GatewayState:
        return self.gateway.state()

    async def wait_until(self, true: Callable[[], object]) -> None:
        while not true():
            await asyncio.sleep(0.001)  # what is looked at has no event of its own

    async def wait_for_polls(self, backend: Backend, number: int) -> None:
        """Wait until a backend has been asked for its health so many times more."""
        polled = backend.health_polls
        await self.wait_until(lambda: backend.health_polls >= polled + number)

    async def refuse_connections(self, backend: Backend) -> None:
        """Let a backend finish what it has and accept no more connections, and wait until a poll has been refused."""
        assert backend._server is not None
        backend._server.close()
        index = self.backends.index(backend)
        pool = self.gateway._client.pool(self.gateway.scheduler.fleet.backends[index].origin)

        def is_refused() -> bool:
            pool.close_idle()  # A poll that was under way brings its connection back, and the next one would use that.
            return "refused" in self.state.backends[index].problem

        await self.wait_until(is_refused)

    async def wait_until_idle(self) -> None:
        """Wait until no request is in flight or waiting, in admission and at the backends; then check the core's counters."""
        await self.wait_until(self._is_idle)
        self.gateway.core.check()
        programs = self.gateway.programs
        if programs is not None:
            await self.wait_until(lambda: not programs.leases)
            programs.core.check()

    def _is_idle(self) -> bool:
        state = self.state
        return not (state.in_flight or state.waiting or any(backend.in_flight for backend in state.backends))

    def close(self) -> None:
        for connection in self._connections:
            connection.disconnect()


def admission_config(**section: Any) -> AdmissionConfig:
    """Return a config whose classes, unless `section` sets them, reserve nothing, never preempt and are open to all tenants.
    Victims are rejected."""
    given = {"mode": "priority", "default_max_class": "system", "on_preempt": "reject", **section}
    if given.get("flavour") != "smg":
        bare = {"reserved_floor": 0, "reserved_per_slot": 0.0, "can_preempt": False}
        classes = section.get("classes", {})
        given["classes"] = {name: {**bare, **classes.get(name, {})} for name in ("system", "interactive", "default", "bulk")}
    return msgspec.convert(given, AdmissionConfig)


def programs_config(section: dict[str, Any] | None) -> ProgramsConfig | None:
    """Return the config of the programs, in mode `tr` if `section` names no other; None without a section."""
    return None if section is None else msgspec.convert({"mode": "tr", **section}, ProgramsConfig)


@contextlib.asynccontextmanager
async def world(
    *backends: Backend,
    slots: int | None = 64,
    slots_from: Literal["auto", "learned", "fixed"] = "auto",
    admission: dict[str, Any] | None = None,
    routing: RoutingConfig | None = None,
    programs: dict[str, Any] | None = None,
    shadow: ShadowRules | None = None,
    ready: bool = True,
    reload: Callable[[GatewayConfig], GatewaySettings] | None = None,
    log_output: LogOutput | None = None,
    machine: Machine | None = None,
    **config: Any,
) -> AsyncIterator[GatewayWorld]:
    """Run a gateway before `backends`; at the end, wait until no request is left.

    `slots` is `slots_per_backend`, and `slots_from` is `slots`. `admission` goes to `admission_config`, `programs` to
    `programs_config`. `reload` is called with the gateway config.
    """
    backends = backends or (Backend(),)
    for number, backend in enumerate(backends):
        await backend.start()
        if MACHINE.get() is not None:  # They come up in their order, by which programs go where backends are alike.
            backend.first_poll_secs = number * APART_SECS
    settings = GatewayConfig(
        backends=tuple(backend.url for backend in backends),
        slots_per_backend=slots,
        slots=slots_from,
        **{"health_interval_secs": 0.01, "health_timeout_secs": 10.0, **config},
    )
    read = None if reload is None else partial(reload, settings)
    admitted = admission_config(**(admission or {}))
    gateway = Gateway(
        settings,
        admitted,
        routing,
        programs_config(programs),
        shadow=shadow,
        reload=read,
        log_output=log_output,
        machine=machine or MACHINE.get(),
    )
    try:
        urls: list[str] = []
        beside = gateway.admin_listener()
        async with running_server(gateway, beside=beside, on_ready=lambda *each: urls.extend(each), machine=gateway.machine):
            here = GatewayWorld(gateway, urls, backends)
            if ready:
                await here.wait_until(lambda: all(backend.healthy for backend in gateway.scheduler.fleet.backends))
            try:
                yield here
            finally:
                here.close()
            await here.wait_until_idle()
    finally:
        for backend in backends:
            await backend.stop()


def run_on_sockets(scenario: Coroutine[Any, Any, T]) -> T:
    """Run `scenario` on uvloop, as in production, for 110 s at most, a little less than a test may take: on a machine with nine
    busy processes, four that start have taken a minute."""

    async def bounded() -> T:
        async with asyncio.timeout(110):
            return await scenario

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())
