"""Serve an app over HTTP/1.1 until told to stop, on one port or several.

Told to stop, a server goes through three phases; `ServerContext.is_draining` tells the app, whose readiness balancers look at.

    settle   for `settle_secs`   ready no more; connections are accepted, and each ends with its next answer and says so in its
                                 head: a balancer learns of the end by its checks, some seconds late
    drain    for `drain_secs`    no more connections; idle ones are closed, and requests in flight may end
    cut      some seconds        handlers of requests that are left are cancelled, and may still answer

SIGTERM, and an app that asks for it (`ServerContext.request_stop`), begin with the first. SIGINT begins with the second, for
nobody at a terminal waits for a balancer. Each further signal ends the phase that it comes in. The process goes on after
`run_server` returns: a server that was told to stop has not failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import uvloop

from maitred.core.errors import ConfigError
from maitred.wire.acceptor import Acceptor
from maitred.wire.certificate import ServerCertificate
from maitred.wire.client_limits import KEEP_ALIVE_SECS
from maitred.wire.exchange import Exchange, Handler
from maitred.wire.freed_memory import keep_freed_memory
from maitred.wire.handshakes import TlsAcceptor
from maitred.wire.machine import ListeningSocket, Machine
from maitred.wire.protocol import ServerConnection
from maitred.wire.server_context import SEND_TIMEOUT_SECS, ServerContext
from maitred.wire.unix_signals import handle_signals

T = TypeVar("T")
log = logging.getLogger("maitred.wire")

CANCEL_SECS = 5.0
"""Seconds that handlers have to end once they are cancelled."""
LAST_ANSWERS_SECS = 2.0
"""Seconds that clients have to take the answers of handlers that were cancelled; a connection lingers for less (`protocol`)."""
LAST_WORDS_SECS = 0.5
"""Seconds that handlers, and then clients, have for that if a signal has ended the drain."""


class App:
    """What a server serves: a handler, and what is done before the first request and after the last."""

    send_timeout_secs = SEND_TIMEOUT_SECS
    """Seconds over which the rate of a slow client is measured."""
    keep_alive_secs = KEEP_ALIVE_SECS
    """Seconds for which a client's idle connection is kept."""

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer one request."""
        raise NotImplementedError

    async def start(self, server: ServerContext) -> None:
        """Prepare for the first request. `server` shows what its connections hold."""

    async def stop(self) -> None:
        """Release everything, after the last request has ended."""


class Listener(NamedTuple):
    """A port of a server."""

    host: str
    port: int
    """0 takes any free port."""
    handler: Handler
    """Answers the requests that come on it."""
    certificate: ServerCertificate | None = None
    """With one it speaks TLS alone."""
    flag_prefix: str = ""
    """What stands before `host` and `port` in the names of the flags that say them."""


def run_server(serving: Coroutine[Any, Any, None]) -> None:
    """Run what `serve` returns, in an event loop of its own, in a process that does nothing else. Raises what it raises."""
    try:
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            tune_process()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serving)
    finally:
        serving.close()  # Ctrl-C may have come before it has begun, which would end in a warning.


async def serve(
    app: App,
    ports: Sequence[OpenPort],
    *,
    drain_secs: float = 30.0,
    settle_secs: float = 0.0,
    on_ready: Callable[..., object] = lambda *urls: None,
    on_hangup: Callable[[], object] | None = None,
    machine: Machine | None = None,
) -> None:
    """Serve on `ports` (`open_ports`) inside the running loop until a signal.

    `on_ready` is called with the URL of each port once connections are accepted. `on_hangup` is called for each SIGHUP; without
    it, SIGHUP ends the process, as is its default.
    """
    server = _Server(app, machine or Machine(), drain_secs, settle_secs)
    hangup = (signal.SIGHUP,) if on_hangup is not None and hasattr(signal, "SIGHUP") else ()  # not on Windows
    with (
        handle_signals((signal.SIGINT,), server.on_stop_signal),
        handle_signals((signal.SIGTERM,), server.on_termination),
        handle_signals(hangup, on_hangup or server.on_stop_signal),
    ):
        await server.start(ports)
        on_ready(*(port.url for port in ports))
        server.manager.tell_ready()
        await server.told_to_stop.wait()
        server.manager.tell_stopping()
        await server.settle()
        await server.stop()


@contextlib.asynccontextmanager
async def running_server(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    drain_secs: float = 1.0,
    certificate: ServerCertificate | None = None,
    beside: Sequence[Listener] = (),
    on_ready: Callable[..., object] = lambda *urls: None,
    machine: Machine | None = None,
) -> AsyncIterator[str]:
    """Serve inside a running loop, without signals, for tests and for programs that own the loop. Yields the URL; `on_ready` is
    called with that of each port. `beside` are further ports."""
    machine = machine or Machine()
    ports = open_ports([Listener(host, port, app, certificate), *beside], machine)
    server = _Server(app, machine, drain_secs)
    await server.start(ports)
    urls = [port.url for port in ports]
    on_ready(*urls)
    try:
        yield urls[0]
    finally:
        await server.stop()


class OpenPort(NamedTuple):
    """A port that is listened on."""

    socket: ListeningSocket
    listener: Listener

    @property
    def url(self) -> str:
        """The URL under which this machine reaches it."""
        return listener_url(self.socket, self.listener.certificate)


def open_ports(listeners: Sequence[Listener], machine: Machine | None = None) -> Sequence[OpenPort]:
    """Return the ports, all of them listening. Raises ConfigError, with none open, if an address cannot be listened on."""
    machine, ports = machine or Machine(), list[OpenPort]()
    try:
        for listener in listeners:
            ports.append(OpenPort(open_listener(listener, machine), listener))
    except ConfigError:
        for port in ports:
            port.socket.close()
        raise
    return ports


def make_acceptor(server: ServerContext, port: OpenPort) -> Acceptor | TlsAcceptor:
    """Return what accepts the connections of a port for a server, once it is started."""
    make_protocol = partial(ServerConnection, server, port.listener.handler)
    if port.listener.certificate is not None:
        return TlsAcceptor(port.socket, server, make_protocol, port.listener.certificate)
    return Acceptor(port.socket, server.loop, make_protocol, server.descriptors.mark)


class _Server:
    def __init__(self, app: App, machine: Machine, drain_secs: float, settle_secs: float = 0.0) -> None:
        self.told_to_stop = asyncio.Event()
        self.manager = machine.service_manager
        self._app = app
        self._drain_secs, self._settle_secs = drain_secs, settle_secs
        self._settles = False
        """Whether the end begins with the phase of settling."""
        self._context = ServerContext(asyncio.get_running_loop(), app.send_timeout_secs, machine, app.keep_alive_secs)
        self._context.request_stop, self._context.leave_ports = self.request_stop, self.leave_ports
        self._skips = asyncio.Event()
        """Set by a signal that ends the phase under way."""
        self._expects_signal = False
        """Whether the end has begun without a signal, so that the first one says nothing new."""

    async def start(self, ports: Sequence[OpenPort]) -> None:
        """Accept connections."""
        await self._app.start(self._context)
        for port in ports:
            acceptor = make_acceptor(self._context, port)
            self._context.acceptors.append(acceptor)
            await acceptor.start()

    async def settle(self) -> None:
        """Serve on for a while, as a server that is not ready."""
        if not (self._settles and self._settle_secs):
            return
        # Clients with a pool of connections of their own move on, since each answer ends its connection. An idle one is not
        # closed yet: a request may be on its way, and a POST that is lost is not sent again.
        self._drain_connections()
        log.info("shutting down: not ready any more; connections are accepted for %g s", self._settle_secs)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._skips.wait(), self._settle_secs)
        self._skips.clear()

    async def stop(self) -> None:
        """Accept no more connections, let requests in flight end, and close everything."""
        context = self._context
        for acceptor in context.acceptors:
            acceptor.close()
        for handshake in tuple(context.handshakes):  # Nothing was asked there yet, and nobody would drain what they become.
            handshake.abort()
        context.closes_idle = True
        self._drain_connections()
        log.info("shutting down: requests in flight: %d; they may take %g s", len(context.tasks), self._drain_secs)
        await self._wait_until_closed(self._drain_secs)
        is_hurried = self._skips.is_set()
        await self._cancel_handlers()
        if not is_hurried:
            log.info("shut down")
            await self._app.stop()
        for each in (*context.handshakes, *context.connections):
            each.abort()
        context.close()

    async def _cancel_handlers(self) -> None:
        """Cancel what still runs, and let clients take the answers that say so, and those of what has just ended."""
        # Once a signal has ended the drain, what can be said at once is said even so: to close at once would reset it.
        is_hurried = self._skips.is_set()
        self._skips.clear()
        if tasks := tuple(self._context.tasks):
            log.warning("shutting down: requests that are cut off: %d", len(tasks))
            await self._cancel(tasks, is_hurried=is_hurried)
        await self._wait_until_closed(LAST_WORDS_SECS if is_hurried else LAST_ANSWERS_SECS)
        # One that was sent behind a stream, whose head could not say that the connection ends, has begun meanwhile.
        if late := tuple(self._context.tasks):
            await self._cancel(late, is_hurried=is_hurried)

    async def _cancel(self, tasks: Sequence[asyncio.Task[None]], *, is_hurried: bool) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=LAST_WORDS_SECS if is_hurried else CANCEL_SECS)

    def _drain_connections(self) -> None:
        """Let each connection end with its next answer."""
        self._context.is_draining = True
        for connection in tuple(self._context.connections):
            connection.drain()

    def on_stop_signal(self) -> None:
        """Take note that the server is to stop; when that is known, end the phase under way."""
        if self.told_to_stop.is_set() and not self._expects_signal:
            self._skips.set()
        self._expects_signal = False
        self.told_to_stop.set()

    def on_termination(self) -> None:
        """Take note that the server is to stop, and begins with settling."""
        self._settles |= not self.told_to_stop.is_set()
        self.on_stop_signal()

    def request_stop(self) -> None:
        """Do as SIGTERM does, once."""
        if not self.told_to_stop.is_set():
            self.on_termination()

    def leave_ports(self) -> None:
        """Accept nothing more, and let requests in flight end, as SIGINT does; a drain that is under way goes on."""
        if self._settles and self._settle_secs and not self._context.closes_idle:
            self._skips.set()
        self._expects_signal |= not self.told_to_stop.is_set()
        self.told_to_stop.set()

    async def _wait_until_closed(self, secs: float) -> None:
        """Wait until the last connection has ended, for `secs` at most, or for a second signal."""
        if not self._context.connections:
            return
        self._context.all_closed.clear()
        waits = [asyncio.create_task(event.wait()) for event in (self._context.all_closed, self._skips)]
        await asyncio.wait(waits, timeout=secs, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def open_listener(listener: Listener, machine: Machine) -> ListeningSocket:
    """Return a listening socket. Raises ConfigError if there can be none, which names the flags of host and port."""
    return open_with(machine.listen, listener)


def open_with(listen: Callable[[str, int], T], listener: Listener) -> T:
    """Return what `listen` returns for a host and a port. Raises ConfigError as `open_listener`."""
    host, port, *_, prefix = listener
    host_flag, port_flag = f"--{prefix}host", f"--{prefix}port"
    try:
        return listen(host, port)
    except socket.gaierror as error:
        raise ConfigError(f"unknown host {host!r}", where=host_flag, hint="an address of this machine, or 0.0.0.0") from error
    except OverflowError as error:
        raise ConfigError(f"{port} is no port", where=port_flag, hint="0 to 65535; 0 takes any free one") from error
    except OSError as error:
        raise _listen_error(host, port, error, host_flag, port_flag) from error


def listener_url(listener: ListeningSocket, certificate: ServerCertificate | None = None) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def tune_process() -> None:
    """Set what a process that does nothing but serve is faster with."""
    _tune_garbage_collector()
    keep_freed_memory()


def _tune_garbage_collector() -> None:
    """Exempt all objects made so far from garbage collection, and collect less often: requests leave no cycles behind."""
    gc.collect()
    gc.freeze()
    # By default (700, 10, 10 in CPython 3.11) every few requests would be looked through for cycles. XXX: the numbers are not
    # tuned.
    gc.set_threshold(20_000, 20, 50)


def _listen_error(host: str, port: int, error: OSError, host_flag: str, port_flag: str) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} is in use", where=port_flag, hint="stop what listens there, or choose another port")
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} is not permitted", where=port_flag, hint="ports from 1024 up need no privilege")
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{host} is no address of this machine", where=host_flag, hint="127.0.0.1, or 0.0.0.0 for all")
    return ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", where=port_flag)
