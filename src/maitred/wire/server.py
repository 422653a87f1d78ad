"""Serve an app over HTTP/1.1 until told to stop.

The first SIGINT or SIGTERM stops accepting connections, closes those that are idle, and lets requests in flight end, for
`drain_secs` at most; then their handlers are cancelled, and may still answer. A second signal ends at once. Either way the
process goes on after `run_server` returns: a server that was told to stop has not failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import uvloop

from maitred.core.errors import ConfigError
from maitred.wire.acceptor import BACKLOG, Acceptor
from maitred.wire.certificate import ServerCertificate
from maitred.wire.exchange import Exchange
from maitred.wire.protocol import ServerConnection
from maitred.wire.server_context import SEND_TIMEOUT_SECS, ServerContext
from maitred.wire.unix_signals import handle_signals

log = logging.getLogger("maitred.wire")

CANCEL_SECS = 5.0
"""Seconds that handlers have to end once they are cancelled."""
KEPT_BYTES = 8 * 1024 * 1024
"""Freed memory that a server keeps for the next large bodies."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAX_MMAP_THRESHOLD = 32 * 1024 * 1024
"""The largest that glibc would choose by itself; it chooses no more once it is told one of the two."""


class App:
    """What a server serves: a handler, and what is done before the first request and after the last."""

    send_timeout_secs = SEND_TIMEOUT_SECS
    """Seconds over which the rate of a slow client is measured."""

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer one request."""
        raise NotImplementedError

    async def start(self, server: ServerContext) -> None:
        """Prepare for the first request. `server` shows what its connections hold."""

    async def stop(self) -> None:
        """Release everything, after the last request has ended."""


def run_server(
    app: App,
    *,
    host: str,
    port: int,
    drain_secs: float = 30.0,
    on_ready: Callable[[str], object] = lambda url: None,
    on_hangup: Callable[[], object] | None = None,
    certificate: ServerCertificate | None = None,
) -> None:
    """Serve until a signal; port 0 takes any free port. With a `certificate`, over TLS alone.

    `on_ready` is called with the URL once connections are accepted. `on_hangup` is called inside the loop for each SIGHUP;
    without it, SIGHUP ends the process, as is its default. Raises ConfigError if the address cannot be listened on.
    """
    listener = open_listener(host, port)
    _tune_garbage_collector()
    keep_freed_memory()
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        uvloop.run(_serve_until_signal(app, listener, drain_secs, on_ready, on_hangup, certificate))


@contextlib.asynccontextmanager
async def running_server(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    drain_secs: float = 1.0,
    certificate: ServerCertificate | None = None,
) -> AsyncIterator[str]:
    """Serve inside a running loop, without signals, for tests and for programs that own the loop. Yields the URL."""
    listener = open_listener(host, port)
    server = _Server(app, drain_secs, certificate)
    await server.start(listener)
    try:
        yield listener_url(listener, certificate)
    finally:
        await server.stop()


async def _serve_until_signal(
    app: App,
    listener: socket.socket,
    drain_secs: float,
    on_ready: Callable[[str], object],
    on_hangup: Callable[[], object] | None,
    certificate: ServerCertificate | None,
) -> None:
    server = _Server(app, drain_secs, certificate)
    hangup = (signal.SIGHUP,) if on_hangup is not None and hasattr(signal, "SIGHUP") else ()  # not on Windows
    stops = (signal.SIGINT, signal.SIGTERM)
    with handle_signals(stops, server.on_stop_signal), handle_signals(hangup, on_hangup or server.on_stop_signal):
        await server.start(listener)
        on_ready(listener_url(listener, certificate))
        await server.told_to_stop.wait()
        await server.stop()


class _Server:
    def __init__(self, app: App, drain_secs: float, certificate: ServerCertificate | None) -> None:
        self.told_to_stop = asyncio.Event()
        self._app = app
        self._drain_secs = drain_secs
        self._certificate = certificate
        self._context = ServerContext(app, asyncio.get_running_loop(), app.send_timeout_secs)
        self._told_twice = asyncio.Event()

    async def start(self, listener: socket.socket) -> None:
        """Accept connections."""
        await self._app.start(self._context)
        context = self._context
        self._acceptor = Acceptor(listener, context.loop, partial(ServerConnection, context), self._certificate)
        await self._acceptor.start()

    async def stop(self) -> None:
        """Accept no more connections, let requests in flight end, and close everything."""
        self._acceptor.close()
        context = self._context
        context.is_draining = True
        log.info("shutting down: requests in flight: %d; they may take %g s", len(context.tasks), self._drain_secs)
        for connection in tuple(context.connections):
            connection.drain()
        await self._wait_until_closed(self._drain_secs)
        if context.tasks:
            log.warning("shutting down: requests that are cut off: %d", len(context.tasks))
        for task in tuple(context.tasks):
            task.cancel()
        if not self._told_twice.is_set():
            if context.tasks:
                await asyncio.wait(context.tasks, timeout=CANCEL_SECS)
            log.info("shut down")
            await self._app.stop()
        for connection in tuple(context.connections):
            connection.abort()
        context.hangups.close()

    def on_stop_signal(self) -> None:
        """Take note that the server is to stop; the second time, at once."""
        if self.told_to_stop.is_set():
            self._told_twice.set()
        self.told_to_stop.set()

    async def _wait_until_closed(self, secs: float) -> None:
        """Wait until the last connection has ended, for `secs` at most, or for a second signal."""
        if not self._context.connections:
            return
        self._context.all_closed.clear()
        waits = [asyncio.create_task(event.wait()) for event in (self._context.all_closed, self._told_twice)]
        await asyncio.wait(waits, timeout=secs, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError if there can be none."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise ConfigError(f"unknown host {host!r}", where="--host", hint="an address of this machine, or 0.0.0.0") from error
    except OverflowError as error:
        raise ConfigError(f"{port} is no port", where="--port", hint="0 to 65535; 0 takes any free one") from error
    except OSError as error:
        raise _listen_error(host, port, error) from error


def listener_url(listener: socket.socket, certificate: ServerCertificate | None = None) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _tune_garbage_collector() -> None:
    """Exempt all objects made so far from garbage collection, and collect less often: requests leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def keep_freed_memory() -> None:
    """Have the C library keep up to `KEPT_BYTES` that large bodies have left, where it is glibc. Otherwise it gives their pages
    back and takes them anew with each request: 50 page faults for 200 KB, or 15 to 40 µs."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or Windows
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_TRIM_THRESHOLD, KEPT_BYTES)
        set_option(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)


def _listen_error(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} is in use", where="--port", hint="stop what listens there, or choose another port")
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} is not permitted", where="--port", hint="ports from 1024 up need no privilege")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{host} is no address of this machine", where="--host", hint="127.0.0.1, or 0.0.0.0 for all")
    return ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", where="--port")
