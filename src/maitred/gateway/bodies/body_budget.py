"""The body budget: the bytes that the bodies of all requests together may hold, and who may hold how many of them.

A body is kept until its request has ended, because it may have to be sent again. So waiting requests cost memory, and a
thousand clients may upload slowly at once. Each piece that is read is charged to one budget for all bodies
(`max_parked_body_bytes`); a body that finds no room is refused with 503, and returns what it holds at once. For example, with a
budget of 100 bytes and two bodies of 80, the one with the next piece that exceeds the remaining bytes is refused.

A few clients could hold all of it, so there are two rules:

    share   A tenant may hold at most sixteen times as many bytes as are left free, and one address of it eight times as many
            (dynamic thresholds: Choudhury and Hahne, 1998). So one client alone has 8/9 of the budget, and the next one 8/9 of
            the rest. The only body of a tenant may have all that is left.
    pace    An upload that goes on as it does must bring what it holds within `_PACE`: a body of 20 MB needs 1 MB/s. Slower ones
            are cut with 408, the slowest first, when another body finds no room, and only then. If that other body has merely
            reached the share of its tenant, they are those of the same tenant.

Before an upload is cut, requests that have come behind others on their connections are dropped: nothing has begun with them.

Pace is a deadline that each piece moves on, by the part of `_PACE` that it is of what the body holds then, to `_PACE` from now
at most. An upload that is overdue is too slow; the one that was due first is the slowest.

    20 MB in a second, then 1 KB/s    due 20 s after the burst; each KB adds 1 ms, so cut 20 s after it if memory is short
    1 MB at 100 KB/s                  never overdue: each second brings a tenth of it or more, which adds 2 s or more

Who holds how much matters only while memory is short: with half of the budget left free, nobody can have more than a share. So
it is counted from the leases when more than half is taken, and kept up to date until less than a quarter is.

When bodies have held much and hold less than half of it, what they have left in memory goes back to the system a little later
(`wire.freed_memory`).

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from maitred.core.units import Micros, from_seconds
from maitred.gateway import error_responses
from maitred.wire.clock import Clock
from maitred.wire.exchange import ClientAddress
from maitred.wire.freed_memory import return_freed_memory
from maitred.wire.server_context import ServerContext

_TENANT_SHARE: Final = 16
_ADDRESS_SHARE: Final = 8
_PACE: Final[Micros] = 20_000_000
_NEVER: Final[Micros] = 1 << 62
_BURST_BYTES: Final = 16 * 1024 * 1024
"""Bodies that hold less leave little."""
_RETURN_SECS: Final = 5.0
"""Between the end of a burst and the return of its memory: what goes on as bursts pays for one of them in so many seconds."""


class BodyBudget:
    """Bytes that all bodies together may hold."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self.taken_bytes = 0
        """Bytes held by leases."""
        self.most_bytes = _BURST_BYTES
        """The most that leases have held since memory was last returned, or `_BURST_BYTES` if that is more."""
        self._return_timer: asyncio.TimerHandle | None = None
        self.server: ServerContext | None = None
        """What keeps further requests that a connection has sent; None while there is none."""
        self.uploads: dict[BodyLease, None] = {}
        """The leases of bodies that are being read in pieces."""
        self.leases: dict[BodyLease, None] = {}
        """The leases that hold bytes."""
        self.by_owner: dict[str, int] | None = None
        """Bytes held by tenant, and by tenant and address, while memory is short; None while it is not."""

    @property
    def parked_bytes(self) -> int:
        """Bytes held now. More than `limit` only after a reload has lowered it, or by requests that wait behind others."""
        return self.taken_bytes + (0 if self.server is None else self.server.parked_bytes)

    def now(self) -> Micros:
        """Return the time by which uploads are judged. While the process stood still, what clients sent lay in its sockets, so
        that time does not count (`wire.loop_clock`)."""
        return self._clock.now() if self.server is None else from_seconds(self.server.clock.time())

    def has_room(self, lease: BodyLease, size: int) -> bool:
        """Return whether `lease` may hold `size` more bytes."""
        free = self.limit - self.parked_bytes - size
        if 2 * free >= self.limit:
            return True
        if free < 0:
            return False
        by_owner = self._holdings()
        of_tenant = by_owner.get(lease.tenant, 0)
        if of_tenant == lease.held_bytes:  # its only body
            return True
        of_address = by_owner.get(lease.address, 0)
        return of_tenant + size <= _TENANT_SHARE * free and of_address + size <= _ADDRESS_SHARE * free

    def _holdings(self) -> dict[str, int]:
        """Return how many bytes each owner holds, and keep that up to date from now on. O(leases) the first time."""
        if self.by_owner is None:
            self.by_owner = {}
            for lease in self.leases:
                count_holding(self.by_owner, lease, lease.held_bytes)
        return self.by_owner

    def end_burst(self) -> None:
        """Return memory soon: leases hold much less than they did."""
        self.most_bytes = _BURST_BYTES
        if self._return_timer is None:
            self._return_timer = asyncio.get_running_loop().call_later(_RETURN_SECS, self._return_memory)

    def _return_memory(self) -> None:
        self._return_timer = None
        return_freed_memory()

    def make_room(self, lease: BodyLease, size: int) -> bool:
        """Let others go until `lease` may hold `size` more bytes, and return whether it may."""
        is_full = self.parked_bytes + size > self.limit
        if is_full and self.server is not None and self.server.parked_bytes:
            self.server.drop_parked()
            is_full = self.parked_bytes + size > self.limit
        overdue = min(self.now(), lease.due)
        slow = [other for other in self.uploads if other.due < overdue and (is_full or other.tenant == lease.tenant)]
        for other in sorted(slow, key=attrgetter("due")):
            if self.has_room(lease, size):
                break
            other.cut()
        return self.has_room(lease, size)


