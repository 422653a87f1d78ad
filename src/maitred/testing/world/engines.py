"""Engines of a world: the emulated engine, and what goes wrong with one.

    hang       new requests get no answer
    fail       they get a 500 at once
    stall      `/health` says nothing
    lag        the page of metrics is as old as the fault
    lie        its pages contradict what it does (`lies`)
    crash      the process ends within an instant: every connection is reset, wherever its bytes stand
    restart    it comes back, with another limit or model if it is given one

An engine that is told to die at a byte crashes when its peers have read that many bytes of it.
"""

from __future__ import annotations

import asyncio

import msgspec

from maitred.core.units import Micros
from maitred.emulator import EngineConfig
from maitred.emulator.engine import REQUEST_ID, EngineApp
from maitred.emulator.metrics import CONTENT_TYPE
from maitred.instance import InstanceConfig
from maitred.testing.world.lies import Lie
from maitred.testing.world.machine import MemoryMachine
from maitred.testing.world.transport import Connection
from maitred.wire.exchange import ApiError, Exchange, send_bytes, send_error, send_json
from maitred.wire.server import App, running_server

PORT = 8000


class Run(msgspec.Struct, eq=False):
    """A request at an engine, as that sees it."""

    mark: str
    began_at: Micros
    connection: Connection | None
    """What it came over."""
    engine: int
    """The number of the engine."""
    ended_at: Micros | None = None
    has_failed: bool = False
    """Whether it was answered with a 500."""
    hangs: bool = False
    """Whether it gets no answer: it is no sequence, and no page of the engine counts it."""


class Engine:
    """An engine, whose faults are switched on and off by setting its attributes."""

    def __init__(self, machine: MemoryMachine, config: EngineConfig, instance: InstanceConfig, number: int) -> None:
        self.machine, self.number = machine, number
        self.runs: list[Run] = []
        """All requests that have come, in their order."""
        self.hangs = self.fails = self.stalls_health = False
        self.entry_secs = 0.0
        """Seconds from the arrival of a request to its wait queue; with more than 0 it comes too late for the step that begins
        as it arrives."""
        self.lie: Lie | None = None
        """What its pages say in place of the truth."""
        self.num_lies = 0
        """Pages on which it has said something else."""
        self.dies_in_bytes: int | None = None
        """Bytes that its peers may still read before it crashes; None: as many as they like."""
        self._config, self._instance = config, instance
        self._app: EngineApp | None = None
        self._front = _Front(self)
        self._old_page: bytes | None = None
        self._stopping: asyncio.Event | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """The address that gateways are given."""
        return f"http://{self.machine.place.address}:{PORT}"

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self._stopping is not None

    def boot(self, max_num_seqs: int | None = None, model: str | None = None) -> None:
        """Start the process, unless it runs, with another limit of its batch, or another model, if one is given."""
        if self._stopping is None:
            if model is not None:
                self._config = msgspec.structs.replace(self._config, model=model)
            if max_num_seqs is not None:
                self._instance = msgspec.structs.replace(self._instance, max_num_seqs=max_num_seqs)
            self._stopping = asyncio.Event()
            self._tasks.append(self.machine.run(self._serve(self._stopping)))

    def crash(self) -> None:
        """End the process within this instant, if it runs."""
        self.dies_in_bytes = None
        if self._stopping is not None:
            self.machine.crash()
            self._stopping.set()
            self._stopping = self._app = None

    async def close(self) -> None:
        """End the process, and wait until nothing is left of it."""
        self.crash()
        await asyncio.gather(*self._tasks)

    def set_lag(self, lags: bool) -> None:
        """Have the page of metrics say from now on what it says now, or be up to date again."""
        self._old_page = self._app.metrics_page() if lags and self._app is not None else None

    def note_read(self, size: int) -> None:
        """Take note that a peer has read bytes of it."""
        if self.dies_in_bytes is not None:
            self.dies_in_bytes -= size
            if self.dies_in_bytes <= 0:
                self.crash()

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request, or do not."""
        if exchange.method != "POST":
            await self._answer_page(exchange)
            return
        mark = (exchange.get_header(REQUEST_ID) or b"").decode("latin-1")
        run = Run(mark, self.machine.clock.now(), self._connection_of(exchange), self.number)
        self.runs.append(run)
        try:
            await self._generate(exchange, run)
        finally:
            run.ended_at = self.machine.clock.now()

    def _connection_of(self, exchange: Exchange) -> Connection | None:
        connections = self.machine.network.connections.values()
        return next((each for each in connections if each.source == exchange.client), None)

    async def _answer_page(self, exchange: Exchange) -> None:
        app, path = self._app, exchange.path
        if app is None or (path == "/health" and self.stalls_health):
            await _wait_until_gone(exchange)
        elif path == "/metrics" and self._old_page is not None:
            send_bytes(exchange, 200, self._old_page, CONTENT_TYPE)
        elif self.lie is not None and path == "/metrics":
            page = app.metrics_page()
            told = self.lie.told(page)
            self.num_lies += told != page
            send_bytes(exchange, 200, told, CONTENT_TYPE)
        elif self.lie is not None and path == "/server_info" and self.lie.slots is not None:
            self.num_lies += 1
            send_json(exchange, 200, {"max_running_requests": self.lie.slots})
        else:
            await app(exchange)

    async def _generate(self, exchange: Exchange, run: Run) -> None:
        app = self._app
        if app is None or self.hangs:
            run.hangs = True
            await _wait_until_gone(exchange)
        elif self.fails:
            run.has_failed = True
            send_error(exchange, ApiError(500, "CUDA error", kind="internal_server_error"), exchange.path)
        else:
            if self.entry_secs:
                await asyncio.sleep(self.entry_secs)
            await app(exchange)

    async def _serve(self, stopping: asyncio.Event) -> None:
        self._app = EngineApp(self._config, self._instance, self.machine)
        place = self.machine.place
        async with running_server(self._front, host=place.address, port=PORT, drain_secs=0.0, machine=self.machine):
            await stopping.wait()


class _Front(App):
    """What the server of an engine serves."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __call__(self, exchange: Exchange) -> None:
        await self._engine.answer(exchange)


async def _wait_until_gone(exchange: Exchange) -> None:
    """Wait until the client has left."""
    gone = asyncio.Event()
    exchange.watch_disconnect(gone.set)
    await gone.wait()
