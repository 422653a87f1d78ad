"""What the books of a gateway have of a request and of a pool, and how much of it a request takes: slots, or tokens.

A request takes a slot, or, where requests are charged by their tokens, as many tokens as are expected of it, but no more than
its class could have beside what higher ones reserve. How much these reserve at most is known, so a reader that knows no more
has the least and the most that each takes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol, TypeAlias

import msgspec

from maitred.admission import AdmissionConfig
from maitred.core.request import PriorityClass
from maitred.core.units import Micros
from maitred.testing.world.turn_books import Charge

Span: TypeAlias = tuple[Micros, Micros]


class Asked(Protocol):
    """A request as its client has it."""

    @property
    def priority(self) -> str: ...
    @property
    def sent_at(self) -> Micros: ...


class Hold(msgspec.Struct):
    """A slot in the hands of a request."""

    began_at: Micros
    ended_at: Micros | None = None


@dataclass(slots=True)
class Booked:
    """A request in admission."""

    mark: str
    pool: str
    asked_class: PriorityClass
    tenant: str
    submitted_at: Micros
    cost: int = 1
    """Its tokens, as they are expected."""
    least_units: int = 0
    """Of its slot; `cost` are the most."""
    place: int = 0
    """In the queue of its class: below 0 in front of those that have just come."""
    charge: Charge | None = None
    slo_priority: int = 0
    due: float = inf
    """When its first token should come, µs."""
    hold: Hold | None = None
    waits: bool = False
    awaits_victim: bool = False
    """Whether it waits for the slot of a victim, and is in no queue."""
    is_victim: bool = False
    has_first_byte: bool = False
    waits_until: Micros = 0
    """When its wait ends at the latest, by the longest timeout that has been in force since it came."""
    freed_at: Micros = 0
    """When it had a slot last."""


@dataclass(slots=True)
class Pool:
    """The slots of a model."""

    capacity: int = 0
    credit: float | None = None
    """Promotions that are saved up; None: as many as may be."""
    num_promoted: int = 0
    num_from_queues: int = 0
    in_use: int = 0
    """Units at least: one for each request, or for each token."""
    in_flight: Counter[PriorityClass] = field(default_factory=Counter)
    """Units at most."""


def units_per_slot(config: AdmissionConfig) -> int:
    """Return the units of a slot: its tokens, or 1."""
    return config.slot_tokens if config.slot_cost == "tokens" else 1


def most_units(config: AdmissionConfig, request: Booked) -> int:
    """Return the most that the slot of a request takes."""
    return max(1, request.cost) if config.slot_cost == "tokens" else 1


def least_units(config: AdmissionConfig, request: Booked, pool: Pool) -> int:
    """Return the least that it takes."""
    left = pool.capacity * units_per_slot(config) - most_reserved_above(config, request.asked_class, pool)
    return max(1, min(most_units(config, request), left))


def most_reserved_above(config: AdmissionConfig, priority_class: PriorityClass, pool: Pool) -> int:
    """Return the most units that the classes above one reserve: less, if that is more than there are."""
    return sum(_wanted_slots(config, c, pool) for c in PriorityClass if c > priority_class) * units_per_slot(config)


def floor_above(config: AdmissionConfig, priority_class: PriorityClass, pool: Pool) -> int:
    """Return how many idle units the floors of higher classes keep from a class; 0 if the reservations do not fit."""
    if sum(_wanted_slots(config, c, pool) for c in PriorityClass) >= pool.capacity:
        return 0
    higher = {c: config.class_rules(c).reserved_floor for c in PriorityClass if c > priority_class}
    return sum(max(0, floor * units_per_slot(config) - pool.in_flight[c]) for c, floor in higher.items())


def _wanted_slots(config: AdmissionConfig, priority_class: PriorityClass, pool: Pool) -> int:
    rules = config.class_rules(priority_class)
    return max(rules.reserved_floor, ceil(rules.reserved_per_slot * pool.capacity))


def highest_class(config: AdmissionConfig, tenant: str) -> PriorityClass:
    """Return the highest class that a tenant may have."""
    policy = config.tenant_policies.get(tenant)
    told = None if policy is None else policy.max_class
    return PriorityClass[(told or config.default_max_class).upper()]


def promotions(config: AdmissionConfig) -> tuple[float, float]:
    """Return how many promotions may follow each other, and their share of the admissions from queues."""
    return config.promotion_burst, config.effective_promotion_share


def queue_of(request: Booked) -> tuple[str, PriorityClass]:
    """Return the queue of a request."""
    return request.pool, request.asked_class
