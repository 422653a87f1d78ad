"""What queue policies have in common: their registry, the hooks they may ignore, and the queue of those with a fixed key.

What policies around other policies have in common: all passes through, except what they do themselves.

What queues over lanes have in common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from enum import Enum
from random import Random

import msgspec

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.registry import Registry
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.heap import SeqHeap
from maitred.queueing.subqueues import Subqueues

SCHEDULERS: Registry[QueuePolicy] = Registry(
    "scheduler", QueuePolicy, group="maitred.schedulers", packages=["maitred.queueing"], methods=["make_queue"]
)


class CacheAware(Enum):
    """Whether the order of a policy depends on what the prefix cache holds."""

    NO = "no"
    YES = "yes"
    """Where there is no prefix cache it can only be something else: the policy called `instead`."""
    OPTIONAL = "if there is one"
    """It makes sense without."""
    AS_INNER = "as the policy inside"
    """It wraps another policy."""


class PolicyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one must know to choose a policy; each class in `SCHEDULERS` carries one as `about`."""

    summary: str
    """The order, in one line: no full stop, no name of its own."""
    complexity: str
    """What it costs with n waiting, e.g. "O(log n) per request"."""
    starves: str
    """Who may wait for ever under load; "nobody" if nobody."""
    cache_aware: CacheAware = CacheAware.NO


def describe_policy(factory: Callable[..., QueuePolicy]) -> PolicyInfo:
    """What the policies that `factory` makes say of themselves, or their docstring does."""
    made = factory if isinstance(factory, type) else factory()
    about = getattr(made, "about", None)
    if isinstance(about, PolicyInfo):
        return about
    said = (made.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return PolicyInfo(summary=said or "it does not say", complexity="it does not say", starves="it does not say")


class BaseQueue(WaitQueue):
    """A wait queue whose order neither time, nor steps, nor service change."""

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
        """By what the head goes first, to be compared with the heads of other queues of this policy; None: it cannot be."""
        return None


class KeyPolicy(QueuePolicy):
    """A policy whose order is a key that time does not change: the common case is five lines."""

    @abstractmethod
    def key(self, seq: SequenceState) -> SortKey:
        """Smaller goes first, and is fixed while `seq` waits. Must end in something unique: `seq.order`, or the id."""

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _KeyQueue(self)


class _KeyQueue(BaseQueue):
    def __init__(self, policy: KeyPolicy) -> None:
        self._key = policy.key
        self._heap = SeqHeap()

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._heap.push(self._key(seq), seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._heap.remove(request_id)

    def peek(self) -> SequenceState | None:
        return self._heap.first()

    def pop(self) -> SequenceState:
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def __len__(self) -> int:
        return len(self._heap)


class DelegatingQueue(WaitQueue):
    """A wait queue that is another one, seen from outside."""

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


def earliest(*instants: Micros | None) -> Micros | None:
    """The first of those that will come."""
    return min((instant for instant in instants if instant is not None), default=None)


class SubqueuedQueue(BaseQueue):
    """A queue over lanes passes what it is told of a sequence to its lane."""

    subqueues: Subqueues[str] | Subqueues[float]

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        if (lane := self.subqueues.queue_of(seq)) is not None:
            lane.on_served(seq, prefill_tokens, decode_tokens, now)

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        if (lane := self.subqueues.queue_of(seq)) is not None:
            lane.on_finished(seq, now)

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        self.subqueues.discard(seq, now)

    def __len__(self) -> int:
        return len(self.subqueues)
