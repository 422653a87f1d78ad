"""sglang: the wait queue of SGLang 0.5.23, as it is.

It is a list, which each pass sorts in place and leaves that way for the next one (`orders`). So a tie goes to the request that
was before the other in the last pass, `lpm` and `hrrn` give up beyond 128 waiting requests, and each pass matches the whole
list. A preempted request goes to the end and begins a new age. This is for comparing with SGLang; the policies of the same
names in `maitred.queueing` find more and cost less.

Two things cannot be the same. SGLang also looks for the output of a preempted request in the cache, and bumps the recency of
what it has matched; here looking changes nothing. And prefilled tokens count when their chunk is computed, not when it is
launched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from random import Random

import msgspec

from maitred.compat.sglang.orders import (
    CACHE_AWARE,
    CUT_OFF,
    CUT_OFF_POLICIES,
    InBatchCaching,
    PrioritySign,
    QueueEntry,
    SchedulingPass,
    SGLangPolicy,
    cached_pages,
    next_order,
)
from maitred.core.contracts import PrefixCacheListener, PrefixCacheView, QueuePolicy, StepView, WaitQueue
from maitred.core.errors import ConfigError
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, BaseQueue, CacheAware, PolicyInfo
from maitred.queueing.priority import PriorityValues

_UNLIMITED = 1 << 62
_SIGNS = {PriorityValues.LOW_FIRST: PrioritySign.LOW_FIRST, PriorityValues.HIGH_FIRST: PrioritySign.HIGH_FIRST}


@SCHEDULERS.register("sglang")
class SGLang(QueuePolicy):
    """SGLang's own order, tie for tie, under any of its policies: `sglang(lpm)`, `sglang(fcfs, priority=low-first)`.

    `check` and `deprioritize` are its two thresholds of in-batch prefix caching, in tokens.
    """

    about = PolicyInfo(
        summary="as SGLang 0.5.23 orders by any of its policies, tie for tie: sglang(lpm), sglang(fcfs, priority=low-first)",
        complexity="O(n log n) per pass, those that look at the cache O(n blocks); lpm and hrrn nothing beyond n = 128",
        starves="as SGLang does; under lpm, requests with nothing in the cache",
        cache_aware=CacheAware.AS_INNER,
    )

    fallback: str | None = "sglang(fcfs)"
    """The policy that takes the place of a cache-aware one where there is no prefix cache, written as users write policies; or
    None, where SGLang refuses the policy."""

    def __init__(
        self,
        policy: SGLangPolicy = SGLangPolicy.FCFS,
        priority: PriorityValues | None = None,
        check: int = 32,
        deprioritize: int = 32,
    ) -> None:
        """Raises ValueError for priorities with a policy that SGLang does not order by them."""
        if priority is not None and policy not in {SGLangPolicy.FCFS, SGLangPolicy.LOF}:
            raise ValueError(f"priorities are for fcfs and lof, not for {policy}")
        self.policy = policy
        self.in_batch = InBatchCaching(check, deprioritize)
        self.sign = None if priority is None else _SIGNS[priority]
        if policy is SGLangPolicy.SHORTEST_PREFILL_FIRST and self.fallback is SGLang.fallback:  # a subclass may have its own
            self.fallback = None
        cache_aware = CacheAware.YES if policy in CACHE_AWARE else CacheAware.NO
        self.about = msgspec.structs.replace(SGLang.about, cache_aware=cache_aware)

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        """Raises ConfigError without a prefix cache where there is no fallback: for `shortest-prefill-first`."""
        if prefix is not None or self.policy not in CACHE_AWARE:
            is_sorted = self.policy is not SGLangPolicy.FCFS or self.sign is not None
            return (_SortedSGLangQueue if is_sorted else SGLangQueue)(self, prefix, rng)
        if self.fallback is None:
            raise self._refusal()
        return SCHEDULERS.create(self.fallback).make_queue(None, rng)

    @property
    def refusal(self) -> ConfigError | None:
        """The error where there is no prefix cache, or None if another policy takes the place of this one."""
        return self._refusal() if self.fallback is None else None

    def _refusal(self) -> ConfigError:
        hint = f"write {self.policy} for ours, which is fcfs then, or turn the prefix cache on"
        return ConfigError(f"SGLang refuses {self.policy} without a prefix cache", hint=hint)


class _PageOrder(PrefixCacheListener):
    """A prefix cache with the order in which its blocks came. Blocks that were cached before it subscribed tie, before all
    others."""

    def __init__(self, prefix: PrefixCacheView) -> None:
        self._prefix = prefix
        self._positions: dict[int, int] = {}
        self._num_stored = 0
        prefix.subscribe(self)

    @property
    def page_size(self) -> int:
        return self._prefix.block_size

    def contains(self, block_hash: int) -> bool:
        return self._prefix.contains(block_hash)

    def position(self, key: int) -> int:
        return self._positions.get(key, 0)

    def on_stored(self, block_hash: int) -> None:
        self._num_stored += 1
        self._positions[block_hash] = self._num_stored

    def on_removed(self, block_hash: int) -> None:
        self._positions.pop(block_hash, None)

    def block_hashes(self, request: Request) -> Sequence[int]:
        return self._prefix.block_hashes(request)

    def beginning(self, request: Request, block_hashes: Sequence[int], tokens: int) -> Hashable:
        """Return a key for the first `tokens` tokens of `request`, or None if it has fewer, or nothing is known of its
        prompt."""
        if tokens < 1 or request.prefix is None:
            return None
        blocks, rest = divmod(tokens, self.page_size)
        if not rest:
            return block_hashes[blocks - 1] if blocks <= len(block_hashes) else None
        keys = request.prefix.block_keys(1)
        return (request.cache_namespace, keys[tokens - 1]) if tokens <= len(keys) else None


class SGLangQueue(BaseQueue):
    """The wait queue of one instance: a list, in the order of arrival."""

    def __init__(self, policy: SGLang, prefix: PrefixCacheView | None, rng: Random) -> None:
        self._policy = policy.policy
        self._page_order = _PageOrder(prefix) if prefix is not None and policy.policy in CACHE_AWARE else None
        self._pass_inputs = SchedulingPass(rng=rng, cache=self._page_order, in_batch=policy.in_batch, sign=policy.sign)
        self._prefilled_tokens = 0
        self._entries: list[tuple[QueueEntry, SequenceState]] = []

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._entries.append((self._entry(seq, now), seq))

    def remove(self, request_id: RequestId) -> SequenceState | None:
        for index, (_, seq) in enumerate(self._entries):
            if seq.request.id == request_id:
                del self._entries[index]
                return seq
        return None

    def uncached_work(self) -> Iterator[int]:
        """Yield for each request, in order, the tokens that it has to compute by `shortest-prefill-first`; nothing under other
        policies."""
        if self._policy is not SGLangPolicy.SHORTEST_PREFILL_FIRST or self._page_order is None:
            return
        for entry, _ in self._entries:
            prefix = cached_pages(entry, self._page_order) * self._page_order.page_size
            yield max(1, entry.prompt + entry.output - min(prefix, max(0, entry.prompt + entry.output - 1)))

    def peek(self) -> SequenceState | None:
        return self._entries[0][1] if self._entries else None

    def pop(self) -> SequenceState:
        if not self._entries:
            raise IndexError("pop from an empty wait queue")
        return self._entries.pop(0)[1]

    def next_order_change(self, now: Micros) -> Micros | None:
        return now + 1 if self._policy is SGLangPolicy.RANDOM and len(self._entries) > 1 else None

    def __len__(self) -> int:
        return len(self._entries)

    def _entry(self, seq: SequenceState, now: Micros) -> QueueEntry:
        request, page_order = seq.request, self._page_order
        block_hashes = () if page_order is None else page_order.block_hashes(request)
        deprioritize = self._pass_inputs.in_batch.deprioritize
        return QueueEntry(
            rid=request.client_id or str(request.id),
            prompt=request.prompt_tokens,
            output=seq.num_output_tokens,
            max_new_tokens=_UNLIMITED if request.max_output_tokens is None else request.max_output_tokens,
            priority=request.priority,
            routing_key=request.routing_key,
            queued_at=now,
            prefilled_at_entry=self._prefilled_tokens,
            pages=block_hashes,
            beginning=None if page_order is None else page_order.beginning(request, block_hashes, deprioritize),
        )


class _SortedSGLangQueue(SGLangQueue):
    """A wait queue that each pass sorts."""

    def on_step_start(self, step: StepView, now: Micros) -> None:
        # Beyond the cut-off a pass leaves the list as it is, so it need not be gone through.
        if not self._entries or (self._policy in CUT_OFF_POLICIES and len(self._entries) > CUT_OFF):
            return
        running = step.running_routing_keys() if self._policy is SGLangPolicy.ROUTING_KEY else {}
        at = msgspec.structs.replace(self._pass_inputs, prefilled_tokens=self._prefilled_tokens, running=running)
        order = next_order(self._policy, [entry for entry, _ in self._entries], at)
        self._entries = [self._entries[i] for i in order]

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        self._prefilled_tokens += prefill_tokens
