"""Replica: an instance in its place in the cluster, as routers and the event loop see it.

Routers see it as of the steps that ended before this instant. The event loop asks it for events when its turn in the order of
one instant has come, and not before: what comes up early, because somebody was withdrawn, is kept until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.instance import Instance, InstanceEvent
from maitred.request import Request, RequestId
from maitred.sim.agenda import Agenda
from maitred.units import Micros


class Replica:
    """An instance in the cluster, and the `InstanceView` that routers see."""

    __slots__ = ("_agenda", "_kept", "due", "in_flight", "index", "instance", "touched")

    def __init__(self, index: int, instance: Instance, agenda: Agenda) -> None:
        self._agenda = agenda
        self.index = index
        self.instance = instance
        self.in_flight = 0
        self.due: Micros | None = None
        """When its entry in the heap says that something happens; others are obsolete."""
        self.touched = False
        """Something happened to it at this instant: its next event is to be found anew."""
        self._kept: list[InstanceEvent] = []

    def events(self, now: Micros) -> Sequence[InstanceEvent]:
        """What happened there up to `now`."""
        events = self.instance.advance(now)
        if self._kept:
            events = [*self._kept, *events]
            self._kept.clear()
        return events

    def withdraw(self, request_id: RequestId, now: Micros) -> bool:
        """Stop the work on a request, and forget what came of it at this instant. Whether events of others came up, which are
        kept until their turn."""
        self.instance.abort(request_id, now)
        self._kept += (event for event in self.instance.advance(now) if event.seq.request.id != request_id)
        return bool(self._kept)

    @property
    def waiting(self) -> int:
        return self.instance.waiting

    @property
    def running(self) -> int:
        return self.instance.running

    @property
    def kv_usage(self) -> float:
        self.instance.settle(self._agenda.now - 1)
        return self.instance.kv_usage

    def cached_blocks(self, request: Request) -> int:
        cache = self.instance.cache
        if cache is None:
            return 0
        self.instance.settle(self._agenda.now - 1)
        return cache.match(request) // cache.block_size
