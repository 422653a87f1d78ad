"""The demo: two emulated engines, the gateway in front of them, and a mixed load that it has to sort.

    bulk flood ──┐                                  ┌── engine, 16 slots
                 ├── gateway (slots, class queues) ─┤
    chats ───────┘                                  └── engine, 16 slots

The gateway gives out as many slots as the engines run sequences, so whoever waits, waits at the gateway, where classes
count. The flood needs more than there are; chats must not notice, even if that costs a bulk request its slot now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from time import monotonic
from typing import Any, Protocol, TypeVar

import msgspec

from maitred.core.request import PriorityClass
from maitred.core.units import SECOND, Micros
from maitred.emulator.clients import ClassOutcomes, ClientStats, WorkloadClients, repeat_jobs
from maitred.emulator.demo_processes import DemoProcessError, DemoProcesses
from maitred.wire.client import Origin, UpstreamClient
from maitred.workload import sample_jobs

MODEL = "emulated"
SLOTS_PER_ENGINE = 16
"""Per engine."""
LATENCY = "linear:14000,8,500"
"""A full batch of 16 takes 22 ms a step: 1,450 tokens/s for both engines, which two shared cores carry with ease."""

SAMPLE_PERIOD: Micros = 60 * SECOND
"""The sample `mixed` is one minute."""

DRAIN_SECS = 15.0
"""For the answers that are on their way when the load ends: a whole wave of the flood needs less."""

T = TypeVar("T")

_LEAK_GRACE_SECS = 3.0
"""How long after the last client has left a slot may still be held before it counts as leaked."""


class DemoSummary(msgspec.Struct, frozen=True):
    """What came of it. Every arrival is in one of the counts of its class."""

    seconds: float
    """How long requests were sent."""
    arrivals: int
    classes: dict[str, ClassOutcomes]
    leaked_slots: int
    """Held at the gateway although nobody waits for anything any more."""


class DemoObserver(Protocol):
    """Who watches the demo."""

    refresh_secs: float

    def on_start(self, url: str) -> None:
        """The gateway at `url` is ready and the load begins."""
        ...

    def on_progress(self, stats: ClientStats, seconds: float) -> None:
        """What it is like after so many seconds; called again and again."""
        ...


class Demo:
    """One run of the demo."""

    def __init__(self, observer: DemoObserver, seconds: float | None) -> None:
        """`seconds`: how long to send requests; None: until a signal."""
        self._observer = observer
        self._seconds = seconds
        self._stats = ClientStats((PriorityClass.INTERACTIVE, PriorityClass.BULK))
        self._load_running = False
        self._stop = asyncio.Event()

    async def run(self) -> DemoSummary:
        """The first SIGINT, SIGTERM or SIGHUP ends the load early; another one, or one before the load has begun, cancels
        this. Raises DemoProcessError if a child process fails."""
        async with contextlib.AsyncExitStack() as ends:
            ends.enter_context(self._signal_handlers())
            stage = await ends.enter_async_context(DemoProcesses())
            client = UpstreamClient()
            ends.push_async_callback(client.close)
            url = await _start_processes(stage)
            return await _run_unless_process_exits(stage, self._run_load(client, url))

    async def _run_load(self, client: UpstreamClient, url: str) -> DemoSummary:
        gateway = Origin.parse(url)
        await _until_ready(client, gateway)
        self._observer.on_start(url)
        seconds = await self._send_load(WorkloadClients(client, gateway, MODEL, self._stats))
        leaked = await _leaked_slots(client, gateway)
        classes = {priority_class.label: tally.outcomes() for priority_class, tally in self._stats.classes.items()}
        return DemoSummary(round(seconds, 1), self._stats.num_sent, classes, leaked)

    async def _send_load(self, clients: WorkloadClients) -> float:
        """Send requests for as long as is wanted, and let the answers come in. Returns how long it was, in seconds."""
        start, self._load_running = monotonic(), True
        looking = asyncio.create_task(self._report_progress(start))
        try:
            await _wait_for_first(
                self._seconds, clients.send_jobs(repeat_jobs(sample_jobs("mixed"), SAMPLE_PERIOD)), self._stop.wait()
            )
            seconds = monotonic() - start
            await _wait_for_first(DRAIN_SECS, clients.wait_until_done(), self._stop.wait())
        finally:
            looking.cancel()
            await clients.cancel_open()
        self._observer.on_progress(self._stats, monotonic() - start)
        return seconds

    async def _report_progress(self, start: float) -> None:
        while True:
            self._observer.on_progress(self._stats, monotonic() - start)
            await asyncio.sleep(self._observer.refresh_secs)

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def heed() -> None:
            if self._load_running and not self._stop.is_set():
                self._stop.set()
            else:
                task.cancel()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, heed)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def _start_processes(stage: DemoProcesses) -> str:
    """Start the engines, then the gateway; its URL. Raises DemoProcessError."""
    engine = ("engine", "--port", "0", "--model", MODEL, "--max-num-seqs", str(SLOTS_PER_ENGINE), "--latency", LATENCY)
    engines = [await stage.start(f"{nth} engine", *engine) for nth in ("first", "second")]
    backends = [f"--backend={await child.wait_until_listening()}" for child in engines]
    classes = ("--admission", "priority", "--default-max-class", "interactive")
    gateway = await stage.start(
        "gateway", "serve", "--port", "0", "--slots-per-backend", str(SLOTS_PER_ENGINE), *classes, *backends
    )
    return await gateway.wait_until_listening()


async def _run_unless_process_exits(stage: DemoProcesses, performance: Coroutine[Any, Any, T]) -> T:
    """Raises DemoProcessError if a child ends by itself meanwhile."""
    performing, dying = asyncio.create_task(performance), asyncio.create_task(stage.wait_for_exit())
    try:
        await asyncio.wait({performing, dying}, return_when=asyncio.FIRST_COMPLETED)
        if dying.done():
            raise dying.result()
        return performing.result()
    finally:
        await _cancel_and_wait(performing, dying)


async def _wait_for_first(seconds: float | None, *awaited: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of them to end, at most `seconds`, and cancel the rest. Raises what it raised."""
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
    """Of the gateway's /ready, what we look at."""

    backends: list[_BackendState]


class _StatePage(msgspec.Struct):
    """Of its /maitred/state."""

    in_flight: int
    waiting: int


async def _until_ready(client: UpstreamClient, gateway: Origin) -> None:
    """Until the gateway has found all its backends healthy."""
    while True:
        ready = msgspec.json.decode(await _get(client, gateway, "/ready"), type=_ReadyPage)
        if all(backend.healthy for backend in ready.backends):
            return
        await asyncio.sleep(0.05)


async def _leaked_slots(client: UpstreamClient, gateway: Origin) -> int:
    """Slots still held when every client has left. A disconnect takes a moment to be noticed: that is no leak."""
    patience = monotonic() + _LEAK_GRACE_SECS
    while True:
        state = msgspec.json.decode(await _get(client, gateway, "/maitred/state"), type=_StatePage)
        if not (state.in_flight or state.waiting) or monotonic() > patience:
            return state.in_flight
        await asyncio.sleep(0.05)


async def _get(client: UpstreamClient, server: Origin, path: str) -> bytes:
    """Raises UpstreamError, and DemoProcessError unless it is answered with 200, or with 503 by a gateway that is not ready."""
    response = await client.request(server, "GET", path)
    try:
        body = b"".join([piece async for piece in response])
    finally:
        response.close()
    if response.status not in (200, 503):
        raise DemoProcessError(f"the gateway answered {path} with the status {response.status}")
    return body
