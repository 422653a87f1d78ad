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

from maitred.core.contracts import InstanceLoad, InstanceView
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.kv import PrefixCache
from maitred.sim.replica import Replica


class InitialView(Enum):
    """What the first decisions see."""

    LIVE = "everything as it is"
    BLANK = "nothing, until the first interval is over"


class RefreshTimer:
    """When to copy."""

    __slots__ = ("_interval", "_last")

    def __init__(self, interval: Micros, first: InitialView) -> None:
        """`interval` 0: never, for nothing is stale."""
        self._interval = interval
        self._last: Micros | None = None if first is InitialView.LIVE else 0

    def poll(self, now: Micros) -> bool:
        """Whether it is time for a copy, which is made then."""
        if not self._interval or (self._last is not None and now - self._last < self._interval):
            return False
        self._last = now
        return True


class CacheSnapshot:
    """A prefix cache as it was at some instant. It is the `PrefixCacheListener` of the cache as it is."""

    __slots__ = ("_cache", "_replica", "_was_cached")

    def __init__(self, replica: Replica, cache: PrefixCache[Any]) -> None:
        self._replica = replica
        self._cache = cache
        self._was_cached: dict[int, bool] = {}
        """Whether a key that has come or gone since was here then."""
        cache.subscribe(self)

    def on_stored(self, key: int) -> None:
        self._was_cached.setdefault(key, False)

    def on_removed(self, key: int) -> None:
        self._was_cached.setdefault(key, True)

    def refresh(self) -> None:
        """From now on it is as the cache is now."""
        self._replica.settle()
        self._cache.apply_evictions()
        self._was_cached.clear()

    def cached_blocks(self, request: Request) -> int:
        self._replica.settle()
        chain, was_here, holds = self._replica.block_hashes(request), self._was_cached.get, self._cache.contains
        for position, key in enumerate(chain):
            here = was_here(key)
            if not (holds(key) if here is None else here):
                return position
        return len(chain)


class InstanceSnapshot(InstanceView):
    """An instance as of the last copies."""

    __slots__ = ("_replica", "cache_source", "load_source")

    def __init__(self, replica: Replica, load: Replica | InstanceLoad, memory: Replica | CacheSnapshot) -> None:
        self._replica = replica
        self.load_source = load
        self.cache_source = memory

    @property
    def index(self) -> int:
        return self._replica.index

    @property
    def in_flight(self) -> int:
        return self._replica.in_flight

    @property
    def waiting(self) -> int:
        return self.load_source.waiting

    @property
    def running(self) -> int:
        return self.load_source.running

    @property
    def kv_usage(self) -> float:
        return self.load_source.kv_usage

    def cached_blocks(self, request: Request) -> int:
        return self.cache_source.cached_blocks(request)


class FleetSnapshots:
    """Of all instances."""

    def __init__(self, replicas: Sequence[Replica], refresh: Micros, cache_delay: Micros, first: InitialView) -> None:
        """Intervals in µs; 0: as it is."""
        self._replicas = replicas
        self._load_timer, self._cache_timer = RefreshTimer(refresh, first), RefreshTimer(cache_delay, first)
        self._cache_snapshots: list[CacheSnapshot] = []
        self.views: list[InstanceSnapshot] = []
        for replica in replicas:
            cache, memory = replica.instance.cache, None
            if cache_delay and cache is not None:
                memory = CacheSnapshot(replica, cache)
                self._cache_snapshots.append(memory)
            self.views.append(InstanceSnapshot(replica, InstanceLoad() if refresh else replica, memory or replica))

    def refresh(self, now: Micros) -> None:
        """Somebody decides at `now`."""
        if self._load_timer.poll(now):
            for view, replica in zip(self.views, self._replicas, strict=True):
                view.load_source = InstanceLoad(0, replica.waiting, replica.running, replica.kv_usage)
        if self._cache_timer.poll(now):
            for past in self._cache_snapshots:
                past.refresh()
