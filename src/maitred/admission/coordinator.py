"""PoolCoordinator: settles what inputs and time have changed, over all pools.

**Settling.** A pool settles its own changes, and marks what they may have made possible in others (`agenda`). While there are
marks, the marked pools are dispatched: what fits is admitted, and what may preempt does. This ends, because a mark comes only
of a slot or claim that was given up or taken, and each round gives at least one request a slot, or a claim to that of a victim.
Afterwards the two invariants of `classes.pool` hold in every pool.

**Order.** First the marked pools, then one freed tenant after the other, and last the requests behind tenants that have
reached their limits, so that a tenant with room is asked before those behind it. Pools are dispatched by name: decisions must
not depend on the order in which models became known.

**Time.** A timeout passes, a request starves, a token bucket fills. All that is due happens at its own instant and in order,
however late the driver asks for it.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.admission.pool.agenda import NEVER, Agenda
from maitred.admission.pool_directory import PoolDirectory
from maitred.core.decisions import Decision
from maitred.core.units import Micros


class PoolCoordinator:
    """Settles what the pools have marked, and what is due."""

    __slots__ = ("_agenda", "_pools", "_settled_until", "input_lag")

    def __init__(self, pools: PoolDirectory, agenda: Agenda) -> None:
        self.input_lag: Micros = 0
        """1 with flow control: there, what falls due at the very instant of an input comes after it; else before."""
        self._pools = pools
        self._agenda = agenda
        self._settled_until: Micros = 0
        """Everything that was due by this instant has happened."""

    def settle(self, now: Micros) -> list[Decision]:
        """Admit all that may enter, and preempt what may be, until nothing is marked any more."""
        agenda = self._agenda
        decisions = self._settle_pools(now) if agenda.marked or agenda.freed else []
        while agenda.limited:
            self._mark_others(agenda.limited.pop())
            if agenda.marked:
                decisions += self._settle_pools(now)
        agenda.is_open = False
        for name in agenda.unscheduled:
            self._pools.by_name[name].schedule_waiters()
        agenda.unscheduled.clear()
        return decisions

    def _settle_pools(self, now: Micros) -> list[Decision]:
        """Settle all but what may pass limited tenants."""
        agenda = self._agenda
        decisions: list[Decision] = []
        while True:
            while agenda.marked:
                decisions += self._pools.by_name[agenda.marked.pop(0)].dispatch(now)
            if not agenda.freed:
                return decisions
            # The last one first, as it was before there were marks: logs from then are decided alike.
            account, pool = agenda.freed.pop()
            for name, other in self._pools.by_name.items():
                if name != pool:
                    other.on_tenant_slot_freed(account.name)
            self._mark_others(pool)

    def mark_all(self) -> None:
        """Mark all pools."""
        for name in self._pools.by_name:
            self._agenda.mark(name)

    def _mark_others(self, pool: str) -> None:
        for name in self._pools.by_name:
            if name != pool:
                self._agenda.mark(name)

    def run_due_before_input(self, now: Micros) -> list[Decision]:
        """Do everything that fell due before an input at `now`, each thing at its own instant."""
        until = now - self.input_lag
        if until < self._agenda.next_due_at:  # Asked here as well, because it is so for nearly every input.
            if until > self._settled_until:  # noqa: PLR1730 - max() would cost as much as all of the rest
                self._settled_until = until
            return []
        return self.run_due(until)

    def is_due(self, now: Micros) -> bool:
        """Return whether `run_due` may change anything."""
        return self._agenda.next_due_at <= now

    def run_due(self, now: Micros) -> list[Decision]:
        """Do everything that fell due by `now`, each thing at its own instant."""
        decisions: list[Decision] = []
        agenda = self._agenda
        while agenda.next_due_at <= now:
            # New rules, or a queue that is joined late, can make something due in the past: it happens now.
            self._settled_until = max(self._settled_until, agenda.next_due_at)
            decisions += self._run_due_at(self._settled_until)
            # Looked up again after each instant, because what has just been admitted or rejected changes what is due next.
            agenda.next_due_at = self._earliest_due()
        if now > self._settled_until:  # noqa: PLR1730 - max() would cost as much as all of the rest
            self._settled_until = now
        return decisions

    def recompute(self, now: Micros) -> list[Decision]:
        """Find anew what is due after the rules have changed, and do what is due already."""
        self._agenda.next_due_at = self._earliest_due()
        self._settled_until = now
        return self.run_due(now)

    def _earliest_due(self) -> Micros:
        return min((due for pool in self._pools.by_name.values() if (due := pool.next_deadline()) is not None), default=NEVER)

    def _run_due_at(self, due: Micros) -> list[Decision]:
        decisions: list[Decision] = []
        agenda = self._agenda
        for pool in self._pools.by_name.values():
            decisions += pool.advance(due)
            if agenda.is_open:
                # Not `settle`, which lets requests pass limited tenants: those whose timeout passes at this very instant, in
                # the pools that follow, are rejected first.
                decisions += self._settle_pools(due)
        return decisions + self.settle(due) if agenda.is_open else decisions
