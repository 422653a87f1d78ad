"""Rules: the configuration, resolved into what pools work with: slots, lanes and microseconds.

A lane is a queue with the slots that it may use. With classes each class has a lane of its own; without, all classes
share one. So admission with classes and admission by one limit are the same pool (`classes.pool`) under different rules.
A pool with flow control (`flow.pool`) has one lane and rules of its own, `FlowControlRules`.

Example: a class with `reserved_floor: 4` and `reserved_per_slot: 0.07` reserves 4 of 10 slots, and 7 of 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec

from maitred.admission.terms.config import MAX_SLOTS, AdmissionConfig
from maitred.admission.terms.flow_config import DetectorName, DispatchMode, DispatchOrder, FairnessPolicy, FlowControlConfig
from maitred.admission.terms.presets import ClassRules
from maitred.admission.terms.tenants import TenantAccount
from maitred.core.request import PriorityClass
from maitred.core.slo_classes import SLO_PRIORITIES, priority_of_slo_class
from maitred.core.units import Micros, from_ms, from_seconds

LANES: Final = tuple(PriorityClass)
"""Least urgent first: the value of a class is the index of its lane."""
MOST_URGENT_FIRST: Final = LANES[::-1]
SHARED_LANE: Final = PriorityClass.DEFAULT
"""The lane of all requests where there are no classes."""


class LaneRules(msgspec.Struct, frozen=True):
    """The rules of one lane."""

    queue_size: int
    """The largest number of requests that may wait."""
    queue_timeout: Micros
    """The longest time in the queue, µs. With flow control, 0 means no limit."""
    starvation_threshold: Micros | None = None
    """The wait after which a request may be promoted, µs, or None if there are no promotions."""
    can_preempt: bool = False
    reserved_floor: int = 0
    """Slots reserved."""
    reserved_share: float = 0.0
    """Slots reserved, as a share of the capacity; the larger of the two reservations counts."""

    def wanted_slots(self, capacity: int) -> int:
        """Return the slots that it would reserve of `capacity`, which may be more than there are."""
        # Rounded first, because in floats 0.07 × 100 is 7.000000000000001, which `ceil` would turn into 8.
        share = ceil(round(self.reserved_share * capacity, 6))
        return max(self.reserved_floor, share)


class PoolRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one pool."""

    lanes: Sequence[LaneRules]
    """By lane."""
    lane_of: Sequence[int]
    """The lane that each class uses: plain numbers, with which Python looks into lists faster than with members of an enum."""
    capacity: int | None = None
    """Slots, whatever the fleet has, or None for as many as the fleet has."""
    keeps_exact_fit: bool = False
    """Whether reservations that use up the capacity to the last slot are kept; else one slot stays unreserved."""
    adapts_reservations: bool = False
    """Whether only what arrivals need is held back of the reservations (the key is `reserve: adaptive`)."""
    tokens_per_slot: int | None = None
    """Tokens that one slot stands for, or None if it stands for one request."""
    promotion_share: float = 0.0
    """Share of the admissions from the queues that may be promotions, 0 to 1."""
    promotion_burst: int = 0
    """Promotions that may come in a row."""
    promotes_next_waiter: bool = False
    """Whether a starving request counts as promoted even if it is next in any case."""
    preemption_budget: Micros = 0
    """How long a preemptor waits for its victim's slot before it queues, µs."""
    retries_victims: bool = False
    """Whether a victim waits again, once (the key is `on_preempt: retry`); else it is rejected."""
    fixed_retry_after: Micros | None = None
    """`Retry-After` of every rejection, µs, or None for an estimate from the speed of the queue."""
    tenant_weights: dict[str, float] | None = None
    """Weights by tenant, 1 for tenants that are not named, or None for first come, first served."""
    rate: float = 0.0
    """Requests that may enter per second; 0: no limit."""
    burst: float = 1.0
    """Requests that may enter at once when the bucket is full."""

    @property
    def units_per_slot(self) -> int:
        """Units of one slot in the arithmetic of `slots`."""
        return self.tokens_per_slot or 1


class FlowControlRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of pools with flow control."""

    config: FlowControlConfig
    detector: DetectorName
    dispatch: DispatchMode
    band_order: DispatchOrder
    """Which band is served first."""
    fairness: FairnessPolicy
    """Which request within a band is served first."""
    initial_priorities: tuple[int, ...]
    """The bands that exist before a request has waited in them."""
    counts_unseen_in_flight: bool
    """Whether an admitted request counts for the saturation before an instance shows it."""

    @property
    def needs_ticks(self) -> bool:
        """Whether time alone may let a request in, because the load of the instances changes or one request may enter per tick.
        Without, only inputs of the core change what is in flight."""
        return self.dispatch == "one" or self.detector == "utilization"


def resolve_pool_rules(config: AdmissionConfig) -> PoolRules:
    """Return the rules of every pool."""
    if config.mode == "flow-control":
        return _with_flow_control(config)
    return _with_classes(config) if config.mode == "priority" else _without_classes(config)


def resolve_flow_rules(config: AdmissionConfig) -> FlowControlRules:
    """Return the further rules of every pool with flow control."""
    limits, preset = config.flow_control, config.preset.flow_control
    named = {priority_of_slo_class(name, config.slo_priorities) for name in (*SLO_PRIORITIES, *config.slo_priorities)}
    return FlowControlRules(
        config=limits,
        detector=config.detector,
        dispatch=limits.dispatch or preset.dispatch,
        band_order="priority" if preset.serves_by_priority else limits.dispatch_order,
        fairness=preset.fairness[limits.fairness_policy],
        initial_priorities=tuple(named) if preset.creates_all_bands else (),
        counts_unseen_in_flight=preset.counts_unseen_in_flight,
    )


def make_accounts(config: AdmissionConfig) -> dict[str, TenantAccount]:
    """Return new accounts for the tenants that have limits or budgets."""
    accounts: dict[str, TenantAccount] = {}
    if config.mode == "priority":
        for name, policy in config.tenant_policies.items():
            if policy.max_in_flight is not None or policy.max_queued is not None:
                accounts[name] = TenantAccount(name, policy.max_in_flight, policy.max_queued)
    for name, share in config.tenant_budgets.items():
        accounts.setdefault(name, TenantAccount(name)).slot_share = share
    return accounts


def overcommit_problem(config: AdmissionConfig, capacity: int) -> str | None:
    """Return a message if the classes reserve more than `capacity` slots, or None if they fit."""
    rules = [config.class_rules(c) for c in LANES]
    if config.preset.sums_rounded_reservations:
        wanted: float = sum(min(capacity, _lane_rules(r).wanted_slots(capacity)) for r in rules)
    else:
        # Before they are rounded up, because shares must fit a fleet of any size.
        wanted = round(sum(max(r.reserved_floor, r.reserved_per_slot * capacity) for r in rules), 6)
    if wanted <= capacity:
        return None
    return f"sum of class reservations ({wanted:g}) exceeds capacity ({capacity})"


def bootstrap_problem(config: AdmissionConfig) -> str | None:
    """Return a message if the classes reserve more slots than the flavour assumes before any backend is up. Return None if they
    fit, or if the flavour assumes nothing."""
    assumed = config.preset.bootstrap_capacity
    if config.mode != "priority" or assumed is None:
        return None
    limit = config.legacy.max_concurrent_requests
    return overcommit_problem(config, limit if limit > 0 else assumed)


def _with_classes(config: AdmissionConfig) -> PoolRules:
    weights = {name: policy.weight for name, policy in config.tenant_policies.items() if policy.weight is not None}
    lanes = [_lane_rules(config.class_rules(c)) for c in LANES]
    lanes[PriorityClass.SYSTEM] = msgspec.structs.replace(lanes[PriorityClass.SYSTEM], starvation_threshold=None)
    return PoolRules(
        lanes=lanes,
        lane_of=[int(c) for c in LANES],
        keeps_exact_fit=config.preset.keeps_exact_fit,
        adapts_reservations=config.adapts_reservations,
        tokens_per_slot=config.slot_tokens if config.slot_cost == "tokens" else None,
        promotion_share=config.effective_promotion_share,
        promotion_burst=config.promotion_burst,
        promotes_next_waiter=config.preset.promotes_next_waiter,
        preemption_budget=from_ms(config.preemption_budget_ms),
        retries_victims=config.retries_victims,
        fixed_retry_after=config.preset.fixed_retry_after,
        tenant_weights=weights or None,
    )


def _without_classes(config: AdmissionConfig) -> PoolRules:
    legacy = config.legacy
    limited = config.mode == "legacy"
    lane = LaneRules(legacy.queue_size, from_seconds(legacy.queue_timeout_secs))
    return PoolRules(
        lanes=[lane] * len(LANES),
        lane_of=[int(SHARED_LANE)] * len(LANES),
        capacity=legacy.max_concurrent_requests if limited and legacy.max_concurrent_requests > 0 else MAX_SLOTS,
        fixed_retry_after=config.preset.fixed_retry_after,
        rate=legacy.rate_limit_tokens_per_second if limited else 0.0,
        burst=legacy.burst,
    )


def _with_flow_control(config: AdmissionConfig) -> PoolRules:
    """Return rules under which slots are only counted: `FlowControlRules` limit what is in flight."""
    limits = config.flow_control
    lane = LaneRules(limits.max_gateway_queue_depth or MAX_SLOTS, limits.request_ttl_us)
    return PoolRules(
        lanes=[lane] * len(LANES),
        lane_of=[int(SHARED_LANE)] * len(LANES),
        capacity=MAX_SLOTS,
        retries_victims=config.retries_victims,
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
