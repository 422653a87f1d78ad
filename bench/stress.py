"""Ten thousand clients at twice the capacity, against the real gateway; at the end every request is accounted for.

    python bench/stress.py [--clients 10000] [--seconds 60] [--rate 2000]

Three processes: the crowd (stress_crowd.py), `maitred serve --admission priority`, and four mock engines with two models
(mock_engine.py). All four classes ask, streamed and not, for many tenants, some of them limited; clients leave while they wait
and in the middle of a stream, and the gateway preempts. A third into the run the engines halve their slots, at half time the
gateway is given another configuration (SIGHUP), at two thirds the slots come back.

What clients saw must be what the gateway counted (stress_books.py), nothing may be in flight or waiting when all have gone, on
the engines neither, and no answer may be cut short or have a status that does not belong there. Prints one JSON summary; the
exit code is 1 if `problems` has anything in it.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import msgspec

import stage
from measuring import calibrate, cpu_of, peak_memory_of
from stress_books import GatewayBooks, Reconciled, contradictions, reconcile
from stress_crowd import MODELS, STEPS, Seen

OVERLOAD = 2.0
"""Requests offered, over those that the slots can serve."""
SLOTS_PER_CLIENT = 0.4
"""So that slots and queues together never hold all clients, and the rate is kept."""
SETTLE_SECS = 15.0
SAMPLE_SECS = 0.5
LAST_WORDS = 4_000
"""Characters of the gateway's log that are shown if something is wrong."""


