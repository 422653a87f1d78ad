"""What follows from an event beyond the pool in which it happened: with time, and in the other pools.

With time: somebody's time is up, somebody starves, a bucket fills. All of it falls due at instants that the pools know of; here
is the first of them, and everything due is settled at its own instant, in order, however late it is asked for.

In the other pools: the limits of a tenant span all models. One of it that leaves may let in its waiters elsewhere. And a tenant
that has just reached its limit stands in nobody's way any more: those behind its waiters go in, in any pool.

Admission: one core for all pools, driven by inputs and time.

Each input first settles what is due by `now`, in the order in which it fell due, then takes effect, and answers with every
decision that came of both. So what is decided depends on the inputs alone, and not on how promptly a driver's timer fires:
calling `advance` more often never changes a decision, only when it is taken. A decision bears the instant at which it fell due.

Before the pools (see `pools`) stand the rate gate and the admission policy, which only ever say no. Everything that is
configured may change at any time, for those as well who are here.

The core keeps a ticket from `submit` until it has left. A driver may therefore release a request twice, or one that was
rejected meanwhile; both are ignored. It will also be handed decisions on requests that it has given up in the same instant,
and must ignore those.

`now` never runs backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from maitred.admission.config import AdmissionConfig
from maitred.admission.counters import ClassView, PoolView
from maitred.admission.enums import Action, ReleaseReason
from maitred.admission.invariants import find_violations
from maitred.admission.policies.base import Refusal
from maitred.admission.policy_gate import PolicyGate
from maitred.admission.pool import LoadProbe, SlotPool
from maitred.admission.pools import PoolDirectory
from maitred.admission.rate_limit import RateGate, make_rate_gate
from maitred.admission.tenants import TenantAccount, limited_accounts
from maitred.admission.ticket import SLOT_HOLDING_STATES, Ticket, TicketEvent, TicketState, TransitionError
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import Decision
from maitred.core.errors import InvariantError
from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.slo_classes import slo_class_of, slo_priority
from maitred.core.units import Micros


class DueEvents:
    """In `pools`, for `tickets`: all that are here. Those that time, or others, turn away are taken out of them."""

    __slots__ = ("_pools", "_settled_until", "_tickets", "has_tenant_limits", "next_due_at")

    def __init__(self, pools: PoolDirectory, tickets: dict[RequestId, Ticket]) -> None:
        self.next_due_at: Micros | None = None
        """Time changes nothing before this instant (it may be later). None: it changes nothing at all."""
        self._settled_until: Micros = 0
        """What was due by this instant has been settled."""
        self.has_tenant_limits = False
        """Whether some tenant has limits."""
        self._pools = pools
        self._tickets = tickets

    # With time.

    def schedule(self, due: Micros | None) -> None:
        """Something falls due then."""
        if due is not None and (self.next_due_at is None or due < self.next_due_at):
            self.next_due_at = due

    def run_due(self, now: Micros) -> list[Decision]:
        """Everything that fell due by `now`, each thing at its own time."""
        decisions: list[Decision] = []
        while self.next_due_at is not None and self.next_due_at <= now:
            # what new rules, or a late place in the queue, have made due in the past is due now
            self._settled_until = max(self._settled_until, self.next_due_at)
            decisions += self._run_due_at(self._settled_until)
            self.next_due_at = self._earliest_due()
        if now > self._settled_until:  # noqa: PLR1730 - max() would cost as much as all of the rest
            self._settled_until = now
        return decisions

    def recompute(self, now: Micros) -> list[Decision]:
        """The rules have changed: what has become due in the past by that is due now."""
        self.next_due_at = self._earliest_due()
        self._settled_until = now
        return self.run_due(now)

    def _earliest_due(self) -> Micros | None:
        return min((due for pool in self._pools.by_name.values() if (due := pool.next_deadline()) is not None), default=None)

    def _run_due_at(self, due: Micros) -> list[Decision]:
        decisions: list[Decision] = []
        for pool in self._pools.by_name.values():
            fired = pool.advance(due)
            self.forget_rejected(fired)
            decisions += fired
        return decisions + self.dispatch_past_limited(decisions, due)

    # In other pools.

    def dispatch(self, pools: Iterable[SlotPool], now: Micros) -> list[Decision]:
        """Slots may have become free there."""
        admitted: list[Decision] = []
        for pool in pools:
            admitted += pool.dispatch(now)
            self.schedule(pool.next_admission_at())
        return admitted + self.dispatch_past_limited(admitted, now)

    def dispatch_other_pools(self, tenant: TenantAccount, pool: SlotPool, now: Micros) -> list[Decision]:
        """One of a tenant has left `pool`: the tenant may be below its limit again in all the others."""
        if tenant.max_in_flight is None:
            return []
        others = [other for other in self._pools.by_name.values() if other is not pool]
        for other in others:
            other.unblock_tenant(tenant.name)
        return self.dispatch(others, now)

    def dispatch_past_limited(self, decisions: Iterable[Decision], now: Micros) -> list[Decision]:
        """A tenant that has just reached its limit stands in nobody's way any more, in any pool."""
        if self.has_tenant_limits and any(d.action is Action.ADMIT and self._at_limit(d.subject) for d in decisions):
            return self.dispatch(self._pools.by_name.values(), now)
        return []

    def forget_rejected(self, decisions: Iterable[Decision]) -> None:
        """Those who were rejected are not here any more."""
        for decision in decisions:
            if decision.action is Action.REJECT:
                del self._tickets[decision.subject]

    def _at_limit(self, request_id: RequestId) -> bool:
        share = self._tickets[request_id].tenant_account
        return share is not None and share.at_limit


