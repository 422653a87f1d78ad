"""The body budget: the bytes that the bodies of all requests together may hold.

A body is kept until its request has ended, because it may have to be sent again. So waiting requests cost memory, and a
thousand clients may upload slowly at once. Each piece that is read is charged to one budget for all bodies
(`max_parked_body_bytes`); a body that needs more than is left is refused with 503. For example, with a budget of 100 bytes and
two bodies of 80, the one with the next piece that exceeds the remaining bytes is refused, and returns what it holds at once.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.gateway import error_responses
from maitred.wire.server_context import ServerContext


class BodyBudget:
    """Bytes that all bodies together may hold."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken_bytes = 0
        """Bytes held by leases."""
        self.server: ServerContext | None = None
        """What keeps further requests that a connection has sent; None while there is none."""

    @property
    def parked_bytes(self) -> int:
        """Bytes held now. More than `limit` only after a reload has lowered it, or by requests that wait behind others."""
        return self.taken_bytes + (0 if self.server is None else self.server.parked_bytes)


class BodyLease:
    """The bytes of the budget that one body holds; none at first."""

    __slots__ = ("_budget", "_held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    def take_bytes(self, size: int) -> None:
        """Hold `size` more bytes. Raises ApiError 503 if fewer are left in the budget."""
        budget = self._budget
        if budget.parked_bytes + size > budget.limit:
            raise error_responses.body_budget_exhausted()
        budget.taken_bytes += size
        self._held_bytes += size

    def return_bytes(self, size: int) -> None:
        """Return `size` bytes of those that are held to the budget."""
        self._budget.taken_bytes -= size
        self._held_bytes -= size

    def release(self) -> None:
        """Return all bytes to the budget. Idempotent."""
        self._budget.taken_bytes -= self._held_bytes
        self._held_bytes = 0
