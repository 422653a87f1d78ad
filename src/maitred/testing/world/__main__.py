"""`python -m maitred.testing.world`: play scenarios by their seeds, and show, repeat and shrink what fails."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from maitred.admission import Reason
from maitred.testing.world.chaos import FAULTS
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.shrinking import shrink
from maitred.testing.world.simulation import Outcome, Simulation
from maitred.testing.world.stage import STATES
from maitred.testing.world.swarm import draw_scenario


def play(scenario: Scenario, trace: Callable[[str], object] | None = None, *, stops_at_violation: bool = False) -> Outcome:
    """Play a scenario, with a disk of its own, to its end or to the first violation. What it raises is a violation, too."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(scenario, Path(folder), trace, stops_at_violation=stops_at_violation)
        try:
            return simulation.run()
        except Exception as error:
            simulation.stage.ledger.violations.append(f"{type(error).__name__}: {error}")
            return simulation.outcome()


class Totals:
    """Sums over all scenarios."""

    def __init__(self) -> None:
        self.num_events = self.num_failed = 0
        self.fates: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.pairs: Counter[str] = Counter()
        self._began_at = time.process_time()

    def add(self, outcome: Outcome) -> None:
        """Add a scenario."""
        self.num_events += outcome.num_events
        self.num_failed += bool(outcome.violations)
        self.fates.update(outcome.fates)
        self.reasons.update(outcome.reasons)
        self.pairs.update(outcome.pairs)

    def print(self, num_scenarios: int) -> None:
        """Print the sums."""
        secs = time.process_time() - self._began_at
        rate = self.num_events / max(secs, 1e-9)
        _say(f"{num_scenarios} scenarios, {self.num_failed} failed; {self.num_events:,} events, {rate:,.0f} per second of CPU")
        _say("requests: " + _counted(self.fates))
        _say("reasons of admission: " + _counted(self.reasons))
        _say("faults by the state of a request: " + _counted(self.pairs))
        _say("never: " + ("; ".join(self._never()) or "-"))

    def _never(self) -> Iterator[str]:
        """Yield what was not reached."""
        if reasons := [reason for reason in Reason if not self.reasons[reason]]:
            yield "reasons " + ", ".join(reasons)
        for fault in sorted(FAULTS):
            if states := [state for state in STATES if not self.pairs[f"{fault}/{state}"]]:
                yield f"{fault}/{', '.join(states)}"


def main() -> int:
    """Run the command, and return its exit code: 1 if a scenario has failed."""
    parser = argparse.ArgumentParser(prog="python -m maitred.testing.world", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--trace", action="store_true", help="print each read, each fault and the log of the gateway")
    parser.add_argument("--shrink", action="store_true", help="make the scenario of each failure smaller, and print it")
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO if flags.trace else logging.CRITICAL, format="%(message)s", stream=sys.stdout)
    totals = Totals()
    for seed in range(flags.seed, flags.seed + flags.seeds):
        scenario = draw_scenario(seed)
        outcome = play(scenario, _say if flags.trace else None)
        totals.add(outcome)
        if outcome.violations:
            _report(scenario, outcome, shrinks=flags.shrink)
    totals.print(flags.seeds)
    return int(totals.num_failed > 0)


def _report(scenario: Scenario, outcome: Outcome, *, shrinks: bool) -> None:
    for violation in outcome.violations[:10]:
        _say(f"seed {scenario.seed}: {violation}")
    _say(f"    again: python -m maitred.testing.world --seed {scenario.seed} --trace")
    if shrinks:
        _say(f"    smaller: {shrink(scenario, lambda smaller: bool(play(smaller).violations))}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
