"""The orders that do not look at the prefix cache: `fcfs`, `sjf`, `edf`, `lof`, `random` and `routing-key`.

Three of them are one key. The others have a queue of their own, because they change with the step (`random`, `routing-key`) or
because preempted sequences go to the front (`fcfs`, in `fcfs_queue`). The orders that do look at the cache are in
`prefix_orders`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from math import inf
from random import Random

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, BaseQueue, KeyPolicy, PolicyInfo, RequestFacts
from maitred.queueing.fcfs_queue import FcfsQueue


@SCHEDULERS.register("fcfs")
class FirstComeFirstServed(QueuePolicy):
    """In order of arrival; a preempted sequence goes back to the front. Nothing starves, but a long prompt blocks the rest."""

    about = PolicyInfo(
        summary="in order of arrival; a preempted request goes back to the front",
        complexity="O(1) per request",
        starves="nothing; a long prompt blocks those behind it",
    )

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return FcfsQueue()


@SCHEDULERS.register("sjf")
class ShortestJobFirst(KeyPolicy):
    """By prompt length, then arrival, then id (BLIS `sjf`). Long prompts starve under load; see `aged-sjf`."""

    about = PolicyInfo(
        summary="shortest prompt first, then arrival",
        complexity="O(log n) per request",
        starves="long prompts; aged-sjf does not",
    )

    def key(self, seq: SequenceState) -> SortKey:
        return (seq.request.prompt_tokens, seq.request.arrival, seq.request.id)


class ClientPriorityOrder(KeyPolicy):
    """By the client's priority, the most urgent first, then arrival, then id: vLLM's wait queue with `scheduling_policy:
    priority`. A preempted sequence has no advantage."""

    about = PolicyInfo(
        summary="the client's priority, the most urgent first, then arrival",
        complexity="O(log n) per request",
        starves="low priorities",
        reads=RequestFacts.CLIENT_PRIORITY,
    )

    def key(self, seq: SequenceState) -> SortKey:
        return (-seq.request.priority, seq.request.arrival, seq.request.id)


@SCHEDULERS.register("edf")
class EarliestDeadlineFirst(KeyPolicy):
    """By deadline, requests without one last, then arrival, then id.

    Best while all deadlines can be met. In overload it serves first what is about to be too late.
    """

    about = PolicyInfo(
        summary="earliest deadline first, those without one last, then arrival",
        complexity="O(log n) per request",
        starves="requests without a deadline",
        reads=RequestFacts.DEADLINE,
    )

    def key(self, seq: SequenceState) -> SortKey:
        request = seq.request
        return (inf if request.deadline is None else request.deadline, request.arrival, request.id)


@SCHEDULERS.register("lof")
class LongestOutputFirst(KeyPolicy):
    """By `max_output_tokens`, the largest first and requests without a limit before all, then arrival, then id (SGLang
    `lof`)."""

    about = PolicyInfo(
        summary="largest max_output_tokens first, then arrival: long answers start early, so that a batch job ends early",
        complexity="O(log n) per request",
        starves="short answers",
        reads=RequestFacts.OUTPUT_LIMIT,
    )

    def key(self, seq: SequenceState) -> SortKey:
        request = seq.request
        allowed = inf if request.max_output_tokens is None else request.max_output_tokens
        return (-allowed, request.arrival, request.id)


@SCHEDULERS.register("random")
class RandomOrder(QueuePolicy):
    """Any waiting request with equal chances, drawn anew at each step (SGLang `random`, with a seed)."""

    about = PolicyInfo(
        summary="drawn anew for each step, the same for the same seed",
        complexity="O(log n) per request",
        starves="nothing for ever, but waits have a long tail",
    )

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _RandomQueue(rng.getrandbits(64))


class _RandomQueue(BaseQueue):
    """Each step draws from a generator of its own, seeded by the queue's seed and the index of the step. So the result depends
    on what waits at that step, and not on how many steps were skipped before or how often the head was looked at."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = 0
        self._step_rng: Random | None = None
        self._sorted_ids: list[RequestId] = []
        """Sorted, so that a draw does not depend on the order in which requests came and went."""
        self._seqs: dict[RequestId, SequenceState] = {}
        self._drawn: SequenceState | None = None

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        insort(self._sorted_ids, seq.request.id)
        self._seqs[seq.request.id] = seq

    def remove(self, request_id: RequestId) -> SequenceState | None:
        seq = self._seqs.pop(request_id, None)
        if seq is not None:
            del self._sorted_ids[bisect_left(self._sorted_ids, request_id)]
            if seq is self._drawn:
                self._drawn = None
        return seq

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._step, self._step_rng, self._drawn = step.step_index, None, None

    def peek(self) -> SequenceState | None:
        ids = self._sorted_ids
        if self._drawn is None and ids:
            self._drawn = self._seqs[self._draw() if len(ids) > 1 else ids[0]]
        return self._drawn

    def _draw(self) -> RequestId:
        if self._step_rng is None:  # made only for steps that draw, because seeding takes several µs
            self._step_rng = Random(f"{self._seed}/{self._step}")
        return self._step_rng.choice(self._sorted_ids)

    def next_order_change(self, now: Micros) -> Micros | None:
        return now + 1 if len(self._sorted_ids) > 1 else None

    def __len__(self) -> int:
        return len(self._sorted_ids)


@SCHEDULERS.register("routing-key")
class RoutingKeyOrder(QueuePolicy):
    """By how many running sequences have the request's routing key, then the key, then arrival (SGLang `routing-key`).

    Requests of one routing key use the same adapter or share content, so it pays to run them together. If no running sequence
    has the key of a request, it waits behind, in order of arrival; SGLang sorts these by key.
    """

    about = PolicyInfo(
        summary="requests with the routing key that most running ones have, then arrival",
        complexity="O(log n) per request, O(running batch) per pass",
        starves="requests with a routing key that no running one has",
        reads=RequestFacts.ROUTING_KEY,
    )

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _RoutingKeyQueue()


class _RoutingKeyQueue(BaseQueue):
    def __init__(self) -> None:
        self._all: IndexedHeap[RequestId, int, SequenceState] = IndexedHeap()
        """All waiting sequences by position. Those that were preempted have negative positions, and so go first."""
        self._by_key: dict[str, IndexedHeap[RequestId, int, SequenceState]] = {}
        """The waiting sequences by position, for each routing key that some waiting request has."""
        self._running_keys: list[str] = []
        """The routing keys of running sequences that some waiting request had at the start of the step, the most frequent
        last."""
        self._last_position = 0
        self._front_position = 0

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        if front:
            self._front_position -= 1
        else:
            self._last_position += 1
        position = self._front_position if front else self._last_position
        self._all.push(seq.request.id, position, seq)
        if key := seq.request.routing_key:
            self._by_key.setdefault(key, IndexedHeap()).push(seq.request.id, position, seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        seq = self._all.remove(request_id)
        if seq is not None and (key := seq.request.routing_key):
            same_key = self._by_key[key]
            same_key.remove(request_id)
            if not same_key:
                del self._by_key[key]
        return seq

    def on_step_start(self, step: StepView, now: Micros) -> None:
        counts = step.running_routing_keys()
        shared: Iterable[str] = counts.keys() & self._by_key.keys()
        self._running_keys = sorted(shared, key=lambda key: (-counts[key], key), reverse=True)

    def peek(self) -> SequenceState | None:
        running = self._running_keys
        while running and running[-1] not in self._by_key:
            running.pop()
        return (self._by_key[running[-1]] if running else self._all).peek()

    def __len__(self) -> int:
        return len(self._all)
