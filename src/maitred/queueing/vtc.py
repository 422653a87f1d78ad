"""vtc: virtual token counters, fairness among tenants.

Each tenant has a counter of the service it was given: 1 for a prompt token, `output_weight` for an output token. The tenant
with the lowest counter goes first, so no tenant that has work waiting can be left behind by more than a bounded amount. A
tenant that has requests again after it had none is raised to the lowest counter among those with requests waiting. (Sheng et
al., "Fairness in Serving Large Language Models", OSDI 2024.) How counters grow, and how tenants are ranked, is in
`vtc_counters`.

Which request of a tenant goes first, the inner policy says; each tenant has a subqueue. With `slack`, a tenant with a counter
at most that much above the lowest may also go first, if the inner policy prefers its head: `vtc(lpm, slack=S)` is a longest
prefix match that a deficit bounds. A waiting tenant is then left behind by at most that much more.

For example, under `vtc(sjf, slack=35)` tenant b has one prompt of 500 tokens waiting, and a has many of 10. Both start at 0.
The head of a is the shorter one, and a stays within 35 tokens of b for four of them (at 0, 10, 20 and 30); at 40 it is b's
turn.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from math import floor, inf
from random import Random

from maitred.core.contracts import PrefixCacheView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.queueing.base import SCHEDULERS, BaseQueue, CacheAware, PolicyInfo, RequestFacts, SubqueuedQueue, earliest
from maitred.queueing.orders import FirstComeFirstServed
from maitred.queueing.subqueues import Subqueues
from maitred.queueing.vtc_counters import ServiceAccount, TenantRank, TenantRanking, TokenCounters

_MAX_COMPARED = 64
"""At most this many of the tenants within slack are compared: those with the lowest counters."""


@SCHEDULERS.register("vtc")
class VirtualTokenCounter(QueuePolicy):
    """The tenant with the lowest counter first; within a tenant, the inner policy. Among tenants within `slack` (in prompt
    tokens) of the lowest counter, the one with the head that the inner policy prefers, if that policy can compare heads."""

    about = PolicyInfo(
        summary="the tenant that was served least first, then the inner policy; within slack, the best head by that policy",
        complexity="as the inner policy, and O(log tenants) per request and per tenant that decodes",
        starves="no tenant; within one, as the inner policy",
        reads=RequestFacts.TENANT,
        cache_aware=CacheAware.AS_INNER,
    )

    def __init__(self, policy: QueuePolicy | None = None, slack: float = 0.0, output_weight: float = 2.0) -> None:
        """`policy` is fcfs by default. Raises ValueError for a negative slack or weight."""
        if not 0 <= slack <= 1e12:
            raise ValueError(f"slack must be from 0 to 1e12 tokens, not {slack}")
        if not 0 <= output_weight <= 1e6:
            raise ValueError(f"output_weight must be from 0 to 1e6, not {output_weight}")
        self.inner = FirstComeFirstServed() if policy is None else policy
        self._slack, self._weight = slack, output_weight

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _VtcQueue(Subqueues(self.inner, prefix, rng), prefix, self._slack, self._weight)


class _VtcQueue(SubqueuedQueue):
    subqueues: Subqueues[str]

    def __init__(self, subqueues: Subqueues[str], prefix: PrefixCacheView | None, slack: float, weight: float) -> None:
        self.subqueues = subqueues
        self._prefix = prefix
        self._counters = TokenCounters(weight)
        self._slack = floor(Fraction(slack) * self._counters.units) if slack else None
        """In units of the counters; None without slack."""
        self._to_raise: dict[str, ServiceAccount] = {}
        """The tenants that came since the last step. They are raised at the next one, when the counters are known."""
        self._last_dequeued: ServiceAccount | None = None
        """The tenant of the request that was the last to leave the queue."""
        self._ranking = TenantRanking(self._counters)
        self._chosen_tenant: str | None = None

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        account = self._counters.add_waiting(seq)
        if len(account.waiting) == 1:
            self._to_raise[account.tenant] = account
        self.subqueues.add(account.tenant, seq, now, front=front)
        self._chosen_tenant = None

    def remove(self, request_id: RequestId) -> SequenceState | None:
        seq = self.subqueues.remove(request_id)
        if seq is not None:
            self._on_dequeued(self._counters.remove_waiting(seq))
        return seq

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self.subqueues.start_pass(step, now)
        self._counters.advance(step.step_index)
        self._raise_joined()
        self._chosen_tenant = None
        tenant = self._next_tenant()
        if tenant is not None:
            # Starts the step there now, so that it makes no difference whether the head is looked at later.
            self.subqueues.started_queue(tenant)

    def peek(self) -> SequenceState | None:
        tenant = self._next_tenant()
        return None if tenant is None else self.subqueues.started_queue(tenant).peek()

    def pop(self) -> SequenceState:
        tenant = self._next_tenant()
        if tenant is None:
            raise IndexError("pop from an empty wait queue")
        seq = self.subqueues.pop(tenant)
        # The charge is an estimate until the prompt is computed. Without it, a tenant could have its whole queue
        # admitted in one pass before its counter moves.
        cached = 0 if self._prefix is None else self._prefix.num_cached_tokens(seq.request)
        self._on_dequeued(self._counters.admit(seq, max(0, seq.num_tokens_to_prefill - cached)))
        return seq

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        super().on_served(seq, prefill_tokens, decode_tokens, now)
        self._counters.charge(seq, prefill_tokens, decode_tokens)

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        super().on_sequence_end(seq, now)
        self._counters.discard(seq)

    def next_order_change(self, now: Micros) -> Micros | None:
        tenant = self._next_tenant()
        if tenant is None:
            return None
        within_tenant = self.subqueues.started_queue(tenant).next_order_change(now)
        return earliest(now + 1, within_tenant) if self._may_be_overtaken(tenant) else within_tenant

    def _may_be_overtaken(self, tenant: str) -> bool:
        """Whether steps may bring another tenant to the head: one that gains less per step than `tenant`, or with slack, any
        two that gain unequally."""
        gains = {t: a.num_decoding for t, a in self._counters.decoding_accounts.items() if t in self._ranking}
        # A tenant of which nothing decodes gains nothing; only if all that wait also decode is the least gain above 0.
        least = min(gains.values(), default=0) if len(gains) == len(self._ranking) else 0
        if self._slack is not None:
            return any(gain > least for gain in gains.values())
        return gains.get(tenant, 0) > least

    def _on_dequeued(self, account: ServiceAccount) -> None:
        """Note that a request of this tenant waits no more."""
        self._last_dequeued = account
        self._chosen_tenant = None
        if not account.waiting:
            self._to_raise.pop(account.tenant, None)

    def _raise_joined(self) -> None:
        """Raise the tenants that came since the last step to the lowest counter of those with requests waiting. If there are no
        others, raise them to the counter of the tenant of the last request that left the queue."""
        joined, self._to_raise = self._to_raise, {}
        if not joined:
            return
        counter = self._counters.counter
        last = 0 if self._last_dequeued is None else counter(self._last_dequeued)
        lowest = self._ranking.lowest_counter(joined)
        self._counters.close_idle(last if lowest is None else lowest)
        # Service that a tenant did not ask for is not saved up: it would have the instance for itself when it comes back.
        for account in joined.values():
            self._counters.raise_to(account, last if lowest is None else lowest)
            if lowest is None:  # nothing waited: the first tenant to join is the one that the others are raised to
                lowest = counter(account)

    def _next_tenant(self) -> str | None:
        """Return the tenant that goes first; the answer stays until the next step, or until a request comes or goes."""
        if self._chosen_tenant is None and (ranked := self._ranking.in_order()):
            self._chosen_tenant = ranked[0][2] if self._slack is None else self._best_head(ranked, self._slack)
        return self._chosen_tenant

    def _best_head(self, ranked: list[TenantRank], slack: int) -> str:
        """Return, of the tenants within slack of the first, the one with the head that the inner policy prefers."""
        # `(inf,)` is after every arrival, so a tenant that is exactly `slack` above the lowest counter is still
        # compared. If the inner policy has no key, all keys are `()` and the lowest counter goes first.
        # More than `_MAX_COMPARED` heads are not compared: each look starts a step in a subqueue.
        near = ranked[: min(_MAX_COMPARED, bisect_left(ranked, (ranked[0][0] + slack, (inf,))))]
        return min(near, key=lambda rank: (self._head_key(rank[2]), rank))[2]

    def _head_key(self, tenant: str) -> SortKey:
        queue = self.subqueues.started_queue(tenant)
        return (queue.head_key() if isinstance(queue, BaseQueue) else None) or ()
