"""Tenants: which names they can have, and what each holds and waits for, over all pools.

A tenant has an account if the configuration limits it: `max_in_flight` and `max_queued` (in mode `priority`), or a
budget, which is a share of all slots (in every mode).

An account spans the pools of all models, and counts a slot for each sequence of a request. Where its limit is asked
(`has_room`):

    a newcomer                `AdmissionPriority.blocking_reason`
    requests that wait        `queues`: a tenant at its limit has no next request, so none that could preempt either
    a preemptor               `AdmissionPriority.can_take_slot` (`may_hold`); `preemption` for the next one

A preemptor that waits for its victim counts as if it held the slot already. Otherwise another request of the tenant could take
the last slot of the limit meanwhile, in this pool or another, and the victim would have been stopped for nothing.

A tenant at its limit must not block the requests behind its own, so its queue leaves the serving order. It comes back when a
request of the tenant gives up a slot or the claim to one, in any pool. This pool puts it back at once
(`SlotPool.on_tenant_slot_freed`, `LaneQueue.put_back_tenant`), and the others when the input is settled
(`Agenda.note_freed`, `PoolCoordinator.settle`).
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

MAX_NAME_CHARS: Final = 128
"""Length in characters up to which a gateway keeps a name that a client has chosen as it is. It remembers many names, and shows
them in metrics, so longer ones are hashed."""
KEY_TENANT_PREFIX: Final = "auth:"
"""What the names of tenants with a key begin with."""
_FORMS: Final[Mapping[str, str]] = {"auth": "auth:ID", "header": "header:VALUE", "ip": "ip:ADDRESS"}


def tenant_problem(tenant: str) -> str | None:
    """Return why no request can ever come from a tenant called `tenant`, or None if one can."""
    kind, colon, name = tenant.partition(":")
    if tenant == "anonymous":
        return None
    if not colon or kind not in _FORMS:
        return f"{tenant!r} matches no tenant: write auth:{tenant}, header:{tenant}, ip:ADDRESS or anonymous"
    if not name or name != name.strip():
        return f"{tenant!r} matches no tenant: write {_FORMS[kind]}, without spaces around it"
    if kind == "ip":
        try:
            normal = str(ip_address(name))
        except ValueError:
            return f"{tenant!r} matches no tenant: {name!r} is not an IP address"
        if normal != name:
            return f"{tenant!r} matches no tenant: write ip:{normal}"
    if kind == "header" and len(name) > MAX_NAME_CHARS:
        return f"header:{name[:20]}... matches no tenant: names of more than {MAX_NAME_CHARS} characters are hashed"
    return None


class TenantAccount:
    """The account of one tenant: what it holds and waits for, and its limits. The pools keep the account up to date."""

    __slots__ = ("awaiting_victims", "in_flight", "max_in_flight", "max_queued", "most_slots", "name", "queued", "slot_share")

    def __init__(
        self, name: str, max_in_flight: int | None = None, max_queued: int | None = None, slot_share: float | None = None
    ) -> None:
        self.name = name
        self.max_in_flight = max_in_flight
        """The largest number of slots that the tenant may hold, or None if there is no limit."""
        self.max_queued = max_queued
        """The largest number of its requests that may wait, or None if there is no limit."""
        self.slot_share = slot_share
        """The share of all slots (0 to 1) beyond which its sheddable requests are refused, or None if it has no budget."""
        self.in_flight = 0
        """Slots that the tenant holds."""
        self.awaiting_victims = 0
        """Slots that its preemptors wait for."""
        self.most_slots = 1
        """The most slots that a request of it has asked for."""
        self.queued = 0
        """Its requests that wait, preemptors included."""

    def has_room(self, slots: int) -> bool:
        """Return whether it may hold so many further slots beside those that its preemptors are about to get. A request that
        needs more than the limit has room alone."""
        held = self.in_flight + self.awaiting_victims
        return self.max_in_flight is None or held + slots <= self.max_in_flight or not held

    def may_hold(self, slots: int) -> bool:
        """Return whether one of its preemptors may have these slots: not after a reload that has lowered its limit, say."""
        held = self.in_flight
        return self.max_in_flight is None or held + slots <= self.max_in_flight or not held

    @property
    def at_limit(self) -> bool:
        """Whether one of its requests may have no room, by the largest that there was."""
        return self.max_in_flight is not None and not self.has_room(self.most_slots)

    @property
    def queue_full(self) -> bool:
        """Whether no further request of it may wait."""
        return self.max_queued is not None and self.queued >= self.max_queued
