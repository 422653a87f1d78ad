"""The last decisions of admission, kept while somebody looks: the newest of each action, so that a flood of one hides no other.

The core hands on its inputs and decisions as it would to a log (`Admission.watch`). When nobody has looked for `LINGER_SECS` it
does so no more, and a request costs nothing for this.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from maitred.admission import Admission
from maitred.admission.inputs import Submit
from maitred.core.decisions import Decision, Input
from maitred.core.request import RequestId
from maitred.core.units import to_seconds
from maitred.gateway.observe.state import GatewayCounters
from maitred.scheduler.interface import RealTimeAdmission

LINGER_SECS: Final = 5.0
_KEPT: Final = 12
"""Decisions of each action."""
_MOST_NAMED: Final = 20_000
"""Requests of which more than the number is known."""


class RecentDecision(msgspec.Struct, frozen=True):
    """One decision."""

    at: float
    """When, in seconds as `LiveState.at`."""
    id: str
    """The id that the client knows, or the number of the request."""
    action: str
    reason: str
    priority_class: str
    tenant: str
    other: str
    """The preemptor of a victim, or the victim of a preemptor; empty: none."""


class _Named(msgspec.Struct, frozen=True, gc=False):
    client_id: str
    priority_class: str
    tenant: str


class RecentDecisions:
    """Watches one core while somebody looks."""

    def __init__(self, admission: RealTimeAdmission, counters: GatewayCounters) -> None:
        self._admission, self._counters = admission, counters
        self._watched: Admission | None = None
        self._named: OrderedDict[RequestId, _Named] = OrderedDict()
        self._kept: dict[str, deque[Decision]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def is_watching(self) -> bool:
        """Return whether the core hands on its decisions."""
        return self._watched is not None

    def look(self) -> list[RecentDecision]:
        """Return the decisions that are kept, the newest first, and go on to keep them for a while."""
        if self._watched is not self._admission.core:  # Another one may lead since.
            self.stop()
            self._begin()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECS, self.stop)
        return [self._shown(each) for each in sorted((d for some in self._kept.values() for d in some), key=lambda d: -d.at)]

    def stop(self) -> None:
        """Watch no more, and forget."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watched is not None:
            self._watched.watch(None)
            self._watched = None
        self._named.clear()
        self._kept.clear()

    def _begin(self) -> None:
        self._watched = self._admission.core
        for lease in self._admission.leases:
            request = lease.request
            self._name(request.id, request.client_id, request.priority_class.label, request.tenant)
        self._watched.watch(self._on_input)

    def _on_input(self, given: Input, decisions: Sequence[Any]) -> None:
        if isinstance(given, Submit):
            self._name(given.id, given.client_id, given.priority_class, given.tenant)
        for decision in decisions:
            kept = self._kept.get(decision.action)
            if kept is None:
                kept = self._kept[decision.action] = deque(maxlen=_KEPT)
            kept.append(decision)

    def _name(self, request: RequestId, client_id: str, priority_class: str, tenant: str) -> None:
        self._named[request] = _Named(client_id, priority_class, self._counters.tenant_label(tenant))
        if len(self._named) > _MOST_NAMED:
            self._named.popitem(last=False)

    def _shown(self, decision: Decision) -> RecentDecision:
        named = self._named.get(decision.subject, _Named("", "", ""))
        at, other = round(to_seconds(decision.at), 1), decision.other
        return RecentDecision(
            at,
            self._id_of(decision.subject),
            decision.action.value,
            decision.reason,
            named.priority_class,
            named.tenant,
            "" if other is None else self._id_of(other),
        )

    def _id_of(self, request: RequestId) -> str:
        named = self._named.get(request)
        return str(request) if named is None or not named.client_id else named.client_id
