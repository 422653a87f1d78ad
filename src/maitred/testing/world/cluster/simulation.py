"""ClusterSimulation: a scenario with several gateways, played to its end.

Engines, the store, schedulers and gateways start, in this order. The clients come, each to one of the gateways; the faults last
for `fault_secs`, and are mended. Then each gateway gets a chat of the highest class, which must be answered at once
(`PROBE_SECS`), all is left alone for a while, and every process gets SIGTERM.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from maitred.core.units import to_seconds
from maitred.testing.world import chaos
from maitred.testing.world.answers import Violation
from maitred.testing.world.behaviours import ClientPlan
from maitred.testing.world.cluster import invariants
from maitred.testing.world.cluster.faults import FAULTS
from maitred.testing.world.cluster.processes import LinkedProcess
from maitred.testing.world.cluster.scenario import ClusterScenario
from maitred.testing.world.cluster.stage import ClusterStage
from maitred.testing.world.simulation import ScenarioOutcome, outcome_of

_IDLE_SECS: Final = 5.0
_FIRST_LEARNING_SECS: Final = 3.5
"""By then the first leader has learned that there is nothing: before, nobody is granted anything."""
_LOOK_SECS: Final = 0.5
PROBE_SECS: Final = 5.0
"""How long a chat may take when all is mended, and the engines have nothing else to do."""


class ClusterSimulation:
    """A scenario that is played."""

    def __init__(
        self,
        scenario: ClusterScenario,
        folder: Path,
        trace: Callable[[str], object] | None = None,
        *,
        stops_at_violation: bool = False,
    ) -> None:
        """As `Simulation`. `folder` holds the disks."""
        self._stops_at_violation = stops_at_violation
        self.stage = ClusterStage(scenario, folder, trace)
        self.checks = invariants.Checks(self.stage)

    def run(self) -> ScenarioOutcome:
        """Play the scenario."""
        self.stage.loop.run_until_complete(self._play())
        self._note(invariants.check_end(self.stage))
        self.stage.loop.close()
        return self.outcome()

    def outcome(self) -> ScenarioOutcome:
        """Return the outcome of the scenario so far."""
        return outcome_of(self.stage, [self.stage.decision_log(scheduler.name) for scheduler in self.stage.schedulers])

    async def _play(self) -> None:
        stage = self.stage
        for engine in stage.engines:
            engine.boot()
        stage.settings = stage.scenario.fleet_settings([engine.url for engine in stage.engines])
        stage.loop.after_turn = self._after_turn
        for processes in (stage.schedulers, stage.gateways):
            await asyncio.gather(*(process.start() for process in processes))
        stage.mended_at = stage.loop.micros
        await asyncio.sleep(_FIRST_LEARNING_SECS)
        looking = stage.loop.create_task(self._look())
        await chaos.play_clients(stage, FAULTS)
        await asyncio.sleep(to_seconds(invariants.HEALED_AFTER))
        await asyncio.gather(*(self._probe(gateway) for gateway in stage.gateways))
        await asyncio.sleep(_IDLE_SECS)
        self._note(invariants.check_idle(stage))
        looking.cancel()
        await asyncio.gather(*(process.stop() for process in stage.gateways))
        await asyncio.gather(*(process.stop() for process in stage.schedulers))
        await asyncio.sleep(_IDLE_SECS)  # for the last answers of the store
        stage.loop.after_turn = None
        for engine in stage.engines:
            await engine.close()

    async def _look(self) -> None:
        """Look at all processes now and then, when nothing has failed for a while."""
        stage = self.stage
        while True:
            await asyncio.sleep(_LOOK_SECS)
            if not stage.num_harms and stage.loop.micros > stage.mended_at + invariants.HEALED_AFTER:
                self._note(invariants.check_healed(stage))

    async def _probe(self, gateway: LinkedProcess) -> None:
        """Send a chat to a gateway, which is to be granted a slot."""
        stage = self.stage
        plan = ClientPlan(kind="polite", num_requests=1, priority="system", tenant="prober", max_tokens=1)
        client = stage.add_client(f"probe_of_{gateway.name}", plan, gateway)
        connection = await client.connection()
        sent = None if connection is None else await client.ask(connection, streams=False)
        client.close()
        if sent is None or sent.status != 200:
            self._note([f"{gateway.name} has answered a chat with {None if sent is None else sent.status}, and all is mended"])
        elif (secs := to_seconds((sent.ended_at or 0) - sent.sent_at)) > PROBE_SECS:
            self._note([f"{gateway.name} has answered a chat after {secs:.1f} s, and all is mended"])

    def _note(self, violations: Iterable[str]) -> None:
        self.stage.ledger.violations.extend(violations)

    def _after_turn(self) -> None:
        if self._stops_at_violation and self.stage.ledger.violations:
            raise Violation(self.stage.ledger.violations[0])
        self._note(self.checks.after_turn())
        self.stage.watch.end_turn()


def play_cluster(
    scenario: ClusterScenario, trace: Callable[[str], object] | None = None, *, stops_at_violation: bool = False
) -> ScenarioOutcome:
    """Play a scenario, with disks of its own, to its end or to the first violation. What it raises is a violation, too."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = ClusterSimulation(scenario, Path(folder), trace, stops_at_violation=stops_at_violation)
        try:
            return simulation.run()
        except Exception as error:
            simulation.stage.ledger.violations.append(f"{type(error).__name__}: {error}")
            return simulation.outcome()
