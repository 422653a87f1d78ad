"""Which pools there are, and whose requests come to which.

With classes each model has a pool of its own, and with flow control; without, all models share one. A configuration makes them
anew, and whoever is here moves over in the state in which he is. What no configuration changes outlives them: how many slots
each model has, and its books.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from maitred.admission.class_pool import ClassPool
from maitred.admission.config import AdmissionConfig
from maitred.admission.counters import ClassCounters, ClassView, PoolView
from maitred.admission.flow_control.dispatcher import Dispatcher
from maitred.admission.flow_control.pool import FlowPool
from maitred.admission.pool import LoadProbe, SlotPool
from maitred.admission.queues import SequenceNumbers
from maitred.admission.rules import LANES, resolve_flow_rules, resolve_pool_rules
from maitred.admission.ticket import SLOT_HOLDING_STATES, Ticket
from maitred.core.request import PriorityClass

SHARED_POOL: Final = "*"
"""The name of the pool that all models share without classes."""


class PoolDirectory:
    """The pools of one core. To be configured before anything else; `look` is for those who go by load."""

    def __init__(self, load_probe: LoadProbe) -> None:
        self.by_name: dict[str, SlotPool] = {}
        """In alphabetical order: decisions must not hang on the order in which models came."""
        self.by_model: dict[str, SlotPool] = {}
        """Where the requests of each model come to. Always the same dict, as is `books`."""
        self.counters: dict[str, Sequence[ClassCounters]] = {}
        """Of each model, by class."""
        self._capacities: dict[str, int] = {}
        self._load_probe = load_probe
        self._sequence_numbers = SequenceNumbers()
        self._config: AdmissionConfig
        self._make_pool: Callable[[str], SlotPool]
        """A new one, by its name."""

    @property
    def total_slots(self) -> int:
        """Of all models together."""
        return sum(self._capacities.values())

    def configure(self, config: AdmissionConfig, tickets: Iterable[Ticket]) -> None:
        """New rules, new pools, the same requests: `tickets`, all that are here."""
        former = self.by_name
        self._config, self._make_pool = config, self._pool_factory(config)
        names = [SHARED_POOL] if self._is_shared else sorted(self._capacities)
        self.by_name = {name: self._make_pool(name) for name in names}
        for model, capacity in self._capacities.items():
            self._assign_pool(model, capacity)
        for ticket in sorted(tickets, key=_adoption_order):
            ticket.counters.in_flight -= ticket.state in SLOT_HOLDING_STATES  # counted again where it comes to
            self.by_model[ticket.pool].adopt(ticket)
        for name in self.by_name.keys() & former.keys():
            self.by_name[name].inherit_from(former[name])

    def resize(self, model: str, capacity: int) -> SlotPool:
        """A model, known or new, has so many slots now. Where its requests come to: `dispatch` is due there."""
        if model not in self._capacities:
            self.counters[model] = [ClassCounters() for _ in LANES]
            if not self._is_shared:
                self.by_name[model] = self._make_pool(model)
                self.by_name = dict(sorted(self.by_name.items()))
        self._capacities[model] = capacity
        self._assign_pool(model, capacity)
        return self.by_model[model]

    def view(self, name: str) -> PoolView:
        """What one pool looks like now. Raises KeyError for an unknown one."""
        return self.by_name[name].view(self.counters_of(name))

    def counters_of(self, name: str) -> Sequence[ClassCounters]:
        """What became of the requests of one pool, by class."""
        if not self._is_shared:
            return self.counters[name]
        merged = [ClassCounters() for _ in LANES]
        for counters in self.counters.values():
            for c in PriorityClass:
                merged[c].merge(counters[c])
        return merged

    def class_views(self) -> dict[PriorityClass, ClassView]:
        """Return each class over all pools, most urgent first; nothing if there are no pools."""
        views: dict[PriorityClass, ClassView] = {}
        for name in self.by_name:
            for c, view in self.view(name).classes.items():
                views.setdefault(c, ClassView()).merge_view(view)
        return views

    @property
    def _is_shared(self) -> bool:
        return self._config.mode in ("off", "legacy")

    def _assign_pool(self, model: str, capacity: int) -> None:
        """A pool that all share has a capacity of its own."""
        pool = self.by_model[model] = self.by_name[SHARED_POOL if self._is_shared else model]
        if not self._is_shared:
            pool.resize(capacity)

    def _pool_factory(self, config: AdmissionConfig) -> Callable[[str], SlotPool]:
        rules = resolve_pool_rules(config)
        if config.mode == "flow-control":
            return partial(
                FlowPool,
                rules=rules,
                sequence_numbers=self._sequence_numbers,
                dispatcher=Dispatcher(resolve_flow_rules(config), self._load_probe),
            )
        return partial(ClassPool, rules=rules, sequence_numbers=self._sequence_numbers)


def _adoption_order(ticket: Ticket) -> tuple[bool, int]:
    """In which order requests move: holders as they were admitted, waiters as they stand in their queues."""
    return (ticket.state not in SLOT_HOLDING_STATES, ticket.sequence_number)
