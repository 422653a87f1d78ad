"""`python -m maitred.testing.world`: play scenarios by their seeds, and show, repeat and shrink what fails.

With `--cluster` the scenarios have gateways and schedulers of their own, and a store (`cluster`). With `--jobs` several
processes play, each one scenario at a time; what is printed is the same, in the order of the seeds.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import msgspec

from maitred.admission import Reason
from maitred.testing.world.chaos import FAULTS
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.shrinking import shrink
from maitred.testing.world.simulation import ScenarioOutcome, Simulation
from maitred.testing.world.stage import STATES
from maitred.testing.world.swarm import draw_scenario

_SEEDS_PER_ROUND: Final = 8
"""Seeds that each process is given at a time."""


def play(
    scenario: Scenario, trace: Callable[[str], object] | None = None, *, stops_at_violation: bool = False
) -> ScenarioOutcome:
    """Play a scenario, with a disk of its own, to its end or to the first violation. What it raises is a violation, too."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(scenario, Path(folder), trace, stops_at_violation=stops_at_violation)
        try:
            return simulation.run()
        except Exception as error:
            simulation.stage.ledger.violations.append(f"{type(error).__name__}: {error}")
            return simulation.outcome()


class ScenarioKind(msgspec.Struct, frozen=True):
    """A kind of scenarios."""

    draw: Callable[[int], Any]
    """Returns the scenario of a seed."""
    play: Callable[..., ScenarioOutcome]
    """Plays a scenario, with what is given a line for each read, or None."""
    faults: Collection[str]
    flag: str = ""


def _one_gateway() -> ScenarioKind:
    return ScenarioKind(draw_scenario, play, tuple(FAULTS))


def _many_gateways() -> ScenarioKind:
    from maitred.testing.world.cluster.faults import FAULTS as CLUSTER_FAULTS
    from maitred.testing.world.cluster.simulation import play_cluster
    from maitred.testing.world.cluster.swarm import draw_cluster

    return ScenarioKind(draw_cluster, play_cluster, tuple(CLUSTER_FAULTS), " --cluster")


class ScenarioTotals:
    """Sums over all scenarios."""

    def __init__(self, faults: Collection[str]) -> None:
        """`faults` are the kinds that there are."""
        self._faults = faults
        self.num_scenarios = self.num_events = self.num_failed = 0
        self.fates: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.pairs: Counter[str] = Counter()
        self._began_at = time.monotonic()

    def add(self, outcome: ScenarioOutcome) -> None:
        """Add a scenario."""
        self.num_scenarios += 1
        self.num_events += outcome.num_events
        self.num_failed += bool(outcome.violations)
        self.fates.update(outcome.fates)
        self.reasons.update(outcome.reasons)
        self.pairs.update(outcome.pairs)

    def print(self) -> None:
        """Print the sums."""
        secs = time.monotonic() - self._began_at
        rate = self.num_events / max(secs, 1e-9)
        events = f"{self.num_events:,} events, {rate:,.0f} per second"
        _say(f"{self.num_scenarios} scenarios, {self.num_failed} failed; {events}")
        _say("requests: " + _counted(self.fates))
        _say("reasons of admission: " + _counted(self.reasons))
        _say("faults by the state of a request: " + _counted(self.pairs))
        _say("never: " + ("; ".join(self._never()) or "-"))

    def _never(self) -> Iterator[str]:
        """Yield what was not reached."""
        if reasons := [reason for reason in Reason if not self.reasons[reason]]:
            yield "reasons " + ", ".join(reasons)
        for fault in sorted(self._faults):
            if states := [state for state in STATES if not self.pairs[f"{fault}/{state}"]]:
                yield f"{fault}/{', '.join(states)}"


def main() -> int:
    """Run the command, and return its exit code: 1 if a scenario has failed."""
    parser = argparse.ArgumentParser(prog="python -m maitred.testing.world", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument(
        "--seeds", type=int, help="how many seeds, one after the other (default: 1, or as many as --events need)"
    )
    parser.add_argument("--events", type=int, default=0, help="play further seeds until that many events have run")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes play")
    parser.add_argument("--cluster", action="store_true", help="play gateways and schedulers of their own")
    parser.add_argument("--trace", action="store_true", help="print each read, each fault and the log of the gateway")
    parser.add_argument("--shrink", action="store_true", help="make the scenario of each failure smaller, and print it")
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO if flags.trace else logging.CRITICAL, format="%(message)s", stream=sys.stdout)
    kind = _many_gateways() if flags.cluster else _one_gateway()
    totals, most = ScenarioTotals(kind.faults), flags.seeds or (None if flags.events else 1)
    seeds = count(flags.seed) if most is None else range(flags.seed, flags.seed + most)
    for outcome in _outcomes(kind, seeds, flags.jobs, _say if flags.trace else None):
        totals.add(outcome)
        if outcome.violations:
            _report(kind, outcome, shrinks=flags.shrink)
        if most is None and totals.num_events >= flags.events:
            break
    totals.print()
    return int(totals.num_failed > 0)


def _outcomes(
    kind: ScenarioKind, seeds: Iterable[int], jobs: int, trace: Callable[[str], object] | None
) -> Iterator[ScenarioOutcome]:
    """Yield what becomes of the scenarios of `seeds`, in their order."""
    if jobs <= 1:
        yield from map(partial(_play_seed, kind, trace=trace), seeds)
        return
    rounds = iter(seeds)
    with get_context("fork").Pool(jobs, _collect_rarely) as pool:
        while some := list(islice(rounds, _SEEDS_PER_ROUND * jobs)):
            yield from pool.imap(partial(_play_seed, kind), some)


def _play_seed(kind: ScenarioKind, seed: int, trace: Callable[[str], object] | None = None) -> ScenarioOutcome:
    return kind.play(kind.draw(seed), trace)


def _collect_rarely() -> None:
    """Collect garbage less often: a scenario leaves little before its end, and a fifth of the time went into looking."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)


def _report(kind: ScenarioKind, outcome: ScenarioOutcome, *, shrinks: bool) -> None:
    for violation in outcome.violations[:10]:
        _say(f"seed {outcome.seed}: {violation}")
    _say(f"    again: python -m maitred.testing.world{kind.flag} --seed {outcome.seed} --trace")
    if shrinks:
        _say(f"    smaller: {shrink(kind.draw(outcome.seed), lambda smaller: bool(kind.play(smaller).violations))}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    _collect_rarely()
    sys.exit(main())
