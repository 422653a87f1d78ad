"""Plays a timeline: engines, the gateway, and clients that do what it says, one step after the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..smg_conformance.client import Wanted, ask, begin, leave
from ..smg_conformance.engines import Visit
from ..smg_conformance.gateway import Gateway
from ..smg_conformance.play import Missed
from ..smg_conformance.turns import Turns
from .engines import MODEL, EngineJournal, MockVllm, orders_of
from .gateway import Files, Flavour, command_line
from .record import Observation, Question, Record, Released, Request
from .scenario import (
    CannotCheck,
    Config,
    Disconnect,
    Observe,
    OpenGate,
    RecordStateChanges,
    Release,
    Run,
    Scenario,
    Send,
    Start,
    StartBackend,
    Step,
    StopBackend,
    WaitAll,
    WaitAnswer,
    WaitSecs,
    WaitState,
)

LONGEST_SECS = 60.0
"""That a timeline may take, conditions that never come true included."""
STEP_SECS = 20.0
"""That one step may wait for an answer or a state."""
POLL_SECS = 0.01
HEARTBEAT_SECS = 0.02
SETTLE_SECS = 3.0
"""Within which the gateway's books must be empty after the last answer."""
CHAT = "/v1/chat/completions"
METRICS = "/programs/metrics"
"""Where the gateway has the page that ThunderAgent has at /metrics."""
JSON_HEADERS = (("content-type", "application/json"),)


class Stage:
    """Engines, and a gateway in front of them."""

    def __init__(self, gateway: Gateway, engines: Sequence[MockVllm], journal: EngineJournal, config: Config) -> None:
        self.gateway = gateway
        self.engines = engines
        self.journal = journal
        self._names = {engine.url: name for engine, name in zip(engines, config.backends, strict=True)}

    async def page(self, path: str) -> Any:
        """The JSON of a page, with the names of backends for their URLs. Raises Missed if it is none."""
        exchange = await self.gateway.get(path)
        if exchange.status != 200 or exchange.json is None:
            raise Missed(f"GET {path}: expected a page, got {exchange} {exchange.body[:200]!r}")
        return self._named(exchange.json)

    async def observe(self) -> Observation:
        at = asyncio.get_running_loop().time()
        programs, health, pages = [await self.page(path) for path in ("/programs", "/health", METRICS)]
        return Observation(at=at, programs=programs, health=health, pages=pages.get("backends", {}))

    def _named(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._names.get(key, key): self._named(said) for key, said in value.items()}
        if isinstance(value, list):
            return [self._named(said) for said in value]
        return self._names.get(value, value) if isinstance(value, str) else value


@contextlib.asynccontextmanager
async def stage(config: Config, flavour: Flavour, turns: Turns, files: Files, down: Sequence[str] = ()) -> AsyncIterator[Stage]:
    """Engines, of which those in `down` refuse connections, and a gateway. Raises GatewayExited."""
    journal = EngineJournal()
    engines = [MockVllm(index, capacity, journal) for index, capacity in enumerate(config.backend_capacity_tokens)]
    async with contextlib.AsyncExitStack() as stack:
        for engine, name in zip(engines, config.backends, strict=True):
            stack.push_async_callback(engine.close)
            await engine.listen()
            if name in down:
                engine.deaf()
        arguments = command_line(config, flavour, [engine.url for engine in engines], files)
        async with turns.starting():
            gateway = await stack.enter_async_context(turns.launch(arguments, None))
            await gateway.until(healthy=[engine.url for engine in engines if engine.listening])
        yield Stage(gateway, engines, journal, config)


def body_of(send: Send, tag: str) -> bytes:
    """The body of a request, with as many characters as the scenario wants. Raises CannotCheck if that is too few."""

    def encode(padding: str) -> str:
        message = {"role": "user", "content": f"#{tag} {padding}"}
        named = {} if send.program is None else {"program_id": send.program}
        streamed = {"stream": True} if send.stream else {}
        return json.dumps(
            {"model": MODEL, "messages": [message], **named, **streamed, **send.payload_extra}, ensure_ascii=False
        )

    missing = send.characters - len(encode(""))
    if missing < 0:
        raise CannotCheck(f"{send.program}: a body of only {send.characters} characters")
    return encode("x" * missing).encode()


