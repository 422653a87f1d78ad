"""Simulation: one scenario, played to its end.

    a gateway    as `maitred serve` runs it, on a machine of its own, with the log of decisions on its disk
    engines      emulated ones, each on a machine
    clients      of the kinds of `behaviours`
    faults       of the kinds of `chaos`, and an operator

The clients come, the faults last for `fault_secs` and are mended, the clients end, and the gateway is left alone until it has
forgotten them (at most `IDLE_SECS`). Then it gets SIGTERM. What must hold is checked on the way (`invariants`); what does not
is in `Outcome.violations`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from maitred.testing.world import chaos, invariants
from maitred.testing.world.answers import Violation
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.stage import Scene, Stage

IDLE_SECS: Final = 90.0
"""Seconds after which a gateway without requests has closed its idle connections."""
_LOOK_SECS: Final = 10.0
"""Seconds between two looks whether it has."""


class ScenarioOutcome(msgspec.Struct):
    """What has become of a scenario."""

    seed: int
    violations: list[str]
    num_events: int
    secs: float
    """Virtual seconds."""
    fates: dict[str, int]
    """Requests by fate and status."""
    reasons: dict[str, int]
    """Decisions of admission by reason."""
    faults: dict[str, int]
    """Faults by kind."""
    pairs: dict[str, int]
    """Faults by kind and by the state of requests that they met."""
    wire_digest: str
    """Of all bytes that were read, with their instants."""
    decisions_digest: str
    """Of the log of decisions."""


def outcome_of(stage: Scene, decision_logs: Iterable[Path]) -> ScenarioOutcome:
    """Return the outcome of a scenario so far."""
    fates = Counter(f"{sent.fate} {sent.status or ''}".strip() for sent in stage.ledger.sent.values())
    decisions = hashlib.blake2b(digest_size=16)
    for log in decision_logs:
        decisions.update(log.read_bytes() if log.exists() else b"")
    return ScenarioOutcome(
        stage.scenario.seed,
        stage.ledger.violations,
        stage.loop.num_events,
        stage.loop.time(),
        dict(sorted(fates.items())),
        dict(sorted(stage.reasons.items())),
        dict(sorted(stage.faults.items())),
        dict(sorted(stage.pairs.items())),
        stage.tap.digest,
        decisions.hexdigest(),
    )


class Simulation:
    """A scenario that is played."""

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        trace: Callable[[str], object] | None = None,
        *,
        stops_at_violation: bool = False,
    ) -> None:
        """`folder` is the disk of the gateway. `trace` is given a line for each read and each fault. With `stops_at_violation`
        the first violation ends `run` with a Violation."""
        self._stops_at_violation = stops_at_violation
        self.stage = Stage(scenario, folder, trace)
        self.stage.process.on_ended = self._on_ended
        self._num_lines = 0

    def run(self) -> ScenarioOutcome:
        """Play the scenario."""
        self.stage.loop.run_until_complete(self._play())
        self.stage.ledger.violations.extend(invariants.check_end(self.stage))
        self.stage.loop.close()
        return self.outcome()

    def outcome(self) -> ScenarioOutcome:
        """Return the outcome of the scenario so far."""
        return outcome_of(self.stage, [self.stage.decision_log])

    async def _play(self) -> None:
        stage = self.stage
        for engine in stage.engines:
            engine.boot()
        stage.settings = stage.scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
        await stage.process.start()
        stage.loop.after_turn = self._after_turn
        await chaos.play_clients(stage, chaos.FAULTS)
        stage.ledger.violations.extend(await self._become_idle())
        await stage.process.stop()
        stage.loop.after_turn = None
        for engine in stage.engines:
            await engine.close()

    async def _become_idle(self) -> list[str]:
        """Leave the gateway alone until nothing is left in it. Return what is left all the same."""
        left, until = ["nothing has been looked at yet"], self.stage.loop.time() + IDLE_SECS
        while left and self.stage.loop.time() < until:
            await asyncio.sleep(_LOOK_SECS)
            left = list(invariants.check_idle(self.stage))
        return left

    def _on_ended(self) -> None:
        self.stage.ledger.violations.extend(invariants.check_ended(self.stage))

    def _after_turn(self) -> None:
        """Check the cores, if one of them was told something in this turn."""
        if self._stops_at_violation and self.stage.ledger.violations:
            raise Violation(self.stage.ledger.violations[0])
        decisions = self.stage.process.gateway.decisions
        num_lines = 0 if decisions is None else decisions.num_lines
        if num_lines != self._num_lines:
            self._num_lines = num_lines
            self.stage.ledger.violations.extend(invariants.check_now(self.stage))
