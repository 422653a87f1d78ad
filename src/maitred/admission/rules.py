"""What a pool goes by: the configuration, resolved into the terms of slots, lanes and microseconds.

A lane is one line of slots and queue. With classes each class has its own; without, all share one. So admission with classes
and admission by one limit are the same machinery under different rules.

What a pool with flow control goes by: the configuration, resolved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import ceil
from typing import Final

import msgspec

from maitred.admission.config import MAX_SLOTS, AdmissionConfig
from maitred.admission.flow_control.config import DetectorName, DispatchMode, DispatchOrder, FairnessName, FlowControlConfig
from maitred.admission.presets import ClassRules
from maitred.core.request import PriorityClass
from maitred.core.slo_classes import SLO_PRIORITIES, priority_of_slo_class
from maitred.core.units import SECOND, Micros, from_ms, from_seconds

LANES: Final = tuple(PriorityClass)
"""Least urgent first: a class is its own index."""
MOST_URGENT_FIRST: Final = LANES[::-1]
SHARED_LANE: Final = PriorityClass.DEFAULT
"""The lane of everybody, where there are no classes."""
SMG_RETRY_AFTER: Final[Micros] = 2 * SECOND


class LaneRules(msgspec.Struct, frozen=True):
    """What one lane goes by."""

    queue_size: int
    queue_timeout: Micros
    starvation_threshold: Micros | None = None
    """One that has waited longer may be promoted; None: never."""
    can_preempt: bool = False
    reserved_floor: int = 0
    """Slots reserved."""
    reserved_share: float = 0.0
    """Slots reserved, as a share of the capacity."""

    def wanted_slots(self, slots: int) -> int:
        """Slots that it would reserve of so many, without regard to whether there are as many."""
        return max(
            self.reserved_floor, ceil(round(self.reserved_share * slots, 6))
        )  # 0.07 × 100 is 7.000000000000001 in binary


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
    preemption_budget: Micros = 0
    """How long a preemptor waits for its victim."""
    retries_victims: bool = False
    """A victim is tried again, once."""
    fixed_retry_after: Micros | None = None
    """What a rejection promises; None: what follows from how fast the queue moves."""
    tenant_weights: Mapping[str, float] | None = None
    """By tenant, 1 where it has none; None: first come, first served."""
    rate: float = 0.0
    """Requests that may enter per second; 0: no limit."""
    burst: float = 1.0

    @property
    def units_per_slot(self) -> int:
        """What one slot counts for in the arithmetic of slots."""
        return self.tokens_per_slot or 1


def resolve_pool_rules(config: AdmissionConfig) -> PoolRules:
    """The rules of every pool."""
    if config.mode == "flow-control":
        return _with_flow_control(config)
    return _with_classes(config) if config.mode == "priority" else _without_classes(config)


def overcommit_problem(config: AdmissionConfig, capacity: int) -> str | None:
    """What is wrong if the classes reserve more than `capacity` slots; None: they fit."""
    rules = [config.class_rules(c) for c in LANES]
    if config.flavour == "smg":  # counts what a class can have at most
        wanted: float = sum(min(capacity, _lane_rules(r).wanted_slots(capacity)) for r in rules)
    else:  # before rounding up: shares fit a fleet of any size
        wanted = round(sum(max(r.reserved_floor, r.reserved_per_slot * capacity) for r in rules), 6)
    if wanted <= capacity:
        return None
    return f"sum of class reservations ({wanted:g}) exceeds capacity ({capacity})"


def _with_classes(config: AdmissionConfig) -> PoolRules:
    smg = config.flavour == "smg"
    weights = {name: policy.weight for name, policy in config.tenant_policies.items() if policy.weight is not None}
    lanes = [_lane_rules(config.class_rules(c)) for c in LANES]
    lanes[PriorityClass.SYSTEM] = msgspec.structs.replace(lanes[PriorityClass.SYSTEM], starvation_threshold=None)
    return PoolRules(
        lanes=lanes,
        lane_of=LANES,
        keeps_exact_fit=smg,
        tokens_per_slot=config.slot_tokens if config.slot_cost == "tokens" else None,
        promotion_share=config.effective_promotion_share,
        promotion_burst=config.promotion_burst,
        promotes_always=smg,
        preemption_budget=from_ms(config.preemption_budget_ms),
        retries_victims=config.on_preempt == "retry",
        fixed_retry_after=SMG_RETRY_AFTER if smg else None,
        tenant_weights=weights or None,
    )


def _with_flow_control(config: AdmissionConfig) -> PoolRules:
    """Slots are only counted; what else a pool goes by, `flow_control.class_rules` says."""
    limits = config.flow_control
    lane = LaneRules(limits.max_gateway_queue_depth or MAX_SLOTS, limits.request_ttl_us)
    return PoolRules(
        lanes=[lane] * len(LANES),
        lane_of=[SHARED_LANE] * len(LANES),
        capacity=MAX_SLOTS,
        retries_victims=config.on_preempt == "retry",
    )


def _lane_rules(rules: ClassRules) -> LaneRules:
    return LaneRules(
        queue_size=rules.queue_size,
        queue_timeout=from_seconds(rules.queue_timeout_secs),
        starvation_threshold=from_seconds(rules.starvation_threshold_secs),
        can_preempt=rules.can_preempt,
        reserved_floor=rules.reserved_floor,
        reserved_share=rules.reserved_per_slot,
    )


def _without_classes(config: AdmissionConfig) -> PoolRules:
    legacy = config.legacy
    limited = config.mode == "legacy"
    lane = LaneRules(legacy.queue_size, from_seconds(legacy.queue_timeout_secs))
    return PoolRules(
        lanes=[lane] * len(LANES),
        lane_of=[SHARED_LANE] * len(LANES),
        capacity=legacy.max_concurrent_requests if limited and legacy.max_concurrent_requests > 0 else MAX_SLOTS,
        fixed_retry_after=SMG_RETRY_AFTER if config.flavour == "smg" else None,
        rate=legacy.rate_limit_tokens_per_second if limited else 0.0,
        burst=legacy.burst,
    )


class FairnessPolicy(Enum):
    """In which lines those stand who wait at one priority, and which line is next."""

    GLOBAL_STRICT = "one for all"
    OLDEST_TENANT = "one for each tenant; next is that of whoever came first, though another may be the first in it (BLIS)"
    ROUND_ROBIN = "one for each tenant, in the order of their names"
    ROUND_ROBIN_RESTARTING = "likewise; but where the one served last is empty, from the beginning again (BLIS)"


class FlowControlRules(msgspec.Struct, frozen=True, kw_only=True):
    """Complete."""

    config: FlowControlConfig
    detector: DetectorName
    dispatch: DispatchMode
    band_order: DispatchOrder
    """Which band is served first."""
    fairness: FairnessPolicy
    """Within a band."""
    initial_priorities: tuple[int, ...]
    """Bands that are there before anybody waits in them."""
    counts_unseen_in_flight: bool
    """Whether those count for the saturation who were let in, and whom the load does not show yet."""

    @property
    def needs_ticks(self) -> bool:
        """Whether time alone may let somebody in: the load of instances changes, or one may enter per tick. Requests in flight
        change by what the core is told."""
        return self.dispatch == "one" or self.detector == "utilization"


def resolve_flow_rules(config: AdmissionConfig) -> FlowControlRules:
    """BLIS makes a band when somebody first comes to wait in it, so that how urgent the second most urgent is depends on who
    has come before; it serves bands by priority whatever the order; within a band it first chooses a tenant, whatever the
    order, and then one of his; and it looks at the instances alone."""
    limits, blis = config.flow_control, config.flavour == "blis"
    known = {priority_of_slo_class(name, config.slo_priorities) for name in (*SLO_PRIORITIES, *config.slo_priorities)}
    return FlowControlRules(
        config=limits,
        detector=limits.detector(config.flavour),
        dispatch=limits.dispatch or ("one" if blis else "all"),
        band_order="priority" if blis else limits.dispatch_order,
        fairness=_BLIS_FAIRNESS[limits.fairness_policy] if blis else _FAIRNESS[limits.fairness_policy],
        initial_priorities=() if blis else tuple(known),
        counts_unseen_in_flight=not blis,
    )


_FAIRNESS: Final[Mapping[FairnessName, FairnessPolicy]] = {
    "global-strict": FairnessPolicy.GLOBAL_STRICT,
    "round-robin": FairnessPolicy.ROUND_ROBIN,
}
_BLIS_FAIRNESS: Final[Mapping[FairnessName, FairnessPolicy]] = {
    "global-strict": FairnessPolicy.OLDEST_TENANT,
    "round-robin": FairnessPolicy.ROUND_ROBIN_RESTARTING,
}