@dataclass(frozen=True)
class Scale:
    clients: int
    rate: float
    """Requests per second."""
    seconds: float

    @property
    def slots_per_engine(self) -> int:
        return max(4, int(self.clients * SLOTS_PER_CLIENT) // (2 * len(MODELS)))

    @property
    def slots(self) -> int:
        return self.slots_per_engine * 2 * len(MODELS)

    @property
    def service_secs(self) -> float:
        """That an answer takes on average, if the slots are to serve the rate over OVERLOAD."""
        return OVERLOAD * self.slots / self.rate

    @property
    def step_secs(self) -> float:
        return self.service_secs / mean(STEPS)


def settings(scale: Scale, *, bulk_queue: float, default_patience: float) -> bytes:
    """The gateway's configuration. A share of the clients may wait, for about as long as an answer takes."""

    def of_class(queue: float, patience: float, starving: float) -> dict[str, float]:
        return {
            "queue_size": math.ceil(scale.clients * queue / len(MODELS)),
            "queue_timeout_secs": scale.service_secs * patience,
            "starvation_threshold_secs": scale.service_secs * starving,
        }

    classes = {
        "system": of_class(0.01, 1.0, 0.5),
        "interactive": of_class(0.05, 1.0, 0.5),
        "default": of_class(0.08, default_patience, 0.5),
        "bulk": of_class(bulk_queue, 0.8, 0.3),
    }
    policies = {
        "header:t0": {"max_class": "default"},
        "header:t1": {"max_in_flight": max(1, scale.slots // 100)},
        "header:t2": {"max_queued": max(1, scale.clients // 400)},
        "header:t3": {"weight": 4},
    }
    admission = {"mode": "priority", "classes": classes, "tenant_policies": policies, "default_max_class": "system"}
    gateway = {"health_interval_secs": 0.5, "trust_tenant_header": True}
    return json.dumps({"admission": admission, "gateway": gateway}).encode()


class Sample(msgspec.Struct):
    """Of /maitred/state."""

    capacity: int
    in_flight: int
    waiting: int


class Summary(msgspec.Struct):
    """What is printed."""

    clients: int
    seconds: float
    offered_per_s: float
    arrivals: int
    arrivals_per_s: float
    answered_whole_per_s: float
    capacity_in_slots: list[int]
    """As it changed."""
    most_in_flight: int
    most_waiting: int
    outcomes: dict[str, dict[str, int]]
    """By class, as the gateway counted them."""
    preemptions: int
    promotions: int
    clients_against_gateway: dict[str, Reconciled]
    first_byte_ms: dict[str, list[float]]
    """By class, of whole answers: p50, p99."""
    engines: dict[str, int]
    gateway_cpu_us_per_request: float
    gateway_cpu_share: float
    """Of one core, while requests were sent."""
    gateway_peak_mb: float
    calibration_ms: float
    problems: list[str]


class Run:
    """One run: what is done to the gateway meanwhile, and what it looked like."""

    def __init__(self, scale: Scale, engines: list[str], gateway: stage.Gateway, config: Path) -> None:
        self.scale, self.engines, self.gateway, self.config = scale, engines, gateway, config
        self.samples: list[Sample] = []

    def play(self) -> Seen:
        """Until the crowd has gone home."""
        scale = self.scale
        arguments = {"clients": scale.clients, "rate": scale.rate, "seconds": scale.seconds, "step-secs": scale.step_secs}
        told = [f"--{name}={value}" for name, value in arguments.items()]
        with stage.clients("stress_crowd.py", f"--url={self.gateway.url}", *told) as crowd:
            self._accompany(crowd)
            said, _ = crowd.communicate()
        return msgspec.json.decode(said, type=Seen)

    def _accompany(self, crowd: subprocess.Popen[bytes]) -> None:
        """Change things under it, and look."""
        while crowd.poll() is None and not self._sample().in_flight:  # it is still connecting
            time.sleep(0.05)
        began, script = time.monotonic(), self._script()
        due, act = next(script)
        while crowd.poll() is None:
            if time.monotonic() - began >= due:
                act()
                due, act = next(script)
            self._sample()
            time.sleep(SAMPLE_SECS)

    def _script(self) -> Iterator[tuple[float, object]]:
        seconds, slots = self.scale.seconds, self.scale.slots_per_engine
        yield seconds / 3, lambda: self._resize(slots // 2)
        yield seconds / 2, self._reload
        yield seconds * 2 / 3, lambda: self._resize(slots)
        yield math.inf, None

    def _resize(self, slots: int) -> None:
        for url in self.engines:
            stage.post(f"{url}/slots", b"%d" % slots)

    def _reload(self) -> None:
        self.config.write_bytes(settings(self.scale, bulk_queue=0.12, default_patience=1.2))
        self.gateway.process.send_signal(signal.SIGHUP)

    def _sample(self) -> Sample:
        self.samples.append(msgspec.convert(stage.get(f"{self.gateway.url}/maitred/state"), Sample))
        return self.samples[-1]

    def capacities(self) -> list[int]:
        """As they followed each other."""
        seen = [sample.capacity for sample in self.samples]
        return [capacity for before, capacity in zip([0, *seen], seen, strict=False) if capacity != before]

    def settled(self) -> tuple[GatewayBooks, dict[str, int]]:
        """The gateway's books and the engines', as soon as nothing moves in them any more, or when that takes too long."""
        deadline = time.monotonic() + SETTLE_SECS
        while True:
            books = GatewayBooks.read(stage.get_text(f"{self.gateway.url}/metrics"))
            pages = [stage.get(f"{url}/books") for url in self.engines]
            engines = {name: sum(page[name] for page in pages) for name in pages[0]}
            if not (books.in_flight or books.waiting or engines["running"]) or time.monotonic() > deadline:
                return books, engines
            time.sleep(0.1)


def problems(run: Run, seen: Seen, books: GatewayBooks, engines: dict[str, int], limit_before: int) -> Iterator[str]:
    """Everything that should not have been."""
    yield from contradictions(seen.classes, books)
    yield from (f"{number} clients saw: {what}" for what, number in seen.strange.items())
    if engines["running"]:
        yield f"engines still work on {engines['running']} requests that nobody waits for"
    if run.gateway.process.poll() is not None:
        yield "the gateway has ended"
    tracebacks = run.gateway.said.count("Traceback")
    if tracebacks:
        yield f"{tracebacks} tracebacks in the gateway's log"
    yield from unshown(run, seen, books, limit_before)


def unshown(run: Run, seen: Seen, books: GatewayBooks, limit_before: int) -> Iterator[str]:
    """What a run has to contain to show anything."""
    full, half, went = run.scale.slots, run.scale.slots_per_engine // 2 * len(run.engines), run.capacities()
    if min(went) != half or went[0] != full or went[-1] != full:
        yield f"the capacity was to go {full} → {half} → {full} slots, and went {went}"
    if books.queue_size_limit == limit_before:
        yield "the configuration was not reloaded"
    if not books.preemptions:
        yield "nobody was preempted"
    for name in ("whole", "preempted", "queue_full", "queue_timeout", "left"):
        if not any(getattr(of_class, name) for of_class in seen.classes.values()):
            yield f"no client's request ended as: {name}"
    if seen.nobody_idle:
        yield f"{seen.nobody_idle} requests were not sent: all clients were waiting"


def stress(scale: Scale) -> Summary:
    calibration = calibrate()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "maitred.yaml"
        config.write_bytes(settings(scale, bulk_queue=0.08, default_patience=1.0))
        named = [(model, scale.slots_per_engine) for model in MODELS for _ in range(2)]
        with (
            stage.engines(scale.step_secs, named) as engines,
            stage.gateway(engines, "--config", str(config)) as gateway,
        ):
            gateway.wait_for_capacity(scale.slots)
            run = Run(scale, engines, gateway, config)
            limit_before = GatewayBooks.read(stage.get_text(f"{gateway.url}/metrics")).queue_size_limit
            cpu = cpu_of(gateway.pid)
            seen = run.play()
            books, totals = run.settled()
            cpu = cpu_of(gateway.pid) - cpu
            sent = sum(of_class.sent for of_class in seen.classes.values())
            found = list(problems(run, seen, books, totals, limit_before))
            if found:
                print(gateway.said[-LAST_WORDS:], file=sys.stderr)
            return Summary(
                clients=seen.clients,
                seconds=round(seen.seconds, 1),
                offered_per_s=round(sent / seen.seconds),
                arrivals=books.arrivals,
                arrivals_per_s=round(books.arrivals / seen.seconds),
                answered_whole_per_s=round(sum(of_class.whole for of_class in seen.classes.values()) / seen.seconds),
                capacity_in_slots=run.capacities(),
                most_in_flight=max(sample.in_flight for sample in run.samples),
                most_waiting=max(sample.waiting for sample in run.samples),
                outcomes=books.outcomes,
                preemptions=books.preemptions,
                promotions=books.promotions,
                clients_against_gateway={
                    name: reconcile(of_class, books.outcomes.get(name, {}))[0] for name, of_class in seen.classes.items()
                },
                first_byte_ms=seen.first_byte_ms,
                engines=totals,
                gateway_cpu_us_per_request=round(cpu / max(1, books.arrivals) * 1e6, 1),
                gateway_cpu_share=round(cpu / seen.seconds, 2),
                gateway_peak_mb=round(peak_memory_of(gateway.pid) / 1e6, 1),
                calibration_ms=round(calibration * 1e3, 1),
                problems=found,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=2000.0, help="requests per second, twice what the slots can serve")
    options = parser.parse_args()
    have, need = stage.use_every_descriptor(), int(options.clients * (1 + SLOTS_PER_CLIENT) * 1.1) + 100
    if have < need:
        sys.exit(f"{options.clients} clients need {need} open files, and {have} are allowed (ulimit -Hn)")
    summary = stress(Scale(options.clients, options.rate, options.seconds))
    print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    sys.exit(1 if summary.problems else 0)
