"""Admission: one core for all pools, driven by inputs and time.

Each input first settles what is due by `now` (waiters whose time is up are rejected), then takes effect, and answers with
every decision that came of both. So what is decided depends on the inputs alone, and not on how promptly a driver's timer
fires: calling `advance` more often never changes a decision, only when it is taken.

The core keeps a ticket from `submit` until it has left. A driver may therefore release a request twice, or one that was
rejected meanwhile; both are ignored. It will also be handed decisions on requests that it has given up in the same instant,
and must ignore those.

`now` never runs backwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from maitred.admission.books import PoolView
from maitred.admission.config import AdmissionConfig
from maitred.admission.pool import Pool
from maitred.admission.ticket import Event, State, Ticket, TransitionError
from maitred.admission.vocabulary import Action, End
from maitred.contracts import FleetLoad
from maitred.decisions import Decision
from maitred.errors import InvariantError
from maitred.request import RequestId
from maitred.units import Micros

NO_LOAD: Final = FleetLoad()


class Admission:
    """Decides who may be in flight. `pools` gives each pool's capacity in slots; `resize` adds more pools."""

    def __init__(self, config: AdmissionConfig, pools: Mapping[str, int]) -> None:
        self._config = config
        self._pools: dict[str, Pool] = {}
        self._tickets: dict[RequestId, Ticket] = {}
        self._earliest: Micros | None = None
        """No waiter's time is up before this instant (it may be later: heads leave). None: nobody waits."""
        for name, capacity in pools.items():
            _check_slots(capacity)
            self._pool(name).resize(capacity)

    def submit(self, ticket: Ticket, now: Micros, load: FleetLoad = NO_LOAD) -> Sequence[Decision]:
        """A request asks to enter: the last decision is on it (`admit`, `queue` or `reject`).

        `load` is for policies that weigh the fleet's load; slots do not. Raises KeyError for an unknown pool and
        TransitionError for a ticket, or an id, that is here already.
        """
        pool = self._pools[ticket.pool]
        if ticket.state is not State.NEW or ticket.id in self._tickets:
            raise TransitionError(f"{ticket} was submitted before")
        settled = self._settle(now)
        decision = pool.enter(ticket, now)
        if decision.action is not Action.REJECT:
            self._tickets[ticket.id] = ticket
        if decision.action is Action.QUEUE:
            self._expect(pool.deadline(ticket))
        return [*settled, decision] if settled else [decision]

    def first_byte(self, request_id: RequestId, now: Micros) -> bool:
        """The first byte of its body is about to go out. False: it holds no slot any more, send nothing.

        Raises TransitionError if it still waits.
        """
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return False
        ticket.on(Event.FIRST_BYTE)
        return True

    def release(self, request_id: RequestId, end: End, now: Micros) -> Sequence[Decision]:
        """A request is over: its slot is free, or its place in the queue. Ignored if it is not here (any more)."""
        settled = self._settle(now)
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return settled
        decisions = self._pools[ticket.pool].leave(ticket, end, now)
        return [*settled, *decisions] if settled else decisions

    def resize(self, pool: str, capacity: int, now: Micros) -> Sequence[Decision]:
        """The slots of a pool, known or new, are now `capacity`. More: waiters enter at once. Fewer: nobody is killed,
        and nobody enters before enough have ended. Raises ValueError for less than 0."""
        _check_slots(capacity)
        settled = self._settle(now)
        resized = self._pool(pool)
        resized.resize(capacity)
        return [*settled, *resized.dispatch(now)]

    def reconfigure(self, config: AdmissionConfig, now: Micros) -> Sequence[Decision]:
        """Limits and reservations change for all pools at once; nobody loses a slot or a place in a queue."""
        settled = self._settle(now)
        self._config = config
        admitted: list[Decision] = []
        for pool in self._pools.values():
            pool.configure(config)
            admitted += pool.dispatch(now)
            self._expect(pool.next_deadline())
        return [*settled, *admitted, *self._settle(now)]

    def advance(self, now: Micros) -> Sequence[Decision]:
        """Everything that is due by `now`."""
        return self._settle(now)

    def next_deadline(self) -> Micros | None:
        """When to call `advance` next; None when nobody waits. O(pools) while somebody does."""
        if self._earliest is not None:
            self._earliest = None
            for pool in self._pools.values():
                self._expect(pool.next_deadline())
        return self._earliest

    @property
    def config(self) -> AdmissionConfig:
        return self._config

    @property
    def pools(self) -> Sequence[str]:
        """Names, in alphabetical order."""
        return list(self._pools)

    def view(self, pool: str) -> PoolView:
        """What one pool looks like now, for metrics. Raises KeyError for an unknown pool."""
        return self._pools[pool].view()

    def check(self) -> None:
        """Raises InvariantError if the books do not balance. For tests; O(n)."""
        for pool in self._pools.values():
            pool.check()
        for name, pool in self._pools.items():
            mine = [ticket for ticket in self._tickets.values() if ticket.pool == name]
            held = sum(ticket.state in (State.ADMITTED, State.STREAMING) for ticket in mine)
            if held != pool.slots.used or len(mine) - held != pool.waiting:
                raise InvariantError(f"pool {name!r}: tickets {mine} do not match its slots and queues")

    def _pool(self, name: str) -> Pool:
        if name not in self._pools:
            self._pools[name] = Pool(name, self._config)
            self._pools = dict(sorted(self._pools.items()))  # decisions must not hang on the order in which pools came
        return self._pools[name]

    def _expect(self, deadline: Micros | None) -> None:
        if deadline is not None and (self._earliest is None or deadline < self._earliest):
            self._earliest = deadline

    def _settle(self, now: Micros) -> list[Decision]:
        """Reject those who have waited too long, in the order in which their time was up."""
        if self._earliest is None or now < self._earliest:
            return []
        due = sorted((late for pool in self._pools.values() for late in pool.due(now)), key=lambda late: late[0])
        decisions = [self._pools[ticket.pool].time_out(ticket, now) for _, ticket in due]
        for _, ticket in due:
            del self._tickets[ticket.id]
        self.next_deadline()
        return decisions


def _check_slots(capacity: int) -> None:
    if capacity < 0:
        raise ValueError(f"capacity must be at least 0 slots, not {capacity}")
