"""Replica: an instance in its place in the cluster, as the event loop drives it and routers see it.

Routers see the instance as of the steps that ended before the current instant. Steps that end at the current instant become
visible when the turn of the instance has come, or gone by, in the order of this instant, even if it had no event.

The event loop takes events from the instance only at its turn. If a request is withdrawn before that, events of other requests
may come up early; they are deferred until the turn.

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maitred.core.contracts import LatencyModel, PrefixCacheView
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.instance import Instance, InstanceEvent
from maitred.instance.step_meter import ItlLog, StepMeter
from maitred.sim.event_queue import EventQueue
from maitred.sim.results import InstanceTotals

NOT_DUE: Final = -1
"""An instance that has no event to come."""


class BlockHashMemo:
    """The block hashes of the last prompt, so that a router which asks every instance computes them once."""

    def __init__(self) -> None:
        self._request: Request | None = None
        self._block_hashes: Sequence[int] = ()

    def get(self, request: Request, cache: PrefixCacheView) -> Sequence[int]:
        """Return the block hashes of a prompt. All caches that are passed must have the same block size."""
        # By identity: a router asks all instances about one request object, and equality would compare every field of it.
        if request is not self._request:
            self._request, self._block_hashes = request, cache.block_hashes(request)
        return self._block_hashes


class Replica:
    """An instance in the cluster, and the `InstanceView` that routers see."""

    __slots__ = (
        "_block_hash_memo",
        "_earlier_lives",
        "_event_queue",
        "_itl_log",
        "_meter",
        "deferred_events",
        "in_flight",
        "index",
        "instance",
        "is_dirty",
        "next_due",
    )

    def __init__(
        self,
        index: int,
        instance: Instance,
        event_queue: EventQueue,
        block_hash_memo: BlockHashMemo,
        latency: LatencyModel,
        itl_log: ItlLog | None = None,
    ) -> None:
        self._event_queue = event_queue
        self._block_hash_memo = block_hash_memo
        self.index = index
        self.instance = instance
        self.in_flight = 0
        """Requests that were routed here and have not ended."""
        self.next_due: Micros = NOT_DUE
        """The instant of its valid entry in the event queue; entries at other instants are obsolete."""
        self.is_dirty = False
        """Whether something happened to the instance at this instant (`SimulatedFleet.mark_dirty`)."""
        self.deferred_events: list[InstanceEvent] = []
        """Events that came up before the turn of the instance."""
        self._earlier_lives = 0, 0, 0
        """Steps, KV preemptions and fetched blocks of the instances that have failed in this place."""
        self._meter, self._itl_log = StepMeter(latency, itl_log), itl_log
        instance.observe(self._meter, itl_log)

    def restart(self, instance: Instance) -> None:
        """Put an empty instance into the place of one that has failed, and that no request is in."""
        steps, preemptions, fetched = self._lives()
        self._earlier_lives = steps, preemptions, fetched
        self.instance = instance
        self.deferred_events.clear()
        instance.observe(self._meter, self._itl_log)

    def _lives(self) -> tuple[int, int, int]:
        """Return the steps, KV preemptions and fetched blocks of all instances that have been in this place."""
        instance, (steps, preemptions, fetched) = self.instance, self._earlier_lives
        return steps + instance.num_steps, preemptions + instance.num_preemptions, fetched + instance.fetched_blocks

    def totals(
        self,
        serving: Micros,
        held: Micros,
        down: Micros,
        requests: int,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
    ) -> InstanceTotals:
        """Return the totals of the instance, with these times and counts of the requests that were routed to it."""
        meter, (steps, preemptions, fetched) = self._meter, self._lives()
        return InstanceTotals(
            steps=steps,
            busy=meter.busy_time,
            preemptions=preemptions,
            requests=requests,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            fetched_blocks=fetched,
            serving=serving,
            held=held,
            down=down,
            itl=meter.itl_sketch,
        )

    def drain_events(self, now: Micros) -> Sequence[InstanceEvent]:
        """Advance the instance to `now`, and return its events, the deferred ones first."""
        events = self.instance.advance(now)
        if self.deferred_events:
            events = [*self.deferred_events, *events]
            self.deferred_events.clear()
        return events

    def withdraw(self, request_id: RequestId, now: Micros) -> bool:
        """Stop the work on a request, and drop its events of this instant.

        Returns whether events of other requests are now deferred until the turn of the instance.
        """
        self.settle()
        # What this request would get at this very instant is lost with it. Events of other requests must wait for the turn of
        # the instance, because decisions about requests come before the events of instances.
        self.instance.abort(request_id, now)
        # Also what was deferred when another request was withdrawn at this instant may be of this one.
        events = [*self.deferred_events, *self.instance.drain_events()]
        self.deferred_events = [event for event in events if event.seq.request_id != request_id]
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

    @property
    def kv_tokens(self) -> None:
        # Simulated routers that remember what was sent go by BLIS's number of blocks, as its reference runs do.
        return None

    def cached_blocks(self, request: Request) -> int:
        """Return how many leading blocks of the prompt are in the prefix cache."""
        cache = self.instance.prefix_cache
        if cache is None:
            return 0
        self.settle()
        return cache.num_cached_blocks(self.block_hashes(request))

    def block_hashes(self, request: Request) -> Sequence[int]:
        """Return the block hashes of the prompt in the cache of this instance; none without a prefix cache."""
        cache = self.instance.prefix_cache
        return () if cache is None else self._block_hash_memo.get(request, cache)

    def settle(self) -> None:
        """Commit the steps that have ended, as far as routers may see them at this instant."""
        event_queue = self._event_queue
        now = event_queue.now
        # A step that ends now is visible only after the turn of this instance: whether the event loop has come to it must not
        # depend on skipped steps, which have no turn of their own.
        had_turn = now == event_queue.last_turn_at and self.index <= event_queue.last_turn_index
        self.instance.commit_ended_steps(now, now if had_turn else now - 1)
