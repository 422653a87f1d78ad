"""PoolDirectory: which pools there are, and to which of them the requests of a model go.

With classes or flow control each model has a pool of its own; without, all models share one. A configuration creates
new pools, and the requests that are there move over, each in its state. Two things outlive a configuration: the
capacity of each model, and its counters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from maitred.admission.classes.pool import ClassPool
from maitred.admission.flow.dispatcher import Dispatcher
from maitred.admission.flow.pool import FlowPool
from maitred.admission.pool.agenda import Agenda
from maitred.admission.pool.pool_views import PoolSurvey, PoolView
from maitred.admission.pool.slot_pool import LoadProbe, SlotPool
from maitred.admission.terms.config import AdmissionConfig
from maitred.admission.terms.counters import ClassCounters, ClassView
from maitred.admission.terms.lead import Lead
from maitred.admission.terms.rules import LANES, MOST_URGENT_FIRST, resolve_flow_rules, resolve_pool_rules
from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES, Ticket
from maitred.admission.waiting.queues import SequenceNumbers
from maitred.core.request import PriorityClass
from maitred.core.steps import Steps, run_at_once

SHARED_POOL: Final = "*"
"""The name of the pool that all models share without classes."""


class PoolDirectory:
    """The pools of one core. `reconfigure` comes before everything else."""

    def __init__(self, load_probe: LoadProbe, agenda: Agenda) -> None:
        self.by_name: dict[str, SlotPool] = {}
        """In alphabetical order: decisions must not depend on the order in which models became known."""
        self.by_model: dict[str, SlotPool] = {}
        """The pool of each model. Always the same dict, as is `counters`."""
        self.counters: dict[str, Sequence[ClassCounters]] = {}
        """The counters of each model, by class."""
        self._capacities: dict[str, int] = {}
        self._leads: dict[str, Lead] = {}
        self._former: dict[PriorityClass, ClassView] = {}
        """The counters of the models that have been removed, summed by class."""
        self._changes = 0
        """How often pools have come or gone."""
        self._load_probe = load_probe
        self._agenda = agenda
        self.sequence_numbers = SequenceNumbers()
        self._config: AdmissionConfig
        self._make_pool: Callable[[str], SlotPool]
        """Creates a pool, by its name."""

    def capacities(self) -> list[tuple[str, int, Lead]]:
        """Return the slots of each model."""
        return [(model, slots, self._leads[model]) for model, slots in self._capacities.items()]

    def count_slots(self) -> int:
        """Return the slots of all models together."""
        return sum(self._capacities.values())

    def reconfigure(self, config: AdmissionConfig, tickets: Iterable[Ticket]) -> None:
        """Create pools under new rules, and move all requests that are there (`tickets`) into them."""
        former = self.by_name
        self._changes += 1
        self._config, self._make_pool = config, self._pool_factory(config)
        names = [SHARED_POOL] if self._is_shared else sorted(self._capacities)
        self.by_name = {name: self._make_pool(name) for name in names}
        self._agenda.has_other_pools = len(names) > 1
        for model in self._capacities:
            self._assign_pool(model)
        kept = [(self.by_name[name], former[name]) for name in self.by_name.keys() & former.keys()]
        # Where weights stay, tenants owe each other what they did: a reload lets none have its share twice.
        shared = {pool.name for pool, previous in kept if _share_alike(pool, previous)}
        # Pools keep the order in which they are given requests: a victim is the newest holder of a slot, and queues are not
        # sorted.
        for ticket in sorted(tickets, key=_adoption_order):
            # The counters outlive the pools, and the pool that adopts a request counts it once more.
            if ticket.state in SLOT_HOLDING_STATES:
                ticket.counters.in_flight -= 1
            else:
                ticket.counters.waiting -= 1
            pool = self.by_model[ticket.pool]
            if pool.name not in shared:
                ticket.charged = 0  # Its tenant begins anew, and owes nothing for it.
            pool.adopt(ticket)
        # Only now: a request that joins an empty queue restarts its estimator, and the inherited speed would be lost.
        for pool, previous in kept:
            pool.inherit_from(previous)
            if pool.name in shared and isinstance(pool, ClassPool) and isinstance(previous, ClassPool):
                pool.queues.inherit_from(previous.queues)

    def note_adopted(self, tickets: Iterable[Ticket]) -> None:
        """Note requests that another core has decided on, and that `reconfigure` is about to move into pools."""
        for ticket in tickets:
            pool = self.by_model[ticket.pool]
            if isinstance(pool, ClassPool) and pool.reserve is not None:
                pool.reserve.on_adopted(pool.rules.lane_of[ticket.priority_class], ticket.submitted_at)

    def resize(self, model: str, capacity: int, lead: Lead) -> SlotPool:
        """Set the slots of a model, known or new, and its lead among them. Return its pool, which is to be marked."""
        if model not in self._capacities:
            self._changes += 1
            self.counters[model] = [ClassCounters() for _ in LANES]
            if not self._is_shared:
                self.by_name[model] = self._make_pool(model)
                self.by_name = dict(sorted(self.by_name.items()))
                self._agenda.has_other_pools = len(self.by_name) > 1
        self._capacities[model], self._leads[model] = capacity, lead
        self._assign_pool(model)
        return self.by_model[model]

    def is_unused(self, model: str) -> bool:
        """Return whether no request of a model waits or holds a slot. Raises KeyError for an unknown one."""
        return not any(counters.waiting or counters.in_flight for counters in self.counters[model])

    def remove(self, model: str) -> None:
        """Remove a model without requests; what it has counted stays. Raises ValueError if it has some."""
        if not self.is_unused(model):
            raise ValueError(f"the model {model!r} has requests")
        self._changes += 1
        if self._is_shared:
            views: Mapping[PriorityClass, ClassCounters] = {c: self.counters[model][c] for c in PriorityClass}
        else:
            views = self.view(model).classes
            del self.by_name[model]
            self._agenda.has_other_pools = len(self.by_name) > 1
        for c, view in views.items():
            former = self._former.setdefault(c, ClassView())
            former.merge(view)
            if isinstance(view, ClassView):
                former.retry_after_error.merge(view.retry_after_error)
        del self.by_model[model], self.counters[model], self._capacities[model], self._leads[model]

    def view(self, name: str) -> PoolView:
        """Return what one pool looks like now. Raises KeyError for an unknown one."""
        return self.by_name[name].view(self.counters_of(name))

    def headroom(self) -> dict[str, list[int]]:
        """Return the slots that adaptive reservations keep free at most, by model and class; only of models with such."""
        return {
            name: [min(units, pool.slots.capacity) // pool.slots.units_per_slot for units in pool.slots.headroom]
            for name, pool in self.by_name.items()
            if pool.rules.adapts_reservations
        }

    def class_views(self) -> Mapping[PriorityClass, ClassView]:
        """Return each class over all pools, those that were removed included, most urgent first; nothing if there are none."""
        return run_at_once(self.survey()).classes

    def survey(self) -> Steps[PoolSurvey]:
        """Return in steps, of a model each, what all pools look like.

        The counters of a model are of one instant, so in each class all requests that arrived add up; those of two models are
        not. If pools come or go meanwhile, all of them are looked at once more, at one instant.
        """
        changes, survey = self._changes, PoolSurvey({}, {})
        for name in [*self.by_name]:
            counters = [ClassCounters() for _ in LANES]
            for model in [*self.counters] if self._is_shared else [name]:
                _merge(counters, self.counters[model])
                yield
                if self._changes != changes:
                    return run_at_once(self.survey())
            survey.add(name, self.by_name[name].view(counters))
        for c in MOST_URGENT_FIRST:
            if c in self._former:
                survey.classes.setdefault(c, ClassView()).merge_view(self._former[c])
        return survey

    def counters_of(self, name: str) -> Sequence[ClassCounters]:
        """Return the counters of one pool, by class."""
        if not self._is_shared:
            return self.counters[name]
        merged = [ClassCounters() for _ in LANES]
        for counters in self.counters.values():
            _merge(merged, counters)
        return merged

    def find_violations(self, tickets: Collection[Ticket], accounts: Collection[TenantAccount]) -> Iterator[str]:
        """Yield a line for each difference between `tickets`, all that are there, and what is counted of them, also in the
        `accounts` of tenants; and for what has not been settled. O(n)."""
        if self._agenda.is_open:
            yield "an input has not been settled"
        if not self._agenda.reserved.keys() <= {ticket.id for ticket in tickets}:
            yield "something is reserved for requests that have left"
        for account in accounts:
            of_tenant = [ticket for ticket in tickets if ticket.tenant_account is account]
            sequences = [ticket.sequences for ticket in of_tenant if ticket.state in SLOT_HOLDING_STATES]
            if (account.in_flight, account.queued) != (sum(sequences), len(of_tenant) - len(sequences)):
                yield f"tenant {account.name!r}: its account does not match its requests"
        for name, pool in self.by_name.items():
            yield from (f"pool {name!r}: {problem}" for problem in pool.find_violations())
            of_pool = [ticket for ticket in tickets if self.by_model[ticket.pool] is pool]
            held = [ticket for ticket in of_pool if ticket.state in SLOT_HOLDING_STATES]
            if sum(ticket.slot_units for ticket in held) != pool.slots.in_use or len(of_pool) - len(held) != pool.waiting:
                yield f"pool {name!r}: tickets {of_pool} do not match its slots and queues"
            counters = self.counters_of(name)
            if (sum(c.in_flight for c in counters), sum(c.waiting for c in counters)) != (len(held), pool.waiting):
                yield f"pool {name!r}: its counters do not match its slots and queues"
        of_models = [counters for of_model in self.counters.values() for counters in of_model]
        if not all(counters.is_balanced() for counters in (*of_models, *self._former.values())):
            yield "requests do not add up"

    @property
    def _is_shared(self) -> bool:
        return self._config.mode in ("off", "legacy")

    def _assign_pool(self, model: str) -> None:
        """Send the requests of a model to its pool. A shared pool has a capacity of its own."""
        pool = self.by_model[model] = self.by_name[SHARED_POOL if self._is_shared else model]
        if not self._is_shared:
            pool.resize(self._capacities[model], self._leads[model])

    def _pool_factory(self, config: AdmissionConfig) -> Callable[[str], SlotPool]:
        rules = resolve_pool_rules(config)
        if config.mode == "flow-control":
            dispatcher = Dispatcher(resolve_flow_rules(config), self._load_probe)
            return partial(
                FlowPool, rules=rules, sequence_numbers=self.sequence_numbers, agenda=self._agenda, dispatcher=dispatcher
            )
        return partial(ClassPool, rules=rules, sequence_numbers=self.sequence_numbers, agenda=self._agenda)


def _share_alike(pool: SlotPool, former: SlotPool) -> bool:
    """Return whether tenants have weights in both pools, the same ones."""
    return pool.rules.tenant_weights is not None and pool.rules.tenant_weights == former.rules.tenant_weights


def _adoption_order(ticket: Ticket) -> tuple[bool, int]:
    """Return the sort key of a move: holders of slots first, in the order of admission, then waiters in queue order."""
    return (ticket.state not in SLOT_HOLDING_STATES, ticket.sequence_number)


def _merge(totals: Sequence[ClassCounters], counters: Sequence[ClassCounters]) -> None:
    """Add the counters of a model to those of several, class by class."""
    for c in PriorityClass:
        totals[c].merge(counters[c])
