"""Which pools there are, and whose requests come to which.

With classes each model has a pool of its own, and with flow control; without, all models share one. A configuration makes them
anew, and whoever is here moves over in the state in which he is. What no configuration changes outlives them: how many slots
each model has, and its books.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from maitred.admission.books import PoolView, Totals, merged
from maitred.admission.class_pool import ClassPool
from maitred.admission.config import AdmissionConfig
from maitred.admission.flow_control.dispatcher import Dispatcher
from maitred.admission.flow_control.pool import FlowPool
from maitred.admission.flow_control.rules import flow_rules
from maitred.admission.pool import Look, Pool
from maitred.admission.queues import Turns
from maitred.admission.rules import LANES, rules_of
from maitred.admission.ticket import HOLDING, Ticket
from maitred.request import PriorityClass

EVERYBODY: Final = "*"
"""The name of the pool that all models share without classes."""


class Pools:
    """The pools of one core. To be configured before anything else; `look` is for those who go by load."""

    def __init__(self, look: Look) -> None:
        self.by_name: dict[str, Pool] = {}
        """In alphabetical order: decisions must not hang on the order in which models came."""
        self.of_model: dict[str, Pool] = {}
        """Where the requests of each model come to. Always the same dict, as is `books`."""
        self.books: dict[str, Sequence[Totals]] = {}
        """Of each model, by class."""
        self._capacities: dict[str, int] = {}
        self._look = look
        self._turns = Turns()
        self._config: AdmissionConfig
        self._made: Callable[[str], Pool]
        """A new one, by its name."""

    @property
    def slots(self) -> int:
        """Of all models together."""
        return sum(self._capacities.values())

    def configure(self, config: AdmissionConfig, tickets: Iterable[Ticket]) -> None:
        """New rules, new pools, the same requests: `tickets`, all that are here."""
        former = self.by_name
        self._config, self._made = config, self._maker(config)
        names = [EVERYBODY] if self._shared else sorted(self._capacities)
        self.by_name = {name: self._made(name) for name in names}
        for model, capacity in self._capacities.items():
            self._assign(model, capacity)
        for ticket in sorted(tickets, key=_seniority):
            ticket.totals.in_flight -= ticket.state in HOLDING  # counted again where it comes to
            self.of_model[ticket.pool].adopt(ticket)
        for name in self.by_name.keys() & former.keys():
            self.by_name[name].follow(former[name])

    def resize(self, model: str, capacity: int) -> Pool:
        """A model, known or new, has so many slots now. Where its requests come to: `dispatch` is due there."""
        if model not in self._capacities:
            self.books[model] = [Totals() for _ in LANES]
            if not self._shared:
                self.by_name[model] = self._made(model)
                self.by_name = dict(sorted(self.by_name.items()))
        self._capacities[model] = capacity
        self._assign(model, capacity)
        return self.of_model[model]

    def view(self, name: str) -> PoolView:
        """What one pool looks like now. Raises KeyError for an unknown one."""
        return self.by_name[name].view(self.books_of(name))

    def books_of(self, name: str) -> Sequence[Totals]:
        """What became of the requests of one pool, by class."""
        if not self._shared:
            return self.books[name]
        return [merged(books[c] for books in self.books.values()) for c in PriorityClass]

    @property
    def _shared(self) -> bool:
        return self._config.mode in ("off", "legacy")

    def _assign(self, model: str, capacity: int) -> None:
        """A pool that all share has a capacity of its own."""
        pool = self.of_model[model] = self.by_name[EVERYBODY if self._shared else model]
        if not self._shared:
            pool.resize(capacity)

    def _maker(self, config: AdmissionConfig) -> Callable[[str], Pool]:
        rules = rules_of(config)
        if config.mode == "flow-control":
            return partial(FlowPool, rules=rules, turns=self._turns, dispatcher=Dispatcher(flow_rules(config), self._look))
        return partial(ClassPool, rules=rules, turns=self._turns)


def _seniority(ticket: Ticket) -> tuple[bool, int]:
    """In which order requests move: holders as they were admitted, waiters as they stand in their queues."""
    return (ticket.state not in HOLDING, ticket.turn)
