"""Turn books: whose turn it is for a slot, by the order of classes, by age, and by the weights of tenants.

- nobody gets a free slot before a request of a higher class that waits, is not kept back by the limit of its tenant, and could
  have it; engines play no part in this, as the slots of a model are those of all its engines
- within a class those go first that wait for the slot of a victim, then those that have lost a slot, then the oldest
- with weights, the next one is of the tenant that has had least for its weight: each has a time, which a request moves on by
  its cost / weight as it leaves the queue, and by the tokens that it had in place of these when it ends. A tenant of which
  nothing waits saves nothing up, and when nothing waits at all, nobody owes anything

A request that starves, and one whose victim has gone, have turns of their own. With flow control (`check_flow`):

- nobody enters before a request of a more urgent band that is due before it by the order of bands, which may enter whenever a
  less urgent one may
- within a band and a tenant, or a band that tenants share, they enter as they are due: by age, or by their deadlines
- where tenants take turns in a band, nobody has two turns while another waits

Without classes and flow control all enter in their order (`in_order`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from maitred.admission.terms.flow_config import FlowControlConfig
from maitred.core.request import PriorityClass

_SLACK: Final = 1e-6
"""Share of a time by which it may differ from that of the gateway, which counts in whole numbers."""


class Waiting(Protocol):
    """A request that waits, or has waited."""

    mark: str
    asked_class: PriorityClass
    tenant: str
    cost: int
    place: int
    """Its place in the queue of its class: below 0 in front of those that have just come."""
    awaits_victim: bool
    slo_priority: int
    due: float
    """When its first token should come, µs."""


@dataclass(slots=True)
class Charge:
    """What the tenant of a request was charged for it."""

    tokens: int
    until: float
    """The time of the tenant with that."""
    period: int


@dataclass(slots=True)
class LaneShares:
    """How far the tenants are that share the slots of a class."""

    time: float = 0.0
    """Where the one was that was served last."""
    times: dict[str, float] = field(default_factory=dict)
    period: int = 0
    """How often nothing has waited."""

    def join(self, tenant: str, *, is_first: bool) -> None:
        """Note that a request waits, of a tenant of which nothing else does if it `is_first`."""
        if is_first:
            self.times[tenant] = max(self.time, self.times.get(tenant, 0.0))

    def serve(self, request: Waiting, weight: float) -> Charge:
        """Charge a tenant for a request that leaves the queue for a slot."""
        began = self.times[request.tenant]
        self.time = max(self.time, began)
        self.times[request.tenant] = until = began + max(1, request.cost) / weight
        return Charge(max(1, request.cost), until, self.period)

    def leave(self, tenant: str, *, waits_more: bool, is_idle: bool) -> None:
        """Note that a request waits no longer: whether others of its tenant do, or none of any."""
        if is_idle:
            self.time, self.times, self.period = 0.0, {}, self.period + 1
        elif not waits_more:
            self._forget_if_behind(tenant)

    def settle(self, tenant: str, charge: Charge, tokens: int, weight: float, *, waits: bool) -> None:
        """Charge a tenant for the tokens that a request had, in place of those that were expected."""
        if charge.period == self.period:
            self.times[tenant] = self.times.get(tenant, charge.until) + (tokens - charge.tokens) / weight
            if not waits:
                self._forget_if_behind(tenant)

    def _forget_if_behind(self, tenant: str) -> None:
        if self.times.get(tenant, 0.0) <= self.time:
            self.times.pop(tenant, None)


class TurnBooks:
    """The turns in the pools of one gateway."""

    def __init__(self) -> None:
        self._last_tenants: dict[tuple[str, int], str] = {}
        """The tenant that was let in last of each band of a pool."""
        self._shares: defaultdict[tuple[str, PriorityClass], LaneShares] = defaultdict(LaneShares)

    def clear(self) -> None:
        """Forget all pools."""
        self.forget_shares()
        self._last_tenants.clear()

    def forget_shares(self) -> None:
        """Forget how far the tenants of each class are."""
        self._shares.clear()

    def forget(self, pool: str) -> None:
        """Forget a pool."""
        for lane in [lane for lane in self._shares if lane[0] == pool]:
            del self._shares[lane]
        for band in [band for band in self._last_tenants if band[0] == pool]:
            del self._last_tenants[band]

    def of(self, pool: str, priority_class: PriorityClass) -> LaneShares:
        """Return the shares of a class."""
        return self._shares[pool, priority_class]

    def check(self, request: Waiting, rivals: Iterable[Waiting], shares: LaneShares | None, *, in_order: bool) -> Iterator[str]:
        """Yield whom of `rivals`, who wait for the same slots and may have one, a request passes that gets one. `shares` are
        those of its class, if tenants have weights, or None: nobody knows how far each is; with `in_order` they have none."""
        for rival in rivals:
            if rival.asked_class > request.asked_class:
                yield f"{request.mark} gets a slot before {rival.mark}, which waits and is of a higher class"
            elif rival.asked_class is request.asked_class and _goes_first(rival, request, shares, in_order=in_order):
                yield f"{request.mark} gets a slot before {rival.mark}, whose turn it is"

    def check_flow(self, request: Waiting, pool: str, rivals: Iterable[Waiting], flow: FlowControlConfig) -> Iterator[str]:
        """Yield whom of `rivals`, who wait in the same pool, a request passes that flow control lets in."""
        band = pool, request.slo_priority
        had_last_turn = flow.fairness_policy == "round-robin" and self._last_tenants.get(band) == request.tenant
        for rival in rivals:
            if _enters_first(rival, request, flow):
                yield f"{request.mark} enters before {rival.mark}, which goes first by {flow.dispatch_order}"
            elif had_last_turn and rival.slo_priority == request.slo_priority and rival.tenant != request.tenant:
                yield f"{request.mark} enters before {rival.mark}, and its tenant had the last turn as well"
        self._last_tenants[band] = request.tenant


def _enters_first(rival: Waiting, request: Waiting, flow: FlowControlConfig) -> bool:
    order, is_shared = flow.dispatch_order, flow.fairness_policy == "global-strict"
    is_due = _flow_rank(rival, order) < _flow_rank(request, order)
    if rival.slo_priority != request.slo_priority:
        # Where tenants take turns, another one's request may be the next of the band, and come later.
        return rival.slo_priority > request.slo_priority and (order == "priority" or (is_due and is_shared))
    return is_due and (is_shared or rival.tenant == request.tenant)


def _flow_rank(request: Waiting, order: str) -> tuple[float, int]:
    return (request.due if order == "slo-deadline" else 0.0), request.place


def in_order(request: Waiting, rivals: Iterable[Waiting]) -> Iterator[str]:
    """Yield whom a request passes where all wait in one queue."""
    for rival in rivals:
        if rival.place < request.place:
            yield f"{request.mark} enters before {rival.mark}, which has waited for longer"


def _goes_first(rival: Waiting, request: Waiting, shares: LaneShares | None, *, in_order: bool) -> bool:
    if rival.awaits_victim is not request.awaits_victim:
        return rival.awaits_victim
    is_alike = rival.tenant == request.tenant or min(rival.place, request.place) < 0
    if in_order or is_alike or rival.awaits_victim:
        return rival.place < request.place
    if shares is None:
        return False
    time = shares.times[request.tenant]
    return shares.times[rival.tenant] < time - _SLACK * max(1.0, time)
