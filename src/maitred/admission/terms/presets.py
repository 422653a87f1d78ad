"""Presets: the defaults of admission, and the options in which other systems differ, by name.

`flavour` chooses a preset (`preset_of`). Nothing else looks at the flavour: the code asks the preset's options. Ours
stands here. Those of other systems are added (`add_presets`) by `maitred.compat`, which stands above this room.

Our reservations are shares of the capacity, so they fit a fleet of any size, and `default` and `bulk` reserve nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from maitred.admission.terms.flow_config import DetectorName, DispatchMode, FairnessName, FairnessPolicy
from maitred.core.request import PriorityClass
from maitred.core.units import Micros

Flavour: TypeAlias = Literal["maitred", "smg", "blis"]


class ClassRules(msgspec.Struct, frozen=True, kw_only=True):
    """What one class may count on, complete. The keys are those of `ClassConfig`."""

    reserved_floor: int = 0
    reserved_per_slot: float = 0.0
    queue_size: int
    queue_timeout_secs: float
    starvation_threshold_secs: float
    can_preempt: bool


_CLASSES: Final[Mapping[PriorityClass, ClassRules]] = {
    PriorityClass.SYSTEM: ClassRules(
        reserved_per_slot=0.05, queue_size=64, queue_timeout_secs=30, starvation_threshold_secs=5, can_preempt=True
    ),
    PriorityClass.INTERACTIVE: ClassRules(
        reserved_per_slot=0.25, queue_size=256, queue_timeout_secs=30, starvation_threshold_secs=5, can_preempt=True
    ),
    PriorityClass.DEFAULT: ClassRules(queue_size=512, queue_timeout_secs=60, starvation_threshold_secs=30, can_preempt=False),
    PriorityClass.BULK: ClassRules(queue_size=1024, queue_timeout_secs=300, starvation_threshold_secs=120, can_preempt=False),
}


_FAIRNESS: Final[Mapping[FairnessName, FairnessPolicy]] = {
    "global-strict": FairnessPolicy.GLOBAL_STRICT,
    "round-robin": FairnessPolicy.ROUND_ROBIN,
}


class FlowControlPreset(msgspec.Struct, frozen=True, kw_only=True):
    """The options of flow control in which systems differ."""

    detector: DetectorName = "concurrency"
    """The saturation detector, where `saturation_detector` is null."""
    dispatch: DispatchMode = "all"
    """How many requests enter at a time, where `dispatch` is null."""
    serves_by_priority: bool = False
    """Whether bands are served by priority, whatever `dispatch_order` says."""
    fairness: Mapping[FairnessName, FairnessPolicy] = msgspec.field(default_factory=lambda: _FAIRNESS)
    """What the values of `fairness_policy` mean."""
    creates_all_bands: bool = True
    """Whether all bands that have a name exist from the start; else a band exists once a request has waited in it."""
    counts_unseen_in_flight: bool = True
    """Whether an admitted request counts for the saturation before an instance shows it."""


class AdmissionPreset(msgspec.Struct, frozen=True, kw_only=True):
    """The options of admission in which systems differ."""

    classes: Mapping[PriorityClass, ClassRules] = msgspec.field(default_factory=lambda: _CLASSES)
    replaces_classes: bool = False
    """Whether an entry of `classes` replaces the class as a whole, and must be complete."""
    checks_tenant_names: bool = True
    """Whether `tenant_policies` must name tenants that can exist; else there is only a warning."""
    sums_rounded_reservations: bool = False
    """Whether reservations are compared with the capacity after each has been rounded up to whole slots."""
    bootstrap_capacity: int | None = None
    """Slots against which reservations are checked before any backend is up, or None if they are checked later."""
    keeps_exact_fit: bool = False
    """Whether reservations that use up the capacity to the last slot are kept; else one slot stays unreserved."""
    promotion_share: float = 0.25
    """Share of the admissions from the queues that may be promotions, where `promotion_share` is null."""
    promotes_next_waiter: bool = False
    """Whether a starving request counts as promoted even if it is next in any case."""
    fixed_retry_after: Micros | None = None
    """`Retry-After` of every rejection, µs, or None for an estimate from the speed of the queue."""
    retries_victims: bool = True
    """Whether victims of class admission are tried again, and reservations adapt, where the keys are null."""
    has_rate_limit_code: bool = True
    """Whether the request rate has an error code of its own; else its answers are those of a full queue."""
    counts_sequences: bool = True
    """Whether a request takes a slot for each sequence that it makes in the engine; else one slot in any case."""
    describes_unauthorized: bool = True
    """Whether an answer of status 401 has a body."""
    flow_control: FlowControlPreset = FlowControlPreset()


_PRESETS: Final[dict[Flavour, AdmissionPreset]] = {"maitred": AdmissionPreset()}


def add_presets(presets: Mapping[Flavour, AdmissionPreset]) -> None:
    """Make the presets of other systems known, for the configurations that are made from now on."""
    _PRESETS.update(presets)


def preset_of(flavour: Flavour) -> AdmissionPreset:
    """Return the preset that `flavour` names. Raises ValueError for one that is not known, or was not added."""
    try:
        return _PRESETS[flavour]
    except KeyError:
        known = ", ".join(_PRESETS)
        raise ValueError(f"there is no flavour {flavour!r} among {known} (import maitred.compat for those of others)") from None
