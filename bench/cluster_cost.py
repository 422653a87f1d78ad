"""What `--workers` costs: CPU of a request and of an SSE event, at the workers and at the process that schedules.

    python bench/cluster_cost.py [--rounds 7] [--seconds 1] [--workers 2] [--instructions]

Processes on loopback, as in `gateway.py`: a backend that answers fixed bytes, a load client, and two gateways between them with
classes and metrics on, one of one process and one of several. Every round measures each scenario through both, one after the
other, beside a calibration loop; each round begins with the other one. CPU is as the scheduler of the system counts it
(/proc/PID/schedstat, hence Linux only), and the medians over the rounds are printed. With two cores or more the gateways have
one for themselves.

    added      what a request or event costs more at the gateways, the workers, than at one process that has as many connections
               as each of them
    scale      how many times the SSE events of one process on one core N workers serve on N cores, by CPU:
               N * one / (workers + parent)

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
    """One scenario measured once: CPU seconds, or instructions, of the first process and of those that it has started, and what
    was served."""

    first: float
    others: float
    requests: int
    events: int


def measure(port: int, scenario: Scenario, seconds: float, pid: int) -> Cost:
    """Send load through a gateway for so long."""
    first, *others = tree_of(pid)
    before = cpu_of(first), sum(map(cpu_of, others))
    window = gateway.measure(port, scenario, seconds, None)
    return Cost(cpu_of(first) - before[0], sum(map(cpu_of, others)) - before[1], window.requests, window.events)


def count(port: int, scenario: Scenario, seconds: float, pid: int, counter: Callgrind) -> Cost:
    """Send load as `measure` does, and count instructions; those that come without load are left out."""
    tree = tree_of(pid)
    counter.begin(tree)
    window = gateway.measure(port, scenario, seconds, None)
    loaded = counter.end(tree)
    counter.begin(tree)
    time.sleep(window.wall)
    first, *others = (some - idle for some, idle in zip(loaded, counter.end(tree), strict=True))
    return Cost(first, sum(others), window.requests, window.events)


def ours(port: int, workers: int) -> OtherProxy:
    """Return the gateway of so many processes."""
    one = gateway.ours(BACKEND_PORT, port, "")
    return OtherProxy(f"{workers} workers", (*one.command, "--workers", str(workers)), port)


def shared(scenario: Scenario, workers: int, *, several: bool) -> Scenario:
    """Return what is sent to one process, or to several: each has as many connections. One alone is one at either."""
    connections = scenario.connections
    if scenario.stream:
        connections = connections if several else connections // workers
    elif connections > 1 and several:
        connections *= workers
    return replace(scenario, connections=connections)


def per(costs: list[Cost], what: str, unit: str) -> float:
    """Return the median per request or event."""
    return float(statistics.median(getattr(cost, what) / getattr(cost, unit) for cost in costs))


def report(scenario: Scenario, one: list[Cost], several: list[Cost], workers: int, scale: float) -> None:
    unit = "events" if scenario.stream else "requests"
    alone, parent, there = (
        per(costs, what, unit) * scale for costs, what in ((one, "first"), (several, "first"), (several, "others"))
    )
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
    gateways = [ours(PORT, 1), ours(PORT + 1, options.workers)]
    counter = Callgrind() if options.instructions else None
    if counter is not None:
        gateways = [replace(each, command=counter.wrap(each.command)) for each in gateways]
    sent = [{each.name: shared(each, options.workers, several=several) for each in scenarios} for several in (False, True)]
    found: dict[str, tuple[list[Cost], list[Cost]]] = {scenario.name: ([], []) for scenario in scenarios}
    calibrations = []
    with contextlib.ExitStack() as stack:
        script = str(Path(__file__).with_name("gateway.py"))
        stack.enter_context(process([sys.executable, script, "--role", "backend", "--port", str(BACKEND_PORT)], rest))
        wait_until_ready(OtherProxy("the backend", (), BACKEND_PORT))
        pids = [stack.enter_context(process(each.command, mine)) for each in gateways]
        for each in gateways:
            wait_until_ready(each, 10 if counter else 1)
        for number in range(options.rounds):
            for scenario in scenarios:
                calibrations.append(calibrate())
                for index in (0, 1) if number % 2 else (1, 0):
                    where = gateways[index].port, sent[index][scenario.name], options.seconds, pids[index]
                    found[scenario.name][index].append(count(*where, counter) if counter else measure(*where))
    low, middle = min(calibrations), statistics.median(calibrations)
    print(f"calibration: {middle / CALIBRATION_LOOPS * 1e9:.0f} ns a loop (least {low / CALIBRATION_LOOPS * 1e9:.0f})")
    what = "1000 instructions, medians" if counter else "µs of CPU, medians"
    print(f"{what:<26} {'one':>8} {'workers':>9} {'parent':>8} {'added':>8} {'scale':>8}")
    for scenario in scenarios:
        report(scenario, *found[scenario.name], options.workers, 1e-3 if counter else 1e6)


if __name__ == "__main__":
    main()