_NEW, _ADMITTED = TicketState.NEW, TicketState.ADMITTED  # members of enums are slow to look up
_VICTIM, _LEFT = TicketState.VICTIM, TicketState.LEFT
_FIRST_BYTE, _PREEMPTED = TicketEvent.FIRST_BYTE, ReleaseReason.SLOT_PREEMPTED
EMPTY_LOAD: Final = FleetLoad()


def no_load(pool: str, now: Micros) -> FleetLoad:
    """For rules that do not go by load: there are no instances."""
    return EMPTY_LOAD


class Admission:
    """Decides who may be in flight. `pools` gives each model's capacity in slots; `resize` adds more models. `look` tells how
    loaded the instances of a model are, where the rules go by that and no request brings it. Raises ConfigError for an unknown
    admission policy."""

    def __init__(self, config: AdmissionConfig, pools: Mapping[str, int], load_probe: LoadProbe = no_load) -> None:
        self._pools = PoolDirectory(load_probe)
        self._pool_of_model, self._counters_of_model = self._pools.by_model, self._pools.counters
        self._tickets: dict[RequestId, Ticket] = {}
        self._due_events = DueEvents(self._pools, self._tickets)
        self._settle_lag: Micros = 0
        """1 with flow control: what falls due at the very instant of an input comes after it there, else before."""
        self._rate_gate: RateGate | None = None
        self._policy_gate = PolicyGate(config)
        self.reads_load = False
        """Whether `submit` looks at `load`."""
        self._configure(config)
        for model, capacity in pools.items():
            _check_capacity(capacity)
            self._resize(model, capacity)

    # Inputs.

    def make_ticket(self, request: Request, cost: int) -> Ticket:
        """What `submit` takes: `request` as the configuration sees it; `cost` in tokens, of its prompt and its answer."""
        config, target = self._config, request.slo_target
        if target is None and config.slo_targets:
            target = config.slo_targets.get(slo_class_of(request))
        return Ticket(
            request.id,
            request.model,
            request.priority_class,
            request.tenant,
            cost,
            request.prompt_tokens,
            slo_priority(request, config.slo_priorities),
            target,
        )

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad = EMPTY_LOAD) -> Sequence[Decision]:
        """A request asks to enter: the last decision is on it (`admit`, `queue` or `reject`).

        `load` is that of the instances of its model, and only looked at if `reads_load`. Raises KeyError for an unknown model
        and TransitionError for a ticket, or an id, that is here already.
        """
        books = self._counters_of_model[ticket.pool]
        if ticket.state is not _NEW or ticket.id in self._tickets:
            raise TransitionError(f"{ticket} was submitted before")
        settled = self._due_events.run_due(now - self._settle_lag)
        ticket.counters = books[ticket.priority_class]
        if self._rate_gate is not None:
            stopped = self._rate_gate.reject_over_rate(ticket, now)
            if stopped is not None:
                return [*settled, stopped]
        if not self._policy_gate.is_idle:
            refused = self._policy_gate.reject_refused(ticket, load, now)
            if refused is not None:
                return [*settled, refused]
        if self._tenant_accounts:
            ticket.tenant_account = self._tenant_accounts.get(ticket.tenant)
        pool = self._pool_of_model[ticket.pool]
        decisions = pool.submit(ticket, now, load)
        if len(decisions) > 1:
            self._due_events.forget_rejected(decisions[:-1])
        if ticket.state is _LEFT:
            return [*settled, *decisions]
        self._tickets[ticket.id] = ticket
        if ticket.state is not _ADMITTED:
            self._due_events.schedule(pool.deadline_of(ticket))
            self._due_events.schedule(pool.next_admission_at())
        elif ticket.tenant_account is not None:
            settled += self._due_events.dispatch_past_limited(decisions, now)
        return [*settled, *decisions] if settled else decisions

    def first_byte(self, request_id: RequestId, now: Micros) -> bool:
        """The first byte of its body is about to go out. True: it will never be a victim. False: it is one, or has left: send
        nothing of it.

        Raises TransitionError if it still waits.
        """
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.state is _VICTIM:
            return False
        ticket.transition(_FIRST_BYTE)
        self._pool_of_model[ticket.pool].victims.discard(ticket)
        return True

    def release(self, request_id: RequestId, release_reason: ReleaseReason, now: Micros) -> Sequence[Decision]:
        """A request is over: its slot is free, or its place in the queue. Ignored if it is not here (any more).

        PREEMPTED is how a driver lets go of a victim: it may be tried again (`queue`), and is here still. Raises
        TransitionError for a request that is no victim.
        """
        settled = self._due_events.run_due(now - self._settle_lag)
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return settled
        if release_reason is _PREEMPTED and ticket.state is not _VICTIM:
            raise TransitionError(f"{ticket} was not preempted")
        pool = self._pool_of_model[ticket.pool]
        decisions = pool.release(ticket, release_reason, now)
        if ticket.state is _LEFT:
            del self._tickets[request_id]
        else:
            self._due_events.schedule(pool.deadline_of(ticket))
        if ticket.tenant_account is not None:
            decisions += self._due_events.dispatch_other_pools(ticket.tenant_account, pool, now)
        if pool.waiting or self._settle_lag:  # with flow control, who waits for another model too
            self._due_events.schedule(pool.next_admission_at())
        if self._tenant_accounts:
            decisions += self._due_events.dispatch_past_limited(decisions, now)
        return [*settled, *decisions] if settled else decisions

    def resize(self, pool: str, capacity: int, now: Micros) -> Sequence[Decision]:
        """The slots of a model, known or new, are now `capacity`. More: waiters enter at once. Fewer: nobody is killed,
        and nobody enters before enough have ended. Raises ValueError for less than 0."""
        _check_capacity(capacity)
        settled = self._due_events.run_due(now - self._settle_lag)
        return [*settled, *self._due_events.dispatch([self._resize(pool, capacity)], now)]

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        """Everything that is configured changes at once, for all pools; nobody loses a slot or a place in a queue. Raises
        ConfigError for an admission policy that cannot be had, and then nothing has changed."""
        settled = self._due_events.run_due(now - self._settle_lag)
        self._configure(config)
        admitted = self._due_events.dispatch(self._pools.by_name.values(), now)
        return [*settled, *admitted, *self._due_events.recompute(now)]

    def advance(self, now: Micros) -> Sequence[Decision]:
        """Everything that is due by `now`."""
        return self._due_events.run_due(now)

    def next_deadline(self) -> Micros | None:
        """When to call `advance` next; it may find nothing to do. None when nobody waits."""
        if not any(pool.waiting for pool in self._pools.by_name.values()):
            return None
        return self._due_events.next_due_at

    # Looking.

    @property
    def config(self) -> AdmissionConfig:
        return self._config

    @property
    def pool_names(self) -> Sequence[str]:
        """Names, in alphabetical order: of models; or EVERYBODY, where they share one pool."""
        return list(self._pools.by_name)

    def refusal(self, decision: Decision) -> Refusal | None:
        """Return what the client of a request that was just rejected is told; None if the admission policy has not done it."""
        return self._policy_gate.refusals.get(decision.reason)

    def view(self, pool: str) -> PoolView:
        """What one pool looks like now, for metrics. Raises KeyError for an unknown pool."""
        return self._pools.view(pool)

    def class_views(self) -> Mapping[PriorityClass, ClassView]:
        """Return each class over all pools, most urgent first; nothing if there are no pools."""
        return self._pools.class_views()

    def check(self) -> None:
        """Raises InvariantError if the books do not balance. For tests; O(n)."""
        for problem in find_violations(self._pools, self._tickets.values(), self._tenant_accounts.values()):
            raise InvariantError(problem)

    # Inside.

    def _configure(self, config: AdmissionConfig) -> None:
        """New rules, the same requests."""
        self._policy_gate = self._policy_gate.reconfigured(config)  # first of all: this may fail, and then nothing has changed
        self._config = config
        self._settle_lag = 1 if config.mode == "flow-control" else 0
        self.reads_load = self._policy_gate.reads_load or config.mode == "flow-control"
        self._rate_gate = make_rate_gate(config, self._rate_gate)
        self._tenant_accounts: dict[str, TenantAccount] = (
            limited_accounts(config.tenant_policies) if config.mode == "priority" else {}
        )
        self._due_events.has_tenant_limits = bool(self._tenant_accounts)
        for ticket in self._tickets.values():
            self._policy_gate.adopt(ticket)
            ticket.tenant_account = self._tenant_accounts.get(ticket.tenant)
            if ticket.tenant_account is not None:
                holds = ticket.state in SLOT_HOLDING_STATES
                ticket.tenant_account.add(holding=holds, waiting=not holds)
        self._pools.configure(config, self._tickets.values())
        self._policy_gate.set_total_slots(self._pools.total_slots)

    def _resize(self, model: str, capacity: int) -> SlotPool:
        pool = self._pools.resize(model, capacity)
        self._policy_gate.set_total_slots(self._pools.total_slots)
        return pool


def _check_capacity(capacity: int) -> None:
    if capacity < 0:
        raise ValueError(f"capacity must be at least 0 slots, not {capacity}")