class BodyLease:
    """The bytes of the budget that one body holds; none at first."""

    due: Micros = _NEVER
    """When its upload is too slow, unless more comes."""

    def __init__(self, budget: BodyBudget, tenant: str, client: ClientAddress) -> None:
        self._budget = budget
        self.tenant = tenant
        self._client = client
        self.held_bytes = 0
        self._stop: Callable[[], object] | None = None

    @property
    def address(self) -> str:
        """The tenant and the address."""
        return f"{self.tenant}\n{self._client[0] if self._client else ''}"

    def begin_upload(self, stop: Callable[[], object]) -> None:
        """Take note that the body is being read in pieces. `stop` is called if it is cut: it must read no more then."""
        self._stop, self.due = stop, self._budget.now() + _PACE
        self._budget.uploads[self] = None

    def end_upload(self) -> None:
        """Take note that the body is whole. Idempotent."""
        self._stop, self.due = None, _NEVER
        self._budget.uploads.pop(self, None)

    def take_bytes(self, size: int) -> None:
        """Hold `size` more bytes. Raises ApiError 503 if there is no room for them."""
        budget, server = self._budget, self._budget.server
        # Asked here as well, because it is so for nearly every body.
        is_plenty = 2 * (budget.taken_bytes + size + (0 if server is None else server.parked_bytes)) <= budget.limit
        if not (is_plenty or budget.has_room(self, size) or budget.make_room(self, size)):
            raise error_responses.body_budget_exhausted()
        budget.leases[self] = None
        budget.taken_bytes += size
        self.held_bytes += size
        if budget.by_owner is not None:
            count_holding(budget.by_owner, self, size)
        if self._stop is not None and size:
            self.due = min(budget.now() + _PACE, self.due + _PACE * size // self.held_bytes)

    def cut(self) -> None:
        """End the upload, which is too slow."""
        stop = self._stop
        self.release()
        if stop is not None:
            stop()

    def return_bytes(self, size: int) -> None:
        """Return `size` bytes of those that are held to the budget."""
        budget = self._budget
        budget.taken_bytes -= size
        self.held_bytes -= size
        if budget.by_owner is not None:
            count_holding(budget.by_owner, self, -size)
            if budget.taken_bytes < budget.limit // 4:
                budget.by_owner = None

    def release(self) -> None:
        """Return all bytes to the budget. Idempotent."""
        if self._stop is not None:
            self.end_upload()
        budget = self._budget
        if budget.taken_bytes > budget.most_bytes:  # noqa: PLR1730  (a call of `max` for every request)
            budget.most_bytes = budget.taken_bytes
        if budget.by_owner is None:
            budget.taken_bytes -= self.held_bytes
            self.held_bytes = 0
        else:
            self.return_bytes(self.held_bytes)
        budget.leases.pop(self, None)
        if budget.most_bytes > _BURST_BYTES and 2 * budget.taken_bytes < budget.most_bytes:
            budget.end_burst()


def count_holding(by_owner: dict[str, int], lease: BodyLease, size: int) -> None:
    """Count `size` more bytes for the owners of a lease."""
    for owner in (lease.tenant, lease.address):
        held = by_owner.get(owner, 0) + size
        if held:
            by_owner[owner] = held
        else:
            by_owner.pop(owner, None)
