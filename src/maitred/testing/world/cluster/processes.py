"""Gateways and schedulers of a world as processes, each on a machine whose clock shows a time of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from maitred.core.units import Micros
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.app import Gateway
from maitred.gateway.cluster.linked_gateway import LinkedGateway
from maitred.gateway.cluster.scheduler_gateway import LinkPort, SchedulerGateway
from maitred.gateway.observe.logs import LogOutput
from maitred.scheduler.interface import (
    Degrading,
    Dialer,
    ElectedAddresses,
    KnownAddresses,
    LinkAddress,
    RemoteScheduler,
    SchedulerHost,
)
from maitred.scheduler.sharing.elections.redis_election import RedisElection
from maitred.testing.world.cluster.scenario import LEADER_LEASE, LINK_PORT, PAGES_PORT, SECRET, ClusterScenario
from maitred.testing.world.cluster.store import Store, StoreClient
from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.machine import EPOCH_NS, MemoryMachine
from maitred.testing.world.network import Network
from maitred.testing.world.process import GatewayProcess
from maitred.wire.clock import Clock

_ELECTION_NAME: Final = "maitred"


class ClusterMachine(MemoryMachine):
    """A machine whose clock began at another instant than those of others, and whose time of day is wrong."""

    def __init__(self, loop: VirtualLoop, network: Network, name: str, address: str, offset: Micros) -> None:
        super().__init__(loop, network, name, address)
        base = offset * 1_000
        self.clock = Clock(lambda: base + loop.micros * 1_000, lambda: EPOCH_NS + 2 * base + loop.micros * 1_000, lambda: 0)


class ClusterProcess(GatewayProcess):
    """A process that may ask the store, and may be paused."""

    machine: ClusterMachine

    def __init__(
        self,
        loop: VirtualLoop,
        machine: ClusterMachine,
        folder: Path,
        log: LogOutput,
        scenario: ClusterScenario,
        store: Store,
        read_settings: Callable[[], GatewaySettings],
    ) -> None:
        """As `GatewayProcess`. `store` is that of the election."""
        super().__init__(loop, machine, folder, log, scenario.seed, read_settings)
        self.machine, self.name, self.address = machine, machine.name, machine.place.address
        self.is_paused = False
        self._scenario, self._store = scenario, store
        self._store_clients: list[StoreClient] = []

    def pause(self) -> None:
        """Run nothing of it, as after SIGSTOP."""
        self.is_paused = True
        self._loop.pause(self.machine.place)

    def resume(self) -> None:
        """Let it go on, as after SIGCONT."""
        self.is_paused = False
        self._loop.resume(self.machine.place)

    def kill(self) -> None:
        self.is_paused = False
        super().kill()
        for client in self._store_clients:
            client.is_gone = True
        self._store_clients.clear()

    def _election(self) -> RedisElection:
        client = StoreClient(self._store, self.address)
        self._store_clients.append(client)
        random = self.machine.random
        return RedisElection(client, "redis://store", _ELECTION_NAME, LEADER_LEASE, lambda: random.randbytes(8).hex())


class LinkedProcess(ClusterProcess):
    """`maitred serve --scheduler`."""

    gateway: LinkedGateway
    schedulers: Sequence[str] = ()
    """The addresses of the schedulers."""

    def make_gateway(self, settings: GatewaySettings) -> Gateway:
        scenario = self._scenario
        known = KnownAddresses(*(LinkAddress(each, LINK_PORT) for each in self.schedulers))
        dialer = Dialer(ElectedAddresses(self._election()) if scenario.finds_by_store else known)
        degrading = Degrading(scenario.degraded, scenario.degraded_after_secs)
        make_scheduler = partial(RemoteScheduler, dialer=dialer, name=self.name, secret=SECRET, degrading=degrading)
        return LinkedGateway(
            settings.gateway,
            settings.admission,
            settings.routing,
            settings.programs,
            seed=scenario.seed,
            reload=self._read_settings,
            log_output=self._log,
            machine=self.machine,
            make_scheduler=make_scheduler,
        )


class SchedulerProcess(ClusterProcess):
    """`maitred scheduler`."""

    gateway: SchedulerGateway

    @property
    def host(self) -> SchedulerHost | None:
        """What serves the gateways, or None before it is there."""
        return self.gateway.host if self.is_up else None

    def make_gateway(self, settings: GatewaySettings) -> Gateway:
        scheduler = SchedulerGateway(
            settings.gateway,
            settings.admission,
            settings.routing,
            settings.programs,
            seed=self._scenario.seed,
            reload=self._read_settings,
            log_output=self._log,
            machine=self.machine,
            port=LinkPort(LinkAddress(self.address, LINK_PORT), None, None, SECRET, self.name),
            election=self._election(),
            pages=(self.address, PAGES_PORT),
        )
        scheduler.open_link()
        return scheduler
