"""AdmissionViews: what can be read of the core of admission, between two inputs. Compiled (`tools/compile.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maitred.admission.gates.gates import Gates
from maitred.admission.gates.policy_gate import Refusal
from maitred.admission.learned_slots.signals import NO_DEMAND, PoolDemand
from maitred.admission.pool.pool_views import PoolSurvey, PoolView
from maitred.admission.pool.slot_pool import SlotPool
from maitred.admission.pool_directory import PoolDirectory
from maitred.admission.terms.counters import ClassView
from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.terms.ticket import Ticket
from maitred.core.decisions import Decision
from maitred.core.errors import InvariantError
from maitred.core.request import PriorityClass, RequestId
from maitred.core.steps import Steps


class AdmissionViews:
    """The state of the core, which `Admission` changes, and what is read of it."""

    _gates: Gates
    _pool_of_model: Mapping[str, SlotPool]
    _pools: PoolDirectory
    _tenant_accounts: dict[str, TenantAccount]
    _tickets: dict[RequestId, Ticket]

    @property
    def tickets(self) -> Mapping[RequestId, Ticket]:
        """The requests that wait or hold slots."""
        return self._tickets

    def is_unused(self, pool: str) -> bool:
        """Return whether no request of this model waits or holds a slot. Raises KeyError for an unknown one."""
        return self._pools.is_unused(pool)

    @property
    def pool_names(self) -> Sequence[str]:
        """The names of the pools in alphabetical order: those of the models, or SHARED_POOL."""
        return list(self._pools.by_name)

    def refusal(self, decision: Decision) -> Refusal | None:
        """Return what to tell the client of a request that was just rejected, or None if no admission policy rejected it."""
        return self._gates.refusal(decision)

    def view(self, pool: str) -> PoolView:
        """Return what one pool looks like now. Raises KeyError for an unknown pool."""
        return self._pools.view(pool)

    def demand(self, model: str) -> PoolDemand:
        """Return what waits for the slots of a model; nothing for an unknown one, and where slots are no limit."""
        pool = self._pool_of_model.get(model)
        return NO_DEMAND if pool is None else pool.demand()

    def class_views(self) -> Mapping[PriorityClass, ClassView]:
        """Return each class over all pools, most urgent first; nothing if there are no pools."""
        return self._pools.class_views()

    def survey(self) -> Steps[PoolSurvey]:
        """Return in steps what all pools look like. Each model is looked at at an instant of its own, so that in each class the
        requests add up, and the models are not of one instant."""
        return self._pools.survey()

    def check(self) -> None:
        """Raise InvariantError if counters, slots and queues do not match, or something is left to settle. For tests; O(n)."""
        for problem in self._pools.find_violations(self._tickets.values(), self._tenant_accounts.values()):
            raise InvariantError(problem)
