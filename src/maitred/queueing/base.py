"""What queue policies have in common: their registry, their description, and the queues they build on.

A *policy* (`QueuePolicy`) is what a user names; it makes the *queue* (`WaitQueue`) of one instance. Most policies need none of
the machinery of a queue:

    KeyPolicy          the order is a key that time does not change: the policy is one method, its queue a heap
    BaseQueue          a queue that neither time, nor steps, nor service reorders: nothing to do in the callbacks
    DelegatingQueue    a queue that passes everything on to an inner one; a subclass overrides what it changes
    SubqueuedQueue     a queue over several subqueues (see `subqueues`), one for each priority or tenant
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from enum import Enum, Flag, auto
from random import Random

import msgspec

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.registry import Registry
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.fcfs_queue import FcfsQueue
from maitred.queueing.subqueues import Subqueues

SCHEDULERS: Registry[QueuePolicy] = Registry(
    "scheduler",
    QueuePolicy,
    group="maitred.schedulers",
    packages=["maitred.queueing"],
    methods=["make_queue"],
    flag="--scheduler",
    headings={"summary": "order", "complexity": "cost, with n waiting", "starves": "starves", "cache_aware": "cache-aware"},
)


class CacheAware(Enum):
    """Whether the order of a policy depends on what the prefix cache holds."""

    NO = "no"
    YES = "yes"
    """The order depends on it. Without a prefix cache, another policy takes its place: of a `CacheAwarePolicy` the one that its
    attribute `fallback` names. One that is refused then has an attribute `refusal`, the ConfigError."""
    OPTIONAL = "if there is one"
    """The policy makes sense without a prefix cache too."""
    AS_INNER = "as the inner policy"
    """The policy wraps another one."""


class RequestFacts(Flag):
    """What a request may say of itself, beside its arrival and its prompt."""

    NOTHING = 0
    DEADLINE = auto()
    PRIORITY_CLASS = auto()
    """Another class than `default`."""
    TENANT = auto()
    ROUTING_KEY = auto()
    OUTPUT_LIMIT = auto()
    CLIENT_PRIORITY = auto()
    """The number that a client gives."""


class PolicyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a user must know to choose a policy; each class in `SCHEDULERS` carries one as `about`."""

    summary: str
    """The order, in one line without a full stop and without the policy's name."""
    complexity: str
    """The cost with n requests waiting, e.g. "O(log n) per request"."""
    starves: str
    """Which requests may wait for ever under load; "nothing" if none can."""
    cache_aware: CacheAware = CacheAware.NO
    reads: RequestFacts = RequestFacts.NOTHING
    """What the order follows from. Requests that say nothing of it are all alike to the policy."""


class BaseQueue(WaitQueue):
    """A wait queue that neither time, nor steps, nor service reorders."""

    def pop(self) -> SequenceState:
        seq = self.peek()
        if seq is None:
            raise IndexError("pop from an empty wait queue")
        self.remove(seq.request.id)
        return seq

    def on_step_start(self, step: StepView, now: Micros) -> None:
        pass

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        pass

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        pass

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        pass

    def next_order_change(self, now: Micros) -> Micros | None:
        return None

    def head_key(self) -> SortKey | None:
        """Return the key of the head, to be compared with heads of other queues of the same policy. None if there is no
        head, or the policy has no such key."""
        return None


class KeyPolicy(QueuePolicy):
    """A policy that orders by a key, which time does not change."""

    @abstractmethod
    def key(self, seq: SequenceState) -> SortKey:
        """Return the sort key of `seq`; the smaller goes first. It is fixed while `seq` waits, and must end in something
        unique: `seq.arrival_index`, or the request's id."""

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return KeyQueue(self.key)


class KeyQueue(BaseQueue):
    """A wait queue in the order of a key that is computed once, when a sequence is added."""

    def __init__(self, key: Callable[[SequenceState], SortKey]) -> None:
        self._key = key
        self._heap: IndexedHeap[RequestId, SortKey, SequenceState] = IndexedHeap()

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        """Add a sequence in its place, which is that of its key whatever `front` says."""
        self._heap.push(seq.request.id, self._key(seq), seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._heap.remove(request_id)

    def peek(self) -> SequenceState | None:
        return self._heap.peek()

    def pop(self) -> SequenceState:
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.peek_key()

    def __len__(self) -> int:
        return len(self._heap)


def is_overridden(queue: WaitQueue, callback: str) -> bool:
    """Return whether `queue` does anything in a callback, in which `BaseQueue` and `FcfsQueue` do nothing."""
    if isinstance(queue, FcfsQueue):
        return False
    return getattr(getattr(queue, callback), "__func__", None) is not getattr(BaseQueue, callback)


class DelegatingQueue(WaitQueue):
    """A wait queue around an inner one, to which it passes everything."""

    def __init__(self, inner: WaitQueue) -> None:
        self._inner = inner

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._inner.add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._inner.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._inner.on_step_start(step, now)

    def peek(self) -> SequenceState | None:
        return self._inner.peek()

    def pop(self) -> SequenceState:
        return self._inner.pop()

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        self._inner.on_served(seq, prefill_tokens, decode_tokens, now)

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        self._inner.on_finished(seq, now)

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        self._inner.on_sequence_end(seq, now)

    def next_order_change(self, now: Micros) -> Micros | None:
        return self._inner.next_order_change(now)

    def __len__(self) -> int:
        return len(self._inner)


class SubqueuedQueue(BaseQueue):
    """A wait queue over subqueues: what it is told of a sequence it passes to the subqueue of that sequence."""

    subqueues: Subqueues[str] | Subqueues[float]

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        if (queue := self.subqueues.queue_of(seq)) is not None:
            queue.on_served(seq, prefill_tokens, decode_tokens, now)

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        if (queue := self.subqueues.queue_of(seq)) is not None:
            queue.on_finished(seq, now)

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        self.subqueues.discard(seq, now)

    def __len__(self) -> int:
        return len(self.subqueues)


def earliest(*instants: Micros | None) -> Micros | None:
    """Return the earliest of `instants` that are not None, or None if all are."""
    return min((instant for instant in instants if instant is not None), default=None)
