"""vtc: virtual token counters, fairness among tenants.

Each tenant has a counter of the service it was given: one for a prompt token, `output_weight` for an output token. The tenant
with the lowest counter goes first, so no one who has work waiting can be left behind by more than a bounded amount. A tenant
that comes back after a pause is lifted to the lowest counter among those that wait, for unused service is not saved up.
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.)

How counters grow is in `token_counters`, the order of the tenants in `ranking`.

Which of the tenant's requests goes first, another policy says; each tenant has a lane. With `slack`, a tenant may also go
first whose counter is at most so much above the lowest, if its head is the better one by the policy inside: `vtc(lpm, slack=S)`
is a longest prefix match that a deficit bounds. Whoever waits is then left behind by at most so much more.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from random import Random

from maitred.contracts import PrefixView, QueuePolicy, SortKey, StepView, WaitQueue
from maitred.queueing.fcfs import FirstComeFirstServed
from maitred.queueing.laned import LanedQueue
from maitred.queueing.lanes import Lanes
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo, Queue
from maitred.queueing.ranking import Rank, Ranking
from maitred.queueing.token_counters import Account, TokenCounters
from maitred.queueing.wrapping import earliest
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros

_MOST_COMPARED = 64
"""Of the tenants within slack, only so many are compared: those with the lowest counters."""


@SCHEDULERS.register("vtc")
class VirtualTokenCounter(QueuePolicy):
    """The tenant with the lowest counter first; within a tenant, the policy inside. Among tenants within `slack` (in prompt
    tokens) of the lowest counter, the one whose head the policy inside prefers, if that can compare heads."""

    about = PolicyInfo(
        line="the tenant that was served least first, then the policy inside; within slack, the best head by that policy",
        complexity="as inside, and O(log tenants) per request and per tenant that decodes",
        starves="no tenant; within one, as inside",
        cache_aware=CacheAware.AS_INSIDE,
    )

    def __init__(self, policy: QueuePolicy | None = None, slack: float = 0.0, output_weight: float = 2.0) -> None:
        """`policy`: fcfs if nobody says. Raises ValueError for a negative slack or weight."""
        if not 0 <= slack <= 1e12:
            raise ValueError(f"slack must be from 0 to 1e12 tokens, not {slack}")
        if not 0 <= output_weight <= 1e6:
            raise ValueError(f"output_weight must be from 0 to 1e6, not {output_weight}")
        self.inside = FirstComeFirstServed() if policy is None else policy
        self._slack, self._weight = slack, output_weight

    def queue(self, prefix: PrefixView | None, rng: Random) -> WaitQueue:
        return _Fair(Lanes(self.inside, prefix, rng), prefix, self._slack, self._weight)


class _Fair(LanedQueue):
    lanes: Lanes[str]

    def __init__(self, lanes: Lanes[str], prefix: PrefixView | None, slack: float, weight: float) -> None:
        self.lanes = lanes
        self._prefix, self._slack = prefix, slack
        self._counters = TokenCounters(weight)
        self._joined: dict[str, Account] = {}
        """The tenants that are still to be lifted: at the next pass, when the counters are known."""
        self._last: Account | None = None
        """The tenant whose request was the last to leave the queue."""
        self._ranking = Ranking(self._counters)
        self._chosen: str | None = None

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        account = self._counters.came(seq)
        if len(account.line) == 1:
            self._joined[account.tenant] = account
        self.lanes.add(account.tenant, seq, now, front=front)
        self._chosen = None

    def remove(self, request_id: RequestId) -> Seq | None:
        seq = self.lanes.remove(request_id)
        if seq is not None:
            self._gone(self._counters.gone(seq))
        return seq

    def begin(self, step: StepView, now: Micros) -> None:
        self.lanes.begin(step, now)
        self._counters.advance(step.number)
        self._lift()
        self._chosen = None
        tenant = self._choice()
        if tenant is not None:
            self.lanes.queue(tenant)  # begins now: nobody's looking, or not looking, may tell

    def peek(self) -> Seq | None:
        tenant = self._choice()
        return None if tenant is None else self.lanes.queue(tenant).peek()

    def pop(self) -> Seq:
        tenant = self._choice()
        if tenant is None:
            raise IndexError("pop from an empty wait queue")
        seq = self.lanes.pop(tenant)
        cached = 0 if self._prefix is None else self._prefix.match(seq.request)
        self._gone(self._counters.admit(seq, max(0, seq.target - cached)))
        return seq

    def served(self, seq: Seq, prefill: int, decode: int, now: Micros) -> None:
        super().served(seq, prefill, decode, now)
        self._counters.served(seq, prefill, decode)

    def left(self, seq: Seq, now: Micros) -> None:
        super().left(seq, now)
        self._counters.left(seq)

    def stable_until(self, now: Micros) -> Micros | None:
        tenant = self._choice()
        if tenant is None:
            return None
        inside = self.lanes.queue(tenant).stable_until(now)
        return earliest(now + 1, inside) if self._may_be_overtaken(tenant) else inside

    def _may_be_overtaken(self, tenant: str) -> bool:
        """Whether steps may bring another tenant to the head: one that gains less than this, or with slack, than any."""
        gains = {t: account.decoding for t, account in self._counters.decoding.items() if t in self._ranking}
        least = min(gains.values(), default=0) if len(gains) == len(self._ranking) else 0
        if self._slack:
            return any(gain > least for gain in gains.values())
        return gains.get(tenant, 0) > least

    def _gone(self, account: Account) -> None:
        """One of its requests waits no more."""
        self._last = account
        self._chosen = None
        if not account.line:
            self._joined.pop(account.tenant, None)

    def _lift(self) -> None:
        """Unused service is not saved up: who joins has at least what the least served of those who wait has; where nobody
        waits, what the last one had who did."""
        joined, self._joined = self._joined, {}
        if not joined:
            return
        counter = self._counters.counter
        last = 0.0 if self._last is None else counter(self._last)
        floor = self._ranking.floor(joined)
        self._counters.close(last if floor is None else floor)
        for account in joined.values():
            self._counters.lift(account, last if floor is None else floor)
            if floor is None:  # nobody waited; now the first who joins does
                floor = counter(account)

    def _choice(self) -> str | None:
        """The tenant that goes first; it stays so until the next pass, or until somebody comes or goes."""
        if self._chosen is None and (ranked := self._ranking.ranked()):
            self._chosen = self._best_head(ranked) if self._slack else ranked[0][2]
        return self._chosen

    def _best_head(self, ranked: list[Rank]) -> str:
        """Of the tenants within slack of the first, the one whose head the policy inside prefers."""
        near = ranked[: min(_MOST_COMPARED, bisect_left(ranked, (ranked[0][0] + self._slack, (inf,))))]
        return min(near, key=lambda rank: (self._head_key(rank[2]), rank))[2]

    def _head_key(self, tenant: str) -> SortKey:
        queue = self.lanes.queue(tenant)
        return (queue.head_key() if isinstance(queue, Queue) else None) or ()
