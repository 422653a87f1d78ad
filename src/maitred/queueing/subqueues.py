"""Lanes: wait queues of one policy side by side, for policies that sort requests into groups first.

A lane is made when a request of its group first comes, and kept while one of them is here, waiting or running; of the others
the latest few are kept for what they have learnt. All lanes share one watcher of the prefix cache, so that one that is
dropped is told of nothing any more. In each pass a lane begins when it is first looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Generic, TypeVar

from maitred.core.contracts import PrefixCacheListener, PrefixCacheView, QueuePolicy, StepView, WaitQueue
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros

_MAX_IDLE_SUBQUEUES = 64

K = TypeVar("K", str, float)


class Subqueue:
    """The requests of one group: `queue` holds those that wait, `here` are the ids of all."""

    __slots__ = ("_last_pass", "members", "queue")

    def __init__(self, queue: WaitQueue) -> None:
        self.queue = queue
        self.members: set[RequestId] = set()
        self._last_pass = -1

    def start_pass(self, number: int, step: StepView, now: Micros) -> None:
        """The `number`-th pass has begun."""
        if self._last_pass != number:
            self._last_pass = number
            self.queue.on_step_start(step, now)


class Subqueues(Generic[K]):
    """The lanes of one wait queue, by group."""

    def __init__(self, policy: QueuePolicy, prefix: PrefixCacheView | None, rng: Random) -> None:
        self._policy = policy
        self._listener = None if prefix is None else _SharedListener(prefix)
        self._seed = rng.getrandbits(64)
        self._subqueues: dict[K, Subqueue] = {}
        self._group_of: dict[RequestId, K] = {}
        self._idle: dict[K, None] = {}
        self._pass_number = 0
        self._step: tuple[StepView, Micros] | None = None
        self._waiting = 0

    def add(self, group: K, seq: SequenceState, now: Micros, *, front: bool) -> None:
        lane = self._subqueues.get(group)
        if lane is None:
            view = None if self._listener is None else _SubqueuePrefixView(self._listener, group)
            lane = self._subqueues[group] = Subqueue(self._policy.make_queue(view, Random(f"{self._seed}/{group}")))
        self._idle.pop(group, None)
        lane.members.add(seq.request.id)
        self._group_of[seq.request.id] = group
        lane.queue.add(seq, now, front=front)
        self._waiting += 1

    def remove(self, request_id: RequestId) -> SequenceState | None:
        group = self._group_of.get(request_id)
        seq = None if group is None else self._subqueues[group].queue.remove(request_id)
        self._waiting -= seq is not None
        return seq

    def start_pass(self, step: StepView, now: Micros) -> None:
        self._pass_number += 1
        self._step = (step, now)

    def started_queue(self, group: K) -> WaitQueue:
        """The queue of a group of which somebody is here, to be looked at in this pass. Pop from it by `pop`."""
        lane = self._subqueues[group]
        if self._step is not None:
            lane.start_pass(self._pass_number, *self._step)
        return lane.queue

    def num_waiting(self, group: K) -> int:
        """How many of a group wait."""
        lane = self._subqueues.get(group)
        return 0 if lane is None else len(lane.queue)

    def pop(self, group: K) -> SequenceState:
        seq = self.started_queue(group).pop()
        self._waiting -= 1
        return seq

    def queue_of(self, seq: SequenceState) -> WaitQueue | None:
        """The queue of its group, if it is here."""
        group = self._group_of.get(seq.request.id)
        return None if group is None else self._subqueues[group].queue

    def discard(self, seq: SequenceState, now: Micros) -> None:
        group = self._group_of.pop(seq.request.id, None)
        if group is None:
            return
        lane = self._subqueues[group]
        lane.queue.on_sequence_end(seq, now)
        lane.members.discard(seq.request.id)
        if not lane.members:
            self._idle[group] = None
            if len(self._idle) > _MAX_IDLE_SUBQUEUES:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._subqueues[oldest]
                if self._listener is not None:
                    self._listener.listeners.pop(oldest, None)

    def __len__(self) -> int:
        """How many wait, in all lanes."""
        return self._waiting


class _SharedListener:
    """The one `PrefixCacheListener` of the prefix cache on behalf of the watchers of all lanes, which it keeps by group."""

    def __init__(self, prefix: PrefixCacheView) -> None:
        self.prefix = prefix
        self.listeners: dict[str | float, list[PrefixCacheListener]] = {}
        prefix.subscribe(self)

    def on_stored(self, key: int) -> None:
        for watchers in self.listeners.values():
            for watcher in watchers:
                watcher.on_stored(key)

    def on_removed(self, key: int) -> None:
        for watchers in self.listeners.values():
            for watcher in watchers:
                watcher.on_removed(key)


class _SubqueuePrefixView:
    """The prefix cache as one lane sees it: a `PrefixCacheView`."""

    def __init__(self, hub: _SharedListener, group: str | float) -> None:
        self._prefix = hub.prefix
        self._listeners = hub.listeners.setdefault(group, [])

    @property
    def block_size(self) -> int:
        return self._prefix.block_size

    def block_hashes(self, request: Request) -> Sequence[int]:
        return self._prefix.block_hashes(request)

    def contains(self, key: int) -> bool:
        return self._prefix.contains(key)

    def num_cached_blocks(self, chain: Sequence[int]) -> int:
        return self._prefix.num_cached_blocks(chain)

    def num_cached_tokens(self, request: Request) -> int:
        return self._prefix.num_cached_tokens(request)

    def subscribe(self, watcher: PrefixCacheListener) -> None:
        self._listeners.append(watcher)
