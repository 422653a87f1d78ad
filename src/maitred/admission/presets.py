"""What each class may count on when a configuration does not say: our numbers, and SMG's.

Our reservations are shares, so they fit a fleet of any size, and `default` and `bulk` reserve nothing. SMG's are made for
fleets of several hundred slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from maitred.core.request import PriorityClass

Flavour: TypeAlias = Literal["maitred", "smg", "blis"]


class ClassRules(msgspec.Struct, frozen=True, kw_only=True):
    """What one class may count on, complete. The keys are those of `ClassConfig`."""

    reserved_floor: int = 0
    reserved_per_slot: float = 0.0
    queue_size: int
    queue_timeout_secs: float
    starvation_threshold_secs: float
    can_preempt: bool


SMG_BOOTSTRAP_CAPACITY: Final = 1024
"""Slots that SMG assumes before any backend has come up; its reservations are checked against them."""

_MAITRED: Final[Mapping[PriorityClass, ClassRules]] = {
    PriorityClass.SYSTEM: ClassRules(
        reserved_per_slot=0.05, queue_size=64, queue_timeout_secs=30, starvation_threshold_secs=5, can_preempt=True
    ),
    PriorityClass.INTERACTIVE: ClassRules(
        reserved_per_slot=0.25, queue_size=256, queue_timeout_secs=30, starvation_threshold_secs=5, can_preempt=True
    ),
    PriorityClass.DEFAULT: ClassRules(queue_size=512, queue_timeout_secs=60, starvation_threshold_secs=30, can_preempt=False),
    PriorityClass.BULK: ClassRules(queue_size=1024, queue_timeout_secs=300, starvation_threshold_secs=120, can_preempt=False),
}
_SMG: Final[Mapping[PriorityClass, ClassRules]] = {
    PriorityClass.SYSTEM: ClassRules(
        reserved_floor=32, queue_size=64, queue_timeout_secs=30, starvation_threshold_secs=5, can_preempt=True
    ),
    PriorityClass.INTERACTIVE: ClassRules(
        reserved_floor=128,
        reserved_per_slot=0.25,
        queue_size=256,
        queue_timeout_secs=30,
        starvation_threshold_secs=5,
        can_preempt=True,
    ),
    PriorityClass.DEFAULT: ClassRules(
        reserved_per_slot=0.10, queue_size=512, queue_timeout_secs=60, starvation_threshold_secs=30, can_preempt=False
    ),
    PriorityClass.BULK: ClassRules(queue_size=1024, queue_timeout_secs=300, starvation_threshold_secs=120, can_preempt=False),
}
CLASS_PRESETS: Final[Mapping[Flavour, Mapping[PriorityClass, ClassRules]]] = {
    "maitred": _MAITRED,
    "smg": _SMG,
    "blis": _MAITRED,
}
