"""PoolCoordinator: what happens in one pool, carried on in time and to the other pools.

Example: tenant a has a limit of one slot. Its request in pool m ends, and its request that waits in pool n enters at once.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from maitred.admission.enums import Action, Reason
from maitred.admission.pool_directory import PoolDirectory
from maitred.admission.slot_pool import SlotPool
from maitred.admission.tenants import TenantAccount
from maitred.admission.ticket import Ticket
from maitred.core.decisions import Decision
from maitred.core.request import RequestId
from maitred.core.units import Micros

_ADMIT, _REJECT, _VICTIM_LEAVING = Action.ADMIT, Action.REJECT, Reason.VICTIM_LEAVING  # members of enums are slow to look up


class PoolCoordinator:
    """Runs all pools together: carries what happens in one pool on, in time and to the other pools.

    In time: a timeout passes, a request starves, a token bucket fills. The pools know when. The earliest of these
    instants is kept here, and everything that is due happens at its own instant and in order, however late the driver
    asks for it.

    To the other pools: the limits of a tenant span all models. When one of its requests gives up a slot, its requests may
    enter elsewhere. And when a tenant reaches its limit, the requests behind its own may pass, in any pool.
    """

    __slots__ = ("_pools", "_settled_until", "_tickets", "has_tenant_limits", "next_due_at")

    def __init__(self, pools: PoolDirectory, tickets: dict[RequestId, Ticket]) -> None:
        """`tickets` are all that are there. Those that are rejected here are removed from it."""
        self.next_due_at: Micros | None = None
        """The instant before which time changes nothing, which may be too early, or None if time never changes anything."""
        self._settled_until: Micros = 0
        """Everything that was due by this instant has happened."""
        self.has_tenant_limits = False
        """Whether a tenant may have limits."""
        self._pools = pools
        self._tickets = tickets

    def schedule(self, due: Micros | None) -> None:
        """Note that something falls due at `due`, or that nothing does if it is None."""
        if due is not None and (self.next_due_at is None or due < self.next_due_at):
            self.next_due_at = due

    def schedule_new_deadline(self, pool: SlotPool) -> None:
        """Note until when the requests of `pool` wait, one of which has just begun to wait in another way."""
        pool.has_new_deadline = False
        self.schedule(pool.next_deadline())

    def is_due(self, now: Micros) -> bool:
        """Return whether `run_due` may change anything."""
        return self.next_due_at is not None and self.next_due_at <= now

    def run_due(self, now: Micros) -> list[Decision]:
        """Do everything that fell due by `now`, each thing at its own instant."""
        decisions: list[Decision] = []
        while self.next_due_at is not None and self.next_due_at <= now:
            # New rules, or a queue that is joined late, can make something due in the past: it happens now.
            self._settled_until = max(self._settled_until, self.next_due_at)
            decisions += self._run_due_at(self._settled_until)
            # Looked up again after each instant, because what has just been admitted or rejected changes what is due next.
            self.next_due_at = self._earliest_due()
        if now > self._settled_until:  # noqa: PLR1730 - max() would cost as much as all of the rest
            self._settled_until = now
        return decisions

    def recompute(self, now: Micros) -> list[Decision]:
        """Find anew what is due after the rules have changed, and do what is due already."""
        self.next_due_at = self._earliest_due()
        self._settled_until = now
        return self.run_due(now)

    def _earliest_due(self) -> Micros | None:
        return min((due for pool in self._pools.by_name.values() if (due := pool.next_deadline()) is not None), default=None)

    def _run_due_at(self, due: Micros) -> list[Decision]:
        decisions: list[Decision] = []
        for pool in self._pools.by_name.values():
            of_pool = pool.advance(due)
            self.forget_rejected(of_pool)
            decisions += of_pool
            if pool.freed_claims:
                decisions += self.dispatch_past_preemptors(pool, due)
        return decisions + self.dispatch_past_limited(decisions, due) if self.has_tenant_limits else decisions

    def dispatch_past_preemptors(self, pool: SlotPool, now: Micros) -> list[Decision]:
        """Admit what may enter the other pools now that preemptors of `pool` have given up their claims to a slot."""
        admitted: list[Decision] = []
        while pool.freed_claims:
            admitted += self.dispatch_tenant_elsewhere(pool.freed_claims.pop(), pool, now)
        return admitted

    def dispatch(self, pools: Iterable[SlotPool], now: Micros) -> list[Decision]:
        """Admit waiting requests of `pools`, where slots may have become free."""
        admitted: list[Decision] = []
        for pool in pools:
            of_pool = pool.dispatch(now)
            self.schedule(pool.next_admission_at())
            if pool.has_new_deadline:
                self.schedule_new_deadline(pool)
            admitted += of_pool
        return admitted + self.dispatch_past_limited(admitted, now)

    def dispatch_tenant_elsewhere(self, account: TenantAccount, pool: SlotPool, now: Micros) -> list[Decision]:
        """Admit what may enter the other pools now that a request of the tenant has left `pool`, or its slot there."""
        if account.max_in_flight is None or len(self._pools.by_name) == 1:
            return []
        others = [other for other in self._pools.by_name.values() if other is not pool]
        for other in others:
            other.on_tenant_slot_freed(account.name)
        return self.dispatch(others, now)

    def dispatch_past_limited(
        self, decisions: Iterable[Decision], now: Micros, dispatched: SlotPool | None = None
    ) -> list[Decision]:
        """Admit the requests behind a tenant that has reached its limit with one of `decisions`, in any pool. (A preemption
        counts, because the preemptor has a claim to the slot.) `dispatched` is a pool that has admitted all that may enter
        there already: `SlotPool.dispatch` goes on behind a tenant that reaches its limit."""
        if not self.has_tenant_limits:
            return []
        pools = [pool for pool in self._pools.by_name.values() if pool is not dispatched]
        if pools and any((d.action is _ADMIT or d.reason is _VICTIM_LEAVING) and self._at_limit(d.subject) for d in decisions):
            # `dispatch` comes back here with what it did. This ends, because each round gives at least one request a slot.
            return self.dispatch(pools, now)
        return []

    def forget_rejected(self, decisions: Iterable[Decision]) -> None:
        """Remove the tickets of requests that were rejected."""
        for decision in decisions:
            if decision.action is _REJECT:
                del self._tickets[decision.subject]

    def _at_limit(self, request_id: RequestId) -> bool:
        ticket = self._tickets.get(request_id)
        account = None if ticket is None else ticket.tenant_account
        return account is not None and account.at_limit
