"""The demo: two emulated engines, the gateway in front of them, and a mixed load.

    bulk flood ──┐                                  ┌── engine, 16 slots
                 ├── gateway (slots, class queues) ─┤
    chats ───────┘                                  └── engine, 16 slots

The gateway has as many slots as the engines run sequences, so requests wait at the gateway, where classes count, and not in the
engines. The flood needs more slots than there are. Chats should not notice it, even if a bulk request loses its slot for them.

Each process is started as a user would start it, and always stopped: errors of a process, signals and the end of the load all
end in the same place, the `async with` of the processes, which terminates them, and kills those that do not end in time. Each
has a session of its own, so that Ctrl-C in the terminal reaches the parent only, which then stops them in order. If the parent
cannot do that (SIGKILL), the standard input of the processes ends with the parent, and the processes end with their standard
input (`run_as_child` in cli/demo.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import msgspec

from maitred.core.errors import MaitredError
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND, Micros
from maitred.emulator.clients import ClassOutcomes, ClientStats, WorkloadClients, repeat_jobs
from maitred.wire.client import UpstreamClient
from maitred.wire.origin import Origin
from maitred.wire.unix_signals import handle_signals
from maitred.workload import sample_jobs

MODEL = "emulated"
SLOTS_PER_ENGINE = 16
"""Slots, and sequences that run at once."""
LATENCY = "linear:14000,8,500"
"""A full batch of 16 takes 22 ms per step: 1,450 tokens/s for both engines, which two shared cores can pace."""

SAMPLE_PERIOD: Micros = 60 * SECOND
"""The duration of the sample `mixed`."""

START_SECS = 30.0
STOP_SECS = 5.0
DRAIN_SECS = 15.0
"""Time for the requests that are open when the load ends. A whole wave of the flood needs less."""

_URL = re.compile(r"^maitred: \w+ on (http://[^\s,]+)")
T = TypeVar("T")

_LEAK_GRACE_SECS = 3.0
"""Time after the last request in which a slot may still be held before it counts as leaked."""


class DemoSummary(msgspec.Struct, frozen=True):
    """The result of a demo. Every arrival is in one of the counts of its class."""

    seconds: float
    """Time in which requests were sent."""
    arrivals: int
    classes: dict[str, ClassOutcomes]
    leaked_slots: int
    """Slots held at the gateway after all requests have ended."""


class DemoObserver(Protocol):
    """What a demo shows its state to."""

    refresh_secs: float
    """Time between two calls of `on_progress`."""

    def on_start(self, url: str) -> None:
        """Note that the gateway at `url` is ready and the load begins."""
        ...

    def on_progress(self, stats: ClientStats, seconds: float) -> None:
        """Show the requests so far, `seconds` after the start of the load. Called every `refresh_secs`."""
        ...


class Demo:
    """One run of the demo."""

    def __init__(self, observer: DemoObserver, seconds: float | None) -> None:
        """`seconds` is the time in which requests are sent, or None for until a signal."""
        self._observer = observer
        self._seconds = seconds
        self._stats = ClientStats((PriorityClass.INTERACTIVE, PriorityClass.BULK))
        self._load_running = False
        self._stop = asyncio.Event()

    async def run(self) -> DemoSummary:
        """Run the demo and return its result.

        The first SIGINT, SIGTERM or SIGHUP ends the load early. Another one, or one before the load has begun, cancels the
        call. Raises DemoProcessError if a process fails.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._handle_signals())
            processes = await stack.enter_async_context(DemoProcesses())
            client = UpstreamClient()
            stack.push_async_callback(client.close)
            url = await _start_processes(processes)
            return await _run_unless_process_exits(processes, self._run_load(client, url))

    async def _run_load(self, client: UpstreamClient, url: str) -> DemoSummary:
        gateway = Origin.parse(url)
        await _until_ready(client, gateway)
        self._observer.on_start(url)
        seconds = await self._send_load(WorkloadClients(gateway, MODEL, self._stats))
        leaked = await _leaked_slots(client, gateway)
        classes = {priority_class.label: stats.outcomes() for priority_class, stats in self._stats.classes.items()}
        return DemoSummary(round(seconds, 1), self._stats.num_sent, classes, leaked)

    async def _send_load(self, clients: WorkloadClients) -> float:
        """Send the load, wait for the answers, and return how long requests were sent, in seconds."""
        start, self._load_running = monotonic(), True
        reporting = asyncio.create_task(self._report_progress(start))
        sending = asyncio.create_task(clients.run(repeat_jobs(sample_jobs("mixed"), SAMPLE_PERIOD)))
        try:
            await _wait_for_first(self._seconds, asyncio.wait({sending}), self._stop.wait())
            seconds = monotonic() - start
            clients.stop_sending()
            await _wait_for_first(DRAIN_SECS, asyncio.wait({sending}), self._stop.wait())
        finally:
            reporting.cancel()
            await clients.close()
            await sending
        self._observer.on_progress(self._stats, monotonic() - start)
        return seconds

    async def _report_progress(self, start: float) -> None:
        while True:
            self._observer.on_progress(self._stats, monotonic() - start)
            await asyncio.sleep(self._observer.refresh_secs)

    def _handle_signals(self) -> AbstractContextManager[None]:
        task = asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            # The first signal still gives a summary. The second one means that the user does not want to wait for it.
            if self._load_running and not self._stop.is_set():
                self._stop.set()
            else:
                task.cancel()

        return handle_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), on_signal)


