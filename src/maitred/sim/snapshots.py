"""Snapshots: what routers and admission see of the instances, when that is not what they are at this instant.

A router reads gauges that were scraped some time ago, and learns of caches by events that take their time. So there are two
clocks, and both stand still until somebody decides something (BLIS):

    waiting, running, kv_usage   copied from all instances at the first decision at least `refresh` after the last copy
    cached_blocks                likewise, at least `cache_delay` after the last copy of all caches
    in_flight                    never stale: the router's own driver counts it

The first decision finds everything as it is. (BLIS finds nothing, everywhere, until the first interval is over: `BLANK`.)

A cache is not copied. From the instant of a copy on it is noted which keys it has gained and lost since, and a key that was
neither is there if it is there now. So a copy costs nothing but forgetting the notes, and a look what it costs in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from maitred.contracts import InstanceLoad, InstanceView
from maitred.kv import PrefixCache
from maitred.request import Request
from maitred.sim.replica import Replica
from maitred.units import Micros


class First(Enum):
    """What the first decisions see."""

    LIVE = "everything as it is"
    BLANK = "nothing, until the first interval is over"


class Clock:
    """When to copy."""

    __slots__ = ("_interval", "_last")

    def __init__(self, interval: Micros, first: First) -> None:
        """`interval` 0: never, for nothing is stale."""
        self._interval = interval
        self._last: Micros | None = None if first is First.LIVE else 0

    def strikes(self, now: Micros) -> bool:
        """Whether it is time for a copy, which is made then."""
        if not self._interval or (self._last is not None and now - self._last < self._interval):
            return False
        self._last = now
        return True


class PastCache:
    """A prefix cache as it was at some instant. It is the `PrefixWatcher` of the cache as it is."""

    __slots__ = ("_cache", "_replica", "_was_here")

    def __init__(self, replica: Replica, cache: PrefixCache[Any]) -> None:
        self._replica = replica
        self._cache = cache
        self._was_here: dict[int, bool] = {}
        """Whether a key that has come or gone since was here then."""
        cache.watch(self)

    def published(self, key: int) -> None:
        self._was_here.setdefault(key, False)

    def evicted(self, key: int) -> None:
        self._was_here.setdefault(key, True)

    def copy(self) -> None:
        """From now on it is as the cache is now."""
        self._replica.settle()
        self._cache.settle()
        self._was_here.clear()

    def cached_blocks(self, request: Request) -> int:
        self._replica.settle()
        chain, was_here, holds = self._replica.chain(request), self._was_here.get, self._cache.holds
        for position, key in enumerate(chain):
            here = was_here(key)
            if not (holds(key) if here is None else here):
                return position
        return len(chain)


class Snapshot(InstanceView):
    """An instance as of the last copies."""

    __slots__ = ("_replica", "load", "memory")

    def __init__(self, replica: Replica, load: Replica | InstanceLoad, memory: Replica | PastCache) -> None:
        self._replica = replica
        self.load = load
        self.memory = memory

    @property
    def index(self) -> int:
        return self._replica.index

    @property
    def in_flight(self) -> int:
        return self._replica.in_flight

    @property
    def waiting(self) -> int:
        return self.load.waiting

    @property
    def running(self) -> int:
        return self.load.running

    @property
    def kv_usage(self) -> float:
        return self.load.kv_usage

    def cached_blocks(self, request: Request) -> int:
        return self.memory.cached_blocks(request)


class Snapshots:
    """Of all instances."""

    def __init__(self, replicas: Sequence[Replica], refresh: Micros, cache_delay: Micros, first: First) -> None:
        """Intervals in µs; 0: as it is."""
        self._replicas = replicas
        self._load_clock, self._cache_clock = Clock(refresh, first), Clock(cache_delay, first)
        self._pasts: list[PastCache] = []
        self.views: list[Snapshot] = []
        for replica in replicas:
            cache, memory = replica.instance.cache, None
            if cache_delay and cache is not None:
                memory = PastCache(replica, cache)
                self._pasts.append(memory)
            self.views.append(Snapshot(replica, InstanceLoad() if refresh else replica, memory or replica))

    def look(self, now: Micros) -> None:
        """Somebody decides at `now`."""
        if self._load_clock.strikes(now):
            for view, replica in zip(self.views, self._replicas, strict=True):
                view.load = InstanceLoad(0, replica.waiting, replica.running, replica.kv_usage)
        if self._cache_clock.strikes(now):
            for past in self._pasts:
                past.copy()
