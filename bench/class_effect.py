"""What classes do for interactive requests during a flood of bulk requests, and what the flood pays for it.

    python bench/class_effect.py [--rounds 3] [--bulk 150] [--idle-secs 1.5] [--json]

There are eight slots, a service time of 60 ms, and two slots reserved for `interactive`. 150 bulk requests arrive at once, and
an interactive one every 50 ms until the last bulk request is answered. Each round measures three cases, one after the other: an
idle system (no bulk), the legacy path (eight in flight, one queue), and classes. Two gateways, each with an engine of its own,
serve the whole run; the one with classes is also the idle system. Interactive times are those of all rounds together; makespans
are medians.

While two of eight slots are kept free of bulk requests, these take 150/6 = 25 service times instead of 150/8, rounded up to 19:
at least 32 % longer, in any system.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import uvloop

import processes
from http_client import ClientRequest, ClientResponse, connect, encode_request
from measuring import calibrate
from mock_engine import whole

SLOTS, SERVICE_SECS, GAP_SECS = 8, 0.06, 0.05
MODEL = "bench"
LEGACY = {"mode": "legacy", "legacy": {"max_concurrent_requests": SLOTS, "queue_size": 1000}}
PRIORITY = {
    "mode": "priority",
    "on_preempt": "reject",
    "default_max_class": "interactive",
    "classes": {"interactive": {"reserved_floor": 2, "reserved_per_slot": 0.0}, "system": {"reserved_per_slot": 0.0}},
}


class Round(msgspec.Struct):
    """What was seen during one flood, or without one. Times are in seconds."""

    interactive: list[float]
    makespan: float = 0.0
    """Time from the first bulk request sent to the last one answered."""
    bulk_preempted: int = 0
    refused: int = 0
    """Responses of either class that are no whole 200."""


class Effect(msgspec.Struct):
    """One of the three cases, over all rounds. Times are in milliseconds."""

    interactive_p50: float
    interactive_p99: float
    interactive_max: float
    interactive_requests: int
    bulk_makespan: float
    bulk_preempted: int
    refused: int

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Effect:
        times = sorted(1e3 * took for each in rounds for took in each.interactive)
        return cls(
            interactive_p50=round(median(times), 1),
            interactive_p99=round(times[int(len(times) * 0.99)], 1),
            interactive_max=round(times[-1], 1),
            interactive_requests=len(times),
            bulk_makespan=round(1e3 * median(each.makespan for each in rounds)),
            bulk_preempted=sum(each.bulk_preempted for each in rounds),
            refused=sum(each.refused for each in rounds),
        )


@dataclass(frozen=True)
class GatewaySystem:
    """One gateway with an engine of its own."""

    url: str
    bulk: int
    """Bulk requests of one flood."""

    async def send(self, priority_class: str) -> ClientResponse:
        """Send a request on a connection of its own, and return its response."""
        connection = await connect(self.url)
        answered: asyncio.Future[ClientResponse] = asyncio.get_running_loop().create_future()
        body = json.dumps({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}).encode()
        raw = encode_request("/v1/chat/completions", body, x_smg_priority=priority_class)
        connection.send_request(ClientRequest(raw, len(whole(1))), answered.set_result)
        try:
            return await answered
        finally:
            connection.close()

    async def measure_flood(self) -> Round:
        flood = asyncio.create_task(self._flood())
        interactive = await self._send_every_gap(until=flood.done)
        bulk, makespan = await flood
        preempted = sum(answer.status == 503 for answer in bulk)
        refused = sum(answer.status != 200 for answer in (*bulk, *interactive)) - preempted
        return Round([answer.took for answer in interactive if answer.status == 200], makespan, preempted, refused)

    async def measure_idle(self, secs: float) -> Round:
        end = time.monotonic() + secs
        interactive = await self._send_every_gap(until=lambda: time.monotonic() > end)
        return Round([answer.took for answer in interactive], refused=sum(answer.status != 200 for answer in interactive))

    async def _flood(self) -> tuple[list[ClientResponse], float]:
        began = time.monotonic()
        answers = await asyncio.gather(*(self.send("bulk") for _ in range(self.bulk)))
        return answers, time.monotonic() - began

    async def _send_every_gap(self, until: Callable[[], bool]) -> list[ClientResponse]:
        sent = []
        began = time.monotonic()
        while not until():
            sent.append(asyncio.create_task(self.send("interactive")))
            await asyncio.sleep(began + len(sent) * GAP_SECS - time.monotonic())
        return await asyncio.gather(*sent)


@contextlib.contextmanager
def system(admission: Mapping[str, object], bulk: int) -> Iterator[GatewaySystem]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "maitred.yaml"
        config.write_text(json.dumps({"admission": admission}))
        with (
            processes.run_mock_engines(SERVICE_SECS, [(MODEL, SLOTS)]) as backends,
            processes.run_gateway(backends, "--config", str(config)) as gateway,
        ):
            gateway.wait_for_capacity(SLOTS)
            yield GatewaySystem(gateway.url, bulk)


async def measure(legacy: GatewaySystem, priority: GatewaySystem, rounds: int, idle_secs: float) -> dict[str, Effect]:
    for each in (legacy, priority):
        await asyncio.gather(*(each.send("bulk") for _ in range(4 * SLOTS)))  # connections are there, code is warm
    seen: dict[str, list[Round]] = {"idle": [], "legacy": [], "priority": []}
    for _ in range(rounds):
        seen["idle"].append(await priority.measure_idle(idle_secs))
        seen["legacy"].append(await legacy.measure_flood())
        seen["priority"].append(await priority.measure_flood())
    return {name: Effect.of(of_system) for name, of_system in seen.items()}


COLUMNS = ("interactive_p50", "interactive_p99", "interactive_max", "bulk_makespan", "bulk_preempted", "refused")


def report(effects: dict[str, Effect], loop: float) -> None:
    print(f"calibration loop: {loop * 1e3:.1f} ms CPU; all times in ms")
    print(f"{'':<10}" + "".join(f"{name.replace('_', ' '):>17}" for name in COLUMNS))
    for name, effect in effects.items():
        print(f"{name:<10}" + "".join(f"{getattr(effect, column):>17}" for column in COLUMNS))
    idle, legacy, priority = effects.values()
    slower = priority.interactive_p50 / idle.interactive_p50
    longer = priority.bulk_makespan / legacy.bulk_makespan - 1
    print(f"interactive p50 with classes: {slower:.2f} times the idle system's (aim 1.15)")
    print(f"bulk makespan with classes: {longer:+.0%} against the legacy path (aim: at most +28 %)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bulk", type=int, default=150, help="bulk requests of one flood")
    parser.add_argument("--idle-secs", type=float, default=1.5, help="duration of the idle case in each round")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    speed = calibrate()
    with system(LEGACY, options.bulk) as legacy, system(PRIORITY, options.bulk) as priority:
        effects = uvloop.run(measure(legacy, priority, options.rounds, options.idle_secs))
    if options.json:
        print(msgspec.json.encode(effects).decode())
    else:
        report(effects, speed)
