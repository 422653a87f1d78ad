"""RefusalPace: how fast a tenant is told that it may not enter, so that retrying at once takes no time from others.

To refuse a request costs half as much as to serve one, and a client that does not wait for `Retry-After` sends the next request
as soon as it has the answer to the last one. With hundreds of connections that alone fills the event loop, and each request of
every other tenant waits behind all of them in each turn. But no connection can retry before it has its refusal. So a tenant
gets `rate` refusals per second at once, and further ones when their turn comes at that rate, `MAX_DELAY` later at most.

    rate 100; 300 connections retry at once     the first 100 have their refusals at once, the others within a second; from
                                                then on each connection has one per second: 300 in all, instead of thousands
    a client that keeps to `Retry-After`        loses nothing: that is a second or more

What waits is an answer of some hundred bytes: the request holds no slot, no place in a queue and no body any more. A tenant
that is refused more slowly than the rate saves up refusals of a second.
"""

from __future__ import annotations

from typing import Final

from maitred.core.units import Micros

MAX_DELAY: Final[Micros] = 1_000_000
"""The longest that a refusal waits: the least `Retry-After`."""
_SECOND: Final[Micros] = 1_000_000


class RefusalPace:
    """The pace of all tenants."""

    def __init__(self, rate: int) -> None:
        """`rate` is in refusals per second and tenant; 0: without limit."""
        self._interval: Micros = _SECOND // rate if rate else 0
        self._turns: dict[str, Micros] = {}
        """By tenant: when its next refusal has its turn. Who is not in there has saved up all that can be."""
        self._swept_at: Micros = 0

    def next_delay(self, tenant: str, now: Micros) -> Micros:
        """Return how long the next refusal of `tenant` has to wait, in µs, and count it."""
        if not self._interval:
            return 0
        if now - self._swept_at >= _SECOND:
            self._forget_idle(now)
        turn = max(self._turns.get(tenant, 0), now - _SECOND)
        self._turns[tenant] = min(turn + self._interval, now + MAX_DELAY)
        return max(0, turn - now)

    @property
    def num_tenants(self) -> int:
        """Tenants that are remembered: those refused in the last seconds."""
        return len(self._turns)

    def _forget_idle(self, now: Micros) -> None:
        self._swept_at = now
        self._turns = {tenant: turn for tenant, turn in self._turns.items() if turn > now - _SECOND}
