"""What the picker serves over gRPC: `ExternalProcessor/Process`, and `grpc.health.v1.Health`.

Messages pass as bytes: most of those that are sent are kept, and health needs one field.

    liveness                              SERVING while the process answers
    readiness, "", the ext_proc service   SERVING while the picker is ready: it leads, and knows backends
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # A child is Envoy, which knows nothing of this gRPC.

import grpc
import grpc.aio

from maitred.core.errors import ConfigError

EXT_PROC_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
_SERVING, _NOT_SERVING, _UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
_READY_SERVICES: Final = ("", "readiness", EXT_PROC_SERVICE)
_WATCH_SECS: Final = 0.2
"""How often a watched status is looked at."""
_MESSAGE_ROOM: Final = 1024 * 1024
"""Bytes of a message beside a body."""


class GrpcRpc:
    """A stream of gRPC (`ext_proc_stream.Rpc`)."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        """Return the next message, or None if there is none any more."""
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, message: bytes) -> None:
        """Send a message."""
        await self._context.write(message)


class GrpcServer:
    """Serves both on one port."""

    def __init__(
        self, process: Callable[[GrpcRpc], Coroutine[Any, Any, None]], is_ready: Callable[[], bool], max_body_bytes: int
    ) -> None:
        """`process` serves a stream of ext_proc. Made inside the event loop."""
        self._process, self._is_ready = process, is_ready
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_body_bytes + _MESSAGE_ROOM),
                ("grpc.max_send_message_length", max_body_bytes + _MESSAGE_ROOM),
                # Envoy pings while all streams wait.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ]
        )
        self._server.add_generic_rpc_handlers((self._ext_proc_handler(), self._health_handler()))
        self.port = 0
        """The port on which it listens, once it does."""

    def listen(self, host: str, port: int, tls: tuple[bytes, bytes] | None) -> None:
        """Listen at an address; `tls` are the key and the certificate, in PEM. Raises ConfigError if that is not possible."""
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(where)
            else:
                self.port = self._server.add_secure_port(where, grpc.ssl_server_credentials([tls]))
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {where}", where="--ext-proc", hint="a free port of this machine") from error

    async def start(self) -> None:
        """Take streams."""
        await self._server.start()

    async def stop(self, grace_secs: float) -> None:
        """Take no new streams, and cut those that are left after a time."""
        await self._server.stop(grace_secs)

    def _ext_proc_handler(self) -> Any:
        async def process(_: object, context: Any) -> None:
            await self._process(GrpcRpc(context))

        return grpc.method_handlers_generic_handler(
            EXT_PROC_SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(process)}
        )

    def _health_handler(self) -> Any:
        async def check(request: bytes, context: Any) -> bytes:
            status = self._status(request)
            if status == _UNKNOWN:
                await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            return status

        async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
            told = b""
            while True:
                status = self._status(request)
                if status != told:
                    told = status
                    yield status
                await asyncio.sleep(_WATCH_SECS)

        handlers = {"Check": grpc.unary_unary_rpc_method_handler(check), "Watch": grpc.unary_stream_rpc_method_handler(watch)}
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, handlers)

    def _status(self, request: bytes) -> bytes:
        """Return the answer to a `HealthCheckRequest`, whose one field is the name of a service."""
        name = request[2:].decode("utf-8", "replace") if request[:1] == b"\x0a" else ""
        if name == "liveness":
            return _SERVING
        if name not in _READY_SERVICES:
            return _UNKNOWN
        return _SERVING if self._is_ready() else _NOT_SERVING
