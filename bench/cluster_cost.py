"""What `--workers` costs: CPU of a request and of an SSE event, at the workers and at the process that schedules.

    python bench/cluster_cost.py [--rounds 7] [--seconds 1] [--workers 2] [--instructions]

Processes on loopback, as in `gateway.py`: a backend that answers fixed bytes, load clients, and gateways between them with
classes and metrics on: as many of one process each as there are workers, which know nothing of each other, and one gateway of
several processes. Every round measures each scenario through the separate ones, all at once, and through the workers, one after
the other, beside a calibration loop; each round begins with the other. CPU is as the scheduler of the system counts it
(/proc/PID/schedstat, hence Linux only), and the medians over the rounds are printed. With two cores or more, the separate ones
share one with the workers, and the process that schedules is on the other one, with what sends the load.

    added      what a request or event costs more at the workers than at as many separate processes with as many connections.
               One process alone on its core would cost less than either: it shares no cache.
    scale      how many times the SSE events of one process on one core N workers serve on N cores, by CPU:
               N * separate / (workers + parent)

With `--instructions` both run under valgrind, and thousands of instructions outside of the kernel are printed in place of µs:
other programs on the machine change little about these. Nothing is batched then as it is at full speed, so they compare two
states of the code, and say nothing of one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import gateway
from callgrind import Callgrind
from gateway import SCENARIOS, Scenario, process, tree_of, wait_until_ready
from measuring import CALIBRATION_LOOPS, calibrate, cpu_of
from proxies import OtherProxy

BACKEND_PORT, PORT = 19_401, 19_402


@dataclass(frozen=True)
class Cost:
    """One scenario measured once: CPU seconds, or instructions, of the process that schedules alone, if there is one, and of
    those that serve; and what was served."""

    parent: float
    serving: float
    requests: int
    events: int


class Side:
    """Gateways that have load at the same time: separate ones, or one with workers."""

    def __init__(self, ports: Sequence[int], pids: Sequence[int], *, has_parent: bool) -> None:
        self._ports, self._pids, self._has_parent = ports, pids, has_parent

    def measure(self, scenario: Scenario, seconds: float) -> Cost:
        """Send load for so long."""
        tree = self._tree()
        before = [*map(cpu_of, tree)]
        windows = self._load(scenario, seconds)
        return self._cost([cpu_of(pid) - former for pid, former in zip(tree, before, strict=True)], windows)

    def count(self, scenario: Scenario, seconds: float, counter: Callgrind) -> Cost:
        """Send load as `measure` does, and count instructions; those that come without load are left out."""
        tree = self._tree()
        counter.begin(tree)
        windows = self._load(scenario, seconds)
        loaded = counter.end(tree)
        counter.begin(tree)
        time.sleep(windows[0].wall)
        return self._cost([some - idle for some, idle in zip(loaded, counter.end(tree), strict=True)], windows)

    def _tree(self) -> list[int]:
        return [pid for root in self._pids for pid in tree_of(root)]

    def _load(self, scenario: Scenario, seconds: float) -> list[gateway.Window]:
        """Have each port asked by a client of its own. One connection alone is at the first of them."""
        ports = self._ports if scenario.connections > 1 else self._ports[:1]
        with ThreadPoolExecutor(len(ports)) as clients:
            return [*clients.map(lambda port: gateway.measure(port, scenario, seconds, None), ports)]

    def _cost(self, used: Sequence[float], windows: Sequence[gateway.Window]) -> Cost:
        parent = used[0] if self._has_parent else 0.0
        requests, events = (sum(getattr(window, what) for window in windows) for what in ("requests", "events"))
        return Cost(parent, sum(used) - parent, requests, events)


def ours(port: int, workers: int) -> OtherProxy:
    """Return the gateway of so many processes."""
    one = gateway.ours(BACKEND_PORT, port, "")
    return OtherProxy(f"{workers} workers", (*one.command, "--workers", str(workers)), port)


def of_each(scenario: Scenario, workers: int) -> Scenario:
    """Return what each of as many clients as there are workers sends."""
    return replace(scenario, connections=scenario.connections // workers) if scenario.stream else scenario


def per(costs: list[Cost], what: str, unit: str) -> float:
    """Return the median per request or event."""
    return float(statistics.median(getattr(cost, what) / getattr(cost, unit) for cost in costs))


def report(scenario: Scenario, separate: list[Cost], several: list[Cost], workers: int, scale: float) -> None:
    unit = "events" if scenario.stream else "requests"
    asked = (separate, "serving"), (several, "parent"), (several, "serving")
    alone, parent, there = (per(costs, what, unit) * scale for costs, what in asked)
    line = f"{scenario.name:<26} {alone:8.1f} {there:9.1f} {parent:8.1f} {there - alone:8.1f}"
    print(line + (f" {workers * alone / (there + parent):8.2f}" if scenario.stream else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    mine, rest = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    if rest is not None:
        os.sched_setaffinity(0, {rest})
    scenarios = [scenario for scenario in SCENARIOS.values() if options.only in scenario.name]
    gateways = [*(ours(PORT + 1 + number, 1) for number in range(options.workers)), ours(PORT, options.workers)]
    counter = Callgrind() if options.instructions else None
    if counter is not None:
        gateways = [replace(each, command=counter.wrap(each.command)) for each in gateways]
    found: dict[str, tuple[list[Cost], list[Cost]]] = {scenario.name: ([], []) for scenario in scenarios}
    calibrations = []
    with contextlib.ExitStack() as stack:
        script = str(Path(__file__).with_name("gateway.py"))
        stack.enter_context(process([sys.executable, script, "--role", "backend", "--port", str(BACKEND_PORT)], rest))
        wait_until_ready(OtherProxy("the backend", (), BACKEND_PORT))
        pids = [stack.enter_context(process(each.command, mine)) for each in gateways]
        for each in gateways:
            wait_until_ready(each, 10 if counter else 1)
        if rest is not None:
            os.sched_setaffinity(tree_of(pids[-1])[0], {rest})
        ports = [each.port for each in gateways]
        sides = (
            Side(ports[:-1], pids[:-1], has_parent=False),
            Side(ports[-1:] * options.workers, pids[-1:], has_parent=True),
        )
        for number in range(options.rounds):
            for scenario in scenarios:
                calibrations.append(calibrate())
                for index in (0, 1) if number % 2 else (1, 0):
                    side, sent = sides[index], of_each(scenario, options.workers)
                    cost = side.count(sent, options.seconds, counter) if counter else side.measure(sent, options.seconds)
                    found[scenario.name][index].append(cost)
    low, middle = min(calibrations), statistics.median(calibrations)
    print(f"calibration: {middle / CALIBRATION_LOOPS * 1e9:.0f} ns a loop (least {low / CALIBRATION_LOOPS * 1e9:.0f})")
    what = "1000 instructions, medians" if counter else "µs of CPU, medians"
    print(f"{what:<26} {'separate':>8} {'workers':>9} {'parent':>8} {'added':>8} {'scale':>8}")
    for scenario in scenarios:
        report(scenario, *found[scenario.name], options.workers, 1e-3 if counter else 1e6)


if __name__ == "__main__":
    main()
