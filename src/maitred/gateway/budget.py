"""How much memory request bodies may take, all together.

A body is read before its request asks for a slot, and kept until the request has ended, because it may have to be sent again.
So what waits is paid for in memory, and somebody may upload slowly to a thousand connections. Each piece that is read is taken
from one budget; when that is spent, the body that needs more is refused.
"""

from __future__ import annotations

from maitred.gateway import refusals


class BodyBudget:
    """Bytes, shared by all that is being read or kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parked = 0
        """Bytes taken and not given back. More than the limit only if that was lowered meanwhile."""

    def lease(self) -> Lease:
        return Lease(self)


class Lease:
    """What one body holds of the budget."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0

    def take(self, size: int) -> None:
        """So many bytes more were read. Raises ApiError 503 if there is no room for them."""
        if self._budget.parked + size > self._budget.limit:
            raise refusals.body_budget_exhausted()
        self._budget.parked += size
        self._held += size

    def give_back(self) -> None:
        """All of it. Idempotent."""
        self._budget.parked -= self._held
        self._held = 0