async def _start_processes(processes: DemoProcesses) -> str:
    """Start the engines, then the gateway, and return the URL of the gateway. Raises DemoProcessError."""
    engine = ("engine", "--port", "0", "--model", MODEL, "--max-num-seqs", str(SLOTS_PER_ENGINE), "--latency", LATENCY)
    engines = [await processes.start(f"{nth} engine", *engine) for nth in ("first", "second")]
    backends = [f"--backend={await process.wait_until_listening()}" for process in engines]
    classes = ("--admission", "priority", "--default-max-class", "interactive")
    gateway = await processes.start(
        "gateway",
        "serve",
        "--port",
        "0",
        "--settle-secs",
        "0",
        "--recent-requests",  # The dashboard's button "why" asks for them.
        "1000",
        "--slots-per-backend",
        str(SLOTS_PER_ENGINE),
        *classes,
        *backends,
    )
    return await gateway.wait_until_listening()


async def _run_unless_process_exits(processes: DemoProcesses, run: Coroutine[Any, Any, T]) -> T:
    """Return the result of `run`. Raises DemoProcessError if a process ends by itself meanwhile."""
    running, exiting = asyncio.create_task(run), asyncio.create_task(processes.wait_for_exit())
    try:
        await asyncio.wait({running, exiting}, return_when=asyncio.FIRST_COMPLETED)
        # Even if the run has ended too: a demo without one of its processes has shown nothing.
        if exiting.done():
            raise exiting.result()
        return running.result()
    finally:
        await _cancel_and_wait(running, exiting)


async def _wait_for_first(seconds: float | None, *awaited: Coroutine[Any, Any, object]) -> None:
    """Wait at most `seconds` until the first of them ends, and cancel the others. Raises what the first one raised."""
    tasks = [asyncio.create_task(each) for each in awaited]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel_and_wait(*tasks)


async def _cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _BackendState(msgspec.Struct):
    healthy: bool


class _ReadyPage(msgspec.Struct):
    """The part of the gateway's `/ready` that the demo reads."""

    backends: list[_BackendState]


class _StatePage(msgspec.Struct):
    """The part of the gateway's `/maitred/state` that the demo reads."""

    in_flight: int
    waiting: int


async def _until_ready(client: UpstreamClient, gateway: Origin) -> None:
    """Wait until the gateway has found all its backends healthy."""
    while True:
        ready = msgspec.json.decode(await _get(client, gateway, "/ready"), type=_ReadyPage)
        if all(backend.healthy for backend in ready.backends):
            return
        await asyncio.sleep(0.05)


