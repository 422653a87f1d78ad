"""`maitred serve`, configured as SMG would be: the same YAML, the same flags. In a process of its own, or in this one."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import yaml

from maitred.cli import main
from maitred.gateway import app as gateway
from maitred.gateway.cluster.linked_gateway import LinkedGateway
from maitred.gateway.cluster.scheduler_gateway import LinkPort, SchedulerGateway
from maitred.gateway.workers import supervisor
from maitred.gateway.workers.parent import ParentGateway
from maitred.gateway.workers.settings import WorkerFolder, share_of
from maitred.gateway.workers.worker import WorkerGateway
from maitred.scheduler.interface import Dialer, KnownAddresses, LinkAddress, RemoteScheduler, open_election
from maitred.scheduler.link_config import SchedulerConfig
from maitred.wire import server
from maitred.wire.machine import Machine

from .client import Exchange, Wanted, ask
from .metrics import Metrics
from .scenario import Base, Config, Scenario

START_SECS = 60.0
"""Within which it must serve, or have given up. A loaded machine starts slowly."""
STOP_SECS = 10.0
POLL_SECS = 0.02
HEALTH_INTERVAL_SECS = 0.2
DEFECT_PROMOTION_SHARE = 0.25
"""SMG promotes without bound and so does its flavour. Where a defect of SMG's is to be absent, ours bounds it."""


class GatewayExited(Exception):  # noqa: N818  (an outcome that some scenarios expect)
    """It ended instead of serving."""

    def __init__(self, code: int, log: Sequence[str]) -> None:
        self.code = code
        self.log = log
        super().__init__(f"the gateway ended with status {code}: {' / '.join(log[-3:])}")


class Gateway:
    """A running gateway."""

    def __init__(self, url: str, log: Sequence[str], key: str | None, exit_code: Callable[[], int | None]) -> None:
        self.url = url
        self.log = log
        """Lines of its stderr."""
        self._key = key
        self._exit_code = exit_code
        """Returns the status with which it has ended, or None while it runs."""

    async def get(self, path: str) -> Exchange:
        """Raises OSError, TimeoutError."""
        headers = [] if self._key is None else [("authorization", f"Bearer {self._key}")]
        return await ask(self.url, Wanted("GET", path, headers))

    async def state(self) -> dict[str, Any]:
        answer = (await self.get("/maitred/state")).json
        return answer if isinstance(answer, dict) else {}

    async def metrics(self) -> Metrics:
        return Metrics((await self.get("/metrics")).body.decode())

    async def until(self, healthy: Sequence[str]) -> None:
        """Wait until it has seen that these backends, by URL, are up. Raises GatewayExited, TimeoutError."""
        async with asyncio.timeout(START_SECS):
            while (code := self._exit_code()) is None:
                with contextlib.suppress(OSError):
                    backends = (await self.state()).get("backends", ())
                    if set(healthy) <= {backend["url"] for backend in backends if backend["healthy"]}:
                        return
                await asyncio.sleep(POLL_SECS)
        raise GatewayExited(code, self.log)


Launcher = Callable[[Sequence[str], str | None], AbstractAsyncContextManager[Gateway]]
"""Starts a gateway with these flags; the second argument is the API key with which it may be asked for its state. Raises
GatewayExited, TimeoutError."""


