"""A picker between backends that answer as a test says, and Envoy: the real one, or a test that speaks as Envoy does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from world import CHAT, Backend, ClientConnection, admission_config

from maitred.admission import AdmissionConfig
from maitred.gateway import GatewayConfig
from maitred.gateway.cluster.scheduler_gateway import LinkPort
from maitred.gateway.envoy.bootstrap import EnvoyPlan
from maitred.gateway.envoy.envoy_process import EnvoyProcess
from maitred.gateway.envoy.ext_proc_schema import proto
from maitred.gateway.envoy.grpc_services import EXT_PROC_SERVICE, HEALTH_SERVICE
from maitred.gateway.envoy.picker_scheduler import ExtProcPort, PickerScheduler
from maitred.programs import ProgramsConfig
from maitred.scheduler.interface import LinkAddress, open_election
from maitred.scheduler.link_config import SchedulerConfig
from maitred.scheduler.sharing.elections.election import SoleScheduler
from maitred.wire.machine import Machine
from maitred.wire.server import running_server
from ports import free_ports

BUFFERED, FULL_DUPLEX = 2, 4
_HERE = "127.0.0.1"


def make_picker(
    backends: tuple[Backend, ...],
    slots: int = 1,
    admission: AdmissionConfig | None = None,
    programs: ProgramsConfig | None = None,
    election: str | None = None,
    name: str = "s",
    port: int = 0,
    make: Callable[..., PickerScheduler] = PickerScheduler,
    listen: int = 8080,
    ext_proc: ExtProcPort | None = None,
    **config: Any,
) -> PickerScheduler:
    urls = tuple(backend.url for backend in backends)
    given = {"health_interval_secs": 0.05, "drain_secs": 1.0, **config}
    settings = GatewayConfig(port=listen, backends=urls, slots_per_backend=slots, **given)
    link = SchedulerConfig(listen=f"{_HERE}:0", election=election, lease_secs=0.5)
    machine = Machine()
    return make(
        settings,
        admission or admission_config(),
        None,
        programs or ProgramsConfig(),
        port=LinkPort(LinkAddress(_HERE, 0), None, None, b"a secret of a test", name),
        election=SoleScheduler(is_first=True) if election is None else open_election(election, link, machine.random),
        pages=(_HERE, 0),
        ext_proc=ext_proc or ExtProcPort(_HERE, port),
        machine=machine,
    )


async def until(true: Callable[[], object]) -> None:
    """Wait until something holds that has no event of its own."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


class PlayedStream:
    """A stream of ext_proc, of which a test plays Envoy's end."""

    def __init__(self, call: Any, body_mode: int, response_mode: int = 0) -> None:
        self.call, self.body_mode, self.response_mode = call, body_mode, response_mode

    async def send(self, **message: Any) -> None:
        await self.call.write(proto.ProcessingRequest(**message).SerializeToString())

    async def read(self) -> Any:
        """Return the next answer of the picker."""
        data = await self.call.read()
        assert data is not grpc.aio.EOF
        return proto.ProcessingResponse.FromString(data)

    async def request(self, body: bytes, metadata: Any = None, path: str = CHAT, **headers: str) -> None:
        """Send the head and the body of a POST."""
        config = proto.ProtocolConfiguration(request_body_mode=self.body_mode, response_body_mode=self.response_mode)
        named = {":method": "POST", ":path": path, ":authority": "here", "x-request-id": "r", **headers}
        more = {} if metadata is None else {"metadata_context": metadata}
        await self.send(request_headers=head(named), protocol_config=config, **more)
        if self.body_mode == BUFFERED:
            assert (await self.read()).HasField("request_headers")
        await self.send(request_body=proto.HttpBody(body=body, end_of_stream=True))

    async def response_headers(self, status: int = 200, *, of_backend: bool = True, **headers: str) -> None:
        """Say that the backend has begun to answer, or that Envoy answers in its place."""
        named = {":status": str(status), **headers, **({"x-envoy-upstream-service-time": "3"} if of_backend else {})}
        await self.send(response_headers=head(named))

    async def end(self) -> None:
        """Say that the HTTP stream has ended, and wait until the picker has nothing to say either."""
        await self.call.done_writing()
        assert await self.call.read() is grpc.aio.EOF

    def reset(self) -> None:
        """End the stream as Envoy does when its client leaves."""
        self.call.cancel()


