"""What follows from an event beyond the pool in which it happened: with time, and in the other pools.

With time: somebody's time is up, somebody starves, a bucket fills. All of it falls due at instants that the pools know of; here
is the first of them, and everything due is settled at its own instant, in order, however late it is asked for.

In the other pools: the limits of a tenant span all models. One of it that leaves may let in its waiters elsewhere. And a tenant
that has just reached its limit stands in nobody's way any more: those behind its waiters go in, in any pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from maitred.admission.pool import Pool
from maitred.admission.pools import Pools
from maitred.admission.tenants import Tenant
from maitred.admission.ticket import Ticket
from maitred.admission.vocabulary import Action
from maitred.decisions import Decision
from maitred.request import RequestId
from maitred.units import Micros


class Consequences:
    """In `pools`, for `tickets`: all that are here. Those that time, or others, turn away are taken out of them."""

    __slots__ = ("_now", "_pools", "_tickets", "earliest", "limits")

    def __init__(self, pools: Pools, tickets: dict[RequestId, Ticket]) -> None:
        self.earliest: Micros | None = None
        """Time changes nothing before this instant (it may be later). None: it changes nothing at all."""
        self._now: Micros = 0
        """What was due by this instant has been settled."""
        self.limits = False
        """Whether some tenant has limits."""
        self._pools = pools
        self._tickets = tickets

    # With time.

    def expect(self, due: Micros | None) -> None:
        """Something falls due then."""
        if due is not None and (self.earliest is None or due < self.earliest):
            self.earliest = due

    def settle(self, now: Micros) -> list[Decision]:
        """Everything that fell due by `now`, each thing at its own time."""
        decisions: list[Decision] = []
        while self.earliest is not None and self.earliest <= now:
            # what new rules, or a late place in the queue, have made due in the past is due now
            self._now = max(self._now, self.earliest)
            decisions += self._fire(self._now)
            self.earliest = self._next_due()
        if now > self._now:  # noqa: PLR1730 - max() would cost as much as all of the rest
            self._now = now
        return decisions

    def resettle(self, now: Micros) -> list[Decision]:
        """The rules have changed: what has become due in the past by that is due now."""
        self.earliest = self._next_due()
        self._now = now
        return self.settle(now)

    def _next_due(self) -> Micros | None:
        return min((due for pool in self._pools.by_name.values() if (due := pool.next_due()) is not None), default=None)

    def _fire(self, due: Micros) -> list[Decision]:
        decisions: list[Decision] = []
        for pool in self._pools.by_name.values():
            fired = pool.fire(due)
            self.forget(fired)
            decisions += fired
        return decisions + self.passed_over(decisions, due)

    # In other pools.

    def dispatch(self, pools: Iterable[Pool], now: Micros) -> list[Decision]:
        """Slots may have become free there."""
        admitted: list[Decision] = []
        for pool in pools:
            admitted += pool.dispatch(now)
            self.expect(pool.soon())
        return admitted + self.passed_over(admitted, now)

    def let_others_in(self, tenant: Tenant, pool: Pool, now: Micros) -> list[Decision]:
        """One of a tenant has left `pool`: the tenant may be below its limit again in all the others."""
        if tenant.max_in_flight is None:
            return []
        others = [other for other in self._pools.by_name.values() if other is not pool]
        for other in others:
            other.unblock(tenant.name)
        return self.dispatch(others, now)

    def passed_over(self, decisions: Iterable[Decision], now: Micros) -> list[Decision]:
        """A tenant that has just reached its limit stands in nobody's way any more, in any pool."""
        if self.limits and any(d.action is Action.ADMIT and self._at_limit(d.subject) for d in decisions):
            return self.dispatch(self._pools.by_name.values(), now)
        return []

    def forget(self, decisions: Iterable[Decision]) -> None:
        """Those who were rejected are not here any more."""
        for decision in decisions:
            if decision.action is Action.REJECT:
                del self._tickets[decision.subject]

    def _at_limit(self, request_id: RequestId) -> bool:
        share = self._tickets[request_id].share
        return share is not None and share.at_limit
