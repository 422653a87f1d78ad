"""Supervisor: starts the workers of a gateway, starts those anew that end, and ends all of them.

    a worker ends before it has served     the start has failed: all others are ended; likewise if it does not serve in time
    a worker ends later                    it is started anew, with the same sockets; not more often than once a second
    SIGTERM, SIGINT                        every worker gets it, and drains by itself; the parent ends after the last one
    SIGHUP                                 the parent reads the configuration again, and then tells the workers

Workers have a process group of their own, so that ^C in a terminal reaches them once, by the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from maitred.core.errors import ConfigError, describe_os_error
from maitred.gateway.observe.logs import LogOutput
from maitred.gateway.workers.parent import ParentGateway
from maitred.gateway.workers.process import worker_name
from maitred.gateway.workers.settings import WorkerFolder
from maitred.wire.machine import Machine, SystemListener
from maitred.wire.server import Listener, listener_url, open_with
from maitred.wire.unix_signals import handle_signals

log = logging.getLogger("maitred.gateway")
START_SECS = 60.0
"""How long the workers may take until all serve."""
_LEAST_LIFE_SECS: Final = 1.0
_GRACE_SECS: Final = 15.0
"""How much longer than its drain a worker may take to end before it is killed."""
_MAX_LINE_BYTES: Final = 1 << 20
WORKER_PROCESS: Final = "maitred.gateway.workers.process"
"""The module that the process of a worker runs."""


class SharedPort(NamedTuple):
    """A port, with a socket that listens for each worker."""

    listener: Listener
    sockets: Sequence[SystemListener]

    def close(self) -> None:
        """Close the sockets in this process. Those that workers have inherited stay open."""
        for each in self.sockets:
            each.close()

    @property
    def url(self) -> str:
        """The URL under which this machine reaches it."""
        return listener_url(self.sockets[0], self.listener.certificate)


def open_shared(listeners: Sequence[Listener], number: int, machine: Machine) -> list[SharedPort]:
    """Return the ports of so many workers, all of them listening. Raises ConfigError, with none open, if an address cannot be
    listened on."""
    ports = list[SharedPort]()
    try:
        for listener in listeners:
            ports.append(SharedPort(listener, open_with(lambda host, port: machine.listen_often(host, port, number), listener)))
    except ConfigError:
        for port in ports:
            port.close()
        raise
    return ports


class Supervisor:
    """The processes of one gateway."""

    def __init__(
        self,
        parent: ParentGateway,
        folder: WorkerFolder,
        ports: Sequence[SharedPort],
        number: int,
        module: str = WORKER_PROCESS,
    ) -> None:
        """`module` is what the process of a worker runs."""
        self._parent, self._folder, self._ports, self._number, self._module = parent, folder, ports, number, module
        self._output: LogOutput = parent.log_output
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._not_ready = {worker_name(each) for each in range(1, number + 1)}
        self._changed = asyncio.Event()
        """Set when a worker is ready, has ended too early, or all are to end."""
        self._failure: str | None = None
        self._stopping = asyncio.Event()
        """Set when all workers are to end."""

    async def run(self, on_ready: Callable[..., object]) -> None:
        """Run the workers until a signal. `on_ready` is called with the URL of each port when all serve. Raises ConfigError if
        one of them cannot be started."""
        parent = self._parent
        parent.on_worker_ready = self._on_worker_ready
        parent.drain_switch.request_stop = self._request_stop
        with (
            handle_signals((signal.SIGINT,), lambda: self._stop(signal.SIGINT)),
            handle_signals((signal.SIGTERM,), lambda: self._stop(signal.SIGTERM)),
            handle_signals((signal.SIGHUP,), parent.request_reload),
        ):
            await parent.open(self._folder.socket, self._folder.secret())
            keepers = [asyncio.create_task(self._keep(number)) for number in range(1, self._number + 1)]
            await self._wait_until_ready()
            if self._failure is None and not self._stopping.is_set():
                on_ready(*(port.url for port in self._ports))
                parent.machine.service_manager.tell_ready()
            await asyncio.gather(*keepers)
            await parent.close()
        if self._failure is not None:
            raise ConfigError(self._failure, where="--workers")

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_SECS):
                while self._not_ready and not self._stopping.is_set():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._fail(f"{min(self._not_ready)} could not start: it does not serve after {START_SECS:g} s")

    async def _keep(self, number: int) -> None:
        """Run one worker, as often as it takes."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began_at = loop.time()
            end = await self._run_once(number)
            if self._stopping.is_set():
                return
            if worker_name(number) in self._not_ready:
                self._fail(f"{worker_name(number)} could not start: it {end}")
                return
            log.error("%s %s, and is started anew", worker_name(number), end)
            await asyncio.sleep(max(0.0, began_at + _LEAST_LIFE_SECS - loop.time()))

    async def _run_once(self, number: int) -> str:
        """Run one worker until it ends, and return in words how that was."""
        try:
            process = await self._start(number)
        except OSError as error:  # no memory, or too many processes
            return f"cannot be made: {describe_os_error(error)}"
        if self._stopping.is_set():  # The others were told while it was made.
            self._signal(process, signal.SIGTERM)
        await self._copy_log(process)
        status = await process.wait()
        del self._processes[number]
        self._parent.note_death(worker_name(number))
        return f"has ended with status {status} (process {process.pid})"

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        self._folder.restore()
        descriptors = [[each.fileno() for each in port.sockets] for port in self._ports]
        listed = (",".join(map(str, each)) for each in descriptors)
        arguments = [str(self._folder.path), str(number), str(self._number), *listed]
        process = await asyncio.create_subprocess_exec(
            # -P: modules are looked for where this process does, and in no other working directory.
            *(sys.executable, "-P", "-m", self._module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[*chain.from_iterable(descriptors)],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
        self._processes[number] = process
        return process

    async def _copy_log(self, process: asyncio.subprocess.Process) -> None:
        """Write what a worker logs, in whole lines, until it has ended."""
        assert process.stderr is not None
        rest = b""
        while piece := await process.stderr.read(65_536):
            lines, end, rest = (rest + piece).rpartition(b"\n")
            if len(rest) > _MAX_LINE_BYTES:
                lines, end, rest = lines + end + rest, b"\n", b""
            if end:
                self._output.write(lines + end)
        if rest:
            self._output.write(rest + b"\n")

    def _on_worker_ready(self, name: str) -> None:
        self._not_ready.discard(name)
        self._changed.set()

    def _fail(self, problem: str) -> None:
        self._failure = self._failure or problem
        self._stop(signal.SIGTERM)

    def _request_stop(self) -> None:
        if not self._stopping.is_set():
            self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        """Tell all workers to end."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._parent.machine.service_manager.tell_stopping()
            self._parent.announce_end()
            # A worker that stops accepting must be the last that has its socket, or clients would wait in a queue of nobody.
            for port in self._ports:
                port.close()
            config = self._parent.config
            secs = config.drain_secs + config.settle_secs + _GRACE_SECS
            asyncio.get_running_loop().call_later(secs, self._signal_all, signal.SIGKILL)
        self._changed.set()
        self._signal_all(number)

    def _signal_all(self, number: signal.Signals) -> None:
        for worker, process in self._processes.items():
            # One that does not handle signals yet would log a traceback of SIGINT.
            is_early = number is signal.SIGINT and worker_name(worker) in self._not_ready
            self._signal(process, signal.SIGTERM if is_early else number)

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
