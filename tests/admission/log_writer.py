"""Random inputs of every kind for a core that writes a log: what `test_written_logs` replays.

    python tests/admission/log_writer.py NUM_WORLDS NUM_INPUTS > tests/vectors/admission_log.jsonl.gz

A world is one core with its models, its configuration, and the requests that are there, all drawn by a seed. The kinds of
worlds take turns, so that a few of them have reservations, adaptive ones, limits and weights of tenants, flow control, and no
classes.
"""

from __future__ import annotations

import gzip
import sys
from random import Random
from typing import Any

import msgspec

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket, TicketState
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, SECOND, Micros

KINDS = ("classes", "adaptive", "tenants", "flow-control", "legacy")
TENANTS = ("", "auth:a", "auth:b", "auth:c")
MOST_REQUESTS = 40
SHARES = {
    "submit": 45,
    "release": 35,
    "first_byte": 4,
    "decline": 3,
    "strand": 5,
    "leave": 4,
    "resize": 3,
    "reconfigure": 1,
    "forget": 1,
}
VERBS = [verb for verb, share in SHARES.items() for _ in range(share)]
LONG_SPANS = (0, 0, 1, 500, 3_000, 20_000, 60_000, 150_000, 400_000)
SHORT_SPANS = (0, 0, 0, 1, 200, MILLISECOND, 5_000, 20_000)
ENDS = (ReleaseReason.DRAINED, ReleaseReason.CLIENT_GONE, ReleaseReason.FAILED)


def draw_config(draw: Random, kind: str) -> AdmissionConfig:
    """Return a configuration of a kind."""
    slow = kind == "adaptive"
    entries = {
        c.label: {
            "reserved_floor": draw.choice((0, 0, 1, 2)),
            "reserved_per_slot": draw.choice((0.0, 0.25, 0.5)),
            "queue_size": draw.choice((1, 4, 20)),
            "queue_timeout_secs": draw.choice((0.5, 2.0, 20.0) if slow else (0.02, 0.2, 1.0)),
            "starvation_threshold_secs": draw.choice((0.001, 0.05, 0.5, 600)),
            "can_preempt": c > PriorityClass.BULK and draw.random() < 0.8,
        }
        for c in PriorityClass
    }
    policies = ({"max_in_flight": draw.randint(1, 3), "max_queued": 4}, {"weight": 2.0}, {"weight": 3.0, "max_in_flight": 2})
    said: dict[str, Any] = {
        "mode": kind if kind in ("flow-control", "legacy") else "priority",
        "classes": entries,
        "promotion_share": draw.choice((None, 0.0, 0.5)),
        "promotion_burst": draw.randint(0, 2),
        "preemption_budget_ms": draw.choice((0, 2, 50)),
        "on_preempt": draw.choice(("reject", "retry")),
        "reserve": "adaptive" if slow else draw.choice(("fixed", "adaptive")),
        "slot_cost": draw.choice(("requests", "requests", "tokens")),
        "slot_tokens": 10,
        "legacy": {
            "max_concurrent_requests": draw.choice((-1, 1, 3)),
            "queue_size": 3,
            "queue_timeout_secs": draw.choice((0.002, 1.0)),
            "rate_limit_tokens_per_second": draw.choice((0.0, 100.0)),
        },
        "tenant_policies": {name: draw.choice(policies) for name in TENANTS[1:] if kind == "tenants" or draw.random() < 0.2},
    }
    if kind == "flow-control":
        said["flow_control"] = _draw_flow(draw)
    return msgspec.convert(said, AdmissionConfig)


def _draw_flow(draw: Random) -> dict[str, Any]:
    return {
        "saturation_detector": draw.choice(("concurrency", "utilization")),
        "max_concurrency": draw.randint(1, 3),
        "dispatch_order": draw.choice(("priority", "fifo", "slo-deadline")),
        "fairness_policy": draw.choice(("global-strict", "round-robin")),
        "dispatch": draw.choice(("all", "one")),
        "max_gateway_queue_depth": 6,
        "queue_shedding": draw.choice((False, True)),
        "request_ttl_us": draw.choice((0, 2_000, 20_000)),
        "in_flight_eviction": draw.choice((False, True)),
    }


