"""Priority policies: how urgent is a request now?

A score is larger for what is more urgent, and is kept in `Seq.priority`. Where time changes all scores alike, their order is
fixed, and the policy says so by a `rank`: then nobody computes a score but of those that are looked at. The score of a
policy without it, such as a user's own, is computed for all that wait whenever a step may admit.
"""

from __future__ import annotations

from math import isfinite
from typing import Protocol, runtime_checkable

from maitred.contracts import PriorityPolicy
from maitred.registry import Registry
from maitred.request import Request
from maitred.slo_classes import slo_priority
from maitred.units import Micros

PRIORITIES: Registry[PriorityPolicy] = Registry(
    "priority policy",
    PriorityPolicy,
    group="maitred.priority_policies",
    packages=["maitred.queueing"],
    methods=["compute"],
)


@runtime_checkable
class SteadyPriority(PriorityPolicy, Protocol):
    """A priority policy whose order time does not change."""

    def rank(self, request: Request) -> float:
        """Larger wherever `compute` is larger, at every instant; equal where it is equal."""
        ...


class AgePriority(SteadyPriority):
    """`base_score + age_weight * (now - arrival)`, `age_weight` per microsecond."""

    name: str

    def __init__(self, base_score: float, age_weight: float) -> None:
        """Raises ValueError for what is not finite."""
        self._base = _finite("base_score", base_score)
        self.age_weight = _finite("age_weight", age_weight)

    def compute(self, request: Request, now: Micros) -> float:
        return self._base + self.age_weight * (now - request.arrival)

    def rank(self, request: Request) -> float:
        """Whole numbers, so that no two arrivals become one."""
        return request.arrival * ((self.age_weight < 0) - (self.age_weight > 0))


@PRIORITIES.register("constant")
class Constant(AgePriority):
    """All alike (BLIS `constant`)."""

    name = "constant"

    def __init__(self, base_score: float = 0.0) -> None:
        super().__init__(base_score, 0.0)


@PRIORITIES.register("slo-based")
class SloBased(AgePriority):
    """Older is more urgent (BLIS `slo-based`). It looks at no class and no deadline; the scheduler `slo` does."""

    name = "slo-based"

    def __init__(self, base_score: float = 0.0, age_weight: float = 1e-6) -> None:
        super().__init__(base_score, age_weight)


@PRIORITIES.register("inverted-slo")
class InvertedSlo(AgePriority):
    """`base_score - age_weight * (now - arrival)`: newer is more urgent (BLIS `inverted-slo`), to see what harm it does."""

    name = "inverted-slo"

    def __init__(self, base_score: float = 0.0, age_weight: float = 1e-6) -> None:
        super().__init__(base_score, -age_weight)


@PRIORITIES.register("static-slo-class")
class StaticSloClass(SteadyPriority):
    """As urgent as the SLO class of the request, whatever its age (BLIS since May 2026): critical 4, standard 3, batch -1,
    sheddable -2, background -3."""

    name = "static-slo-class"

    def compute(self, request: Request, now: Micros) -> float:
        return slo_priority(request)

    def rank(self, request: Request) -> float:
        return slo_priority(request)


def _finite(name: str, value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value}")
    return value
