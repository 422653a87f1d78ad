"""Replica: an instance in its place in the cluster, as routers and the event loop see it.

Routers see it as of the steps that ended before this instant; once its turn in the order of this instant has come or gone by,
of those that end now, too, whether or not it had anything to tell. The event loop asks it for events when its turn has come,
and not before: what comes up early, because somebody was withdrawn, is kept until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.contracts import LatencyModel, PrefixView
from maitred.instance import Instance, InstanceEvent
from maitred.instance.gap_log import GapLog
from maitred.instance.meter import Meter
from maitred.request import Request, RequestId
from maitred.sim.agenda import Agenda
from maitred.sim.columns import InstanceTotals
from maitred.units import Micros


class Chains:
    """The keys of a prompt, made once while one router asks every instance for them."""

    def __init__(self) -> None:
        self._request: Request | None = None
        self._chain: Sequence[int] = ()

    def of(self, request: Request, cache: PrefixView) -> Sequence[int]:
        """All caches that ask have blocks of one size."""
        if request is not self._request:
            self._request, self._chain = request, cache.chain(request)
        return self._chain


class Replica:
    """An instance in the cluster, and the `InstanceView` that routers see."""

    __slots__ = (
        "_agenda",
        "_chains",
        "_meter",
        "due",
        "in_flight",
        "index",
        "instance",
        "kept",
    )

    def __init__(
        self,
        index: int,
        instance: Instance,
        agenda: Agenda,
        chains: Chains,
        latency: LatencyModel,
        gap_log: GapLog | None = None,
    ) -> None:
        self._agenda = agenda
        self._chains = chains
        self.index = index
        self.instance = instance
        self.in_flight = 0
        self.due: Micros | None = None
        """When its entry in the heap says that something happens; others are obsolete."""
        self.kept: list[InstanceEvent] = []
        """Events that came up before their turn."""
        instance.gap_log = gap_log
        self._meter = instance.meter = Meter(latency, gap_log)

    def totals(self, requests: int, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> InstanceTotals:
        """What it did; the counts are of those who came here."""
        instance, meter = self.instance, self._meter
        return InstanceTotals(
            steps=instance.steps,
            busy=meter.busy,
            preemptions=instance.preemptions,
            requests=requests,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            fetched_blocks=instance.fetched_blocks,
            gaps=meter.gaps,
        )

    def events(self, now: Micros) -> Sequence[InstanceEvent]:
        """What happened there up to `now`."""
        events = self.instance.advance(now)
        if self.kept:
            events = [*self.kept, *events]
            self.kept.clear()
        return events

    def withdraw(self, request_id: RequestId, now: Micros) -> bool:
        """Stop the work on a request, and forget what came of it at this instant. Whether events of others came up, which are
        kept until their turn."""
        self.settle()
        self.instance.abort(request_id, now)
        self.kept += (event for event in self.instance.news() if event.seq.request.id != request_id)
        return bool(self.kept)

    @property
    def waiting(self) -> int:
        return self.instance.waiting

    @property
    def running(self) -> int:
        return self.instance.running

    @property
    def kv_usage(self) -> float:
        self.settle()
        return self.instance.kv_usage

    def cached_blocks(self, request: Request) -> int:
        cache = self.instance.cache
        if cache is None:
            return 0
        self.settle()
        return cache.cached(self.chain(request))

    def chain(self, request: Request) -> Sequence[int]:
        """The keys of its prompt here."""
        cache = self.instance.cache
        return () if cache is None else self._chains.of(request, cache)

    def settle(self) -> None:
        """Blocks and caches are as of the steps that routers know to be over."""
        agenda = self._agenda
        now = agenda.now
        self.instance.settle(now if (now, self.index) <= agenda.turn else now - 1)