class World:
    """One core, its requests, and `lines`, its log."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(f"{seed}/log")
        self.kind = KINDS[seed % len(KINDS)]
        self.lines: list[bytes] = []
        self.now: Micros = 0
        self.here: list[Ticket] = []
        self._models = ("m", "n", "o")[: self.draw.randint(1, 3)]
        self._num_submitted = 0
        slots = {model: self._draw_slots() for model in self._models}
        self.core = Admission(draw_config(self.draw, self.kind), slots, self._look, DecisionLog(self.lines.append))

    def step(self) -> None:
        """Give the core one input, after what is due for half of the drivers' timers."""
        spans = LONG_SPANS if self.kind == "adaptive" else SHORT_SPANS
        self.now += self.draw.choice(spans) if self.draw.random() < 0.98 else 2 * SECOND
        if self.draw.random() < 0.5:
            self.core.advance(self.now)
        verb = self.draw.choice(VERBS)
        if verb == "submit" or not self.here:
            self._submit()
        elif verb in ("resize", "reconfigure", "forget"):
            getattr(self, f"_{verb}")(self.draw.choice(self._models))
        else:
            getattr(self, f"_{verb}")(self.draw.choice(self.here))
        while len(self.here) > MOST_REQUESTS:
            self._release(self.here[0])
            self._keep_those_here()
        self._keep_those_here()

    def _keep_those_here(self) -> None:
        self.here = [ticket for ticket in self.here if ticket.state is not TicketState.LEFT]

    def _draw_slots(self) -> int:
        return self.draw.choice((6, 12, 17)) if self.kind == "adaptive" else self.draw.randint(1, 6)

    def _look(self, pool: str, now: Micros) -> FleetLoad:
        """Return the load of two instances, or of one that both models `n` and the others have; stale at random."""
        stale = Random(f"{pool}/{now}")
        held = sum(ticket.state in (TicketState.ADMITTED, TicketState.STREAMING) for ticket in self.here)
        loads = [InstanceLoad(stale.randint(0, held // 2), stale.randint(0, 6), 0, stale.random(), index) for index in range(2)]
        return FleetLoad(loads[:1] if pool == "n" else loads)

    def _submit(self) -> None:
        draw = self.draw
        ticket = Ticket(
            self._num_submitted,
            draw.choice(self._models),
            PriorityClass(draw.choice((0, 0, 0, 1, 2, 2, 3))),
            draw.choice(TENANTS),
            cost=draw.randint(1, 60),
            slo_priority=draw.choice((-1, 0, 3, 4)),
            slo_target=draw.choice((None, 1_000, 50_000)),
            sequences=draw.choice((1, 1, 1, 1, 1, 3)),
        )
        self._num_submitted += 1
        self.core.submit(ticket, self.now, self._look(ticket.pool, self.now) if self.core.reads_load else FleetLoad())
        self.here.append(ticket)

    def _release(self, ticket: Ticket) -> None:
        victims = [other for other in self.here if other.state is TicketState.VICTIM]
        if victims and self.draw.random() < 0.6:
            ticket = self.draw.choice(victims)
        is_given_up = ticket.state is TicketState.VICTIM and self.draw.random() < 0.8
        end = ReleaseReason.SLOT_PREEMPTED if is_given_up else self.draw.choice(ENDS)
        self.core.release(ticket.id, end, self.now, self.draw.choice((None, self.draw.randint(1, 90))))

    def _first_byte(self, ticket: Ticket) -> None:
        if ticket.state not in (TicketState.QUEUED, TicketState.AWAITING):
            self.core.confirm_first_byte(ticket.id, self.now)

    def _decline(self, ticket: Ticket) -> None:
        victims = [other for other in self.here if other.state is TicketState.VICTIM]
        if victims:
            self.core.decline(self.draw.choice(victims).id, self.now)

    def _strand(self, ticket: Ticket) -> None:
        self.core.set_stranded(ticket.id, stranded=self.draw.random() < 0.7, now=self.now)

    def _leave(self, ticket: Ticket) -> None:
        self.core.leave_backend(ticket.id, self.now)

    def _resize(self, model: str) -> None:
        self.core.resize(model, self._draw_slots(), self.now)

    def _reconfigure(self, model: str) -> None:
        self.core.reconfigure(draw_config(self.draw, self.kind), self.now)

    def _forget(self, model: str) -> None:
        if len(self._models) > 1 and self.core.is_unused(model):
            self.core.forget(model, self.now)
            self._resize(model)


def write_log(seed: int, num_inputs: int) -> list[bytes]:
    """Return the log of a world."""
    world = World(seed)
    for _ in range(num_inputs):
        world.step()
    return world.lines


if __name__ == "__main__":
    lines = [line for seed in range(int(sys.argv[1])) for line in write_log(seed, int(sys.argv[2]))]
    sys.stdout.buffer.write(gzip.compress(b"".join(lines), 9, mtime=0))