class Play:
    """One playing of one timeline. Raises CannotCheck for what it does not understand."""

    def __init__(self, scenario: Scenario, *, sees_estimates: bool = False, questions: Sequence[Question] = ()) -> None:
        """`questions` are asked at the end; `sees_estimates`: each request is held at its engine until its program was seen."""
        self._scenario = scenario
        self._sees_estimates = sees_estimates
        self._questions = questions
        self.record = Record(scenario.config, scenario.sends)
        self._bodies = {request.tag: body_of(request.send, request.tag) for request in self.record.requests}
        self._unsent = iter(self.record.requests)
        self._receiving: list[asyncio.Task[None]] = []
        self._by_tag: dict[str, asyncio.Task[None]] = {}
        self._leaving: list[asyncio.Task[None]] = []

    async def on(self, stage: Stage) -> Record:
        """Play it. Raises Missed."""
        self._stage, record = stage, self.record
        record.visits, record.log = stage.journal.visits, stage.gateway.log
        stage.journal.orders = {request.tag: orders_of(request.send) for request in record.requests}
        if self._sees_estimates:
            stage.journal.on_visit = self._see_estimate
        record.started_at = self._now()
        heartbeat = asyncio.create_task(self._measure_lag())
        try:
            async with asyncio.timeout(LONGEST_SECS):
                for step in self._scenario.steps:
                    await self._act(step)
                await self._see_end()
        except TimeoutError:
            raise Missed(f"not over after {LONGEST_SECS:g} s") from None
        finally:
            heartbeat.cancel()
            await self._leave_all()
        await self._conclude()
        return record

    async def _act(self, step: Step) -> None:
        match step:
            case Run() | Start():
                await self._send(next(self._unsent), wait=isinstance(step, Run))
            case WaitSecs():
                await self._sleep(step.s)
            case WaitAnswer():
                await self._answers(self.record.requests_of(step.program)[-1:])
            case WaitAll():
                await self._answers([request for request in self.record.requests if request.exchange.sent_at])
            case WaitState():
                await self._wait_state(step)
            case Disconnect():
                await self._disconnect(step.program)
            case OpenGate():
                self._stage.journal.open_gate(step.gate)
            case Observe():
                self.record.observations[step.name] = await self._observe()
            case Release():
                await self._release(step.program)
            case RecordStateChanges():
                await self._record_changes(step.s)
            case StartBackend() | StopBackend():
                await self._switch(step)

    async def _send(self, request: Request, *, wait: bool) -> None:
        send = request.send
        wanted = Wanted("POST", CHAT, [*JSON_HEADERS, *send.headers.items()], self._bodies[request.tag])
        receiving = await begin(request.exchange, self._stage.gateway.url, wanted)
        self._receiving.append(receiving)
        self._by_tag[request.tag] = receiving
        if send.client_leaves_after_s is not None:
            self._leaving.append(asyncio.create_task(self._leave(request, receiving, send.client_leaves_after_s)))
        await self._settled(request)
        if wait:
            await self._answers([request])
        if self._scenario.config.profile and request.answered:
            await self._see_profile(send.program)

    async def _settled(self, request: Request) -> None:
        """Until the request is at an engine, waits for memory or is answered: the next step is later for the gateway, too."""
        program = request.send.program

        async def waits() -> bool:
            said = (await self._stage.page("/programs")).get(program, {})
            return said.get("state") == "paused" and said.get("status") == "reasoning"

        while self.record.visit(request) is None and not request.exchange.over.is_set() and not await waits():
            await asyncio.sleep(POLL_SECS)

    async def _answers(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                async with asyncio.timeout(STEP_SECS):
                    await request.exchange.over.wait()
            except TimeoutError:
                raise Missed(f"{request.exchange.name}: no answer within {STEP_SECS:g} s") from None

    async def _wait_state(self, step: WaitState) -> None:
        wanted = {field: value for field in ("state", "status", "backend") if (value := getattr(step, field)) is not None}

        def reached(programs: Mapping[str, Mapping[str, Any]]) -> bool:
            said = programs.get(step.program, {})
            return all(said.get(field) == value for field, value in wanted.items())

        await self._until(reached, f"{step.program} is {wanted}")

    async def _until(self, reached: Callable[[Mapping[str, Mapping[str, Any]]], bool], what: str) -> None:
        give_up = self._now() + STEP_SECS
        while not reached(programs := await self._stage.page("/programs")):
            if self._now() > give_up:
                raise Missed(f"expected that {what}, got {programs}")
            await asyncio.sleep(POLL_SECS)

    async def _observe(self) -> Observation:
        seen = await self._stage.observe()
        if seen.of_backends("marked_for_pause") > self.record.marks.of_backends("marked_for_pause"):
            self.record.marks = seen
        return seen

    async def _release(self, program: str) -> None:
        wanted = Wanted("POST", "/programs/release", JSON_HEADERS, json.dumps({"program_id": program}).encode())
        at = self._now()
        self.record.released.append(Released(program, at, await ask(self._stage.gateway.url, wanted, f"release {program}")))

    async def _record_changes(self, secs: float) -> None:
        """Append each map of states that differs from the one before."""
        ends_at = self._now() + secs
        while self._now() < ends_at:
            programs = await self._stage.page("/programs")
            states = {name: f"{said['backend']}/{said['state']}" for name, said in programs.items()}
            if states != (self.record.state_changes or [None])[-1]:
                self.record.state_changes.append(states)
            await asyncio.sleep(POLL_SECS)

    async def _switch(self, step: StartBackend | StopBackend) -> None:
        engine = self._stage.engines[self._scenario.config.backends.index(step.backend)]
        await (engine.listen() if isinstance(step, StartBackend) else engine.close())

    async def _see_estimate(self, visit: Visit) -> None:
        request = next((request for request in self.record.requests if request.tag == visit.name), None)
        if request is not None:
            said = (await self._stage.page("/programs")).get(request.send.program)
            request.estimate = None if said is None else said["total_tokens"]

    async def _see_profile(self, program: str | None) -> None:
        """A step is recorded when its answer is over, which the client may see first."""
        steps = sum(request.answered for request in self.record.requests_of(program or ""))
        give_up = self._now() + SETTLE_SECS
        while self._now() < give_up:
            exchange = await self._stage.gateway.get(f"/profiles/{program}")
            if isinstance(exchange.json, dict) and exchange.status == 200:
                self.record.profiles[program or ""] = exchange.json
                if exchange.json.get("step_count") == steps:
                    return
            await asyncio.sleep(POLL_SECS)

    async def _see_end(self) -> None:
        """After the last step, before anything else changes."""
        self.record.end = await self._observe()
        for method, path, text in self._questions:
            wanted = Wanted(method, path, JSON_HEADERS, text.encode())
            self.record.asked[method, path, text] = await ask(self._stage.gateway.url, wanted, f"{method} {path}")

    async def _leave(self, request: Request, receiving: asyncio.Task[None], after: float) -> None:
        await asyncio.sleep(request.exchange.sent_at + after - self._now())
        await leave(request.exchange, receiving)

    async def _disconnect(self, program: str) -> None:
        sent = [request for request in self.record.requests_of(program) if request.tag in self._by_tag]
        if not sent:
            raise CannotCheck(f"disconnect: {program} has sent nothing")
        await leave(sent[-1].exchange, self._by_tag[sent[-1].tag])

    async def _leave_all(self) -> None:
        """Clients of requests that have no answer yet close their connections."""
        for task in (*self._leaving, *self._receiving):
            task.cancel()
        await asyncio.gather(*self._leaving, *self._receiving, return_exceptions=True)

    async def _conclude(self) -> None:
        """Read the gateway's books, when nothing is in flight any more."""
        give_up = self._now() + SETTLE_SECS
        while True:
            self.record.state = await self._stage.gateway.state()
            programs = await self._stage.page("/programs")
            if not self._is_busy(self.record.state, programs) or self._now() > give_up:
                return
            await asyncio.sleep(POLL_SECS)

    @staticmethod
    def _is_busy(state: Mapping[str, Any], programs: Mapping[str, Mapping[str, Any]]) -> bool:
        return bool(state["in_flight"] or state["waiting"]) or any(said["status"] == "reasoning" for said in programs.values())

    async def _measure_lag(self) -> None:
        """Record how long this process (clients, engines, and the gateway if it is served here) has stood still."""
        while True:
            await self._sleep(HEARTBEAT_SECS)

    async def _sleep(self, secs: float) -> None:
        due = self._now() + secs
        await asyncio.sleep(secs)
        self.record.lag_secs = max(self.record.lag_secs, self._now() - due)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def play(
    scenario: Scenario,
    flavour: Flavour,
    turns: Turns,
    details: list[str],
    *,
    sees_estimates: bool = False,
    questions: Sequence[Question] = (),
) -> Record:
    """Play a scenario once, on a gateway of its own, and append what happened to `details`. Raises CannotCheck, Missed,
    GatewayExited."""
    playing = Play(scenario, sees_estimates=sees_estimates, questions=questions)
    record = playing.record
    details.append(f"flavour {flavour}")
    try:
        with TemporaryDirectory(prefix="maitred-thunderagent-") as folder:
            files = Files(Path(folder))
            async with stage(scenario.config, flavour, turns, files, sorted(scenario.down_at_start)) as world, turns.playing():
                await playing.on(world)
            # Now the gateway has ended, and has written its files.
            record.read_decisions(files.decision_log)
            record.csv = files.read_csv()
        return record
    finally:
        details += [*record.story(), *record.log]