async def _leaked_slots(client: UpstreamClient, gateway: Origin) -> int:
    """Return the slots that are still held after all requests have ended. The gateway notices a disconnect a moment later,
    which is no leak, hence the grace time."""
    give_up_at = monotonic() + _LEAK_GRACE_SECS
    while True:
        state = msgspec.json.decode(await _get(client, gateway, "/maitred/state"), type=_StatePage)
        if not (state.in_flight or state.waiting) or monotonic() > give_up_at:
            return state.in_flight
        await asyncio.sleep(0.05)


async def _get(client: UpstreamClient, server: Origin, path: str) -> bytes:
    """Return the body of a page. Raises UpstreamError, and DemoProcessError for a status other than 200 and 503 (not ready)."""
    response = await client.request(server, "GET", path)
    try:
        body = b"".join([piece async for piece in response])
    finally:
        response.close()
    if response.status not in (200, 503):
        raise DemoProcessError(f"the gateway answered {path} with the status {response.status}")
    return body


class DemoProcessError(MaitredError):
    """A process did not start listening, or ended by itself."""


class DemoProcess:
    """A child process. Its stderr is read to the end, so that it never blocks; the last line is kept, except the one that names
    the URL."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last_line = ""
        self.reader = asyncio.create_task(self._read_stderr())
        """The task that reads stderr. It ends with the process."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_until_listening(self) -> str:
        """Wait until the process accepts connections, and return its URL. Raises DemoProcessError."""
        awaited: set[asyncio.Future[Any]] = {self._url, self.reader}
        await asyncio.wait(awaited, timeout=START_SECS, return_when=asyncio.FIRST_COMPLETED)
        if self._url.done():
            return self._url.result()
        if self.reader.done():
            raise self.exit_error()
        raise DemoProcessError(f"the {self._name} did not come up within {START_SECS:.0f} s: {self._last_line}")

    def exit_error(self) -> DemoProcessError:
        """Return the error for a process that ended by itself."""
        status = self._process.returncode or 0
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        return DemoProcessError(f"the {self._name} {how}" + (f": {self._last_line}" if self._last_line else ""))

    async def stop(self) -> None:
        """Terminate the process, and kill it after `STOP_SECS`."""
        self._signal(self._process.terminate)
        await asyncio.wait({self.reader}, timeout=STOP_SECS)
        self.kill()
        await self.reader

    def kill(self) -> None:
        self._signal(self._process.kill)

    def _signal(self, signal: Callable[[], None]) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            found = _URL.search(text)
            if found and not self._url.done():
                self._url.set_result(found[1])
            elif text:
                self._last_line = text
        await self._process.wait()


class DemoProcesses:
    """The processes of a demo. Use it in an `async with` block; no process survives the block."""

    def __init__(self) -> None:
        self._processes: list[DemoProcess] = []

    async def start(self, name: str, *arguments: str) -> DemoProcess:
        """Start `maitred ARGUMENTS` without the MAITRED_* variables of this process. Errors call the process `name`."""
        spawning = asyncio.create_task(_spawn(arguments))
        try:
            await asyncio.shield(spawning)
        finally:
            # A cancellation does not keep the process from starting, so it is registered and stopped all the same.
            process = DemoProcess(name, await spawning)
            self._processes.append(process)
        return process

    async def wait_for_exit(self) -> DemoProcessError:
        """Wait until a process ends by itself, and return its error."""
        await asyncio.wait({process.reader for process in self._processes}, return_when=asyncio.FIRST_COMPLETED)
        return next(process.exit_error() for process in self._processes if process.reader.done())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*(process.stop() for process in self._processes))
        except asyncio.CancelledError:
            for process in self._processes:
                process.kill()
            raise


async def _spawn(arguments: tuple[str, ...]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from maitred.cli.demo import run_as_child; run_as_child()",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAITRED_")},
    )