def head(named: dict[str, str]) -> Any:
    headers = [proto.HeaderValue(key=name.replace("_", "-"), raw_value=value.encode()) for name, value in named.items()]
    return proto.HttpHeaders(headers=proto.HeaderMap(headers=headers))


class PickerWorld:
    """A picker, its backends, and who asks it."""

    def __init__(self, picker: PickerScheduler, backends: tuple[Backend, ...], channel: Any) -> None:
        self.picker, self.backends, self._channel = picker, backends, channel
        self.url = ""
        """That of Envoy, if the real one is there."""
        self._connections: list[ClientConnection] = []

    def stream(self, body_mode: int = BUFFERED) -> PlayedStream:
        return PlayedStream(self._channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")(), body_mode)

    async def health(self, service: str) -> int:
        """Return the status of a service, as in `HealthCheckResponse`."""
        request = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
        return (await self._channel.unary_unary(f"/{HEALTH_SERVICE}/Check")(request))[1]

    async def connect(self) -> ClientConnection:
        host, port = self.url.removeprefix("http://").split(":")
        self._connections.append(ClientConnection(*await asyncio.open_connection(host, int(port))))
        return self._connections[-1]

    async def request(self, path: str = CHAT, body: object = None, method: str = "POST", **headers: str) -> Any:
        connection = await self.connect()
        await connection.send_request(path, body, method, **headers)
        return await connection.read_response()

    async def start_request(self, body: object = None, **headers: str) -> ClientConnection:
        connection = await self.connect()
        await connection.send_request(CHAT, body, **headers)
        return connection

    @property
    def slots_in_use(self) -> int:
        return sum(request.holds_slot for request in self._requests)

    @property
    def num_waiting(self) -> int:
        return sum(not request.holds_slot for request in self._requests)

    @property
    def _requests(self) -> Any:
        host = self.picker.host
        return () if host is None else host.end.books.by_ticket.values()

    def disconnect(self) -> None:
        for connection in self._connections:
            connection.disconnect()


@contextlib.asynccontextmanager
async def running_picker(
    *backends: Backend, picker: PickerScheduler | None = None, **config: Any
) -> AsyncIterator[PickerWorld]:
    """Serve a picker in front of backends, and a channel to it."""
    for backend in backends:
        if not backend.port:
            await backend.start()
    picker = picker or make_picker(backends, **config)
    try:
        async with running_server(picker):
            assert picker.grpc is not None
            await until(picker.is_ready)
            async with grpc.aio.insecure_channel(f"{_HERE}:{picker.grpc.port}") as channel:
                world = PickerWorld(picker, backends, channel)
                yield world
                world.disconnect()
    finally:
        for backend in backends:
            await backend.stop()


@contextlib.asynccontextmanager
async def running_envoy(backends: tuple[Backend, ...], pickers: list[int], **more: Any) -> AsyncIterator[str]:
    """Run the real Envoy, and yield its URL when it has found a picker that is ready."""
    port, admin = free_ports(2)
    plan = EnvoyPlan(
        backends=[backend.url for backend in backends],
        pickers=[LinkAddress(_HERE, each) for each in pickers],
        listen=LinkAddress(_HERE, port),
        admin=LinkAddress(_HERE, admin),
        **more,
    )
    process = EnvoyProcess(plan, concurrency=1)
    await process.start()
    try:
        await _until_healthy(admin)
        yield f"http://{_HERE}:{port}"
    finally:
        await process.stop()


async def _until_healthy(admin: int) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                connection = ClientConnection(*await asyncio.open_connection(_HERE, admin))
                try:
                    await connection.send_request("/stats?filter=picker.membership_healthy", b"", "GET")
                    if b"healthy: 1" in (await connection.read_response())[2]:
                        return
                finally:
                    connection.disconnect()
            await asyncio.sleep(0.05)
