"""What policies that look at the prefix cache have in common.

Their queue files each request where it stands (`PrefixIndex`) and lets the policy order by that. Where there is no prefix cache
they are `fcfs`, and say so (`instead`).

lpm: longest prefix match.

shortest-prefill-first: by the work that the cache leaves to do.

aged-sjf: shortest prefill first, which nobody waits behind for ever.

    key = uncached prompt tokens - tokens_per_second * time waited

All age alike, so the order of any two stands until the cache changes for one of them: the key that is kept leaves out the
present and is `uncached + tokens_per_second * arrival`.
"""

from __future__ import annotations

from abc import abstractmethod
from random import Random

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import SECOND, Micros
from maitred.queueing.base import SCHEDULERS, BaseQueue, CacheAware, KeyPolicy, PolicyInfo
from maitred.queueing.heap import SeqHeap
from maitred.queueing.orders import FirstComeFirstServed
from maitred.queueing.prefix_index import PrefixIndex
from maitred.queueing.prefix_tree import WaitingRequest


class CacheAwarePolicy(QueuePolicy):
    """A policy that orders by what the prefix cache holds. It has no cut-off, and looking never changes the cache.

    Of requests that share their first `deprioritize` tokens or more, and find at most `check` tokens in the cache, all but one
    are held back until it has computed them (`check` -1: none is). Defaults: SGLang's.
    """

    fallback = "fcfs"
    """What it is where there is no prefix cache."""

    def __init__(self, check: int = 32, deprioritize: int = 32) -> None:
        """Raises ValueError unless `deprioritize` is at least 1."""
        if deprioritize < 1:
            raise ValueError("deprioritize must be at least 1 token")
        self.check = check
        self.deprioritize = deprioritize

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        if prefix is None:
            return FirstComeFirstServed().make_queue(None, rng)
        return self.prefix_queue(PrefixIndex(prefix, self.check, self.deprioritize))

    @abstractmethod
    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        """The queue that orders those in `index`."""


class CacheAwareQueue(BaseQueue):
    """A wait queue whose order follows the prefix cache from one `begin` to the next."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._waiting: dict[RequestId, WaitingRequest] = {}

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._waiting[seq.request.id] = self._index.add(seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        waiter = self._waiting.pop(request_id, None)
        if waiter is None:
            return None
        self._index.remove(waiter)
        return waiter.seq

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._index.apply_updates()

    def peek(self) -> SequenceState | None:
        head = self.first_waiting()
        return None if head is None else head.seq

    def pop(self) -> SequenceState:
        head = self.first_waiting()
        if head is None:
            raise IndexError("pop from an empty wait queue")
        del self._waiting[head.seq.request.id]
        self.on_admitted(head)
        return head.seq

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        self._index.on_request_end(seq.request.id)

    @abstractmethod
    def first_waiting(self) -> WaitingRequest | None:
        """Who goes first."""

    def on_admitted(self, waiter: WaitingRequest) -> None:
        """The head has been taken."""
        self._index.admit(waiter)

    def __len__(self) -> int:
        return len(self._waiting)


class PrefixKeyPolicy(CacheAwarePolicy):
    """A policy whose order is a key that changes only when the request moves in the cache, or is held back or let go."""

    @abstractmethod
    def key(self, waiting: WaitingRequest) -> SortKey:
        """Smaller goes first. Must end in something unique (`waiter.tie`)."""

    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        return _PrefixKeyQueue(index, self)


class _PrefixKeyQueue(CacheAwareQueue):
    """A heap, in which only those who moved get another key."""

    def __init__(self, index: PrefixIndex, policy: PrefixKeyPolicy) -> None:
        super().__init__(index)
        self._key = policy.key
        self._heap = SeqHeap()

    def first_waiting(self) -> WaitingRequest | None:
        moved = self._index.changed
        if moved:
            for waiter in moved:
                if waiter.node is None:
                    self._heap.remove(waiter.seq.request.id)
                else:
                    self._heap.push(self._key(waiter), waiter.seq)
            moved.clear()
            self._index.tree.dirty.clear()
        first = self._heap.first()
        return None if first is None else self._waiting[first.request.id]

    def head_key(self) -> SortKey | None:
        self.first_waiting()
        return self._heap.first_key()


@SCHEDULERS.register("lpm")
class LongestPrefixMatch(PrefixKeyPolicy):
    """By cached prompt tokens, most first, then arrival, then order (SGLang `lpm`, without its cut-off). Those who are held
    back go last, in the order of arrival."""

    about = PolicyInfo(
        summary="who finds most of its prompt in the prefix cache goes first",
        complexity="O(log n) per request, and per request whose cached prefix changes",
        starves="requests with nothing in the cache",
        cache_aware=CacheAware.YES,
    )

    def key(self, waiting: WaitingRequest) -> SortKey:
        return (
            (True, 0, *waiting.arrival_rank)
            if waiting.deprioritized
            else (False, -waiting.matched_tokens, *waiting.arrival_rank)
        )


@SCHEDULERS.register("shortest-prefill-first")
class ShortestPrefillFirst(PrefixKeyPolicy):
    """By tokens to be computed, fewest first, then arrival, then order (SGLang `shortest-prefill-first`)."""

    about = PolicyInfo(
        summary="who has the fewest tokens to compute, after what is cached, goes first",
        complexity="O(log n) per request, and per request whose cached prefix changes",
        starves="long prompts with little in the cache",
        cache_aware=CacheAware.YES,
    )

    def key(self, waiting: WaitingRequest) -> SortKey:
        return (waiting.deprioritized, waiting.uncached_tokens, *waiting.arrival_rank)


_NO_DEDUP = -1


@SCHEDULERS.register("aged-sjf")
class AgedSjf(PrefixKeyPolicy):
    """By the prompt tokens that are not in the prefix cache, less `tokens_per_second` for each second of waiting, then
    arrival, then id. Without a prefix cache by the whole prompt."""

    about = PolicyInfo(
        summary="fewest uncached prompt tokens first, less tokens_per_second for each second of waiting",
        complexity="O(log n) per request, and per request whose cached prefix changes",
        starves="nobody: a long prompt waits until its age outweighs its length",
        cache_aware=CacheAware.OPTIONAL,
    )

    def __init__(self, tokens_per_second: int = 1000) -> None:
        """Raises ValueError unless `tokens_per_second` is from 1 to 1e9."""
        if not 1 <= tokens_per_second <= 1_000_000_000:
            raise ValueError(f"tokens_per_second must be from 1 to 1,000,000,000, not {tokens_per_second}")
        super().__init__(check=_NO_DEDUP)
        self._rate = tokens_per_second

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _AgedSjfByPrompt(self).make_queue(None, rng) if prefix is None else super().make_queue(prefix, rng)

    def key(self, waiting: WaitingRequest) -> SortKey:
        return self.aged_key(waiting.seq, waiting.uncached_tokens)

    def aged_key(self, seq: SequenceState, uncached: int) -> SortKey:
        request = seq.request
        return (uncached * SECOND + self._rate * request.arrival, request.arrival, request.id)


class _AgedSjfByPrompt(KeyPolicy):
    """The same where nothing is cached."""

    def __init__(self, policy: AgedSjf) -> None:
        self._aged = policy.aged_key

    def key(self, seq: SequenceState) -> SortKey:
        return self._aged(seq, seq.num_tokens_to_prefill)
