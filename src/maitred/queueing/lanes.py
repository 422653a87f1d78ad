"""Lanes: wait queues of one policy side by side, for policies that sort requests into groups first.

A lane is made when a request of its group first comes, and kept while one of them is here, waiting or running; of the others
the latest few are kept for what they have learnt. All lanes share one watcher of the prefix cache, so that one that is
dropped is told of nothing any more. In each pass a lane begins when it is first looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Generic, TypeVar

from maitred.contracts import PrefixView, PrefixWatcher, QueuePolicy, StepView, WaitQueue
from maitred.request import Request, RequestId
from maitred.seq import Seq
from maitred.units import Micros

_IDLE_LANES = 64

K = TypeVar("K", str, float)


class Lane:
    """The requests of one group: `queue` holds those that wait, `here` are the ids of all."""

    __slots__ = ("_begun", "here", "queue")

    def __init__(self, queue: WaitQueue) -> None:
        self.queue = queue
        self.here: set[RequestId] = set()
        self._begun = -1

    def begin(self, number: int, step: StepView, now: Micros) -> None:
        """The `number`-th pass has begun."""
        if self._begun != number:
            self._begun = number
            self.queue.begin(step, now)


class Lanes(Generic[K]):
    """The lanes of one wait queue, by group."""

    def __init__(self, policy: QueuePolicy, prefix: PrefixView | None, rng: Random) -> None:
        self._policy = policy
        self._hub = None if prefix is None else _Hub(prefix)
        self._seed = rng.getrandbits(64)
        self._lanes: dict[K, Lane] = {}
        self._lane_of: dict[RequestId, K] = {}
        self._idle: dict[K, None] = {}
        self._pass = 0
        self._step: tuple[StepView, Micros] | None = None
        self._waiting = 0

    def add(self, group: K, seq: Seq, now: Micros, *, front: bool) -> None:
        lane = self._lanes.get(group)
        if lane is None:
            view = None if self._hub is None else _View(self._hub, group)
            lane = self._lanes[group] = Lane(self._policy.queue(view, Random(f"{self._seed}/{group}")))
        self._idle.pop(group, None)
        lane.here.add(seq.request.id)
        self._lane_of[seq.request.id] = group
        lane.queue.add(seq, now, front=front)
        self._waiting += 1

    def remove(self, request_id: RequestId) -> Seq | None:
        group = self._lane_of.get(request_id)
        seq = None if group is None else self._lanes[group].queue.remove(request_id)
        self._waiting -= seq is not None
        return seq

    def begin(self, step: StepView, now: Micros) -> None:
        self._pass += 1
        self._step = (step, now)

    def queue(self, group: K) -> WaitQueue:
        """The queue of a group of which somebody is here, to be looked at in this pass. Pop from it by `pop`."""
        lane = self._lanes[group]
        if self._step is not None:
            lane.begin(self._pass, *self._step)
        return lane.queue

    def waiting(self, group: K) -> int:
        """How many of a group wait."""
        lane = self._lanes.get(group)
        return 0 if lane is None else len(lane.queue)

    def pop(self, group: K) -> Seq:
        seq = self.queue(group).pop()
        self._waiting -= 1
        return seq

    def of(self, seq: Seq) -> WaitQueue | None:
        """The queue of its group, if it is here."""
        group = self._lane_of.get(seq.request.id)
        return None if group is None else self._lanes[group].queue

    def left(self, seq: Seq, now: Micros) -> None:
        group = self._lane_of.pop(seq.request.id, None)
        if group is None:
            return
        lane = self._lanes[group]
        lane.queue.left(seq, now)
        lane.here.discard(seq.request.id)
        if not lane.here:
            self._idle[group] = None
            if len(self._idle) > _IDLE_LANES:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._lanes[oldest]
                if self._hub is not None:
                    self._hub.watchers.pop(oldest, None)

    def __len__(self) -> int:
        """How many wait, in all lanes."""
        return self._waiting


class _Hub:
    """The one `PrefixWatcher` of the prefix cache on behalf of the watchers of all lanes, which it keeps by group."""

    def __init__(self, prefix: PrefixView) -> None:
        self.prefix = prefix
        self.watchers: dict[str | float, list[PrefixWatcher]] = {}
        prefix.watch(self)

    def published(self, key: int) -> None:
        for watchers in self.watchers.values():
            for watcher in watchers:
                watcher.published(key)

    def evicted(self, key: int) -> None:
        for watchers in self.watchers.values():
            for watcher in watchers:
                watcher.evicted(key)


class _View:
    """The prefix cache as one lane sees it: a `PrefixView`."""

    def __init__(self, hub: _Hub, group: str | float) -> None:
        self._prefix = hub.prefix
        self._watchers = hub.watchers.setdefault(group, [])

    @property
    def block_size(self) -> int:
        return self._prefix.block_size

    def chain(self, request: Request) -> Sequence[int]:
        return self._prefix.chain(request)

    def holds(self, key: int) -> bool:
        return self._prefix.holds(key)

    def cached(self, chain: Sequence[int]) -> int:
        return self._prefix.cached(chain)

    def match(self, request: Request) -> int:
        return self._prefix.match(request)

    def watch(self, watcher: PrefixWatcher) -> None:
        self._watchers.append(watcher)
