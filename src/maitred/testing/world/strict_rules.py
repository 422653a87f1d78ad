"""Rules of admission that refuse requests or let them wait, beside classes, slots and tenants, which all scenarios have.

rate      so many requests per second: a gate in front of the classes, or the bucket of mode `legacy`
limits    requests and tokens of a tenant or a model per minute and per day
policy    what refuses a request before anything else: prompt tokens per second, load, budgets of tenants; a plug-in
flow      flow control that is saturated, with short queues
classes   queues of one or two places, little time for victims, no second chance for them
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeAlias

from maitred.admission import AdmissionPolicy, Reason, Refusal, Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.units import Micros
from maitred.testing.world.behaviours import ClientPlan

_Keys: TypeAlias = dict[str, Any]


class ShortPrompts(AdmissionPolicy):
    """A plug-in that refuses long prompts, and gives no reason of its own."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return Refusal(Reason.POLICY) if ticket.prompt_tokens > 100 else None


PLUG_IN: Final[_Keys] = {"admission": {"policy": f"{__name__}:{ShortPrompts.__name__}"}}
"""Members of a scenario with that policy."""


def draw_strict_rules(random: Random) -> _Keys:
    """Return members of a scenario."""
    kinds = random.sample(sorted(_KINDS), random.choice((1, 1, 2)))
    admission: _Keys = {}
    for kind in kinds:
        admission |= _KINDS[kind](random)
    return {"admission": admission}


def draw_crowd(random: Random) -> _Keys:
    """Return members of a scenario in which engines end so many requests per second that the gateway, which has to learn how
    many each runs, keeps a slot beyond those for urgent requests (`admission/classes/lead_watch.py`)."""
    classes = ("bulk", "bulk", "interactive")
    plans = (ClientPlan("polite", 120, classes[number % 3], max_tokens=1, think_secs=0.001) for number in range(12))
    return {
        "clients": tuple(plans),
        "num_engines": 1,
        "engine_limits": (random.choice((3, 4)),),
        "step_ms": 2.0,
        "hides_slots": True,
        "slots_per_backend": None,
        "mode": "priority",
        "tenant_slots": None,
        "has_programs": False,
        "poll_secs": 1.0,
    }


def draw_shares(random: Random) -> _Keys:
    """Return members of a scenario in which tenants have weights, or requests take slots by their tokens, or both."""
    kinds = random.choice((("weights",), ("weights",), ("tokens",), ("weights", "tokens")))
    admission: _Keys = {"reserve": "fixed"}
    if "weights" in kinds:
        weights = random.sample((0.5, 1.0, 2.0, 4.0), 3)
        acme, beta, gamma = ({"weight": weight} for weight in weights)
        limited = acme | {"max_in_flight": random.choice((None, None, 1, 2))}
        admission["tenant_policies"] = {"header:acme": limited, "header:beta": beta, "header:gamma": gamma}
    if "tokens" in kinds:
        admission |= {"slot_cost": "tokens", "slot_tokens": random.choice((100, 300, 1_000))}
    return {"mode": "priority", "admission": admission}


def _rate(random: Random) -> _Keys:
    legacy = {
        "rate_limit_tokens_per_second": random.choice((0.5, 2.0, 10.0)),
        "max_concurrent_requests": random.choice((-1, 1, 4)),
        "queue_size": random.choice((0, 1, 10)),
        "queue_timeout_secs": random.choice((0.5, 5.0)),
    }
    return {"mode": random.choice(("legacy", "priority")), "legacy": legacy}


def _limits(random: Random) -> _Keys:
    kinds = {"requests_per_minute": (2, 20), "tokens_per_minute": (200, 4_000), "requests_per_day": (10, 40)}
    rules = [
        {"tenant": tenant, "model": model, kind: random.choice(kinds[kind])}
        for tenant, model in random.sample((("*", None), ("*", "*"), ("header:acme", None)), 2)
        for kind in random.sample(sorted(kinds), 1)
    ]
    return {"limits": rules}


def _policy(random: Random) -> _Keys:
    rules: tuple[_Keys, ...] = (
        {"policy": "token-bucket", "token_bucket_capacity": 500.0, "token_bucket_refill_rate": 50.0},
        {"policy": "tier-shed", "tier_shed_min_priority": 4},
        {"policy": "gaie-legacy", "gaie_qd_threshold": 0.5, "gaie_kv_threshold": 0.1},
        {"tenant_budgets": {"header:acme": 0.25, "header:beta": 0.0}},
    )
    return {**random.choice(rules), "slo_priorities": {"standard": random.choice((3, -1))}}


def _flow(random: Random) -> _Keys:
    depth = random.choice((0, 1, 3))
    flow_control = {
        "saturation_detector": random.choice(("concurrency", "concurrency", "utilization")),
        "max_concurrency": random.choice((1, 2, 4)),
        "queue_depth_threshold": random.choice((0.5, 2.0)),
        "usage_limit_threshold": random.choice((1.0, 0.5)),
        "dispatch_order": random.choice(("priority", "fifo", "slo-deadline")),
        "fairness_policy": random.choice(("global-strict", "round-robin")),
        "max_gateway_queue_depth": depth,
        "queue_shedding": depth > 0 and random.random() < 0.7,
        "per_band_capacity": random.choice((0, 0, 1, 2)),
        "request_ttl_us": random.choice((0, 500_000, 5_000_000)),
        "in_flight_eviction": random.random() < 0.5,
    }
    return {"mode": "flow-control", "flow_control": flow_control}


def _classes(random: Random) -> _Keys:
    rules = {"queue_size": random.choice((0, 1, 2)), "starvation_threshold_secs": 0.5}
    return {
        "mode": "priority",
        "classes": {"interactive": {"reserved_floor": random.choice((0, 1))}, "default": rules, "bulk": rules},
        "preemption_budget_ms": random.choice((0.0, 1.0)),
        "on_preempt": random.choice(("reject", "retry")),
        "reserve": random.choice(("fixed", "adaptive")),
        "promotion_share": random.choice((0.0, 0.5, 1.0)),
        "promotion_burst": random.choice((0, 1, 5)),
    }


_KINDS: Final[dict[str, Callable[[Random], _Keys]]] = {
    "rate": _rate,
    "limits": _limits,
    "policy": _policy,
    "flow": _flow,
    "classes": _classes,
}
