"""Replica: an instance in its place in the cluster, as routers and the event loop see it.

Routers see it as of the steps that ended before this instant; once its turn in the order of this instant has come or gone by,
of those that end now, too, whether or not it had anything to tell. The event loop asks it for events when its turn has come,
and not before: what comes up early, because somebody was withdrawn, is kept until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.core.contracts import LatencyModel, PrefixCacheView
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.instance import Instance, InstanceEvent
from maitred.instance.itl_log import ItlLog
from maitred.instance.step_meter import StepMeter
from maitred.sim.event_queue import EventQueue
from maitred.sim.results import InstanceTotals


class BlockHashMemo:
    """The keys of a prompt, made once while one router asks every instance for them."""

    def __init__(self) -> None:
        self._request: Request | None = None
        self._chain: Sequence[int] = ()

    def get(self, request: Request, cache: PrefixCacheView) -> Sequence[int]:
        """All caches that ask have blocks of one size."""
        if request is not self._request:
            self._request, self._chain = request, cache.block_hashes(request)
        return self._chain


class Replica:
    """An instance in the cluster, and the `InstanceView` that routers see."""

    __slots__ = (
        "_block_hash_memo",
        "_event_queue",
        "_meter",
        "deferred_events",
        "in_flight",
        "index",
        "instance",
        "next_due",
    )

    def __init__(
        self,
        index: int,
        instance: Instance,
        agenda: EventQueue,
        chains: BlockHashMemo,
        latency: LatencyModel,
        gap_log: ItlLog | None = None,
    ) -> None:
        self._event_queue = agenda
        self._block_hash_memo = chains
        self.index = index
        self.instance = instance
        self.in_flight = 0
        self.next_due: Micros | None = None
        """When its entry in the heap says that something happens; others are obsolete."""
        self.deferred_events: list[InstanceEvent] = []
        """Events that came up before their turn."""
        instance.itl_log = gap_log
        self._meter = instance.meter = StepMeter(latency, gap_log)

    def totals(self, requests: int, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> InstanceTotals:
        """What it did; the counts are of those who came here."""
        instance, meter = self.instance, self._meter
        return InstanceTotals(
            steps=instance.num_steps,
            busy=meter.busy_time,
            preemptions=instance.num_preemptions,
            requests=requests,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            fetched_blocks=instance.fetched_blocks,
            itl=meter.itl_sketch,
        )

    def drain_events(self, now: Micros) -> Sequence[InstanceEvent]:
        """What happened there up to `now`."""
        events = self.instance.advance(now)
        if self.deferred_events:
            events = [*self.deferred_events, *events]
            self.deferred_events.clear()
        return events

    def withdraw(self, request_id: RequestId, now: Micros) -> bool:
        """Stop the work on a request, and forget what came of it at this instant. Whether events of others came up, which are
        kept until their turn."""
        self.settle()
        self.instance.abort(request_id, now)
        self.deferred_events += (event for event in self.instance.drain_events() if event.seq.request.id != request_id)
        return bool(self.deferred_events)

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
        return cache.num_cached_blocks(self.block_hashes(request))

    def block_hashes(self, request: Request) -> Sequence[int]:
        """The keys of its prompt here."""
        cache = self.instance.cache
        return () if cache is None else self._block_hash_memo.get(request, cache)

    def settle(self) -> None:
        """Blocks and caches are as of the steps that routers know to be over."""
        agenda = self._event_queue
        now = agenda.now
        self.instance.commit_ended_steps(now if (now, self.index) <= agenda.last_instance_turn else now - 1)
