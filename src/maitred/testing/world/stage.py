"""What takes part in a scenario, and what has been seen of it so far.

Scene    the network, engines, what clients send, and faults
Stage    with one gateway, which schedules for itself, and clients of it
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from maitred.core.units import Micros
from maitred.emulator import EngineConfig
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.observe.logs import LogOutput
from maitred.instance import InstanceConfig, LinearLatency
from maitred.testing.world.behaviours import Ledger, SimulatedClient
from maitred.testing.world.clients import Sent
from maitred.testing.world.engines import Engine
from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.machine import MemoryMachine
from maitred.testing.world.network import Network
from maitred.testing.world.process import GatewayProcess
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.transport import Connection, Tap

NO_REQUEST: Final = "no request"
STATES: Final = (NO_REQUEST, "on its way", "in the gateway", "at an engine", "answering")
"""States of requests that faults meet: none is under way; not sent whole; sent whole, and at no engine; there, without an
answer; and with a part of it."""


def latency_of(scenario: Scenario) -> LinearLatency:
    """Return how long the steps of all engines take."""
    return LinearLatency((scenario.step_ms * 1_000, 10.0, 200.0))


class KeptLog(LogOutput):
    """The log of a gateway, kept in memory."""

    def __init__(self) -> None:
        super().__init__("json")
        self.lines: list[bytes] = []

    def start(self) -> None:
        """Do nothing."""

    def reopen(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def write(self, line: bytes) -> None:
        """Keep a line."""
        self.lines.append(line)


class WireTap(Tap):
    """Makes a digest of all bytes, and tells engines what was read of them."""

    def __init__(self, trace: Callable[[str], object] | None) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._trace = trace
        self.engines: dict[tuple[str, int], Engine] = {}
        self.on_sent: Callable[[Connection, bool, bytes], object] | None = None
        """Called with all bytes as they are sent; None: with none."""

    @property
    def digest(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()

    def on_write(self, connection: Connection, is_forth: bool, data: bytes) -> None:
        """Take note of what is sent."""
        if self.on_sent is not None:
            self.on_sent(connection, is_forth, data)

    def on_read(self, connection: Connection, is_forth: bool, data: bytes) -> None:
        """Take note of what was read."""
        self._hash.update(b"%d %d %d " % (connection.loop.micros, connection.number, is_forth))
        self._hash.update(data)
        if self._trace is not None:
            arrow = ">" if is_forth else "<"
            self._trace(
                f"{connection.loop.time():.6f} {connection.number}{arrow}{connection.target[0]} {data[:100]!r} {len(data)}"
            )
        engine = self.engines.get(connection.target)
        if engine is not None and not is_forth:
            engine.note_read(len(data))

    def on_lost(self, connection: Connection, is_forth: bool, error: Exception | None) -> None:
        """Take note that an end is closed."""
        self._hash.update(b"%d %d %d %d" % (connection.loop.micros, connection.number, is_forth, error is None))
        if self._trace is not None:
            end = "source" if is_forth else "target"
            self._trace(f"{connection.loop.time():.6f} {connection.number} {end} is closed: {error}")


class Scene:
    """A scenario without its gateways."""

    def __init__(self, scenario: Scenario, trace: Callable[[str], object] | None = None) -> None:
        """`trace` is given a line for each read."""
        self.scenario, self.trace = scenario, trace
        self.loop = VirtualLoop(scenario.seed)
        self.tap = WireTap(trace)
        self.network = Network(self.loop, scenario.link, self.tap)
        self.engines = [self._make_engine(number) for number in range(scenario.num_engines)]
        self.clients: list[SimulatedClient] = []
        self.ledger = Ledger()
        self.log = KeptLog()
        self.stands: list[tuple[Micros, Micros]] = []
        """Spans of time in which no program ran."""
        self.reasons: Counter[str] = Counter()
        """Decisions of admission by reason, known at the end."""
        self.faults: Counter[str] = Counter()
        """Faults so far, by kind."""
        self.pairs: Counter[str] = Counter()
        """The same, by the state of the requests that they met."""
        self.num_harms = 0
        """Faults that are not mended yet."""
        self.harms: list[tuple[str, Micros, Micros]] = []
        """The faults that are mended, each with the instants of its beginning and its end."""
        self.mended_at: Micros = 0
        """When the last one was."""
        self.settings: GatewaySettings
        """The configuration as its files have it."""

    def note_fault(self, name: str) -> None:
        """Count a fault, and the states of the requests that it meets."""
        self.faults[name] += 1
        at_engines = {run.mark for engine in self.engines for run in engine.runs if run.ended_at is None}
        states = {_state_of(sent, at_engines) for sent in self.ledger.sent.values() if sent.fate is None}
        for state in states or {NO_REQUEST}:
            self.pairs[f"{name}/{state}"] += 1
        if self.trace is not None:
            self.trace(f"{self.loop.time():.6f} fault: {name}")

    def stood_still(self, since: Micros, until: Micros) -> bool:
        """Return whether time has passed between two instants in which no program ran."""
        return any(began_at <= until and ended_at >= since for began_at, ended_at in self.stands)

    def _make_engine(self, number: int) -> Engine:
        name = f"engine{number}"
        machine = MemoryMachine(self.loop, self.network, name, f"10.0.1.{number + 1}")
        limit = self.scenario.engine_limits[number]
        instance = InstanceConfig(latency=latency_of(self.scenario), max_num_seqs=limit)
        config = EngineConfig(hide_slots=self.scenario.hides_slots, seed=self.scenario.seed)
        engine = Engine(machine, config, instance, number)
        self.tap.engines[machine.place.address, 8000] = engine
        return engine


class Stage(Scene):
    """A scenario, and all that takes part in it."""

    def __init__(self, scenario: Scenario, folder: Path, trace: Callable[[str], object] | None = None) -> None:
        """`folder` is the disk of the gateway. `trace` is given a line for each read."""
        super().__init__(scenario, trace)
        self.decision_log = folder / "decisions.jsonl"
        self.machine = MemoryMachine(self.loop, self.network, "gateway", GATEWAY)
        self.process = GatewayProcess(self.loop, self.machine, folder, self.log, scenario.seed, lambda: self.settings)
        self.clients = [
            SimulatedClient(self.loop, f"{plan.kind}{number}", plan, (GATEWAY, PORT), self.ledger)
            for number, plan in enumerate(scenario.clients)
        ]


def _state_of(sent: Sent, at_engines: Collection[str]) -> str:
    if sent.answer is not None:
        return "answering"
    if sent.mark in at_engines:
        return "at an engine"
    return "on its way" if sent.unsent_bytes else "in the gateway"
