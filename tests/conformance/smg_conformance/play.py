"""Plays a timeline: engines, the gateway, and clients that do what it says when it says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from .client import Wanted, begin, leave
from .engines import Engine, Journal, Orders
from .gateway import Gateway, configured
from .moments import Event, Moment, read_moment
from .record import Record, Request
from .scenario import AddEngine, Base, CannotCheck, EngineSpec, ReleaseHeld, RemoveEngine, Scenario, Send, Step
from .turns import Turns

LONGEST_SECS = 60.0
"""That a timeline may take, conditions that never come true included."""
POLL_SECS = 0.01
BUSY_SECS = 0.5
HEARTBEAT_SECS = 0.02
SETTLE_SECS = 3.0
"""Within which the gateway's books must be empty after the last answer."""


class Missed(Exception):  # noqa: N818  (an observation)
    """Something that the timeline waits for can happen no more, or did not in time."""


class Sample(msgspec.Struct, frozen=True):
    """A step of our own: read the metrics, under this name."""

    name: str


class Stage:
    """Engines, and a gateway in front of them."""

    def __init__(self, gateway: Gateway, engines: Sequence[Engine], journal: Journal) -> None:
        self.gateway = gateway
        self.engines = engines
        self.journal = journal


@contextlib.asynccontextmanager
async def stage(scenario: Scenario, base: Base, turns: Turns, text: str | None = None) -> AsyncIterator[Stage]:
    """The gateway knows the engines that the timeline adds from the start, but cannot reach them. `text`: the priority YAML,
    instead of the scenario's. Raises GatewayExited."""
    journal = Journal()
    specs = [*scenario.engines, *_added(scenario)]
    engines = [Engine(index, spec, journal) for index, spec in enumerate(specs)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            stack.push_async_callback(engine.close)
            await engine.listen()
        for engine in engines[len(scenario.engines) :]:
            engine.deaf()
        arguments = stack.enter_context(configured(scenario, base, [engine.url for engine in engines], text))
        keys = [scenario.config.api_key, *scenario.config.tenant_api_keys.values()]
        async with turns.starting():
            gateway = await stack.enter_async_context(turns.launch(arguments, next(filter(None, keys), None)))
            await gateway.until(healthy=[engine.url for engine in engines if engine.listening])
        yield Stage(gateway, engines, journal)


def _added(scenario: Scenario) -> Iterator[EngineSpec]:
    for step in scenario.timeline:
        if isinstance(step, AddEngine):
            yield EngineSpec(max_running_requests=step.max_running_requests, model=step.model)


class Play:
    """One playing of one timeline. Raises CannotCheck for what it does not understand."""

    def __init__(self, scenario: Scenario) -> None:
        if isinstance(scenario.timeline, str):
            raise CannotCheck(f"the timeline {scenario.timeline!r}")
        requests = [Request(step) for step in scenario.timeline if isinstance(step, Send)]
        self.record = Record(requests, [*scenario.engines, *_added(scenario)])
        if len(self.record.requests) < len(requests):
            raise CannotCheck("two requests of one name")
        self._plan = [(read_moment(step.at, list(self.record.requests)), step) for step in scenario.timeline]
        self._engines = len(scenario.engines)
        for _, step in self._plan:
            if isinstance(step, RemoveEngine) and not 0 <= step.index < self._engines:
                raise CannotCheck(f"remove_engine with the index {step.index}")
        self._receiving: list[asyncio.Task[None]] = []
        self._leaving: list[asyncio.Task[None]] = []

    async def on(self, stage: Stage, samples: Mapping[str, Moment]) -> Record:
        """`samples`: when to read the metrics, besides at the end. Raises Missed."""
        self._stage = stage
        self._unreached = list(stage.engines[self._engines :])
        self.record.visits, self.record.log = stage.journal.visits, stage.gateway.log
        self.record.started_at = self._now()
        heartbeat = asyncio.create_task(self._measure_lag())
        try:
            async with asyncio.timeout(LONGEST_SECS):
                await self._act_all(samples)
                await asyncio.gather(*self._receiving, *self._leaving, return_exceptions=True)
        except TimeoutError:
            outstanding = [name for name, request in self.record.requests.items() if not request.exchange.over.is_set()]
            raise Missed(f"not over after {LONGEST_SECS:g} s: no end of {', '.join(outstanding)}") from None
        finally:
            for task in (heartbeat, *self._receiving, *self._leaving):
                task.cancel()
        await self._conclude()
        return self.record

    async def _measure_lag(self) -> None:
        """Record how long this process (clients, engines, and the gateway if it is served here) has stood still."""
        while True:
            due = self._now() + HEARTBEAT_SECS
            await self._sleep_until(due)
            self.record.lag_secs = max(self.record.lag_secs, self._now() - due)

    async def _act_all(self, samples: Mapping[str, Moment]) -> None:
        plan: list[tuple[Moment, Step | Sample]] = [(moment, Sample(name)) for name, moment in samples.items()]
        plan += self._plan
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._by_the_clock(plan))
                for moment, step in plan:
                    if moment.names:
                        tasks.create_task(self._when(moment, step))
        except ExceptionGroup as group:
            raise Missed("; ".join(str(error) for error in group.exceptions)) from group

    async def _by_the_clock(self, plan: Sequence[tuple[Moment, Step | Sample]]) -> None:
        """In one task: requests of one time are sent in their order, and what is to be later is later for the gateway, too."""
        timed = [(moment.delay, step) for moment, step in plan if not moment.names]
        before = 0.0
        for at, step in sorted(timed, key=lambda pair: pair[0]):
            await self._sleep_until(self.record.started_at + at)
            if at > before:
                await self._settled()
            before = at
            self.record.lag_secs = max(self.record.lag_secs, self._now() - self.record.started_at - at)
            await self._act(step)

    async def _settled(self) -> None:
        """Until what has been sent is at an engine or waits: within milliseconds, unless the machine is busy otherwise."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BUSY_SECS):
                while self._on_its_way() > (await self._stage.gateway.state())["waiting"]:
                    await asyncio.sleep(POLL_SECS)

    def _on_its_way(self) -> int:
        """Requests that have been sent, have not ended and are at no engine."""
        exchanges = [request.exchange for request in self.record.requests.values()]
        under_way = [exchange.name for exchange in exchanges if exchange.sent_at and not exchange.over.is_set()]
        return sum(self._stage.journal.visited_by(name) is None for name in under_way)

    async def _when(self, moment: Moment, step: Step | Sample) -> None:
        await self._wait_for(moment)
        await self._act(step)

    async def _wait_for(self, moment: Moment) -> None:
        for name in moment.names:
            await self._happens(moment.event, self.record.requests[name])
        await asyncio.sleep(moment.delay)

    async def _happens(self, event: Event, request: Request) -> None:
        over = asyncio.create_task(request.exchange.over.wait())
        if event is Event.ENDED:
            await over
            return
        happened = asyncio.create_task(self._seen(event, request))
        try:
            await asyncio.wait({over, happened}, return_when=asyncio.FIRST_COMPLETED)
            if not happened.done():
                raise Missed(f"{request.name}: expected that it {event}, got {request.exchange}")
        finally:
            over.cancel()
            happened.cancel()

    async def _seen(self, event: Event, request: Request) -> None:
        if event is Event.RUNS:
            await self._stage.journal.until(lambda: self._stage.journal.visited_by(request.name) is not None)
        elif event is Event.FIRST_DATA:
            await request.exchange.first_data.wait()
        else:
            while not (await self._stage.gateway.state())["classes"][request.asked_class]["waiting"]:
                await asyncio.sleep(POLL_SECS)

    async def _act(self, step: Step | Sample) -> None:
        if isinstance(step, Sample):
            self.record.metrics_at[step.name] = await self._stage.gateway.metrics()
        elif isinstance(step, Send):
            await self._send(self.record.requests[step.name])
        elif isinstance(step, ReleaseHeld):
            self._stage.journal.release_held()
        elif isinstance(step, RemoveEngine):
            self._stage.engines[step.index].deaf()
        else:
            await self._unreached.pop(0).listen()

    async def _send(self, request: Request) -> None:
        wanted = Wanted(request.send.method, request.send.path, headers_of(request.send), self._body(request.send))
        receiving = await begin(request.exchange, self._stage.gateway.url, wanted)
        self._receiving.append(receiving)
        if request.send.client_leaves_after_s is not None:
            self._leaving.append(asyncio.create_task(self._leave(request, receiving, request.send.client_leaves_after_s)))

    async def _leave(self, request: Request, receiving: asyncio.Task[None], after: float) -> None:
        await self._sleep_until(request.exchange.sent_at + after)
        await leave(request.exchange, receiving)

    def _body(self, send: Send) -> bytes:
        if isinstance(send.body, str):
            return send.body.encode()
        if send.method == "GET" and send.body is None:
            return b""
        orders = Orders(
            name=send.name,
            hold=None if send.engine is None else self._stage.journal.releases + 1,
            delay_s=send.engine_delay_s,
            head_delay_s=send.engine_head_delay_s,
            chunks=send.engine_chunks,
            gap_s=send.engine_gap_s,
            status=send.engine_status,
        )
        messages = [{"role": "user", "content": send.name}]
        chat: dict[str, Any] = {"model": send.model, "messages": messages, "stream": send.stream}
        return msgspec.json.encode({**chat, **(send.body or {}), "metadata": orders})

    async def _conclude(self) -> None:
        """Read what the gateway has counted, when nothing is in flight any more."""
        give_up = self._now() + SETTLE_SECS
        state = await self._stage.gateway.state()
        while (state["in_flight"] or state["waiting"]) and self._now() < give_up:
            await asyncio.sleep(POLL_SECS)
            state = await self._stage.gateway.state()
        self.record.state = state
        self.record.metrics = await self._stage.gateway.metrics()

    async def _sleep_until(self, time: float) -> None:
        await asyncio.sleep(time - self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def headers_of(send: Send) -> Iterator[tuple[str, str]]:
    """What a client sends besides host and length."""
    yield ("content-type", "application/json")
    if send.connection == "close":
        yield ("connection", "close")
    priorities = [send.priority] if isinstance(send.priority, str) else send.priority or []
    for priority in priorities:
        yield ("x-smg-priority", priority)
    if send.tenant is not None:
        yield ("x-smg-tenant-id", send.tenant)
    if send.authorization is not None:
        yield ("authorization", send.authorization)
    yield from send.headers.items()
