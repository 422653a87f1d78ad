"""ClusterStage: gateways, schedulers and a store, with the engines and clients of a scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from maitred.core.units import Micros
from maitred.gateway.admin.reload import GatewaySettings
from maitred.testing.world.behaviours import ClientPlan, SimulatedClient
from maitred.testing.world.cluster.link_watch import LinkWatch
from maitred.testing.world.cluster.processes import ClusterMachine, ClusterProcess, LinkedProcess, SchedulerProcess
from maitred.testing.world.cluster.scenario import ClusterScenario, gateway_address, scheduler_address
from maitred.testing.world.cluster.store import Store
from maitred.testing.world.scenario import PORT
from maitred.testing.world.stage import Scene

P = TypeVar("P", bound=ClusterProcess)
_MOST_OFFSET: Final[Micros] = 10**12
"""How far the clocks of machines are off at most, µs."""


class ClusterStage(Scene):
    """All that takes part in a scenario with several gateways."""

    scenario: ClusterScenario

    def __init__(self, scenario: ClusterScenario, folder: Path, trace: Callable[[str], object] | None = None) -> None:
        """`folder` holds the disks of all machines. `trace` is given a line for each read."""
        super().__init__(scenario, trace)
        self._folder = folder
        self.store = Store(self.loop, self.network)
        self._offsets = self.loop.draws.of("clocks")
        self.schedulers = [
            self._make(SchedulerProcess, f"scheduler{number}", scheduler_address(number), self._settings_of_scheduler)
            for number in range(scenario.num_schedulers)
        ]
        self.gateways = [
            self._make(LinkedProcess, f"gateway{number}", gateway_address(number), self._settings_of_gateway)
            for number in range(scenario.num_gateways)
        ]
        for gateway in self.gateways:
            gateway.schedulers = [scheduler.address for scheduler in self.schedulers]
        self.watch = LinkWatch(self.loop, self.schedulers, self.ledger.violations.append)
        self.tap.on_sent = self.watch.on_sent
        self._spread = self.loop.draws.of("clients")
        self._gateways_of: dict[str, LinkedProcess] = {}
        for number, plan in enumerate(scenario.clients):
            self.add_client(f"{plan.kind}{number}", plan, self._spread.choice(self.gateways))

    @property
    def processes(self) -> Iterator[ClusterProcess]:
        """All gateways and schedulers."""
        yield from self.schedulers
        yield from self.gateways

    def process_at(self, address: str) -> ClusterProcess | None:
        """Return the process at an address, or None if there is none."""
        return next((each for each in self.processes if each.address == address), None)

    def add_client(self, name: str, plan: ClientPlan, gateway: LinkedProcess) -> SimulatedClient:
        """Return a client of a gateway."""
        client = SimulatedClient(self.loop, name, plan, (gateway.address, PORT), self.ledger)
        self.clients.append(client)
        self._gateways_of[name] = gateway
        return client

    def gateway_of(self, mark: str) -> LinkedProcess:
        """Return the gateway to which a request was sent, by its mark."""
        return self._gateways_of[mark.rpartition("-")[0]]

    def decision_log(self, name: str) -> Path:
        """Return the log of the decisions of a scheduler."""
        return self._folder / name / "decisions.jsonl"

    def _make(self, kind: type[P], name: str, address: str, settings: Callable[[str, str], GatewaySettings]) -> P:
        folder = self._folder / name
        folder.mkdir()
        offset = self._offsets.randint(-_MOST_OFFSET, _MOST_OFFSET) + _MOST_OFFSET
        machine = ClusterMachine(self.loop, self.network, name, address, offset)
        return kind(self.loop, machine, folder, self.log, self.scenario, self.store, partial(settings, name, address))

    def _settings_of_scheduler(self, name: str, address: str) -> GatewaySettings:
        return self.scenario.settings_of_scheduler(self.settings, str(self.decision_log(name)))

    def _settings_of_gateway(self, name: str, address: str) -> GatewaySettings:
        return self.scenario.settings_of_gateway(self.settings, address)
