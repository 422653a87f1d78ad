"""Admission: one core for all pools, driven by inputs and time.

Each input first settles what is due by `now`, in the order in which it fell due, then takes effect, and answers with every
decision that came of both. So what is decided depends on the inputs alone, and not on how promptly a driver's timer fires:
calling `advance` more often never changes a decision, only when it is taken. A decision bears the instant at which it fell due.

With classes each model has a pool of its own; without, all models share one. Which of the two, like everything else in the
configuration, may change at any time: the pools are made anew, and whoever is here moves over in the state in which he is.

The core keeps a ticket from `submit` until it has left. A driver may therefore release a request twice, or one that was
rejected meanwhile; both are ignored. It will also be handed decisions on requests that it has given up in the same instant,
and must ignore those.

`now` never runs backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from maitred.admission.books import PoolView, Totals, class_view, merged
from maitred.admission.bucket import TokenBucket
from maitred.admission.class_pool import ClassPool
from maitred.admission.config import AdmissionConfig
from maitred.admission.flow_control.pool import FlowPool
from maitred.admission.flow_control.rules import flow_rules
from maitred.admission.policies.screen import Screen
from maitred.admission.pool import Look, Pool
from maitred.admission.queues import Turns
from maitred.admission.rules import LANES, MOST_URGENT_FIRST, SMG_RETRY_AFTER, PoolRules, rules_of
from maitred.admission.tenants import Tenant, limited
from maitred.admission.ticket import HOLDING, Event, State, Ticket, TransitionError
from maitred.admission.vocabulary import Action, End, Reason
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.errors import InvariantError
from maitred.request import PriorityClass, Request, RequestId
from maitred.slo_classes import slo_class, slo_priority
from maitred.units import SECOND, Micros

NO_LOAD: Final = FleetLoad()
EVERYBODY: Final = "*"
"""The name of the pool that all models share without classes."""


def no_look(pool: str, now: Micros) -> FleetLoad:
    """For rules that do not go by load: there are no instances."""
    return NO_LOAD


class Admission:
    """Decides who may be in flight. `pools` gives each model's capacity in slots; `resize` adds more models. `look` tells how
    loaded the instances of a model are, where the rules go by that and no request brings it. Raises ConfigError for an unknown
    admission policy."""

    def __init__(self, config: AdmissionConfig, pools: Mapping[str, int], look: Look = no_look) -> None:
        self._look = look
        self._capacities: dict[str, int] = {}
        self._books: dict[str, Sequence[Totals]] = {}
        self._tickets: dict[RequestId, Ticket] = {}
        self._earliest: Micros | None = None
        """Time changes nothing before this instant (it may be later). None: it changes nothing at all."""
        self._now: Micros = 0
        """What was due by this instant has been settled."""
        self._lag: Micros = 0
        """1 with flow control: what falls due at the very instant of an input comes after it there, else before."""
        self._turns = Turns()
        self._gate: TokenBucket | None = None
        self._screen = Screen(config)
        self.reads_load = False
        """Whether `submit` looks at `load`."""
        self._pools: dict[str, Pool] = {}
        self._configure(config)
        for name, capacity in pools.items():
            _check_slots(capacity)
            self._set_capacity(name, capacity)

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
        came = ticket.state
        if came is not State.NEW or ticket.id in self._tickets:
            raise TransitionError(f"{ticket} was submitted before")
        settled = self._settle(now - self._lag)
        ticket.totals = books[ticket.priority_class]
        if self._gate is not None:
            if not self._gate.ready(now):
                return [*settled, self._stopped_at_gate(ticket, now)]
            self._gate.take(now)
        if not self._screen.idle:
            refused = self._screen.refuse(ticket, load, now)
            if refused is not None:
                return [*settled, refused]
        if self._tenants:
            ticket.share = self._tenants.get(ticket.tenant)
        pool = self._shared or self._pools[ticket.pool]
        decisions = pool.enter(ticket, now, load)
        if len(decisions) > 1:
            self._forget(decisions[:-1])
        if ticket.state is State.LEFT:
            return [*settled, *decisions]
        self._tickets[ticket.id] = ticket
        if ticket.state is not State.ADMITTED:
            self._expect(pool.first_due(ticket))
            self._look_again(pool)
        elif ticket.share is not None:
            settled += self._passed_over(decisions, now)
        return [*settled, *decisions] if settled else decisions

    def first_byte(self, request_id: RequestId, now: Micros) -> bool:
        """The first byte of its body is about to go out. True: it will never be a victim. False: it is one, or has left: send
        nothing of it.

        Raises TransitionError if it still waits.
        """
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.state is State.VICTIM:
            return False
        ticket.on(Event.FIRST_BYTE)
        (self._shared or self._pools[ticket.pool]).takeable.discard(ticket)
        return True

    def release(self, request_id: RequestId, end: End, now: Micros) -> Sequence[Decision]:
        """A request is over: its slot is free, or its place in the queue. Ignored if it is not here (any more).

        PREEMPTED is how a driver lets go of a victim: it may be tried again (`queue`), and is here still. Raises
        TransitionError for a request that is no victim.
        """
        settled = self._settle(now - self._lag)
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return settled
        if end is End.PREEMPTED and ticket.state is not State.VICTIM:
            raise TransitionError(f"{ticket} was not preempted")
        pool = self._shared or self._pools[ticket.pool]
        decisions = pool.leave(ticket, end, now)
        if ticket.state is State.LEFT:
            del self._tickets[request_id]
        else:
            self._expect(pool.first_due(ticket))
        if ticket.share is not None:
            decisions += self._let_others_in(ticket.share, pool, now)
        elif self._lag:  # flow control: other models may run on the same instances
            decisions += self._dispatch([other for other in self._pools.values() if other is not pool], now)
        if pool.waiting:
            self._look_again(pool)
        if self._tenants:
            decisions += self._passed_over(decisions, now)
        return [*settled, *decisions] if settled else decisions

    def resize(self, pool: str, capacity: int, now: Micros) -> Sequence[Decision]:
        """The slots of a model, known or new, are now `capacity`. More: waiters enter at once. Fewer: nobody is killed,
        and nobody enters before enough have ended. Raises ValueError for less than 0."""
        _check_slots(capacity)
        settled = self._settle(now - self._lag)
        self._set_capacity(pool, capacity)
        return [*settled, *self._dispatch([self._shared or self._pools[pool]], now)]

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        """Everything that is configured changes at once, for all pools; nobody loses a slot or a place in a queue. Raises
        ConfigError for an admission policy that cannot be had, and then nothing has changed."""
        settled = self._settle(now - self._lag)
        self._configure(config)
        admitted = self._dispatch(self._pools.values(), now)
        self._earliest = self._next_due()
        self._now = now  # what has become due in the past by this is due now
        return [*settled, *admitted, *self._settle(now)]

    def advance(self, now: Micros) -> Sequence[Decision]:
        """Everything that is due by `now`."""
        return self._settle(now)

    def next_deadline(self) -> Micros | None:
        """When to call `advance` next; it may find nothing to do. None when nobody waits."""
        if not any(pool.waiting for pool in self._pools.values()):
            return None
        return self._earliest

    # Looking.

    @property
    def config(self) -> AdmissionConfig:
        return self._config

    @property
    def pools(self) -> Sequence[str]:
        """Names, in alphabetical order: of models; or EVERYBODY, where they share one pool."""
        return list(self._pools)

    def view(self, pool: str) -> PoolView:
        """What one pool looks like now, for metrics. Raises KeyError for an unknown pool."""
        seen = self._pools[pool]
        slots, unit = seen.slots, seen.slots.unit
        books = self._books_of(pool)
        classes = {}
        for c in MOST_URGENT_FIRST:
            lane, totals = seen.rules.lane_of[c], books[c]
            classes[c] = class_view(
                totals,
                queue_size=seen.rules.lanes[lane].queue_size,
                reserved=slots.reserved[c] // unit,
                desired=slots.wanted[c] // unit,
                pressure=seen.pressure(lane, totals.waiting),
                errors=seen.forecasts[c].errors,  # where all share a lane, they are its class's
            )
        in_flight = sum(totals.in_flight for totals in books)
        return PoolView(slots.capacity // unit, in_flight, seen.waiting, classes)

    def check(self) -> None:
        """Raises InvariantError if the books do not balance. For tests; O(n)."""
        for name, pool in self._pools.items():
            pool.check()
            mine = [ticket for ticket in self._tickets.values() if self._pool_of(ticket) is pool]
            held = [ticket for ticket in mine if ticket.state in HOLDING]
            if sum(ticket.charge for ticket in held) != pool.slots.used or len(mine) - len(held) != pool.waiting:
                raise InvariantError(f"pool {name!r}: tickets {mine} do not match its slots and queues")
            books = self._books_of(name)
            if (sum(t.in_flight for t in books), sum(t.waiting for t in books)) != (len(held), pool.waiting):
                raise InvariantError(f"pool {name!r}: its books do not match its slots and queues")
        if not all(totals.balance() for books in self._books.values() for totals in books):
            raise InvariantError("requests do not add up")
        for tenant in self._tenants.values():
            mine = [ticket for ticket in self._tickets.values() if ticket.share is tenant]
            held = [ticket for ticket in mine if ticket.state in HOLDING]
            if (tenant.in_flight, tenant.queued) != (len(held), len(mine) - len(held)):
                raise InvariantError(f"tenant {tenant.name!r}: its account does not match its requests")

    # Inside.

    def _pool_of(self, ticket: Ticket) -> Pool:
        return self._shared or self._pools[ticket.pool]

    def _books_of(self, pool: str) -> Sequence[Totals]:
        if self._shared is None:
            return self._books[pool]
        return [merged(books[c] for books in self._books.values()) for c in PriorityClass]

    def _stopped_at_gate(self, ticket: Ticket, now: Micros) -> Decision:
        assert self._gate is not None
        ticket.on(Event.REJECT)
        ticket.totals.rate_limited += 1
        wait = max(SECOND, self._gate.ready_at(now) - now)
        retry_after = SMG_RETRY_AFTER if self._config.flavour == "smg" else wait
        return Decision(now, ticket.id, Action.REJECT, Reason.RATE_LIMITED, None, retry_after)

    def _set_capacity(self, name: str, capacity: int) -> None:
        if name not in self._capacities:
            self._books[name] = [Totals() for _ in LANES]
            if self._shared is None:
                self._pools[name] = self._pool(name)
                self._pools = dict(sorted(self._pools.items()))  # decisions must not hang on the order in which models came
        self._capacities[name] = capacity
        self._screen.resize(sum(self._capacities.values()))
        if self._shared is None:
            self._pools[name].resize(capacity)

    def _pool(self, name: str) -> Pool:
        if self._config.mode == "flow-control":
            return FlowPool(name, self._rules, self._turns, flow_rules(self._config), self._look)
        return ClassPool(name, self._rules, self._turns)

    def _configure(self, config: AdmissionConfig) -> None:
        """New rules, new pools, the same requests."""
        former = self._pools
        self._screen = self._screen.under(config)  # first of all: this may fail, and then nothing has changed
        self._config = config
        self._lag = 1 if config.mode == "flow-control" else 0
        self.reads_load = self._screen.reads_load or config.mode == "flow-control"
        self._screen.resize(sum(self._capacities.values()))
        self._rules: PoolRules = rules_of(config)
        self._tenants: dict[str, Tenant] = limited(config.tenant_policies) if config.mode == "priority" else {}
        self._gate = _gate(config, self._gate)
        shared = config.mode in ("off", "legacy")
        names = [EVERYBODY] if shared else sorted(self._capacities)
        self._pools = {name: self._pool(name) for name in names}
        self._shared: Pool | None = self._pools[EVERYBODY] if shared else None
        for name, capacity in self._capacities.items():
            if not shared:
                self._pools[name].resize(capacity)
        for ticket in sorted(self._tickets.values(), key=_seniority):
            self._move(ticket)
        for name in self._pools.keys() & former.keys():
            self._pools[name].follow(former[name])

    def _move(self, ticket: Ticket) -> None:
        """Into the pool it belongs to now."""
        self._screen.adopt(ticket)
        ticket.share = self._tenants.get(ticket.tenant)
        ticket.totals.in_flight -= ticket.state in HOLDING  # counted again where it comes to
        self._pool_of(ticket).adopt(ticket)
        if ticket.share is not None:
            if ticket.state in HOLDING:
                ticket.share.in_flight += 1
            else:
                ticket.share.queued += 1

    def _let_others_in(self, tenant: Tenant, pool: Pool, now: Micros) -> list[Decision]:
        """One of a tenant has left `pool`: the tenant may be below its limit again in all the others."""
        if tenant.max_in_flight is None:
            return []
        others = [other for other in self._pools.values() if other is not pool]
        for other in others:
            other.unblock(tenant.name)
        return self._dispatch(others, now)

    def _dispatch(self, pools: Iterable[Pool], now: Micros) -> list[Decision]:
        admitted: list[Decision] = []
        for pool in pools:
            admitted += pool.dispatch(now)
            self._look_again(pool)
        return admitted + self._passed_over(admitted, now)

    def _passed_over(self, decisions: Iterable[Decision], now: Micros) -> list[Decision]:
        """A tenant that has just reached its limit stands in nobody's way any more, in any pool."""
        if self._tenants and any(d.action is Action.ADMIT and self._at_limit(d.subject) for d in decisions):
            return self._dispatch(self._pools.values(), now)
        return []

    def _at_limit(self, request_id: RequestId) -> bool:
        share = self._tickets[request_id].share
        return share is not None and share.at_limit

    def _forget(self, decisions: Iterable[Decision]) -> None:
        """Those who were rejected."""
        for decision in decisions:
            if decision.action is Action.REJECT:
                del self._tickets[decision.subject]

    def _look_again(self, pool: Pool) -> None:
        """Where somebody waits beside idle slots, time may let him in: he may starve, or a bucket fill."""
        self._expect(pool.soon())

    def _expect(self, due: Micros | None) -> None:
        if due is not None and (self._earliest is None or due < self._earliest):
            self._earliest = due

    def _next_due(self) -> Micros | None:
        return min((due for pool in self._pools.values() if (due := pool.next_due()) is not None), default=None)

    def _settle(self, now: Micros) -> list[Decision]:
        """Everything that fell due by `now`, each thing at its own time."""
        decisions: list[Decision] = []
        while self._earliest is not None and self._earliest <= now:
            # what new rules, or a late place in the queue, have made due in the past is due now
            self._now = max(self._now, self._earliest)
            decisions += self._fire(self._now)
            self._earliest = self._next_due()
        if now > self._now:  # noqa: PLR1730 - max() would cost as much as all of the rest
            self._now = now
        return decisions

    def _fire(self, due: Micros) -> list[Decision]:
        decisions: list[Decision] = []
        for pool in self._pools.values():
            fired = pool.fire(due)
            self._forget(fired)
            decisions += fired
        return decisions + self._passed_over(decisions, due)


def _seniority(ticket: Ticket) -> tuple[bool, int]:
    """In which order requests move: holders as they were admitted, waiters as they stand in their queues."""
    return (ticket.state not in HOLDING, ticket.turn)


def _gate(config: AdmissionConfig, current: TokenBucket | None) -> TokenBucket | None:
    """The request-rate gate in front of the classes; the one there is, if nothing about it changes."""
    legacy = config.legacy
    if config.mode != "priority" or not legacy.rate_limit_tokens_per_second:
        return None
    if current is not None and (current.rate, current.burst) == (legacy.rate_limit_tokens_per_second, legacy.burst):
        return current
    return TokenBucket(legacy.rate_limit_tokens_per_second, legacy.burst)


def _check_slots(capacity: int) -> None:
    if capacity < 0:
        raise ValueError(f"capacity must be at least 0 slots, not {capacity}")
