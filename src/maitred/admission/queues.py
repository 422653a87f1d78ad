"""The FIFO queue of one class.

First in, first out, and any waiter may leave from the middle at once, without a trace. All wait equally long at most, so
the head is always the one whose time is up next, and no heap of deadlines is needed. A change of `timeout` holds for those
who wait already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from maitred.admission.ticket import Ticket
from maitred.request import RequestId
from maitred.units import Micros


class ClassQueue:
    """Waiters of one class, oldest first. Every operation is O(1)."""

    # OrderedDict, not dict: a dict finds its first key by walking over those deleted before it.
    __slots__ = ("_waiting", "head", "size", "timeout")

    def __init__(self) -> None:
        self.size = 0
        """How many may wait. Lowered below `len`: those who wait stay, nobody joins."""
        self.timeout: Micros = 0
        self.head: Ticket | None = None
        """Who is next; None when nobody waits."""
        self._waiting: OrderedDict[RequestId, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._waiting.values())

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self.size

    def push(self, ticket: Ticket) -> None:
        """To the end of the line."""
        self._waiting[ticket.id] = ticket
        if self.head is None:
            self.head = ticket

    def remove(self, ticket: Ticket) -> None:
        """Take a waiter out, wherever it stands. Raises KeyError if it does not wait here."""
        del self._waiting[ticket.id]
        if ticket is self.head:
            self.head = next(iter(self._waiting.values()), None)
