"""The run of `make stress`: its scale, the configuration of the gateway, and what changes during the run."""

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

import processes
from measuring import cpu_of
from stress_accounts import GatewayAccount
from stress_crowd import MODELS, STEPS, CrowdSeen

OVERLOAD = 2.0
"""Requests offered, divided by those that the slots can serve."""
SLOTS_PER_CLIENT = 0.4
"""Slots and queues together must never hold all clients, so that the rate is kept."""
ENGINES = [model for model in MODELS for _ in range(2)]
PATIENCE_SECS = 60.0
"""Seconds to wait for the gateway to notice a change."""
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
        """Average duration of a response at which the slots serve `rate / OVERLOAD`."""
        return OVERLOAD * self.slots / self.rate

    @property
    def step_secs(self) -> float:
        return self.service_secs / mean(STEPS)


def settings(scale: Scale, *, bulk_queue: float, default_patience: float) -> bytes:
    """Return the configuration of the gateway: a share of the clients may wait, for about as long as a response takes."""

    def class_rules(queue: float, patience: float, starving: float) -> dict[str, float]:
        return {
            "queue_size": math.ceil(scale.clients * queue / len(MODELS)),
            "queue_timeout_secs": scale.service_secs * patience,
            "starvation_threshold_secs": scale.service_secs * starving,
        }

    classes = {
        "system": class_rules(0.01, 1.0, 0.5),
        "interactive": class_rules(0.05, 1.0, 0.5),
        "default": class_rules(0.08, default_patience, 0.5),
        "bulk": class_rules(bulk_queue, 0.8, 0.3),
    }
    policies = {
        "header:t0": {"max_class": "default"},
        "header:t1": {"max_in_flight": max(1, scale.slots // 100)},
        "header:t2": {"max_queued": max(1, scale.clients // 400)},
        "header:t3": {"weight": 4},
    }
    admission = {
        "mode": "priority",
        "on_preempt": "reject",
        "classes": classes,
        "tenant_policies": policies,
        "default_max_class": "system",
    }
    gateway = {
        "health_interval_secs": 0.5,
        "health_timeout_secs": PATIENCE_SECS,  # a slow machine must not look like a backend that is down
        "upstream": {"connect_secs": PATIENCE_SECS},
        "trust_tenant_header": True,
    }
    return json.dumps({"admission": admission, "gateway": gateway}).encode()


class Sample(msgspec.Struct):
    """A part of /maitred/state."""

    capacity: int
    in_flight: int
    waiting: int


class Run:
    """One run: changes the gateway while the clients send requests, and samples its state."""

    def __init__(self, scale: Scale, engines: list[str], gateway: processes.GatewayProcess, config: Path) -> None:
        self.scale, self.engines, self.gateway, self.config = scale, engines, gateway, config
        self.samples: list[Sample] = []
        self.reloaded = False
        self.cpu_secs = self.wall_secs = 0.0
        """Time of the gateway from the first client to the last."""

    def play(self) -> CrowdSeen:
        """Run the clients to their end, and return what they saw."""
        scale = self.scale
        arguments = {"clients": scale.clients, "rate": scale.rate, "seconds": scale.seconds, "step-secs": scale.step_secs}
        flags = [f"--{name}={value}" for name, value in arguments.items()]
        cpu, began = cpu_of(self.gateway.pid), time.monotonic()
        with processes.run_clients("stress_crowd.py", f"--url={self.gateway.url}", *flags) as crowd:
            self._change_during_run(crowd)
            output, _ = crowd.communicate()
        self.cpu_secs, self.wall_secs = cpu_of(self.gateway.pid) - cpu, time.monotonic() - began
        return msgspec.json.decode(output, type=CrowdSeen)

    def _change_during_run(self, crowd: subprocess.Popen[bytes]) -> None:
        """Change engines and configuration while the clients run, and wait for each change to take effect."""
        self._wait_until(lambda: self._sample().in_flight or crowd.poll() is not None)  # all clients have connected
        began, slots = time.monotonic(), self.scale.slots_per_engine
        self._sample_until(began + self.scale.seconds / 3, crowd)
        self._resize(slots // 2)
        self._sample_until(began + self.scale.seconds / 2, crowd)
        self._reload()
        self._sample_until(began + self.scale.seconds * 2 / 3, crowd)
        self._resize(slots)
        self._sample_until(math.inf, crowd)

    def _sample_until(self, instant: float, crowd: subprocess.Popen[bytes]) -> None:
        """Sample the state until `instant`, or until the clients have ended."""
        while time.monotonic() < instant and crowd.poll() is None:
            self._sample()
            time.sleep(SAMPLE_SECS)

    def _resize(self, slots: int) -> None:
        for url in self.engines:
            processes.post(f"{url}/slots", b"%d" % slots)
        self._wait_until(lambda: self._sample().capacity == slots * len(self.engines))

    def _reload(self) -> None:
        before = self.account().queue_size_limit
        self.config.write_bytes(settings(self.scale, bulk_queue=0.12, default_patience=1.2))
        self.gateway.process.send_signal(signal.SIGHUP)
        self.reloaded = self._wait_until(lambda: self.account().queue_size_limit > before)

    def _wait_until(self, true: Callable[[], object]) -> bool:
        """Wait for a condition; return whether it came true in time."""
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            if true():
                return True
            time.sleep(SAMPLE_SECS)
        return False

    def _sample(self) -> Sample:
        self.samples.append(msgspec.convert(processes.fetch_json(f"{self.gateway.url}/maitred/state"), Sample))
        return self.samples[-1]

    @property
    def capacities(self) -> list[int]:
        """The capacities of the gateway, in their order."""
        seen = [sample.capacity for sample in self.samples]
        return [capacity for before, capacity in zip([0, *seen], seen, strict=False) if capacity != before]

    def account(self) -> GatewayAccount:
        return GatewayAccount.parse(processes.fetch_text(f"{self.gateway.url}/metrics"))

    def engine_accounts(self) -> dict[str, int]:
        """Return the sums of the counts of all engines."""
        pages = [processes.fetch_json(f"{url}/counts") for url in self.engines]
        return {name: sum(page[name] for page in pages) for name in pages[0]}

    def settle(self) -> None:
        """Wait until no request is left in the gateway or the engines, or until that takes too long."""

        def still() -> bool:
            account = self.account()
            return not (account.in_flight or account.waiting or self.engine_accounts()["running"])

        self._wait_until(still)
