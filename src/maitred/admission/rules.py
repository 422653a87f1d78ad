"""What a pool goes by: the configuration, resolved into the terms of slots, lanes and microseconds.

A lane is one line of slots and queue. With classes each class has its own; without, all share one. So admission with classes
and admission by one limit are the same machinery under different rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final

import msgspec

from maitred.admission.config import MOST_SLOTS, AdmissionConfig
from maitred.admission.flavours import ClassRules
from maitred.request import PriorityClass
from maitred.units import SECOND, Micros, from_ms, from_seconds

LANES: Final = tuple(PriorityClass)
"""Least urgent first: a class is its own index."""
MOST_URGENT_FIRST: Final = LANES[::-1]
SHARED: Final = PriorityClass.DEFAULT
"""The lane of everybody, where there are no classes."""
SMG_RETRY_AFTER: Final[Micros] = 2 * SECOND


class LaneRules(msgspec.Struct, frozen=True):
    """What one lane goes by."""

    queue_size: int
    timeout: Micros
    starvation: Micros | None = None
    """One that has waited longer may be promoted; None: never."""
    can_preempt: bool = False
    floor: int = 0
    """Slots reserved."""
    share: float = 0.0
    """Slots reserved, as a share of the capacity."""

    def wanted(self, slots: int) -> int:
        """Slots that it would reserve of so many, without regard to whether there are as many."""
        return max(self.floor, ceil(round(self.share * slots, 6)))  # 0.07 × 100 is 7.000000000000001 in binary


class PoolRules(msgspec.Struct, frozen=True, kw_only=True):
    """What one pool goes by."""

    lanes: Sequence[LaneRules]
    """By lane."""
    lane_of: Sequence[PriorityClass]
    """By class."""
    capacity: int | None = None
    """Slots, whatever the fleet has; None: as many as the fleet has."""
    keeps_exact_fit: bool = False
    """Reservations that use up the capacity to the last slot are kept (SMG); else one slot stays unreserved."""
    tokens_per_slot: int | None = None
    """What a slot counts for, where requests are charged by their tokens; None: a request is a slot."""
    promotion_share: float = 0.0
    promotion_burst: int = 0
    promotes_always: bool = False
    """Whoever starves goes first as a promotion (SMG), even if it is next in any case."""
    budget: Micros = 0
    """How long a preemptor waits for its victim."""
    retries: bool = False
    """A victim is tried again, once."""
    retry_after: Micros | None = None
    """What a rejection promises; None: what follows from how fast the queue moves."""
    weights: Mapping[str, float] | None = None
    """By tenant, 1 where it has none; None: first come, first served."""
    rate: float = 0.0
    """Requests that may enter per second; 0: no limit."""
    burst: float = 1.0

    @property
    def unit(self) -> int:
        """What one slot counts for in the arithmetic of slots."""
        return self.tokens_per_slot or 1


def rules_of(config: AdmissionConfig) -> PoolRules:
    """The rules of every pool."""
    if config.mode == "flow-control":
        return _with_flow_control(config)
    return _with_classes(config) if config.mode == "priority" else _without_classes(config)


def overcommit(config: AdmissionConfig, capacity: int) -> str | None:
    """What is wrong if the classes reserve more than `capacity` slots; None: they fit."""
    rules = [config.rules(c) for c in LANES]
    if config.flavour == "smg":  # counts what a class can have at most
        wanted: float = sum(min(capacity, _lane(r).wanted(capacity)) for r in rules)
    else:  # before rounding up: shares fit a fleet of any size
        wanted = round(sum(max(r.reserved_floor, r.reserved_per_slot * capacity) for r in rules), 6)
    if wanted <= capacity:
        return None
    return f"sum of class reservations ({wanted:g}) exceeds capacity ({capacity})"


def _with_classes(config: AdmissionConfig) -> PoolRules:
    smg = config.flavour == "smg"
    weights = {name: policy.weight for name, policy in config.tenant_policies.items() if policy.weight is not None}
    lanes = [_lane(config.rules(c)) for c in LANES]
    lanes[PriorityClass.SYSTEM] = msgspec.structs.replace(lanes[PriorityClass.SYSTEM], starvation=None)
    return PoolRules(
        lanes=lanes,
        lane_of=LANES,
        keeps_exact_fit=smg,
        tokens_per_slot=config.slot_tokens if config.slot_cost == "tokens" else None,
        promotion_share=config.share_of_promotions,
        promotion_burst=config.promotion_burst,
        promotes_always=smg,
        budget=from_ms(config.preemption_budget_ms),
        retries=config.on_preempt == "retry",
        retry_after=SMG_RETRY_AFTER if smg else None,
        weights=weights or None,
    )


def _with_flow_control(config: AdmissionConfig) -> PoolRules:
    """Slots are only counted; what else a pool goes by, `flow_control.rules` says."""
    limits = config.flow_control
    lane = LaneRules(limits.max_gateway_queue_depth or MOST_SLOTS, limits.request_ttl_us)
    return PoolRules(
        lanes=[lane] * len(LANES),
        lane_of=[SHARED] * len(LANES),
        capacity=MOST_SLOTS,
        retries=config.on_preempt == "retry",
    )


def _lane(rules: ClassRules) -> LaneRules:
    return LaneRules(
        queue_size=rules.queue_size,
        timeout=from_seconds(rules.queue_timeout_secs),
        starvation=from_seconds(rules.starvation_threshold_secs),
        can_preempt=rules.can_preempt,
        floor=rules.reserved_floor,
        share=rules.reserved_per_slot,
    )


def _without_classes(config: AdmissionConfig) -> PoolRules:
    legacy = config.legacy
    limited = config.mode == "legacy"
    lane = LaneRules(legacy.queue_size, from_seconds(legacy.queue_timeout_secs))
    return PoolRules(
        lanes=[lane] * len(LANES),
        lane_of=[SHARED] * len(LANES),
        capacity=legacy.max_concurrent_requests if limited and legacy.max_concurrent_requests > 0 else MOST_SLOTS,
        retry_after=SMG_RETRY_AFTER if config.flavour == "smg" else None,
        rate=legacy.rate_limit_tokens_per_second if limited else 0.0,
        burst=legacy.burst,
    )
