"""Admission: one core for all pools, driven by inputs and time.

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

from collections.abc import Mapping, Sequence
from typing import Final

from maitred.admission.audit import imbalances
from maitred.admission.books import PoolView
from maitred.admission.config import AdmissionConfig
from maitred.admission.consequences import Consequences
from maitred.admission.policies.policy import Refusal
from maitred.admission.policies.screen import Screen
from maitred.admission.pool import Look, Pool
from maitred.admission.pools import Pools
from maitred.admission.rate_gate import RateGate, rate_gate
from maitred.admission.tenants import Tenant, limited
from maitred.admission.ticket import HOLDING, Event, State, Ticket, TransitionError
from maitred.admission.vocabulary import End
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.errors import InvariantError
from maitred.request import Request, RequestId
from maitred.slo_classes import slo_class, slo_priority
from maitred.units import Micros

_NEW, _ADMITTED = State.NEW, State.ADMITTED  # members of enums are slow to look up
_VICTIM, _LEFT = State.VICTIM, State.LEFT
_FIRST_BYTE, _PREEMPTED = Event.FIRST_BYTE, End.PREEMPTED
NO_LOAD: Final = FleetLoad()


def no_look(pool: str, now: Micros) -> FleetLoad:
    """For rules that do not go by load: there are no instances."""
    return NO_LOAD


class Admission:
    """Decides who may be in flight. `pools` gives each model's capacity in slots; `resize` adds more models. `look` tells how
    loaded the instances of a model are, where the rules go by that and no request brings it. Raises ConfigError for an unknown
    admission policy."""

    def __init__(self, config: AdmissionConfig, pools: Mapping[str, int], look: Look = no_look) -> None:
        self._pools = Pools(look)
        self._pool_of, self._books = self._pools.of_model, self._pools.books
        self._tickets: dict[RequestId, Ticket] = {}
        self._after = Consequences(self._pools, self._tickets)
        self._lag: Micros = 0
        """1 with flow control: what falls due at the very instant of an input comes after it there, else before."""
        self._gate: RateGate | None = None
        self._screen = Screen(config)
        self.reads_load = False
        """Whether `submit` looks at `load`."""
        self._configure(config)
        for model, capacity in pools.items():
            _check_slots(capacity)
            self._resize(model, capacity)

    # Inputs.

    def ticket(self, request: Request, cost: int) -> Ticket:
        """What `submit` takes: `request` as the configuration sees it; `cost` in tokens, of its prompt and its answer."""
        config, target = self._config, request.slo_target
        if target is None and config.slo_targets:
            target = config.slo_targets.get(slo_class(request))
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

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad = NO_LOAD) -> Sequence[Decision]:
        """A request asks to enter: the last decision is on it (`admit`, `queue` or `reject`).

        `load` is that of the instances of its model, and only looked at if `reads_load`. Raises KeyError for an unknown model
        and TransitionError for a ticket, or an id, that is here already.
        """
        books = self._books[ticket.pool]
        if ticket.state is not _NEW or ticket.id in self._tickets:
            raise TransitionError(f"{ticket} was submitted before")
        settled = self._after.settle(now - self._lag)
        ticket.totals = books[ticket.priority_class]
        if self._gate is not None:
            stopped = self._gate.refuse(ticket, now)
            if stopped is not None:
                return [*settled, stopped]
        if not self._screen.idle:
            refused = self._screen.refuse(ticket, load, now)
            if refused is not None:
                return [*settled, refused]
        if self._tenants:
            ticket.share = self._tenants.get(ticket.tenant)
        pool = self._pool_of[ticket.pool]
        decisions = pool.enter(ticket, now, load)
        if len(decisions) > 1:
            self._after.forget(decisions[:-1])
        if ticket.state is _LEFT:
            return [*settled, *decisions]
        self._tickets[ticket.id] = ticket
        if ticket.state is not _ADMITTED:
            self._after.expect(pool.first_due(ticket))
            self._after.expect(pool.soon())
        elif ticket.share is not None:
            settled += self._after.passed_over(decisions, now)
        return [*settled, *decisions] if settled else decisions

    def first_byte(self, request_id: RequestId, now: Micros) -> bool:
        """The first byte of its body is about to go out. True: it will never be a victim. False: it is one, or has left: send
        nothing of it.

        Raises TransitionError if it still waits.
        """
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.state is _VICTIM:
            return False
        ticket.on(_FIRST_BYTE)
        self._pool_of[ticket.pool].takeable.discard(ticket)
        return True

    def release(self, request_id: RequestId, end: End, now: Micros) -> Sequence[Decision]:
        """A request is over: its slot is free, or its place in the queue. Ignored if it is not here (any more).

        PREEMPTED is how a driver lets go of a victim: it may be tried again (`queue`), and is here still. Raises
        TransitionError for a request that is no victim.
        """
        settled = self._after.settle(now - self._lag)
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return settled
        if end is _PREEMPTED and ticket.state is not _VICTIM:
            raise TransitionError(f"{ticket} was not preempted")
        pool = self._pool_of[ticket.pool]
        decisions = pool.leave(ticket, end, now)
        if ticket.state is _LEFT:
            del self._tickets[request_id]
        else:
            self._after.expect(pool.first_due(ticket))
        if ticket.share is not None:
            decisions += self._after.let_others_in(ticket.share, pool, now)
        if pool.waiting or self._lag:  # with flow control, who waits for another model too
            self._after.expect(pool.soon())
        if self._tenants:
            decisions += self._after.passed_over(decisions, now)
        return [*settled, *decisions] if settled else decisions

    def resize(self, pool: str, capacity: int, now: Micros) -> Sequence[Decision]:
        """The slots of a model, known or new, are now `capacity`. More: waiters enter at once. Fewer: nobody is killed,
        and nobody enters before enough have ended. Raises ValueError for less than 0."""
        _check_slots(capacity)
        settled = self._after.settle(now - self._lag)
        return [*settled, *self._after.dispatch([self._resize(pool, capacity)], now)]

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        """Everything that is configured changes at once, for all pools; nobody loses a slot or a place in a queue. Raises
        ConfigError for an admission policy that cannot be had, and then nothing has changed."""
        settled = self._after.settle(now - self._lag)
        self._configure(config)
        admitted = self._after.dispatch(self._pools.by_name.values(), now)
        return [*settled, *admitted, *self._after.resettle(now)]

    def advance(self, now: Micros) -> Sequence[Decision]:
        """Everything that is due by `now`."""
        return self._after.settle(now)

    def next_deadline(self) -> Micros | None:
        """When to call `advance` next; it may find nothing to do. None when nobody waits."""
        if not any(pool.waiting for pool in self._pools.by_name.values()):
            return None
        return self._after.earliest

    # Looking.

    @property
    def config(self) -> AdmissionConfig:
        return self._config

    @property
    def pools(self) -> Sequence[str]:
        """Names, in alphabetical order: of models; or EVERYBODY, where they share one pool."""
        return list(self._pools.by_name)

    def refusal(self, decision: Decision) -> Refusal | None:
        """Return what the client of a request that was just rejected is told; None if the admission policy has not done it."""
        return self._screen.refusals.get(decision.reason)

    def view(self, pool: str) -> PoolView:
        """What one pool looks like now, for metrics. Raises KeyError for an unknown pool."""
        return self._pools.view(pool)

    def check(self) -> None:
        """Raises InvariantError if the books do not balance. For tests; O(n)."""
        for problem in imbalances(self._pools, self._tickets.values(), self._tenants.values()):
            raise InvariantError(problem)

    # Inside.

    def _configure(self, config: AdmissionConfig) -> None:
        """New rules, the same requests."""
        self._screen = self._screen.under(config)  # first of all: this may fail, and then nothing has changed
        self._config = config
        self._lag = 1 if config.mode == "flow-control" else 0
        self.reads_load = self._screen.reads_load or config.mode == "flow-control"
        self._gate = rate_gate(config, self._gate)
        self._tenants: dict[str, Tenant] = limited(config.tenant_policies) if config.mode == "priority" else {}
        self._after.limits = bool(self._tenants)
        for ticket in self._tickets.values():
            self._screen.adopt(ticket)
            ticket.share = self._tenants.get(ticket.tenant)
            if ticket.share is not None:
                holds = ticket.state in HOLDING
                ticket.share.count(holding=holds, waiting=not holds)
        self._pools.configure(config, self._tickets.values())
        self._screen.resize(self._pools.slots)

    def _resize(self, model: str, capacity: int) -> Pool:
        pool = self._pools.resize(model, capacity)
        self._screen.resize(self._pools.slots)
        return pool


def _check_slots(capacity: int) -> None:
    if capacity < 0:
        raise ValueError(f"capacity must be at least 0 slots, not {capacity}")
