"""What the picker serves over gRPC: `ExternalProcessor/Process`, and `grpc.health.v1.Health`.

Messages pass as bytes: most of those that are sent are kept, and health needs one field.

    liveness                              SERVING while the process answers
    readiness, "", the ext_proc service   SERVING while the picker is ready: it leads, and knows backends
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from maitred.core.errors import ConfigError
from maitred.gateway.envoy.http2 import Http2Connection, Http2Error
from maitred.gateway.envoy.http2_stream import Http2Stream
from maitred.wire.machine import ListeningSocket, Machine

log = logging.getLogger("maitred.gateway")
EXT_PROC_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
_SERVING, _NOT_SERVING, _UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
_READY_SERVICES: Final = ("", "readiness", EXT_PROC_SERVICE)
_WATCH_SECS: Final = 0.2
"""How often a watched status is looked at."""
_MESSAGE_ROOM: Final = 1024 * 1024
"""Bytes of a message beside a body."""
_HANDSHAKE_SECS: Final = 10.0
_FEW_STREAMS: Final = 4
_OK, _NOT_FOUND, _UNIMPLEMENTED, _INTERNAL = 0, 5, 12, 13


class GrpcRpc:
    """A stream of gRPC (`ext_proc_stream.Rpc`)."""

    def __init__(self, connection: Http2Connection, stream: Http2Stream, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._stream = connection, stream
        self._loop = loop  # In CPython 3.11, `get_running_loop` is a system call.
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    @property
    def is_gone(self) -> bool:
        """Whether nobody hears what is said."""
        return self._stream.is_dead

    async def read(self) -> bytes | None:
        """Return the next message, or None if there is none any more."""
        stream = self._stream
        while not stream.inbox:
            if stream.is_ended:
                return None
            self._readable = self._loop.create_future()
            await self._readable
        return self._connection.read(stream)

    async def write(self, message: bytes) -> None:
        """Send a message, when the one before it has left."""
        while self._stream.pending:
            self._writable = self._loop.create_future()
            await self._writable
        self._connection.send(self._stream, message)

    def on_readable(self) -> None:
        """Wake who reads."""
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)

    def on_writable(self) -> None:
        """Wake who writes."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)


class _Connection(asyncio.Protocol):
    """A connection of Envoy's."""

    def __init__(self, server: GrpcServer) -> None:
        self._server, self._loop = server, asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_receiving = False
        self.http2 = Http2Connection(self._begin, self._flush_soon, server.max_message)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        is_flush_due = bool(self.http2.output)
        self._is_receiving = True
        try:
            self.http2.receive(data)
        except Http2Error as error:
            log.warning("Envoy's connection to the picker is closed: %s", error)
            self.http2.go_away(error.code, str(error))
            self._flush()
            self.close()
        finally:
            self._is_receiving = False
        if self.http2.output and not is_flush_due:
            self._flush_soon()

    def pause_writing(self) -> None:
        """Read nothing more while what is said is not taken."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        self.http2.lose()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def _begin(self, stream: Http2Stream, path: str) -> None:
        rpc = stream.listener = GrpcRpc(self.http2, stream, self._loop)
        self._server.begin(self._serve(rpc, stream, path))

    async def _serve(self, rpc: GrpcRpc, stream: Http2Stream, path: str) -> None:
        status = _INTERNAL
        try:
            status = await self._server.serve(rpc, path)
        finally:
            self.http2.end(stream, status)

    def _flush_soon(self) -> None:
        if self._transport is None or self._is_receiving:  # `connection_made` flushes, or `data_received` once for all.
            return
        if len(self.http2.streams) <= _FEW_STREAMS:
            self._flush()  # There is nobody to share a turn of the loop with.
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send all that was said in this turn of the loop at once."""
        output = self.http2.output
        if output and self._transport is not None:
            self.http2.output = []
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))


class GrpcServer:
    """Serves both on one port."""

    def __init__(
        self, process: Callable[[GrpcRpc], Coroutine[Any, Any, None]], is_ready: Callable[[], bool], max_body_bytes: int
    ) -> None:
        """`process` serves a stream of ext_proc."""
        self._process, self._is_ready = process, is_ready
        self.max_message = max_body_bytes + _MESSAGE_ROOM
        """Bytes of the largest message."""
        self.connections: set[_Connection] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._listener: ListeningSocket | None = None
        self._accepting: asyncio.Server | None = None
        self.port = 0
        """The port on which it listens, once it does."""

    def listen(self, host: str, port: int, machine: Machine) -> None:
        """Listen at an address. Raises ConfigError if that is not possible."""
        try:
            self._listener = machine.listen(host, port)
        except (OSError, OverflowError) as error:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            number = getattr(error, "errno", None)
            reason = str(error) if number is None or number < 0 else os.strerror(number).lower()
            hint = "a free port and an address of this machine"
            raise ConfigError(f"cannot listen on {where}: {reason}", where="--ext-proc", hint=hint) from error
        self.port = self._listener.getsockname()[1]

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Take connections, of TLS if there is a context."""
        limit = None if tls is None else _HANDSHAKE_SECS
        self._accepting = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), sock=cast(Any, self._listener), ssl=tls, ssl_handshake_timeout=limit
        )

    async def stop(self, grace_secs: float) -> None:
        """Take no new streams, and cut those that are left after a time."""
        if self._accepting is not None:
            self._accepting.close()
        for connection in self.connections:
            connection.http2.leave()
        if self._calls:
            await asyncio.wait({*self._calls}, timeout=grace_secs)
        for connection in [*self.connections]:
            connection.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Serve a call."""
        task = asyncio.get_running_loop().create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a stream of Envoy's has ended in an error", exc_info=task.exception())

    async def serve(self, rpc: GrpcRpc, path: str) -> int:
        """Serve a call, and return its status."""
        if path == f"/{EXT_PROC_SERVICE}/Process":
            await self._process(rpc)
            return _OK
        if path not in (f"/{HEALTH_SERVICE}/Check", f"/{HEALTH_SERVICE}/Watch"):
            return _UNIMPLEMENTED
        request = await rpc.read()
        if request is None:
            return _INTERNAL
        if path.endswith("Watch"):
            return await self._watch(request, rpc)
        status = self._status(request)
        if status == _UNKNOWN:
            return _NOT_FOUND
        await rpc.write(status)
        return _OK

    async def _watch(self, request: bytes, rpc: GrpcRpc) -> int:
        told = b""
        while not rpc.is_gone:
            status = self._status(request)
            if status != told:
                told = status
                await rpc.write(status)
            await asyncio.sleep(_WATCH_SECS)
        return _OK

    def _status(self, request: bytes) -> bytes:
        """Return the answer to a `HealthCheckRequest`, whose one field is the name of a service."""
        name = request[2:].decode("utf-8", "replace") if request[:1] == b"\x0a" else ""
        if name == "liveness":
            return _SERVING
        if name not in _READY_SERVICES:
            return _UNKNOWN
        return _SERVING if self._is_ready() else _NOT_SERVING