@contextlib.asynccontextmanager
async def in_own_process(arguments: Sequence[str], key: str | None) -> AsyncIterator[Gateway]:
    """Start `maitred serve` as its users do. Takes a processor for most of a second."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maitred", "serve", "--port", "0", "--settle-secs", "0", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
    )
    log: list[str] = []
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    listening = asyncio.create_task(_listen(process, log, ready))
    try:
        async with asyncio.timeout(START_SECS):
            url = await ready
        yield Gateway(url, log, key, lambda: process.returncode)
    finally:
        await _end(process)
        await listening


@contextlib.asynccontextmanager
async def in_this_process(arguments: Sequence[str], key: str | None, machine: Machine | None = None) -> AsyncIterator[Gateway]:
    """Run the command line up to the point where it would serve, and serve its application in this event loop: on a socket, or
    on `machine`."""
    log: list[str] = []
    _LOG.set(log)
    machine = machine or Machine()
    application = _application(arguments, log, machine)
    async with server.running_server(application, drain_secs=0, machine=machine) as url:
        yield Gateway(url, log, key, lambda: None)


def with_workers(number: int, machine: Machine | None = None) -> Launcher:
    """Return what runs `maitred serve --workers NUMBER`, of which each process is an application in this event loop, on sockets
    or on `machine`. Every request comes to another worker."""
    here = machine or Machine()

    @contextlib.asynccontextmanager
    async def launch(arguments: Sequence[str], key: str | None) -> AsyncIterator[Gateway]:
        log: list[str] = []
        _LOG.set(log)
        parent = _parent([*arguments, "--workers", str(number)], log, here)
        with TemporaryDirectory(prefix="maitred-workers-") as path:
            folder = WorkerFolder(Path(path))
            folder.make_secret()
            await parent.open(folder.socket, folder.secret())
            async with contextlib.AsyncExitStack() as stack:
                workers = [_worker(parent, folder, each, number, here) for each in range(number)]
                serving = [server.running_server(each, drain_secs=0, machine=here) for each in workers]
                urls = [await stack.enter_async_context(each) for each in serving]
                yield SharedGateway(urls, log, key, lambda: None)
            await parent.close()

    return launch


def with_schedulers(gateways: int, schedulers: int, machine: Machine | None = None) -> Launcher:
    """Return what runs so many gateways and schedulers, of which one leads, as applications in this event loop, with TCP
    between them, on sockets or on `machine`. Every request comes to another gateway."""
    here = machine or Machine()

    @contextlib.asynccontextmanager
    async def launch(arguments: Sequence[str], key: str | None) -> AsyncIterator[Gateway]:
        log: list[str] = []
        _LOG.set(log)
        alone = _application(arguments, log, here)
        with TemporaryDirectory(prefix="maitred-cluster-") as folder:
            async with contextlib.AsyncExitStack() as stack:
                serve = partial(server.running_server, drain_secs=0, machine=here)
                made = [_scheduler(alone, folder, f"scheduler {each}", here) for each in range(schedulers)]
                pages = [await stack.enter_async_context(serve(each)) for each in made]
                assert [each.host.leadership.mode == "standby" for each in made] == [each > 0 for each in range(schedulers)]
                addresses = [each.link_address for each in reversed(made)]
                asking = [_linked(alone, addresses, f"gateway {each}", here) for each in range(gateways)]
                urls = [await stack.enter_async_context(serve(each)) for each in asking]
                while not all(each.scheduler.fleet.all_polled for each in asking):
                    await asyncio.sleep(POLL_SECS)
                yield ClusterGateway(urls, pages[0], log, key)

    return launch


_SECRET = b"a secret of a conformance run"


def _scheduler(alone: Any, folder: str, name: str, machine: Machine) -> SchedulerGateway:
    settings = alone.settings()
    port = LinkPort(LinkAddress("127.0.0.1", 0), None, None, _SECRET, name)
    election = open_election(f"file:{folder}/leader", SchedulerConfig(), machine.random)
    sections = (settings.gateway, settings.admission, settings.routing, settings.programs)
    named: dict[str, Any] = {"fallback": alone.scheduler.fallback, "machine": machine}
    return SchedulerGateway(*sections, port=port, election=election, pages=("127.0.0.1", 0), **named)


def _linked(alone: Any, addresses: Sequence[LinkAddress], name: str, machine: Machine) -> LinkedGateway:
    settings = alone.settings()
    make = partial(RemoteScheduler, dialer=Dialer(KnownAddresses(*addresses)), name=name, secret=_SECRET)
    sections = (settings.gateway, settings.admission, settings.routing, settings.programs)
    return LinkedGateway(*sections, make_scheduler=make, machine=machine)


class SharedGateway(Gateway):
    """A gateway of several workers."""

    def __init__(self, urls: Sequence[str], log: Sequence[str], key: str | None, exit_code: Callable[[], int | None]) -> None:
        self._urls = cycle(urls)
        super().__init__(urls[0], log, key, exit_code)

    @property
    def url(self) -> str:
        """That of the next worker."""
        return next(self._urls)

    @url.setter
    def url(self, url: str) -> None:
        pass


class ClusterGateway(SharedGateway):
    """Several gateways with a scheduler that has pages of its own."""

    def __init__(self, urls: Sequence[str], pages: str, log: Sequence[str], key: str | None) -> None:
        super().__init__(urls, log, key, lambda: None)
        self._pages, self._each = pages, urls

    async def metrics(self) -> Metrics:
        headers = [] if self._key is None else [("authorization", f"Bearer {self._key}")]
        asked = [await ask(url, Wanted("GET", "/metrics", headers)) for url in (self._pages, *self._each)]
        return Metrics("\n".join(each.body.decode() for each in asked))

    async def get(self, path: str) -> Exchange:
        headers = [] if self._key is None else [("authorization", f"Bearer {self._key}")]
        return await ask(self._pages, Wanted("GET", path, headers))


def _worker(parent: ParentGateway, folder: WorkerFolder, number: int, workers: int, machine: Machine) -> WorkerGateway:
    settings = share_of(parent.settings(), workers)
    dialer = Dialer(KnownAddresses(LinkAddress(folder.socket, None)))
    make = partial(RemoteScheduler, dialer=dialer, name=f"worker {number}", secret=folder.secret())
    sections = (settings.gateway, settings.admission, settings.routing, settings.programs)
    return WorkerGateway(*sections, make_scheduler=make, read_settings=lambda: settings, machine=machine)


def _parent(arguments: Sequence[str], log: list[str], machine: Machine) -> ParentGateway:
    """Return the process that would schedule. Raises GatewayExited if it would end instead."""
    parents: list[ParentGateway] = []

    class Noted:
        def __init__(self, parent: ParentGateway, *others: object) -> None:
            parents.append(parent)

        def run(self, *others: object) -> None: ...

    code = _run_command(arguments, log, mock.patch.object(supervisor, "Supervisor", Noted), machine)
    if not parents:
        raise GatewayExited(code, log)
    return parents[0]


def _application(arguments: Sequence[str], log: list[str], machine: Machine) -> Any:
    """Return the application that `maitred serve` would serve. Raises GatewayExited if it would end instead."""
    served: list[Any] = []
    noted = mock.patch.object(gateway, "serve", lambda application, *_, **options: served.append(application))
    code = _run_command(arguments, log, noted, machine)
    if not served:
        raise GatewayExited(code, log)
    return served[0]


def _run_command(arguments: Sequence[str], log: list[str], serving: Any, machine: Machine) -> int:
    """Run `maitred serve` up to where it would serve, which `serving` puts something in the place of. Return its status."""
    stderr, code = io.StringIO(), None
    with (
        serving,
        mock.patch("maitred.wire.machine.Machine", return_value=machine),
        mock.patch.object(gateway, "open_ports", lambda listeners, machine: listeners),
        mock.patch.object(supervisor, "open_shared", lambda listeners, *_: listeners),
        mock.patch.object(server, "run_server"),
        mock.patch.object(sys, "argv", ["maitred", "serve", "--port", "0", *arguments]),
        mock.patch.dict(os.environ, _environment(), clear=True),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    log += stderr.getvalue().splitlines()
    return code if isinstance(code, int) else 1


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MAITRED_")}


class _GatewayLogs(logging.Handler):
    """Appends each record to the log of the gateway whose task has made it."""

    def emit(self, record: logging.LogRecord) -> None:
        log = _LOG.get()
        if log is not None:
            log.append(self.format(record))


_LOG: ContextVar[list[str] | None] = ContextVar("_LOG", default=None)
logging.getLogger("maitred").addHandler(_GatewayLogs())


async def _listen(process: asyncio.subprocess.Process, log: list[str], ready: asyncio.Future[str]) -> None:
    """Read its log, and tell when it serves, or why it does not."""
    assert process.stderr is not None
    async for line in process.stderr:
        log.append(line.decode(errors="replace").rstrip("\n"))
        url = re.search(r"gateway on (http://\S+?)(?:,|$)", log[-1])
        if url and not ready.done():
            ready.set_result(url[1])
    code = await process.wait()
    if not ready.done():
        ready.set_exception(GatewayExited(code, log))


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@contextlib.contextmanager
def configured(scenario: Scenario, base: Base, backends: Sequence[str], text: str | None = None) -> Iterator[list[str]]:
    """The command line for a scenario; the files that it names exist inside. `text`: the priority YAML, if given whole."""
    with TemporaryDirectory(prefix="maitred-smg-") as folder:
        main = {"gateway": {"health_interval_secs": HEALTH_INTERVAL_SECS}}
        if scenario.kind == "defect":
            main["admission"] = {"promotion_share": DEFECT_PROMOTION_SHARE}
        arguments = ["--config", _write(folder, "maitred.yaml", yaml.safe_dump(main))]
        arguments += ["--flavour", "smg", "--queue-timeout-status", "503", "--strict-config", "--drain-secs", "0"]
        for backend in backends:
            arguments += ["--backend", backend]
        arguments += _flags(scenario.config)
        if scenario.config.scheduler:
            arguments += ["--priority-scheduler-enabled"]
            arguments += ["--priority-scheduler-default-max-class", _max_class(scenario.config, base)]
            if text is None and not scenario.config.no_yaml:
                text = yaml.safe_dump(_policy(scenario.config, base))
            if text is not None:
                arguments += ["--priority-scheduler-config", _write(folder, "priority.yaml", text)]
        yield arguments


def _write(folder: str, name: str, text: str) -> str:
    path = Path(folder, name)
    path.write_text(text)
    return str(path)


def _max_class(config: Config, base: Base) -> str:
    return config.default_max_class or base.default_max_class


def _policy(config: Config, base: Base) -> dict[str, Any]:
    """The priority YAML: complete classes, as SMG wants them."""
    names = [*base.classes, *(name for name in config.classes if name not in base.classes)]
    classes = {name: {**base.classes.get(name, {}), **config.classes.get(name, {})} for name in names}
    tenants = {tenant: {"max_class": max_class} for tenant, max_class in config.tenant_policies.items()}
    return {"classes": classes, "tenant_policies": tenants}


def _flags(config: Config) -> Iterator[str]:
    valued = {
        "--api-key": config.api_key,
        "--tenant-header-name": config.tenant_header_name,
        "--max-concurrent-requests": config.max_concurrent_requests,
        "--queue-size": config.queue_size,
        "--queue-timeout-secs": config.queue_timeout_secs,
        "--rate-limit-tokens-per-second": config.rate_limit_per_s,
        "--sse-keepalive-secs": config.sse_keepalive_secs,
        "--max-attempts": None if config.retries else 1,
    }
    for flag, value in valued.items():
        if value is not None:
            yield from (flag, str(value))
    for tenant, key in config.tenant_api_keys.items():
        yield from ("--tenant-api-key", f"{tenant}:{key}")
    if config.trust_tenant_header:
        yield "--trust-tenant-header"
