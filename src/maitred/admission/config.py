"""The `admission` section: one entry per class, with SMG's names for the keys.

A class that a file leaves out, and a key that an entry leaves out, keep the values below (SMG replaces whole entries).
Our reservations are shares, so they fit a fleet of any size; `default` and `bulk` reserve nothing.
"""

from __future__ import annotations

import msgspec

from maitred.request import PriorityClass

MOST_SLOTS = 1_000_000_000
"""No pool is larger: a guard against slips of the keyboard, far beyond any fleet."""


class ClassConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one class may count on. Raises ValueError for what cannot be."""

    reserved_floor: int = 0
    """Slots reserved, whatever the capacity."""
    reserved_per_slot: float = 0.0
    """Slots reserved as a share of the capacity, rounded up; the larger of the two counts."""
    queue_size: int = 512
    """How many may wait; 0: none, reject at once."""
    queue_timeout_secs: float = 60.0
    """How long one may wait, in seconds (fractions allowed)."""

    def __post_init__(self) -> None:
        if self.reserved_floor < 0:
            raise ValueError("reserved_floor must be at least 0 slots")
        if not 0 <= self.reserved_per_slot <= 1:
            raise ValueError("reserved_per_slot must be a share from 0 to 1")
        if self.queue_size < 0:
            raise ValueError("queue_size must be at least 0")
        if not 0 < self.queue_timeout_secs <= 1e9:
            raise ValueError("queue_timeout_secs must be more than 0 and at most 1e9 seconds")


class SystemClass(ClassConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reserved_per_slot: float = 0.05
    queue_size: int = 64
    queue_timeout_secs: float = 30.0


class InteractiveClass(ClassConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reserved_per_slot: float = 0.25
    queue_size: int = 256
    queue_timeout_secs: float = 30.0


class DefaultClass(ClassConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class BulkClass(ClassConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue_size: int = 1024
    queue_timeout_secs: float = 300.0


class ClassesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The classes, most urgent first."""

    system: SystemClass = SystemClass()
    interactive: InteractiveClass = InteractiveClass()
    default: DefaultClass = DefaultClass()
    bulk: BulkClass = BulkClass()


class AdmissionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each class may count on."""

    classes: ClassesConfig = ClassesConfig()

    def of(self, priority_class: PriorityClass) -> ClassConfig:
        found: ClassConfig = getattr(self.classes, priority_class.label)
        return found
