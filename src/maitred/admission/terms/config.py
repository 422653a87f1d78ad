"""The `admission` section: how requests enter, and what each class and tenant may count on.

The names of the keys are SMG's, so SMG's own YAML (`classes`, `tenant_policies`) loads unchanged. A key of a class that
is left out keeps the value of the flavour (`presets`). `PolicyConfig` has the keys that admission policies read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from maitred.admission.terms.flow_config import DetectorName, FlowControlConfig
from maitred.admission.terms.limits import LimitRule, check_rules
from maitred.admission.terms.policy_config import PolicyConfig
from maitred.admission.terms.presets import AdmissionPreset, ClassRules, Flavour, preset_of
from maitred.admission.terms.tenants import tenant_problem
from maitred.core.request import PriorityClass


def parse_class(text: str | None) -> PriorityClass | None:
    """Return the class that a header asks for, in any case and with any white space around it. Never raises.

    Returns None if the text names no class: the caller takes `default`, and counts the text as unknown. A missing
    header (None), an empty one and one with anything but visible ASCII ask for `default`, and are not counted (SMG's
    contract).
    """
    label = (text or "").strip()
    if not label or not label.isascii() or not label.isprintable():
        return PriorityClass.DEFAULT
    return PriorityClass.from_label(label)


MAX_SLOTS = 1_000_000_000
"""The largest capacity of a pool: a guard against slips of the keyboard, far beyond any fleet."""
MAX_SECS = 1e9
"""The longest time that a key can say, in seconds."""

ClassName: TypeAlias = Literal["system", "interactive", "default", "bulk"]


_CLASSES: Final = {c.label: c for c in PriorityClass}


def class_from_name(name: ClassName) -> PriorityClass:
    """Return the class called `name`."""
    return _CLASSES[name]


def _check_non_negative(config: msgspec.Struct, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        if value is not None and value < 0:
            raise ValueError(f"{key} must be at least 0")


class ClassConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a configuration says of one class; null: the value of the flavour. Raises ValueError for a value out of range.

    These keys have no flags: they are written in YAML, or as `MAITRED_ADMISSION__CLASSES__BULK__QUEUE_SIZE=8` in the
    environment. The flag `--queue-timeout-secs` is that of `admission.legacy`, which has no classes.
    """

    reserved_floor: int | None = None
    """Slots held back from lower classes while this class does not use them. A floor without `reserved_per_slot` stands for
    itself: the share of the flavour does not count beside it, nor, where no class has a share, for any other class."""
    reserved_per_slot: float | None = None
    """The same as a share of the capacity, 0 to 1, rounded up; the larger of the two counts. (With SMG's flavour it may be
    above 1, as there; so the struct allows it, and `AdmissionConfig.class_rules` has the last word.)"""
    queue_size: int | None = None
    """Requests that may wait, per model; 0: none, rejected at once (429)."""
    queue_timeout_secs: float | None = None
    """Longest wait in the queue, in seconds."""
    starvation_threshold_secs: float | None = None
    """Wait in seconds after which a request may be promoted (not `system`)."""
    can_preempt: bool | None = None
    """Whether a request that finds no slot may take that of a request of a lower class, before its response has started."""

    def __post_init__(self) -> None:
        _check_non_negative(self, "reserved_floor", "queue_size")
        if self.reserved_floor is not None and self.reserved_floor > MAX_SLOTS:
            raise ValueError(f"reserved_floor must be at most {MAX_SLOTS:,} slots")
        if self.reserved_per_slot is not None and not 0 <= self.reserved_per_slot <= 1e6:
            raise ValueError("reserved_per_slot must be a share, 0 or more")
        for key in ("queue_timeout_secs", "starvation_threshold_secs"):
            secs = getattr(self, key)
            if secs is not None and not 0 < secs <= MAX_SECS:
                raise ValueError(f"{key} must be > 0, and at most {MAX_SECS:g} seconds")


class ClassesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The classes, most urgent first. Null means the same as a class that is left out: the values of the flavour."""

    system: ClassConfig | None = None
    interactive: ClassConfig | None = None
    default: ClassConfig | None = None
    bulk: ClassConfig | None = None


class TenantPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may do; null: no limit of its own. Raises ValueError for a value out of range."""

    max_class: ClassName | None = None
    """The highest class that its requests can have. Null: `default_max_class`."""
    max_in_flight: int | None = None
    """Slots that it may hold at once, over all models. Further requests of the tenant wait, and those of other tenants pass
    them."""
    max_queued: int | None = None
    """Requests of it that may wait at once, over all models and classes; 0: none."""
    weight: float | None = None
    """Its share among the tenants of a class, in proportion. As soon as one tenant has a weight, tenants without one have 1."""

    def __post_init__(self) -> None:
        _check_non_negative(self, "max_queued")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1 slot")
        if self.weight is not None and not 1e-6 <= self.weight <= 1e6:
            raise ValueError("weight must be from 1e-6 to 1e6")


class LegacyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Admission without classes: one limit and one FIFO queue for all requests. Raises ValueError for a value out of range."""

    max_concurrent_requests: int = -1
    """Requests in flight at once, over all models, and the burst of the request rate; 0 or less: no limit."""
    rate_limit_tokens_per_second: float = 0.0
    """Requests that may enter per second on average; 0: no limit. With `mode: priority` the rate is a gate in front of the
    classes."""
    queue_size: int = 100
    """Requests that may wait; 0: none, rejected at once (429)."""
    queue_timeout_secs: float = 60.0
    """Longest wait in the queue, in seconds."""

    def __post_init__(self) -> None:
        _check_non_negative(self, "queue_size")
        if self.max_concurrent_requests > MAX_SLOTS:
            raise ValueError(f"max_concurrent_requests must be at most {MAX_SLOTS:,}")
        if not 0 <= self.rate_limit_tokens_per_second <= 1e6:
            raise ValueError("rate_limit_tokens_per_second must be from 0 to 1e6 requests per second")
        if not 0 < self.queue_timeout_secs <= MAX_SECS:
            raise ValueError(f"queue_timeout_secs must be > 0, and at most {MAX_SECS:g} seconds")

    @property
    def burst(self) -> float:
        """Requests that may enter at once when the bucket is full."""
        if self.max_concurrent_requests > 0:
            return float(self.max_concurrent_requests)
        return max(1.0, self.rate_limit_tokens_per_second)


AdmissionMode: TypeAlias = Literal["off", "legacy", "priority", "flow-control"]
SlotCost: TypeAlias = Literal["requests", "tokens"]
Reserve: TypeAlias = Literal["fixed", "adaptive"]
OnPreempt: TypeAlias = Literal["reject", "retry"]


class AdmissionConfig(PolicyConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests may be in flight. Raises ValueError for a value that is out of range."""

    mode: AdmissionMode = "legacy"
    """`off`: every request enters; `legacy`: one limit for all requests; `priority`: classes, and a pool of slots for each
    model; `flow-control`: as many requests as the instances can carry."""
    flavour: Flavour = "maitred"
    """The rules that hold where systems differ: `maitred`; `smg`, SMG's numbers and rules; `blis`, BLIS's flow control.
    Under `smg` an entry replaces its class as a whole, promotions are not bounded, `Retry-After` is always 2, and a 401 has no
    body."""
    classes: ClassesConfig = ClassesConfig()
    default_max_class: ClassName = "default"
    """The highest class of tenants that `tenant_policies` does not name."""
    tenant_policies: dict[str, TenantPolicy] = msgspec.field(default_factory=dict)
    """Limits by tenant: `auth:ID`, `header:VALUE`, `ip:ADDRESS` or `anonymous`."""
    service_tiers: dict[str, ClassName] = msgspec.field(default_factory=dict)
    """Class by the value of OpenAI's `service_tier` in the body, for requests without the header: `{priority: interactive,
    flex: bulk}`."""
    objectives: dict[str, ClassName] = msgspec.field(default_factory=dict)
    """Class by the objective that the header `x-gateway-inference-objective` names, as clients of the Gateway API Inference
    Extension do, for requests without a header that names a class: `{chat: interactive}`."""
    objective_priorities: dict[ClassName, int] = msgspec.field(default_factory=dict)
    """Least priority at which such an objective has a class, if it is an `InferenceObjective` that discovery finds in
    Kubernetes: `{interactive: 10, default: 0, bulk: -100}`. Empty: these are not read."""
    on_overcommit: Literal["legacy", "clamp"] = "legacy"
    """If reservations exceed the capacity at start-up: `legacy` serves without classes until they fit, `clamp` scales them
    down."""
    promotion_share: float | None = None
    """Share of the admissions from the queues that may be promotions of starved requests, 0 to 1. Null: 0.25 (smg: 1, no
    bound)."""
    promotion_burst: int = 2
    """Promotions that may follow each other directly."""
    preemption_budget_ms: float = 50.0
    """Longest wait of a preemptor for its victim's slot before it queues, in ms, 0 to 60000."""
    on_preempt: OnPreempt | None = None
    """What happens to a victim: `reject` answers 503, to be tried again; `retry` puts it back at the head of its class, once,
    and its client notices nothing. Null: `retry` with `mode: priority`, else `reject` (smg, blis: `reject`)."""
    reserve: Reserve | None = None
    """How much of the reservations is kept free: `fixed`, all that the class does not use; `adaptive`, only what its arrivals
    of the last minutes needed, at least `reserved_floor`. Null: `adaptive` where victims are tried again, else `fixed` (smg,
    blis: `fixed`)."""
    slot_cost: SlotCost = "requests"
    """What a slot is: one request, or `slot_tokens` tokens of prompt and output."""
    slot_tokens: int = 2048
    """Tokens that one slot stands for, with `slot_cost: tokens`."""
    limits: tuple[LimitRule, ...] = ()
    """Requests and tokens per minute and per day by tenant and model, in every mode. See
    docs/admission.md#limits-per-minute-and-per-day."""
    legacy: LegacyConfig = LegacyConfig()
    flow_control: FlowControlConfig = FlowControlConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.promotion_share is not None and not 0 <= self.promotion_share <= 1:
            raise ValueError("promotion_share must be from 0 to 1")
        _check_non_negative(self, "promotion_burst")
        if not 0 <= self.preemption_budget_ms <= 60_000:
            raise ValueError("preemption_budget_ms must be from 0 to 60000")
        if not 1 <= self.slot_tokens <= 1_000_000:
            raise ValueError("slot_tokens must be from 1 to 1000000")
        for c in PriorityClass:
            self.class_rules(c)
        check_rules(self.limits)
        if self.preset.checks_tenant_names:
            for tenant in self.tenant_policies:
                problem = tenant_problem(tenant)
                if problem:
                    raise ValueError(f"tenant_policies: {problem}")

    @property
    def reads_objectives(self) -> bool:
        """Whether the objective of a request says its class."""
        return bool(self.objectives or self.objective_priorities)

    def class_of_objective(self, name: str, priorities: Mapping[str, int]) -> PriorityClass | None:
        """Return the class of an objective, or None if nothing is said of it. `priorities` are the known ones, by name."""
        found = self.objectives.get(name)
        if found is None and name in priorities:
            reached = {least: label for label, least in self.objective_priorities.items() if least <= priorities[name]}
            found = reached[max(reached)] if reached else None
        return None if found is None else class_from_name(found)

    def class_rules(self, c: PriorityClass) -> ClassRules:
        """Return the complete rules of class `c`. A floor without a share reserves the floor alone, as in SMG's files; if
        such floors are all that is given, no class reserves a share that was not asked for."""
        entry: ClassConfig | None = getattr(self.classes, c.label)
        defaults = self.preset.classes[c]
        if not self.preset.replaces_classes and self._gives_floors_for(entry):
            defaults = msgspec.structs.replace(defaults, reserved_per_slot=0.0)
        if entry is None:
            return defaults
        given = {key: value for key in entry.__struct_fields__ if (value := getattr(entry, key)) is not None}
        if self.preset.replaces_classes:
            missing = [key for key in _REQUIRED_OF_WHOLE_CLASSES if key not in given]
            if missing:
                raise ValueError(
                    f"classes.{c.label}: missing field `{missing[0]}` (flavour {self.flavour} replaces whole classes)"
                )
            return ClassRules(**given)
        if given.get("reserved_per_slot", 0) > 1:
            raise ValueError(f"classes.{c.label}: reserved_per_slot must be a share from 0 to 1")
        return msgspec.structs.replace(defaults, **given)

    def _gives_floors_for(self, entry: ClassConfig | None) -> bool:
        """Return whether reservations are given as floors: that of a class by its `entry`, or else those of all classes."""
        every = [given for c in PriorityClass if (given := getattr(self.classes, c.label)) is not None]
        entries = [entry] if entry is not None and entry.reserved_floor is not None else every
        return any(e.reserved_floor is not None for e in entries) and all(e.reserved_per_slot is None for e in entries)

    def _lost_shares(self) -> str:
        """Return the classes, with commas between, that reserve nothing because floors are given for others."""
        entries = {
            c: getattr(self.classes, c.label) for c in reversed(PriorityClass) if self.preset.classes[c].reserved_per_slot
        }
        lost = [c.label for c in entries if not self.class_rules(c).reserved_floor and self._gives_floors_for(entries[c])]
        return "" if self.preset.replaces_classes else ", ".join(lost)

    @property
    def preset(self) -> AdmissionPreset:
        """What the flavour does where this configuration does not say."""
        return preset_of(self.flavour)

    @property
    def counts_sequences(self) -> bool:
        """Whether a request takes as many slots as it makes sequences in the engine; else one in any case."""
        return self.mode in ("priority", "flow-control") and self.preset.counts_sequences

    @property
    def uses_costs(self) -> bool:
        """Whether decisions depend on what requests cost in tokens: by weights or limits of tenants, or slots of tokens."""
        has_weights = any(policy.weight is not None for policy in self.tenant_policies.values())
        has_token_limits = any(rule.tokens_per_minute is not None or rule.tokens_per_day is not None for rule in self.limits)
        return has_token_limits or (self.mode == "priority" and (has_weights or self.slot_cost == "tokens"))

    @property
    def detector(self) -> DetectorName:
        """The saturation detector of flow control that is in force."""
        return self.flow_control.saturation_detector or self.preset.flow_control.detector

    @property
    def falls_back_on_overcommit(self) -> bool:
        """Whether a gateway serves without classes if the reservations exceed the capacity; else it scales them down."""
        return self.on_overcommit == "legacy" or self.preset.bootstrap_capacity is not None

    @property
    def overcommit_cure(self) -> str:
        """What helps against reservations that exceed the capacity, as a hint."""
        if self.preset.bootstrap_capacity is not None:
            return "reserve less, or say max_concurrent_requests"
        return "reserve less, or set on_overcommit: clamp"

    @property
    def admits_all(self) -> bool:
        """Whether no request is ever rejected, or has to wait."""
        return self.mode == "off" and self.never_refuses and not self.limits

    def class_cap(self, tenant: str) -> PriorityClass:
        """Return the highest class that requests of `tenant` can have."""
        policy = self.tenant_policies.get(tenant)
        return _CLASSES[(policy and policy.max_class) or self.default_max_class]

    @property
    def effective_promotion_share(self) -> float:
        """The share of the admissions from the queues that may be promotions, 0 to 1."""
        return self.preset.promotion_share if self.promotion_share is None else self.promotion_share

    @property
    def retries_victims(self) -> bool:
        """Whether a victim waits again; else it is rejected."""
        if self.on_preempt is None:
            return self.mode == "priority" and self.preset.retries_victims
        return self.on_preempt == "retry"

    @property
    def adapts_reservations(self) -> bool:
        """Whether only what arrivals need is kept free of the reservations."""
        if self.reserve is None:
            return self.retries_victims and self.preset.retries_victims
        return self.reserve == "adaptive"

    @property
    def uses_classes(self) -> bool:
        """Whether the class of a request matters."""
        return self.mode in ("priority", "flow-control") or not self.never_refuses

    def policy_warnings(self) -> Iterator[str]:
        """Yield a line for each key of admission policies and of flow control that has no effect."""
        yield from self.ineffective_keys()
        if self.mode != "flow-control" and self.flow_control != FlowControlConfig():
            yield f"mode is {self.mode}: flow_control has no effect (mode: flow-control)"
        if self.slo_targets and not (self.mode == "flow-control" and self.flow_control.dispatch_order == "slo-deadline"):
            yield "slo_targets have no effect but on flow control with dispatch_order: slo-deadline"
        if self.mode == "flow-control":
            yield from self.flow_control.ineffective_keys(self.detector)
            if self.preset.flow_control.serves_by_priority and self.flow_control.dispatch_order == "fifo":
                yield f"dispatch_order: fifo has no effect with flavour: {self.flavour}, where bands are served by priority"

    def warnings(self) -> Iterator[str]:
        """Yield a line for each key that is allowed and probably a mistake."""
        yield from self.policy_warnings()
        if self.mode == "priority" and self.default_max_class == "system":
            yield "default_max_class is system: every tenant can use the class meant for the control plane"
        if self.mode == "priority" and (lost := self._lost_shares()):
            yield f"classes have floors and no shares: {lost} reserves nothing (say its reserved_per_slot, or 0, to decide it)"
        if self.mode != "priority" and (self.classes != ClassesConfig() or (self.tenant_policies and not self.uses_classes)):
            yield f"mode is {self.mode}: classes and tenant_policies have no effect (mode: priority)"
        for key, tenants in (("tenant_policies", self.tenant_policies), ("tenant_budgets", self.tenant_budgets)):
            yield from (f"{key}: {problem}" for tenant in tenants if (problem := tenant_problem(tenant)))


_REQUIRED_OF_WHOLE_CLASSES: Final = (
    *("reserved_floor", "queue_size", "queue_timeout_secs", "starvation_threshold_secs", "can_preempt"),
)
