"""Serve a raw ASGI app on uvicorn (uvloop, httptools) until told to stop.

The first SIGINT or SIGTERM stops accepting connections and lets requests in flight end, for `drain_secs` at most; a second one
ends at once. Either way the process goes on after `run_server` returns: a server that was told to stop has not failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from maitred.core.errors import ConfigError
from maitred.wire.asgi import App
from maitred.wire.protocol import BoundedHttpProtocol

CLIENT_KEEP_ALIVE_SECS = 75
"""Seconds for which a client's idle connection is kept: longer than clients keep theirs, so that the client closes it."""


def run_server(
    app: App,
    *,
    host: str,
    port: int,
    drain_secs: float = 30.0,
    on_ready: Callable[[str], object] = lambda url: None,
    on_hangup: Callable[[], object] | None = None,
) -> None:
    """Serve until a signal; port 0 takes any free port.

    `on_ready` is called with the URL once connections are accepted. `on_hangup` is called inside the loop for each SIGHUP;
    without it, SIGHUP ends the process, as is its default. Raises ConfigError if the address cannot be listened on.
    """
    listener = open_listener(host, port)
    server = _Server(_uvicorn_config(app, drain_secs), lambda: on_ready(listener_url(listener)), on_hangup)
    _tune_garbage_collector()
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        server.run(sockets=[listener])


@contextlib.asynccontextmanager
async def running_server(app: App, *, host: str = "127.0.0.1", port: int = 0, drain_secs: float = 1.0) -> AsyncIterator[str]:
    """Serve inside a running loop, without signals, for tests and for programs that own the loop. Yields the URL."""
    listener = open_listener(host, port)
    up = asyncio.Event()
    server = _Server(_uvicorn_config(app, drain_secs), up.set)
    running = asyncio.create_task(server._serve([listener]))
    starting = asyncio.create_task(up.wait())
    await asyncio.wait({running, starting}, return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    try:
        if up.is_set():
            yield listener_url(listener)
    finally:
        server.stop()
        await running


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError if there can be none."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise ConfigError(f"unknown host {host!r}", where="--host", hint="an address of this machine, or 0.0.0.0") from error
    except OverflowError as error:
        raise ConfigError(f"{port} is no port", where="--port", hint="0 to 65535; 0 takes any free one") from error
    except OSError as error:
        raise _listen_error(host, port, error) from error


def listener_url(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tune_garbage_collector() -> None:
    """Exempt all objects made so far from garbage collection, and collect less often: requests leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _listen_error(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} is in use", where="--port", hint="stop what listens there, or choose another port")
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} is not permitted", where="--port", hint="ports from 1024 up need no privilege")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{host} is no address of this machine", where="--host", hint="127.0.0.1, or 0.0.0.0 for all")
    return ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", where="--port")


def _uvicorn_config(app: App, drain_secs: float) -> uvicorn.Config:
    # An app logs its own errors; uvicorn would add noise for every connection that is cut on purpose.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=CLIENT_KEEP_ALIVE_SECS,
        timeout_graceful_shutdown=drain_secs,  # type: ignore[arg-type]  # Typed int, but given to `wait_for` as it is.
    )


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, on_started: Callable[[], object], on_hangup: Callable[[], object] | None = None
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._handlers: dict[int, Callable[[], object]] = {signal.SIGINT: self.stop, signal.SIGTERM: self.stop}
        if on_hangup is not None and hasattr(signal, "SIGHUP"):  # not on Windows
            self._handlers[signal.SIGHUP] = on_hangup
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Accept no more connections, and let requests in flight end. The second call ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def main_loop(self) -> None:
        """Wait for `stop`. uvicorn's own checks ten times a second whether it should exit; nothing else of it is needed."""
        await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the loop. uvicorn's own raises the signal again afterwards, which would end the process."""
        loop = asyncio.get_running_loop()
        for number, handler in self._handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in self._handlers:
                loop.remove_signal_handler(number)
