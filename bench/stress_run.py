"""The scene of `make stress`: how large everything is, how the gateway is configured, and what happens to it on the way."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import msgspec

import stage
from measuring import cpu_of
from stress_books import GatewayBooks
from stress_crowd import MODELS, STEPS, Seen

OVERLOAD = 2.0
"""Requests offered, over those that the slots can serve."""
SLOTS_PER_CLIENT = 0.4
"""So that slots and queues together never hold all clients, and the rate is kept."""
ENGINES = [model for model in MODELS for _ in range(2)]
PATIENCE_SECS = 60.0
"""For anything that the gateway is to notice."""
SAMPLE_SECS = 0.25


@dataclass(frozen=True)
class Scale:
    clients: int
    rate: float
    """Requests per second."""
    seconds: float

    @property
    def slots_per_engine(self) -> int:
        return max(4, int(self.clients * SLOTS_PER_CLIENT) // len(ENGINES))

    @property
    def slots(self) -> int:
        return self.slots_per_engine * len(ENGINES)

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
    gateway = {
        "health_interval_secs": 0.5,
        "health_timeout_secs": PATIENCE_SECS,  # a machine that is short of CPU is not what is tested here
        "upstream": {"connect_secs": PATIENCE_SECS},
        "trust_tenant_header": True,
    }
    return json.dumps({"admission": admission, "gateway": gateway}).encode()


class Sample(msgspec.Struct):
    """Of /maitred/state."""

    capacity: int
    in_flight: int
    waiting: int


class Run:
    """One run: what is done to the gateway meanwhile, and what it looked like."""

    def __init__(self, scale: Scale, engines: list[str], gateway: stage.Gateway, config: Path) -> None:
        self.scale, self.engines, self.gateway, self.config = scale, engines, gateway, config
        self.samples: list[Sample] = []
        self.reloaded = False
        self.cpu_secs = self.wall_secs = 0.0
        """Of the gateway, from the first client to the last."""

    def play(self) -> Seen:
        """Until the crowd has gone home."""
        scale = self.scale
        arguments = {"clients": scale.clients, "rate": scale.rate, "seconds": scale.seconds, "step-secs": scale.step_secs}
        told = [f"--{name}={value}" for name, value in arguments.items()]
        cpu, began = cpu_of(self.gateway.pid), time.monotonic()
        with stage.clients("stress_crowd.py", f"--url={self.gateway.url}", *told) as crowd:
            self._accompany(crowd)
            said, _ = crowd.communicate()
        self.cpu_secs, self.wall_secs = cpu_of(self.gateway.pid) - cpu, time.monotonic() - began
        return msgspec.json.decode(said, type=Seen)

    def _accompany(self, crowd: subprocess.Popen[bytes]) -> None:
        """Change things under it. What is changed is waited for, however slow the machine."""
        self._until(lambda: self._sample().in_flight or crowd.poll() is not None)  # it has connected
        began, slots = time.monotonic(), self.scale.slots_per_engine
        self._reach(began + self.scale.seconds / 3, crowd)
        self._resize(slots // 2)
        self._reach(began + self.scale.seconds / 2, crowd)
        self._reload()
        self._reach(began + self.scale.seconds * 2 / 3, crowd)
        self._resize(slots)
        self._reach(math.inf, crowd)

    def _reach(self, instant: float, crowd: subprocess.Popen[bytes]) -> None:
        """Look on until then, or until the crowd has gone."""
        while time.monotonic() < instant and crowd.poll() is None:
            self._sample()
            time.sleep(SAMPLE_SECS)

    def _resize(self, slots: int) -> None:
        for url in self.engines:
            stage.post(f"{url}/slots", b"%d" % slots)
        self._until(lambda: self._sample().capacity == slots * len(self.engines))

    def _reload(self) -> None:
        before = self.books().queue_size_limit
        self.config.write_bytes(settings(self.scale, bulk_queue=0.12, default_patience=1.2))
        self.gateway.process.send_signal(signal.SIGHUP)
        self.reloaded = self._until(lambda: self.books().queue_size_limit > before)

    def _until(self, true: Callable[[], object]) -> bool:
        """Whether it came true in time."""
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            if true():
                return True
            time.sleep(SAMPLE_SECS)
        return False

    def _sample(self) -> Sample:
        self.samples.append(msgspec.convert(stage.get(f"{self.gateway.url}/maitred/state"), Sample))
        return self.samples[-1]

    @property
    def capacities(self) -> list[int]:
        """As they followed each other."""
        seen = [sample.capacity for sample in self.samples]
        return [capacity for before, capacity in zip([0, *seen], seen, strict=False) if capacity != before]

    def books(self) -> GatewayBooks:
        return GatewayBooks.read(stage.get_text(f"{self.gateway.url}/metrics"))

    def engine_books(self) -> dict[str, int]:
        """Of all engines together."""
        pages = [stage.get(f"{url}/books") for url in self.engines]
        return {name: sum(page[name] for page in pages) for name in pages[0]}

    def settle(self) -> None:
        """Until nothing moves in any books any more; or until that takes too long."""

        def still() -> bool:
            books = self.books()
            return not (books.in_flight or books.waiting or self.engine_books()["running"])

        self._until(still)
