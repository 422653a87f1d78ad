"""The orders that look at the prefix cache, and what they have in common.

A queue files each request by its cached prefix (`PrefixIndex`) and lets the policy order by that. Most such orders are a key
that changes only when the cached prefix of the request does (`PrefixKeyPolicy`): `lpm`, `shortest-prefill-first` and
`aged-sjf`, below. `hrrn` and `dfs-weight` need more, and have modules of their own.

Without a prefix cache these policies are another one, their `fallback`. Looking never changes the cache, and there is no
cut-off: SGLang's policies of the same names sort nothing beyond 128 waiting requests.
"""

from __future__ import annotations

from abc import abstractmethod
from random import Random

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import SECOND, Micros
from maitred.queueing.base import SCHEDULERS, BaseQueue, CacheAware, KeyQueue, PolicyInfo
from maitred.queueing.prefix_index import PrefixIndex
from maitred.queueing.prefix_tree import WaitingRequest

_NO_DEDUP = -1


class CacheAwarePolicy(QueuePolicy):
    """A policy that orders by what the prefix cache holds.

    Of requests that share their first `deprioritize` tokens or more, and find at most `check` tokens in the cache, all but one
    wait behind all others until that one has computed them (`check` -1: none does). The defaults are SGLang's.
    """

    fallback = "fcfs"
    """The policy that takes its place where there is no prefix cache, written as users write policies."""

    def __init__(self, check: int = 32, deprioritize: int = 32) -> None:
        """Raises ValueError unless `deprioritize` is at least 1."""
        if deprioritize < 1:
            raise ValueError("deprioritize must be at least 1 token")
        self.check = check
        self.deprioritize = deprioritize

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        if prefix is None:
            return SCHEDULERS.create(self.fallback).make_queue(None, rng)
        return self.prefix_queue(PrefixIndex(prefix, self.check, self.deprioritize))

    @abstractmethod
    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        """Return the queue that orders the requests in `index`."""


class CacheAwareQueue(BaseQueue):
    """A wait queue in an order that follows the prefix cache from one step to the next."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._waiting: dict[RequestId, WaitingRequest] = {}

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._waiting[seq.request.id] = self._index.add(seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        self._index.remove(waiting)
        return waiting.seq

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
        """Return the request that goes first, or None if none waits."""

    def on_admitted(self, waiting: WaitingRequest) -> None:
        """Note that the head has been popped."""
        self._index.admit(waiting)

    def __len__(self) -> int:
        return len(self._waiting)


class PrefixKeyPolicy(CacheAwarePolicy):
    """A policy that orders by a key, which changes only with the request's cached prefix or its `deprioritized`."""

    @abstractmethod
    def key(self, waiting: WaitingRequest) -> SortKey:
        """Return the sort key of `waiting`; the smaller goes first. Must end in something unique (`arrival_rank`)."""

    def prefix_queue(self, index: PrefixIndex) -> WaitQueue:
        return _PrefixKeyQueue(index, self)


class _PrefixKeyQueue(CacheAwareQueue):
    """A heap in which only the requests that changed get another key."""

    def __init__(self, index: PrefixIndex, policy: PrefixKeyPolicy) -> None:
        super().__init__(index)
        self._key = policy.key
        self._heap: IndexedHeap[WaitingRequest, SortKey, WaitingRequest] = IndexedHeap()

    def first_waiting(self) -> WaitingRequest | None:
        changed = self._index.changed
        if changed:
            heap, key = self._heap, self._key
            for waiting in changed:
                if waiting.node is None:
                    heap.remove(waiting)
                else:
                    heap.push(waiting, key(waiting), waiting)
            changed.clear()
            self._index.tree.dirty.clear()
        return self._heap.peek()

    def on_admitted(self, waiting: WaitingRequest) -> None:
        super().on_admitted(waiting)
        # It is the first of the heap, where taking it out now costs less than a stale entry that has to be found out.
        self._heap.pop()
        del self._index.changed[waiting]

    def head_key(self) -> SortKey | None:
        self.first_waiting()
        return self._heap.peek_key()


@SCHEDULERS.register("lpm")
class LongestPrefixMatch(PrefixKeyPolicy):
    """By cached prompt tokens, most first, then arrival (SGLang `lpm`, without its cut-off). Deprioritized requests go last, in
    order of arrival."""

    about = PolicyInfo(
        summary="most prompt tokens in the prefix cache first",
        complexity="O(log n) per request, and per change of its cached prefix",
        starves="requests with nothing in the cache",
        cache_aware=CacheAware.YES,
    )

    def key(self, waiting: WaitingRequest) -> SortKey:
        arrival, index = waiting.arrival_rank
        if waiting.deprioritized:
            return (True, 0, arrival, index)
        return (False, -waiting.matched_tokens, arrival, index)


@SCHEDULERS.register("shortest-prefill-first")
class ShortestPrefillFirst(PrefixKeyPolicy):
    """By tokens to compute, fewest first, then arrival (SGLang `shortest-prefill-first`). Deprioritized requests go last."""

    about = PolicyInfo(
        summary="fewest tokens to compute, after what is cached, first",
        complexity="O(log n) per request, and per change of its cached prefix",
        starves="long prompts with little in the cache",
        cache_aware=CacheAware.YES,
    )

    def key(self, waiting: WaitingRequest) -> SortKey:
        arrival, index = waiting.arrival_rank
        return (waiting.deprioritized, waiting.uncached_tokens, arrival, index)


@SCHEDULERS.register("aged-sjf")
class AgedSjf(PrefixKeyPolicy):
    """By the prompt tokens that are not in the prefix cache, less `tokens_per_second` for each second of waiting, then arrival,
    then id. Without a prefix cache by the whole prompt.

        order by    uncached prompt tokens - tokens_per_second * time waited

    All requests age alike, so the order of two of them changes only when the cache does. The key leaves out the present:
    `uncached tokens + tokens_per_second * arrival`. With 1000 tokens per second, a prompt of 5,000 tokens that arrived at 1 s
    has the key 6,000; one of 100 tokens goes before it if it arrived before 5.9 s.
    """

    about = PolicyInfo(
        summary="fewest uncached prompt tokens first, less tokens_per_second for each second of waiting",
        complexity="O(log n) per request, and per change of its cached prefix",
        starves="nothing: a long prompt waits until its age outweighs its length",
        cache_aware=CacheAware.OPTIONAL,
    )

    def __init__(self, tokens_per_second: int = 1000) -> None:
        """Raises ValueError unless `tokens_per_second` is from 1 to 1e9."""
        if not 1 <= tokens_per_second <= 1_000_000_000:
            raise ValueError(f"tokens_per_second must be from 1 to 1,000,000,000, not {tokens_per_second}")
        super().__init__(check=_NO_DEDUP)
        self._rate = tokens_per_second

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        if prefix is None:
            return KeyQueue(lambda seq: self._aged_key(seq, seq.num_tokens_to_prefill))
        return super().make_queue(prefix, rng)

    def key(self, waiting: WaitingRequest) -> SortKey:
        return self._aged_key(waiting.seq, waiting.uncached_tokens)

    def _aged_key(self, seq: SequenceState, uncached_tokens: int) -> SortKey:
        """Return the key, in tokens times a million: integers, so that ties are exact."""
        request = seq.request
        return (uncached_tokens * SECOND + self._rate * request.arrival, request.arrival, request.id)
