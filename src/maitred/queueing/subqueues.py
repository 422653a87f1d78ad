"""Subqueues: wait queues of one policy side by side, for policies that divide requests into groups first.

`by-priority` has a subqueue for each priority, `vtc` one for each tenant. Which group is next, these policies decide.

- A subqueue is made when a request of its group first comes. It is kept while a request of the group is in the
  instance, waiting or running. Of the idle ones, the `_MAX_IDLE_SUBQUEUES` that were used last are kept, too.
- A step starts in a subqueue when the queue above first looks at it, once for each step.
- All subqueues share one listener of the prefix cache, which forgets the subqueues that are dropped.

For example, `vtc` holds two waiting requests of tenant a and one running of tenant b: two subqueues, of which b's is empty and
has one member. A step that admits one request looks at a's subqueue alone. When b's request ends, b is idle; its subqueue goes
when 64 other groups have become idle after it.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Generic, TypeVar

from maitred.core.contracts import PrefixCacheListener, PrefixCacheView, QueuePolicy, StepView, WaitQueue
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros

_MAX_IDLE_SUBQUEUES = 64  # kept, because queues learn from their requests (`srpt` from the lengths of answers)

K = TypeVar("K", str, float)


class Subqueue:
    """The requests of one group: `queue` holds those that wait, `members` the ids of all that are in the instance."""

    __slots__ = ("_last_pass", "members", "queue")

    def __init__(self, queue: WaitQueue) -> None:
        self.queue = queue
        self.members: set[RequestId] = set()
        self._last_pass = -1

    def start_pass(self, number: int, step: StepView, now: Micros) -> None:
        """Tell the queue that `step` starts, unless it was told so in the pass `number` already."""
        if self._last_pass != number:
            self._last_pass = number
            self.queue.on_step_start(step, now)


class Subqueues(Generic[K]):
    """The subqueues of one wait queue, by group."""

    def __init__(self, policy: QueuePolicy, prefix: PrefixCacheView | None, rng: Random) -> None:
        self._policy = policy
        # A cache never drops a listener, so those of subqueues that are gone would pile up.
        self._listener = None if prefix is None else _SharedListener(prefix)
        self._seed = rng.getrandbits(64)
        self._subqueues: dict[K, Subqueue] = {}
        self._group_of: dict[RequestId, K] = {}
        self._idle: dict[K, None] = {}
        """Groups without members, the one that has been idle for longest first."""
        self._pass_number = 0
        self._step: tuple[StepView, Micros] | None = None
        self._waiting = 0

    def add(self, group: K, seq: SequenceState, now: Micros, *, front: bool) -> None:
        """Add `seq` to the subqueue of `group`."""
        subqueue = self._subqueues.get(group)
        if subqueue is None:
            view = None if self._listener is None else _SubqueuePrefixView(self._listener, group)
            # Seeded by the group, so that its draws do not depend on the order in which the groups came.
            queue = self._policy.make_queue(view, Random(f"{self._seed}/{group}"))
            subqueue = self._subqueues[group] = Subqueue(queue)
        self._idle.pop(group, None)
        subqueue.members.add(seq.request.id)
        self._group_of[seq.request.id] = group
        subqueue.queue.add(seq, now, front=front)
        self._waiting += 1

    def remove(self, request_id: RequestId) -> SequenceState | None:
        """Remove and return a waiting sequence, or return None if it does not wait here."""
        group = self._group_of.get(request_id)
        seq = None if group is None else self._subqueues[group].queue.remove(request_id)
        self._waiting -= seq is not None
        return seq

    def start_pass(self, step: StepView, now: Micros) -> None:
        """Note that `step` starts. Each subqueue is told when it is first looked at."""
        # Most are not looked at in most steps, and telling all of them would cost O(groups).
        self._pass_number += 1
        self._step = (step, now)

    def started_queue(self, group: K) -> WaitQueue:
        """Return the queue of a group that has members, told that the step has started. Use `pop` to pop from it."""
        subqueue = self._subqueues[group]
        if self._step is not None:
            subqueue.start_pass(self._pass_number, *self._step)
        return subqueue.queue

    def num_waiting(self, group: K) -> int:
        """Return how many sequences of `group` wait."""
        subqueue = self._subqueues.get(group)
        return 0 if subqueue is None else len(subqueue.queue)

    def pop(self, group: K) -> SequenceState:
        """Remove and return the head of `group`. Raises IndexError if nothing of it waits."""
        seq = self.started_queue(group).pop()
        self._waiting -= 1
        return seq

    def queue_of(self, seq: SequenceState) -> WaitQueue | None:
        """Return the queue of the group of `seq`, or None if the sequence is not in the instance."""
        group = self._group_of.get(seq.request.id)
        return None if group is None else self._subqueues[group].queue

    def discard(self, seq: SequenceState, now: Micros) -> None:
        """Forget `seq`, which has left the instance for good."""
        group = self._group_of.pop(seq.request.id, None)
        if group is None:
            return
        subqueue = self._subqueues[group]
        subqueue.queue.on_sequence_end(seq, now)
        subqueue.members.discard(seq.request.id)
        if not subqueue.members:
            self._idle[group] = None
            if len(self._idle) > _MAX_IDLE_SUBQUEUES:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._subqueues[oldest]
                if self._listener is not None:
                    self._listener.listeners.pop(oldest, None)

    def __len__(self) -> int:
        """The number of waiting sequences, in all subqueues."""
        return self._waiting


class _SharedListener:
    """The one listener of the prefix cache, which passes on everything to the listeners of the subqueues."""

    def __init__(self, prefix: PrefixCacheView) -> None:
        self.prefix = prefix
        self.listeners: dict[str | float, list[PrefixCacheListener]] = {}
        """The listeners of each group."""
        prefix.subscribe(self)

    def on_stored(self, block_hash: int) -> None:
        for listeners in self.listeners.values():
            for listener in listeners:
                listener.on_stored(block_hash)

    def on_removed(self, block_hash: int) -> None:
        for listeners in self.listeners.values():
            for listener in listeners:
                listener.on_removed(block_hash)


class _SubqueuePrefixView:
    """The prefix cache as one subqueue sees it (a `PrefixCacheView`): listeners subscribe at the shared one."""

    def __init__(self, listener: _SharedListener, group: str | float) -> None:
        self._prefix = listener.prefix
        self._listeners = listener.listeners.setdefault(group, [])

    @property
    def block_size(self) -> int:
        return self._prefix.block_size

    def block_hashes(self, request: Request) -> Sequence[int]:
        return self._prefix.block_hashes(request)

    def contains(self, block_hash: int) -> bool:
        return self._prefix.contains(block_hash)

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        return self._prefix.num_cached_blocks(block_hashes)

    def num_cached_tokens(self, request: Request) -> int:
        return self._prefix.num_cached_tokens(request)

    def apply_evictions(self) -> None:
        self._prefix.apply_evictions()

    def subscribe(self, listener: PrefixCacheListener) -> None:
        self._listeners.append(listener)
