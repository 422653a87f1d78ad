"""Snapshots: the state of the instances as routers and admission see it, when that state is stale.

A router reads gauges that were scraped some time ago, and learns about caches from events that take time to arrive. So there
are two refresh timers. Both are checked only when a decision is made, as in BLIS:

    waiting, running, kv_usage   copied from all instances at the first decision at least `refresh` after the last copy
    cached_blocks                copied from all caches at the first decision at least `cache_delay` after the last copy
    in_flight                    never stale, because the driver of the router counts it itself

As in the live gateway, what has come and gone since the last copy is added to `waiting` (`admission.saturation`); not where the
first views are blank (BLIS).

The first decision sees the live state. (In BLIS it sees empty instances until the first interval is over: `BLANK`.)

A cache is not really copied. Its snapshot only notes which block hashes the cache has gained and lost since the refresh. A hash
without a note was cached at the refresh if it is cached now. So a refresh costs no more than clearing the notes, and a look-up
costs what it costs in the live cache.

    refresh at t=0      cache {a, b}        notes {}
    b is evicted        cache {a}           notes {b: True}
    c is stored         cache {a, c}        notes {b: True, c: False}
    cached_blocks of the prompt a, b, c: a is cached now and has no note, b was cached, c was not: 2
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from maitred.admission import QueueEstimate
from maitred.compat.instance_rules import InstanceRules
from maitred.core.contracts import InstanceLoad, InstanceView
from maitred.core.request import Request
from maitred.core.units import Micros, from_ms
from maitred.kv import PrefixCache
from maitred.sim.config import ClusterConfig
from maitred.sim.replica import Replica


class InitialView(Enum):
    """The state that decisions see before the first interval is over."""

    LIVE = "everything as it is"
    BLANK = "nothing, until the first interval is over"


class RefreshTimer:
    """Says at which decisions a copy is due."""

    __slots__ = ("_interval", "_last")

    def __init__(self, interval: Micros, initial: InitialView) -> None:
        """With an `interval` of 0 no copy is ever due, because nothing is stale."""
        self._interval = interval
        self._last: Micros | None = None if initial is InitialView.LIVE else 0

    def poll(self, now: Micros) -> bool:
        """Return whether a copy is due, and start the next interval if so."""
        if not self._interval or (self._last is not None and now - self._last < self._interval):
            return False
        self._last = now
        return True


class CacheSnapshot:
    """A prefix cache as it was at the last refresh. It is a `PrefixCacheListener` of the live cache."""

    __slots__ = ("_cache", "_replica", "_was_cached")

    def __init__(self, replica: Replica, cache: PrefixCache[Any]) -> None:
        self._replica = replica
        self._cache = cache
        self._was_cached: dict[int, bool] = {}
        """For each block hash that was stored or removed since the refresh: whether it was cached at the refresh."""
        cache.subscribe(self)

    def on_stored(self, block_hash: int) -> None:
        # `setdefault`, because only the first change after the refresh tells the state at the refresh.
        self._was_cached.setdefault(block_hash, False)

    def on_removed(self, block_hash: int) -> None:
        self._was_cached.setdefault(block_hash, True)

    def refresh(self) -> None:
        """Take the present state of the cache as the snapshot."""
        self._replica.settle()
        # Evictions that are still pending have happened by now. Reported after the notes are cleared, they would count as
        # blocks that were cached at the refresh.
        self._cache.apply_evictions()
        self._was_cached.clear()

    def cached_blocks(self, request: Request) -> int:
        """Return how many leading blocks of the prompt were cached at the last refresh."""
        self._replica.settle()
        hashes, was_cached, is_cached = self._replica.block_hashes(request), self._was_cached.get, self._cache.contains
        for position, block_hash in enumerate(hashes):
            noted = was_cached(block_hash)
            if not (is_cached(block_hash) if noted is None else noted):
                return position
        return len(hashes)


class InstanceSnapshot(InstanceView):
    """An instance as of the last refreshes; what is not stale is read from the replica itself."""

    __slots__ = ("_queue", "_replica", "cache_source", "load_source")

    def __init__(self, replica: Replica, load_source: Replica | InstanceLoad, cache_source: Replica | CacheSnapshot) -> None:
        self._replica = replica
        self.load_source = load_source
        self.cache_source = cache_source
        self._queue: QueueEstimate | None = None
        """What waits by now, or None if `waiting` is that of the last copy."""

    @property
    def index(self) -> int:
        return self._replica.index

    @property
    def in_flight(self) -> int:
        return self._replica.in_flight

    def copy_load(self, *, reckons: bool) -> None:
        """Take the present load as the snapshot; with `reckons`, `waiting` follows what comes and goes from now on."""
        replica = self._replica
        self.load_source = InstanceLoad(0, replica.waiting, replica.running, replica.kv_usage)
        if reckons:
            self._queue = self._queue or QueueEstimate()
            self._queue.look(replica.waiting, replica.running, replica.in_flight)

    @property
    def waiting(self) -> int | None:
        return self.load_source.waiting if self._queue is None else self._queue.waiting(self._replica.in_flight)

    @property
    def running(self) -> int | None:
        return self.load_source.running

    @property
    def kv_usage(self) -> float | None:
        return self.load_source.kv_usage

    def cached_blocks(self, request: Request) -> int:
        return self.cache_source.cached_blocks(request)


class FleetSnapshots:
    """The snapshots of all instances."""

    def __init__(self, replicas: Sequence[Replica], refresh: Micros, cache_delay: Micros, initial: InitialView) -> None:
        """Both intervals are in µs; 0 means that this part of the state is live."""
        self._reckons = initial is InitialView.LIVE
        self._load_timer, self._cache_timer = RefreshTimer(refresh, initial), RefreshTimer(cache_delay, initial)
        self._cache_snapshots: list[CacheSnapshot] = []
        self.views: list[InstanceSnapshot] = []
        for replica in replicas:
            cache, snapshot = replica.instance.prefix_cache, None
            if cache_delay and cache is not None:
                snapshot = CacheSnapshot(replica, cache)
                self._cache_snapshots.append(snapshot)
            self.views.append(InstanceSnapshot(replica, InstanceLoad() if refresh else replica, snapshot or replica))

    def refresh(self, now: Micros) -> None:
        """Copy what is due. Call this before every decision."""
        if self._load_timer.poll(now):
            for view in self.views:
                view.copy_load(reckons=self._reckons)
        if self._cache_timer.poll(now):
            for snapshot in self._cache_snapshots:
                snapshot.refresh()


def make_snapshots(replicas: Sequence[Replica], cluster: ClusterConfig, rules: InstanceRules) -> FleetSnapshots | None:
    """Return the snapshots that `cluster` asks for, or None if the whole state is live."""
    refresh, delay = from_ms(cluster.snapshot_refresh_interval_ms), from_ms(cluster.cache_signal_delay_ms)
    if not (refresh or delay):
        return None
    return FleetSnapshots(replicas, refresh, delay, InitialView.BLANK if rules.first_views_are_blank else InitialView.LIVE)
