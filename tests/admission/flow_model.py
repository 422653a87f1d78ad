"""A naive model of flow control: one list of waiting requests, searched anew for every decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

from maitred.core.slo_classes import SLO_PRIORITIES

BANDS = sorted(SLO_PRIORITIES.values(), reverse=True)


@dataclass(eq=False)
class Waiter:
    name: int
    priority: int
    tenant: str
    target: float
    came: int
    """µs"""


@dataclass
class FlowModel:
    """`limits` has all keys of `flow_control`."""

    limits: dict[str, Any]
    instances: int
    waiting: list[Waiter] = field(default_factory=list)
    """In the order of arrival."""
    in_flight: set[int] = field(default_factory=set)
    queued: int = 0
    """Requests in the wait queue of each instance."""
    turns: dict[int, str] = field(default_factory=dict)
    """By band, the tenant that was served last."""
    tick: int | None = None

    def submit(self, waiter: Waiter, now: int) -> list[str]:
        said = self.make_room(waiter)
        if said and said[-1].startswith(f"{waiter.name} "):
            return said
        self.waiting.append(waiter)
        if self.ticks and (self.tick is None or self.tick < now):
            self.tick = now + self.limits["dispatch_tick_interval_us"]
        admitted = self.let_in()
        own = [line for line in admitted if line.startswith(f"{waiter.name} ")] or [f"{waiter.name} queue saturated"]
        return said + [line for line in admitted if line not in own] + own

    def release(self, name: int) -> list[str]:
        gone = [w for w in self.waiting if w.name == name]
        if gone:
            self.waiting.remove(gone[0])
            return [f"{name} cancel client_gone"]
        self.in_flight.discard(name)
        return self.let_in() if self.limits["dispatch"] == "all" else []

    def advance(self, now: int) -> list[str]:
        """Do everything that is due by `now`, one instant after another."""
        said = []
        while (due := self.due()) is not None and due <= now:
            ttl = self.limits["request_ttl_us"]
            for waiter in [w for w in self.waiting if ttl and w.came + ttl <= due]:
                self.waiting.remove(waiter)
                said.append(f"{waiter.name} reject queue_timeout")
            if self.tick is not None and self.tick <= due:
                said += self.let_in() if self.waiting else []
                self.tick = due + self.limits["dispatch_tick_interval_us"] if self.waiting else None
        return said

    def due(self) -> int | None:
        ttl = self.limits["request_ttl_us"]
        times = [w.came + ttl for w in self.waiting if ttl] + [self.tick for _ in self.waiting[:1] if self.tick is not None]
        return min(times, default=None)

    @property
    def ticks(self) -> bool:
        return bool(self.limits["dispatch"] == "one" or self.limits["saturation_detector"] == "utilization")

    def make_room(self, waiter: Waiter) -> list[str]:
        of_band = [w for w in self.waiting if w.priority == waiter.priority]
        if 0 < self.limits["per_band_capacity"] <= len(of_band):
            return [f"{waiter.name} reject band_full"]
        if not 0 < self.limits["max_gateway_queue_depth"] <= len(self.waiting):
            return []
        below = [w for w in self.waiting if w.priority < 0 and w.priority < waiter.priority]
        if not self.limits["queue_shedding"] or not below:
            return [f"{waiter.name} reject queue_full"]
        lowest = [w for w in below if w.priority == min(w.priority for w in below)]
        self.waiting.remove(lowest[-1])
        return [f"{lowest[-1].name} reject displaced {waiter.name}"]

    def let_in(self) -> list[str]:
        said: list[str] = []
        while (waiter := self.next(len(said))) is not None:
            self.waiting.remove(waiter)
            self.in_flight.add(waiter.name)
            self.turns[waiter.priority] = waiter.tenant
            said.append(f"{waiter.name} admit slot_free")
            if self.limits["dispatch"] == "one":
                break
        return said

    def next(self, entered: int) -> Waiter | None:
        """Return the next request after `entered` others at this instant, which the queues of the instances do not show yet."""
        candidates = []
        for i, priority in enumerate(BANDS):
            ceiling = 1 - i * (1 - self.limits["usage_limit_threshold"]) / (len(BANDS) - 1)
            first = self.first_of(priority)
            if self.saturation(entered) < ceiling and first is not None:
                candidates.append(first)
        order = self.limits["dispatch_order"]
        if order == "fifo":
            return min(candidates, key=self.waiting.index, default=None)
        if order == "slo-deadline":
            return min(candidates, key=lambda w: (w.came + w.target, self.waiting.index(w)), default=None)
        return candidates[0] if candidates else None

    def first_of(self, priority: int) -> Waiter | None:
        band = [w for w in self.waiting if w.priority == priority]
        if not band:
            return None
        if self.limits["fairness_policy"] == "round-robin":
            tenants = sorted({w.tenant for w in band})
            last = self.turns.get(priority)
            tenant = next((name for name in tenants if last is not None and name > last), tenants[0])
            band = [w for w in band if w.tenant == tenant]
        if self.limits["dispatch_order"] == "slo-deadline":
            return min(band, key=lambda w: (w.came + w.target, self.waiting.index(w)))
        return band[0]

    def saturation(self, entered: int) -> float:
        match self.limits["saturation_detector"]:
            case "concurrency":
                return len(self.in_flight) / float(self.instances * self.limits["max_concurrency"])
            case "utilization":
                return (self.queued + entered / self.instances) / float(self.limits["queue_depth_threshold"])
        return 0.0


NOBODY_SAYS = inf
