"""What queue policies have in common: their registry, the hooks they may ignore, and the queue of those with a fixed key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from enum import Enum
from random import Random

import msgspec

from maitred.contracts import PrefixView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.queueing.heap import SeqHeap
from maitred.registry import Registry
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros

SCHEDULERS: Registry[QueuePolicy] = Registry(
    "scheduler", QueuePolicy, group="maitred.schedulers", packages=["maitred.queueing"], methods=["queue"]
)


class CacheAware(Enum):
    """Whether the order of a policy depends on what the prefix cache holds."""

    NO = "no"
    YES = "yes"
    """Where there is no prefix cache it can only be something else: the policy called `instead`."""
    IF_THERE = "if there is one"
    """It makes sense without."""
    AS_INSIDE = "as the policy inside"
    """It wraps another policy."""


class PolicyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one must know to choose a policy; each class in `SCHEDULERS` carries one as `about`."""

    line: str
    """The order, in one line: no full stop, no name of its own."""
    complexity: str
    """What it costs with n waiting, e.g. "O(log n) per request"."""
    starves: str
    """Who may wait for ever under load; "nobody" if nobody."""
    cache_aware: CacheAware = CacheAware.NO


def info(factory: Callable[..., QueuePolicy]) -> PolicyInfo:
    """What the policies that `factory` makes say of themselves, or their docstring does."""
    made = factory if isinstance(factory, type) else factory()
    about = getattr(made, "about", None)
    if isinstance(about, PolicyInfo):
        return about
    said = (made.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return PolicyInfo(line=said or "it does not say", complexity="it does not say", starves="it does not say")


class Queue(WaitQueue):
    """A wait queue whose order neither time, nor steps, nor service change."""

    def begin(self, step: StepView, now: Micros) -> None:
        pass

    def served(self, seq: Seq, prefill: int, decode: int, now: Micros) -> None:
        pass

    def finished(self, seq: Seq, now: Micros) -> None:
        pass

    def left(self, seq: Seq, now: Micros) -> None:
        pass

    def stable_until(self, now: Micros) -> Micros | None:
        return None

    def head_key(self) -> SortKey | None:
        """By what the head goes first, to be compared with the heads of other queues of this policy; None: it cannot be."""
        return None


class KeyPolicy(QueuePolicy):
    """A policy whose order is a key that time does not change: the common case is five lines."""

    @abstractmethod
    def key(self, seq: Seq) -> SortKey:
        """Smaller goes first, and is fixed while `seq` waits. Must end in something unique: `seq.order`, or the id."""

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _KeyQueue(self)


class _KeyQueue(Queue):
    def __init__(self, policy: KeyPolicy) -> None:
        self._key = policy.key
        self._heap = SeqHeap()

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._heap.push(self._key(seq), seq)

    def remove(self, request_id: RequestId) -> Seq | None:
        return self._heap.remove(request_id)

    def peek(self) -> Seq | None:
        return self._heap.first()

    def pop(self) -> Seq:
        return self._heap.pop()

    def head_key(self) -> SortKey | None:
        return self._heap.first_key()

    def __len__(self) -> int:
        return len(self._heap)
