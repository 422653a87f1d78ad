"""What policies that look at the prefix cache have in common.

Their queue files each request where it stands (`PrefixIndex`) and lets the policy order by that. Where there is no prefix cache
they are `fcfs`, and say so (`instead`).
"""

from __future__ import annotations

from abc import abstractmethod
from random import Random

from maitred.contracts import PrefixView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.queueing.fcfs import FirstComeFirstServed
from maitred.queueing.heap import SeqHeap
from maitred.queueing.places import Waiter
from maitred.queueing.policy import Queue
from maitred.queueing.prefix_index import PrefixIndex
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class CacheAwarePolicy(QueuePolicy):
    """A policy that orders by what the prefix cache holds. It has no cut-off, and looking never changes the cache.

    Of requests that share their first `deprioritize` tokens or more, and find at most `check` tokens in the cache, all but one
    are held back until it has computed them (`check` -1: none is). Defaults: SGLang's.
    """

    instead = "fcfs"
    """What it is where there is no prefix cache."""

    def __init__(self, check: int = 32, deprioritize: int = 32) -> None:
        """Raises ValueError unless `deprioritize` is at least 1."""
        if deprioritize < 1:
            raise ValueError("deprioritize must be at least 1 token")
        self.check = check
        self.deprioritize = deprioritize

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        if prefix is None:
            return FirstComeFirstServed().queue(None, rng)
        return self.ordered(PrefixIndex(prefix, self.check, self.deprioritize))

    @abstractmethod
    def ordered(self, index: PrefixIndex) -> WaitQueue:
        """The queue that orders those in `index`."""


class CacheAwareQueue(Queue):
    """A wait queue whose order follows the prefix cache from one `begin` to the next."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._waiters: dict[RequestId, Waiter] = {}

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._waiters[seq.request.id] = self._index.enter(seq)

    def remove(self, request_id: RequestId) -> Seq | None:
        waiter = self._waiters.pop(request_id, None)
        if waiter is None:
            return None
        self._index.leave(waiter)
        return waiter.seq

    def begin(self, step: StepView, now: Micros) -> None:
        self._index.catch_up()

    def peek(self) -> Seq | None:
        head = self.head()
        return None if head is None else head.seq

    def pop(self) -> Seq:
        head = self.head()
        if head is None:
            raise IndexError("pop from an empty wait queue")
        del self._waiters[head.seq.request.id]
        self.admit(head)
        return head.seq

    def left(self, seq: Seq, now: Micros) -> None:
        self._index.over(seq.request.id)

    @abstractmethod
    def head(self) -> Waiter | None:
        """Who goes first."""

    def admit(self, waiter: Waiter) -> None:
        """The head has been taken."""
        self._index.admit(waiter)

    def __len__(self) -> int:
        return len(self._waiters)


class StandingPolicy(CacheAwarePolicy):
    """A policy whose order is a key that changes only when the request moves in the cache, or is held back or let go."""

    @abstractmethod
    def key(self, waiter: Waiter) -> SortKey:
        """Smaller goes first. Must end in something unique (`waiter.tie`)."""

    def ordered(self, index: PrefixIndex) -> WaitQueue:
        return _StandingQueue(index, self)


class _StandingQueue(CacheAwareQueue):
    """A heap, in which only those who moved get another key."""

    def __init__(self, index: PrefixIndex, policy: StandingPolicy) -> None:
        super().__init__(index)
        self._key = policy.key
        self._heap = SeqHeap()

    def head(self) -> Waiter | None:
        moved = self._index.moved
        if moved:
            for waiter in moved:
                if waiter.place is None:
                    self._heap.remove(waiter.seq.request.id)
                else:
                    self._heap.push(self._key(waiter), waiter.seq)
            moved.clear()
            self._index.places.reweighed.clear()
        first = self._heap.first()
        return None if first is None else self._waiters[first.request.id]

    def head_key(self) -> SortKey | None:
        self.head()
        return self._heap.first_key()
