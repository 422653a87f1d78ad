"""What classes do for an interactive request while bulk floods the system, and what bulk pays for it.

    python bench/class_effect.py [--rounds 3] [--json]

Eight slots, 60 ms of service, two slots reserved for `interactive`. 150 bulk requests come at once, and an interactive one
every 50 ms until the last of them is answered. Three times per round, one after the other: on an idle system (no bulk), through
the legacy path (eight in flight, one queue), and with classes. Two gateways, each with an engine of its own, live through the
whole run; the one with classes is also the idle system. Interactive times are those of all rounds together; makespans are
medians.

As long as two of eight slots are kept free of bulk, it takes 150/6 = 25 turns instead of 150/8, rounded up to 19: 32 % longer
at least, whoever serves it.
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

import stage
from http_client import Answer, Ask, connect, request
from measuring import calibrate
from mock_engine import whole

SLOTS, SERVICE_SECS, BULK, GAP_SECS = 8, 0.06, 150, 0.05
IDLE_SECS = 1.5
MODEL = "bench"
LEGACY = {"mode": "legacy", "legacy": {"max_concurrent_requests": SLOTS, "queue_size": 1000}}
PRIORITY = {
    "mode": "priority",
    "default_max_class": "interactive",
    "classes": {"interactive": {"reserved_floor": 2, "reserved_per_slot": 0.0}, "system": {"reserved_per_slot": 0.0}},
}


class Round(msgspec.Struct):
    """One flood, or none. Times are seconds."""

    interactive: list[float]
    makespan: float = 0.0
    """From the first bulk request sent to the last one answered."""
    bulk_preempted: int = 0
    refused: int = 0
    """Any other answer than a whole 200, of either class."""


class Effect(msgspec.Struct):
    """One of the three, over all rounds. Times are milliseconds."""

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
class System:
    """One gateway, with an engine behind it that does nothing else."""

    url: str

    async def ask(self, priority_class: str) -> Answer:
        """On a connection of its own."""
        connection = await connect(self.url)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        body = json.dumps({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}).encode()
        raw = request("/v1/chat/completions", body, x_smg_priority=priority_class)
        connection.ask(Ask(raw, len(whole(1))), answered.set_result)
        try:
            return await answered
        finally:
            connection.close()

    async def flooded(self) -> Round:
        flood = asyncio.create_task(self._flood())
        interactive = await self._every_gap(until=flood.done)
        bulk, makespan = await flood
        preempted = sum(answer.status == 503 for answer in bulk)
        refused = sum(answer.status != 200 for answer in (*bulk, *interactive)) - preempted
        return Round([answer.took for answer in interactive if answer.status == 200], makespan, preempted, refused)

    async def idle(self) -> Round:
        end = time.monotonic() + IDLE_SECS
        interactive = await self._every_gap(until=lambda: time.monotonic() > end)
        return Round([answer.took for answer in interactive], refused=sum(answer.status != 200 for answer in interactive))

    async def _flood(self) -> tuple[list[Answer], float]:
        began = time.monotonic()
        answers = await asyncio.gather(*(self.ask("bulk") for _ in range(BULK)))
        return answers, time.monotonic() - began

    async def _every_gap(self, until: Callable[[], bool]) -> list[Answer]:
        asked = []
        began = time.monotonic()
        while not until():
            asked.append(asyncio.create_task(self.ask("interactive")))
            await asyncio.sleep(began + len(asked) * GAP_SECS - time.monotonic())
        return await asyncio.gather(*asked)


@contextlib.contextmanager
def system(admission: Mapping[str, object]) -> Iterator[System]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "maitred.yaml"
        config.write_text(json.dumps({"admission": admission}))
        with (
            stage.engines(SERVICE_SECS, [(MODEL, SLOTS)]) as backends,
            stage.gateway(backends, "--config", str(config)) as gateway,
        ):
            gateway.wait_for_capacity(SLOTS)
            yield System(gateway.url)


async def measure(legacy: System, priority: System, rounds: int) -> dict[str, Effect]:
    for each in (legacy, priority):
        await asyncio.gather(*(each.ask("bulk") for _ in range(4 * SLOTS)))  # connections are there, code is warm
    seen: dict[str, list[Round]] = {"idle": [], "legacy": [], "priority": []}
    for _ in range(rounds):
        seen["idle"].append(await priority.idle())
        seen["legacy"].append(await legacy.flooded())
        seen["priority"].append(await priority.flooded())
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
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    speed = calibrate()
    with system(LEGACY) as legacy, system(PRIORITY) as priority:
        effects = uvloop.run(measure(legacy, priority, options.rounds))
    if options.json:
        print(msgspec.json.encode(effects).decode())
    else:
        report(effects, speed)
