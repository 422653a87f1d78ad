"""The `admission` section: how requests enter, and what each class and tenant may count on, with SMG's names for the keys.

SMG's own YAML is this section (`classes`, `tenant_policies`) and loads unchanged. What a class leaves out keeps the value of
the flavour (see `flavours`). Under `flavour: smg` an entry replaces the whole class, as SMG has it, and must be complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from maitred.admission.flavours import BUILT_IN, ClassRules, Flavour
from maitred.admission.flow_control.config import FlowControlConfig
from maitred.admission.policies.config import PolicyConfig
from maitred.admission.tenant_names import tenant_problem
from maitred.request import PriorityClass

MOST_SLOTS = 1_000_000_000
"""No pool is larger: a guard against slips of the keyboard, far beyond any fleet."""
LONGEST_SECS = 1e9

ClassName: TypeAlias = Literal["system", "interactive", "default", "bulk"]


def class_named(name: ClassName) -> PriorityClass:
    """The class of a checked name."""
    return PriorityClass[name.upper()]


def _at_least_0(config: msgspec.Struct, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        if value is not None and value < 0:
            raise ValueError(f"{key} must be at least 0")


class ClassConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of one class; null: what the flavour has. Raises ValueError for what cannot be."""

    reserved_floor: int | None = None
    """Slots reserved, whatever the capacity."""
    reserved_per_slot: float | None = None
    """Slots reserved as a share of the capacity, rounded up; the larger of the two counts."""
    queue_size: int | None = None
    """How many may wait; 0: none, reject at once."""
    queue_timeout_secs: float | None = None
    """How long one may wait, in seconds (fractions allowed)."""
    starvation_threshold_secs: float | None = None
    """One that has waited longer may be promoted (not `system`)."""
    can_preempt: bool | None = None
    """Whether one that finds no slot may take that of a lower class's request that has shown its client nothing yet."""

    def __post_init__(self) -> None:
        _at_least_0(self, "reserved_floor", "queue_size")
        if self.reserved_floor is not None and self.reserved_floor > MOST_SLOTS:
            raise ValueError(f"reserved_floor must be at most {MOST_SLOTS:,} slots")
        if self.reserved_per_slot is not None and not 0 <= self.reserved_per_slot <= 1e6:
            raise ValueError("reserved_per_slot must be a share, 0 or more")
        for key in ("queue_timeout_secs", "starvation_threshold_secs"):
            secs = getattr(self, key)
            if secs is not None and not 0 < secs <= LONGEST_SECS:
                raise ValueError(f"{key} must be > 0, and at most {LONGEST_SECS:g} seconds")


class ClassesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The classes, most urgent first. Null, like a class that is not named: what the flavour has."""

    system: ClassConfig | None = None
    interactive: ClassConfig | None = None
    default: ClassConfig | None = None
    bulk: ClassConfig | None = None


class TenantPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may do; null: as everybody. Raises ValueError for what cannot be."""

    max_class: ClassName | None = None
    """The highest class its requests can have; null: `default_max_class`."""
    max_in_flight: int | None = None
    """Slots it may hold at once, over all models. More of its requests wait, and others pass them."""
    max_queued: int | None = None
    """Requests of it that may wait at once, over all models and classes; 0: none."""
    weight: float | None = None
    """Its share among the tenants of a class, in proportion. As soon as one tenant has a weight, those without have 1."""

    def __post_init__(self) -> None:
        _at_least_0(self, "max_queued")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1 slot")
        if self.weight is not None and not 1e-6 <= self.weight <= 1e6:
            raise ValueError("weight must be from 1e-6 to 1e6")


class LegacyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Admission without classes: one limit and one FIFO queue for all requests. Raises ValueError for what cannot be."""

    max_concurrent_requests: int = -1
    """Requests in flight at once, over all models; 0 or less: no limit. Also the burst of the request rate."""
    rate_limit_tokens_per_second: float = 0.0
    """Requests that may enter per second on average; 0: no limit. With classes: a gate in front of them."""
    queue_size: int = 100
    """How many may wait; 0: none, reject at once."""
    queue_timeout_secs: float = 60.0
    """How long one may wait, in seconds."""

    def __post_init__(self) -> None:
        _at_least_0(self, "queue_size")
        if self.max_concurrent_requests > MOST_SLOTS:
            raise ValueError(f"max_concurrent_requests must be at most {MOST_SLOTS:,}")
        if not 0 <= self.rate_limit_tokens_per_second <= 1e6:
            raise ValueError("rate_limit_tokens_per_second must be from 0 to 1e6 requests per second")
        if not 0 < self.queue_timeout_secs <= LONGEST_SECS:
            raise ValueError(f"queue_timeout_secs must be > 0, and at most {LONGEST_SECS:g} seconds")

    @property
    def burst(self) -> float:
        """Requests that may enter at once when the bucket is full."""
        if self.max_concurrent_requests > 0:
            return float(self.max_concurrent_requests)
        return max(1.0, self.rate_limit_tokens_per_second)


Mode: TypeAlias = Literal["off", "legacy", "priority", "flow-control"]
SlotCost: TypeAlias = Literal["requests", "tokens"]
OnPreempt: TypeAlias = Literal["reject", "retry"]


class AdmissionConfig(PolicyConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may be in flight. Raises ValueError for what cannot be."""

    mode: Mode = "legacy"
    """`off`: everybody; `legacy`: one limit for all; `priority`: classes, a pool of slots per model; `flow-control`: as many as
    the instances can carry."""
    flavour: Flavour = "maitred"
    """`smg`: SMG's numbers, and its rules where ours are others; `blis`: BLIS's rules of flow control."""
    classes: ClassesConfig = ClassesConfig()
    default_max_class: ClassName = "default"
    """The highest class for tenants that no policy names."""
    tenant_policies: dict[str, TenantPolicy] = msgspec.field(default_factory=dict)
    """By tenant: `auth:ID`, `header:VALUE`, `ip:ADDRESS` or `anonymous`."""
    service_tiers: dict[str, ClassName] = msgspec.field(default_factory=dict)
    """What OpenAI's `service_tier` in a body means, for requests without the header."""
    on_overcommit: Literal["legacy", "clamp"] = "legacy"
    """When the reservations exceed the capacity at start-up: serve without classes, or scale the reservations down."""
    promotion_share: float | None = None
    """Share of the admissions from the queues that may be promotions of starved requests; null: 0.25 (smg: 1, no bound)."""
    promotion_burst: int = 2
    """Promotions that may come in a row."""
    preemption_budget_ms: float = 50.0
    """How long a preemptor waits for its victim's slot before it queues."""
    on_preempt: OnPreempt = "reject"
    """What becomes of a victim: 503, or it waits again at the head of its class, once, and is then left alone."""
    slot_cost: SlotCost = "requests"
    """What a slot is: one request, or `slot_tokens` tokens of prompt and answer."""
    slot_tokens: int = 2048
    """Tokens that one slot stands for, with `slot_cost: tokens`."""
    legacy: LegacyConfig = LegacyConfig()
    flow_control: FlowControlConfig = FlowControlConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.promotion_share is not None and not 0 <= self.promotion_share <= 1:
            raise ValueError("promotion_share must be from 0 to 1")
        _at_least_0(self, "promotion_burst")
        if not 0 <= self.preemption_budget_ms <= 60_000:
            raise ValueError("preemption_budget_ms must be from 0 to 60000")
        if not 1 <= self.slot_tokens <= 1_000_000:
            raise ValueError("slot_tokens must be from 1 to 1000000")
        for c in PriorityClass:
            self.rules(c)
        if self.flavour != "smg":
            for tenant in self.tenant_policies:
                problem = tenant_problem(tenant)
                if problem:
                    raise ValueError(f"tenant_policies: {problem}")

    def rules(self, c: PriorityClass) -> ClassRules:
        """What class `c` may count on, complete."""
        said: ClassConfig | None = getattr(self.classes, c.label)
        built_in = BUILT_IN[self.flavour][c]
        if said is None:
            return built_in
        given = {key: value for key in said.__struct_fields__ if (value := getattr(said, key)) is not None}
        if self.flavour == "smg":
            missing = [key for key in _REQUIRED_BY_SMG if key not in given]
            if missing:
                raise ValueError(f"classes.{c.label}: missing field `{missing[0]}` (flavour smg replaces whole classes)")
            return ClassRules(**given)
        if given.get("reserved_per_slot", 0) > 1:
            raise ValueError(f"classes.{c.label}: reserved_per_slot must be a share from 0 to 1")
        return msgspec.structs.replace(built_in, **given)

    @property
    def admits_everybody(self) -> bool:
        """Whether nobody is ever turned away, or has to wait."""
        return self.mode == "off" and self.refuses_nobody

    def cap(self, tenant: str) -> PriorityClass:
        """The highest class that requests of `tenant` can have."""
        policy = self.tenant_policies.get(tenant)
        return class_named((policy and policy.max_class) or self.default_max_class)

    @property
    def share_of_promotions(self) -> float:
        if self.promotion_share is not None:
            return self.promotion_share
        return _SMG_PROMOTION_SHARE if self.flavour == "smg" else _PROMOTION_SHARE

    @property
    def reads_classes(self) -> bool:
        """Whether it matters which class a request is of."""
        return self.mode in ("priority", "flow-control") or not self.refuses_nobody

    def policy_warnings(self) -> Iterator[str]:
        """Of admission policies and flow control, what is said and has no effect, each as one line."""
        yield from self.without_effect()
        if self.mode != "flow-control" and self.flow_control != FlowControlConfig():
            yield f"mode is {self.mode}: flow_control has no effect (mode: flow-control)"
        if self.slo_targets and not (self.mode == "flow-control" and self.flow_control.dispatch_order == "slo-deadline"):
            yield "slo_targets have no effect but on flow control with dispatch_order: slo-deadline"
        if self.mode == "flow-control":
            yield from self.flow_control.without_effect(self.flavour)

    def warnings(self) -> Iterator[str]:
        """What is allowed and probably not meant, each as one line."""
        yield from self.policy_warnings()
        if self.mode == "priority" and self.default_max_class == "system":
            yield "default_max_class is system: every tenant can use the class meant for the control plane"
        if self.mode != "priority" and (self.classes != ClassesConfig() or (self.tenant_policies and not self.reads_classes)):
            yield f"mode is {self.mode}: classes and tenant_policies have no effect (mode: priority)"
        for key, tenants in (("tenant_policies", self.tenant_policies), ("tenant_budgets", self.tenant_budgets)):
            yield from (f"{key}: {problem}" for tenant in tenants if (problem := tenant_problem(tenant)))


_REQUIRED_BY_SMG: Final = ("reserved_floor", "queue_size", "queue_timeout_secs", "starvation_threshold_secs", "can_preempt")
_PROMOTION_SHARE: Final = 0.25
_SMG_PROMOTION_SHARE: Final = 1.0
