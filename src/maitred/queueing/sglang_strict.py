"""sglang: the wait queue of SGLang 0.5.23, as it is.

A list, which each pass sorts in place and leaves that way for the next (`sglang_strict_orders`). So a tie goes to whoever was
before the other in the last pass, `lpm` and `hrrn` give up beyond 128 waiting requests, and each pass matches the whole list.
A preempted request goes to the end and begins a new age. For comparing with SGLang; the policies of the same names here are
better, and cheaper.

What cannot be the same: SGLang also looks for the output of a preempted request in the cache, and bumps the recency of what
it has matched; here looking changes nothing. Prefilled tokens count when their chunk is computed, not when it is launched.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random

import msgspec

from maitred.contracts import PrefixView, PrefixWatcher, QueuePolicy, StepView, WaitQueue
from maitred.errors import ConfigError
from maitred.queueing.by_priority import Values
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo, Queue
from maitred.queueing.queue_limit import PrioritySign
from maitred.queueing.sglang_strict_orders import CACHE_AWARE, InBatch, Pass, Policy, Waiting, order
from maitred.request import Request, RequestId
from maitred.seq import Seq
from maitred.units import Micros

_UNLIMITED = 1 << 62


@SCHEDULERS.register("sglang")
class SGLang(QueuePolicy):
    """SGLang's own order, tie for tie, under any of its policies: `sglang(lpm)`, `sglang(fcfs, priority=low-first)`.

    `check` and `deprioritize` are its two thresholds of in-batch prefix caching, in tokens.
    """

    about = PolicyInfo(
        line="as SGLang 0.5.23 orders by any of its policies, tie for tie: sglang(lpm), sglang(fcfs, priority=low-first)",
        complexity="O(n log n) per pass, those that look at the cache O(n blocks); lpm and hrrn nothing beyond n = 128",
        starves="as SGLang does; under lpm, requests with nothing in the cache",
        cache_aware=CacheAware.AS_INSIDE,
    )

    def __init__(
        self, policy: Policy = Policy.FCFS, priority: Values | None = None, check: int = 32, deprioritize: int = 32
    ) -> None:
        """Raises ValueError for priorities with a policy that SGLang does not order by them."""
        if priority is not None and policy not in {Policy.FCFS, Policy.LOF}:
            raise ValueError(f"priorities are for fcfs and lof, not for {policy}")
        self.policy = policy
        self.in_batch = InBatch(check, deprioritize)
        self.sign: PrioritySign | None = None
        if priority is not None:
            self.sign = PrioritySign.LOW_FIRST if priority is Values.LOW_FIRST else PrioritySign.HIGH_FIRST
        aware = CacheAware.YES if policy in CACHE_AWARE else CacheAware.NO
        self.about = msgspec.structs.replace(SGLang.about, cache_aware=aware)

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        """Raises ConfigError for `shortest-prefill-first` without a prefix cache; the others are fcfs there."""
        if prefix is None and self.policy is Policy.SHORTEST_PREFILL_FIRST:
            raise ConfigError(
                f"SGLang refuses {self.policy} without a prefix cache",
                hint=f"write {self.policy} for ours, which is fcfs then, or turn the prefix cache on",
            )
        return _List(self, prefix, rng)


class _Pages(PrefixWatcher):
    """A prefix cache, and in what order its blocks came. Those that were there before it was watched come first, alike."""

    def __init__(self, prefix: PrefixView) -> None:
        self._prefix = prefix
        self._slots: dict[int, int] = {}
        self._count = 0
        prefix.watch(self)

    @property
    def page_size(self) -> int:
        return self._prefix.block_size

    def holds(self, key: int) -> bool:
        return self._prefix.holds(key)

    def slot(self, key: int) -> int:
        return self._slots.get(key, 0)

    def published(self, key: int) -> None:
        self._count += 1
        self._slots[key] = self._count

    def evicted(self, key: int) -> None:
        self._slots.pop(key, None)

    def chain(self, request: Request) -> Sequence[int]:
        return self._prefix.chain(request)

    def beginning(self, request: Request, chain: Sequence[int], tokens: int) -> Hashable:
        """Stands for its first `tokens` tokens; None: it has fewer, or nobody knows."""
        if tokens < 1 or request.prefix is None:
            return None
        blocks, rest = divmod(tokens, self.page_size)
        if not rest:
            return chain[blocks - 1] if blocks <= len(chain) else None
        keys = request.prefix.keys(1)
        return (request.cache_namespace, keys[tokens - 1]) if tokens <= len(keys) else None


class _List(Queue):
    def __init__(self, policy: SGLang, prefix: PrefixView | None, rng: Random) -> None:
        self._policy = policy.policy
        self._pages = _Pages(prefix) if prefix is not None and policy.policy in CACHE_AWARE else None
        self._pass = Pass(rng=rng, cache=self._pages, in_batch=policy.in_batch, sign=policy.sign)
        self._processed = 0
        self._list: list[tuple[Waiting, Seq]] = []

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        self._list.append((self._waiting(seq, now), seq))

    def remove(self, request_id: RequestId) -> Seq | None:
        for place, (_, seq) in enumerate(self._list):
            if seq.request.id == request_id:
                del self._list[place]
                return seq
        return None

    def begin(self, step: StepView, now: Micros) -> None:
        if not self._list:
            return
        running = step.running_routing_keys() if self._policy is Policy.ROUTING_KEY else {}
        at = msgspec.structs.replace(self._pass, processed=self._processed, running=running)
        self._list = [self._list[i] for i in order(self._policy, [waiting for waiting, _ in self._list], at)]

    def peek(self) -> Seq | None:
        return self._list[0][1] if self._list else None

    def pop(self) -> Seq:
        if not self._list:
            raise IndexError("pop from an empty wait queue")
        return self._list.pop(0)[1]

    def served(self, seq: Seq, prefill: int, decode: int, now: Micros) -> None:
        self._processed += prefill

    def stable_until(self, now: Micros) -> Micros | None:
        return now + 1 if self._policy is Policy.RANDOM and len(self._list) > 1 else None

    def __len__(self) -> int:
        return len(self._list)

    def _waiting(self, seq: Seq, now: Micros) -> Waiting:
        request, pages = seq.request, self._pages
        chain = () if pages is None else pages.chain(request)
        return Waiting(
            rid=request.client_id or str(request.id),
            prompt=request.prompt_tokens,
            output=seq.emitted,
            max_new_tokens=_UNLIMITED if request.max_output_tokens is None else request.max_output_tokens,
            priority=request.priority,
            routing_key=request.routing_key,
            entered=now,
            processed=self._processed,
            pages=chain,
            beginning=None if pages is None else pages.beginning(request, chain, self._pass.in_batch.deprioritize),
        )
