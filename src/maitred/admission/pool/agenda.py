"""Agenda: what a change of one pool has left to settle in the others, and from when on time has something to settle.

A change may let requests enter: a slot that becomes free, a tenant that has room again, a tenant that has reached its limit,
so that the requests behind its own may pass. A pool that changes settles itself at once (`SlotPool.dispatch`). What the change
means for other pools is marked here, and the core settles all marks before an input is answered (`PoolCoordinator.settle`):

    marked     pools in which a request may enter now, or preempt
    freed      tenants that hold or claim less than before, in one pool: their requests are next again in all others
    limited    pools in which a tenant has reached its limit: in the others its requests hold back none behind them any more

The same holds for time. Whatever begins to wait notes until when (`schedule`), and nothing asks for it afterwards.

Example: tenant a has a limit of one slot, and a request in flight in pool m. Its next one waits in pool n, where a slot is
idle. The release lets nothing enter m, and notes that a is freed. Then n is marked, because a may have room there, and the
request of a enters it. That notes that a has reached its limit in n, so m is marked, and nothing is left.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from typing import Final

from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.terms.ticket import Ticket
from maitred.admission.waiting.usage_window import Reservation
from maitred.core.request import RequestId
from maitred.core.units import Micros

NEVER: Final[Micros] = 1 << 61
"""Later than any instant. Compiled code keeps whole numbers below 1 << 62 in one word, and compares them without a call."""


class Agenda:
    """The marks of all pools of one core, and the tickets that are there."""

    __slots__ = (
        *("freed", "has_other_pools", "is_open", "limited", "marked", "next_due_at", "reserved", "tickets", "unscheduled"),
    )

    def __init__(self) -> None:
        self.tickets: dict[RequestId, Ticket] = {}
        """All requests that wait or hold a slot. A pool removes those that it rejects."""
        self.reserved: dict[RequestId, Reservation] = {}
        """The reservations of those of them that limits hold for."""
        self.next_due_at: Micros = NEVER
        """The instant before which time changes nothing, which may be too early; NEVER if it never changes anything."""
        self.is_open = False
        """Whether there are marks."""
        self.has_other_pools = False
        """Whether there is more than one pool. A pool that is alone has nothing to settle for a tenant that it has freed."""
        self.freed: list[tuple[TenantAccount, str]] = []
        """Tenants with the pool in which they have given up a slot or a claim. The last one is settled first."""
        self.limited: list[str] = []
        """Pools in which a tenant has reached its limit. A pool itself goes on behind such a tenant in `dispatch`."""
        self.unscheduled: dict[str, None] = {}
        """Pools that were dispatched while there were marks, and have not noted since when time changes something."""
        self.marked: list[str] = []
        """Pools in which a request that waits may enter or preempt, in the order in which they were marked."""

    def mark(self, pool: str) -> None:
        """Note that a request that waits in `pool` may enter or preempt."""
        self.marked.append(pool)
        self.is_open = True

    def note_freed(self, account: TenantAccount | None, pool: str) -> None:
        """Note that a tenant may hold more in other pools than `pool`, where it has given up a slot or a claim to one."""
        if account is not None and account.max_in_flight is not None and self.has_other_pools:
            self.freed.append((account, pool))
            self.is_open = True

    def note_taken(self, account: TenantAccount, pool: str) -> None:
        """Note that a tenant has taken a slot in `pool`, or a claim to one, with which it may have reached its limit."""
        if account.at_limit:
            self.limited.append(pool)
            self.is_open = True

    def schedule(self, due: Micros | None) -> None:
        """Note that time changes something at `due`, or never if it is None."""
        if due is not None and due < self.next_due_at:
            self.next_due_at = due
