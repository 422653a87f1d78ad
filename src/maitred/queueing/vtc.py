"""vtc: virtual token counters, fairness among tenants.

Each tenant has a counter of the service it was given: one for a prompt token, `output_weight` for an output token. The tenant
with the lowest counter goes first, so no one who has work waiting can be left behind by more than a bounded amount. A tenant
that comes back after a pause is lifted to the lowest counter among those that wait, for unused service is not saved up.
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.)

A prompt is charged when its request is admitted, and settled as its chunks are computed; whatever of it the prefix cache had
is given back when it decodes. Output is charged as it comes out: a tenant of which d sequences decode gains d tokens per step,
so its counter follows from the step's number, and nobody counts tokens.

Which of the tenant's requests goes first, another policy says; each tenant has a lane. With `slack`, a tenant may also go
first whose counter is at most so much above the lowest, if its head is the better one by the policy inside: `vtc(lpm, slack=S)`
is a longest prefix match that a deficit bounds. Whoever waits is then left behind by at most so much more.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from random import Random
from typing import TypeAlias

import msgspec

from maitred.contracts import PrefixView, QueuePolicy, Seq, SortKey, StepView, WaitQueue
from maitred.queueing.fcfs import FirstComeFirstServed
from maitred.queueing.heap import SeqHeap
from maitred.queueing.lanes import LanedQueue, Lanes
from maitred.queueing.policy import SCHEDULERS, CacheAware, PolicyInfo, Queue
from maitred.queueing.wrapping import earliest
from maitred.request import RequestId
from maitred.units import Micros

_Rank: TypeAlias = tuple[float, SortKey, str]
"""Of a tenant: its counter, the arrival of its earliest request, its name."""

_FORGETFUL = 1024
"""So many more accounts than tenants with requests are kept before those that no longer matter are closed."""


@SCHEDULERS.register("vtc")
class VirtualTokenCounter(QueuePolicy):
    """The tenant with the lowest counter first; within a tenant, the policy inside. Among tenants within `slack` (in prompt
    tokens) of the lowest counter, the one whose head the policy inside prefers, if that can compare heads."""

    about = PolicyInfo(
        line="the tenant that was served least first, then the policy inside; within slack, the best head by that policy",
        complexity="as inside, and O(tenants waiting) per request admitted",
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


class _Account:
    """What a tenant was given."""

    __slots__ = ("ahead", "decoding", "line", "origins", "requests", "served")

    def __init__(self) -> None:
        self.served = 0.0
        """Settled, in units of prompt tokens."""
        self.ahead = 0
        """Prompt tokens of admitted requests that are still to be computed."""
        self.decoding = 0
        """Sequences that decode."""
        self.origins = 0
        """Sum of the steps at which they would have begun to emit tokens that are not settled yet."""
        self.requests = 0
        """That wait or run."""
        self.line = SeqHeap()
        """Its requests that wait, by arrival: of two tenants with equal counters goes first who has waited longer."""

    def counter(self, step: int, weight: float) -> float:
        return self.served + self.ahead + weight * (self.decoding * step - self.origins)


class _Running(msgspec.Struct, gc=False):
    seq: Seq
    account: _Account
    ahead: int
    origin: int | None = None
    """Its part of `_Account.origins`; None: it is not known to decode."""


class _Fair(LanedQueue):
    lanes: Lanes[str]

    def __init__(self, lanes: Lanes[str], prefix: PrefixView | None, slack: float, weight: float) -> None:
        self.lanes = lanes
        self._prefix, self._slack, self._weight = prefix, slack, weight
        self._accounts: dict[str, _Account] = {}
        self._requests: dict[RequestId, _Account] = {}
        self._waiting: dict[str, _Account] = {}
        """The tenants of which somebody waits."""
        self._joined: dict[str, None] = {}
        """Those of them that are still to be lifted: at the next pass, when the counters are known."""
        self._last: _Account | None = None
        """The tenant whose request was the last to leave the queue."""
        self._running: dict[RequestId, _Running] = {}
        self._prefilling: dict[RequestId, _Running] = {}
        self._step = 0
        self._ranked: list[_Rank] | None = None
        """The tenants that wait, by counter; None: to be found out."""
        self._chosen: str | None = None

    def add(self, seq: Seq, now: Micros, *, front: bool = False) -> None:
        tenant = seq.request.tenant
        account = self._account(seq)
        if not account.line:
            self._waiting[tenant] = account
            self._joined[tenant] = None
        self.lanes.add(tenant, seq, now, front=front)
        account.line.push((seq.request.arrival, seq.request.id), seq)
        self._ranked = self._chosen = None

    def remove(self, request_id: RequestId) -> Seq | None:
        seq = self.lanes.remove(request_id)
        if seq is not None:
            self._gone(seq)
            self._ranked = self._chosen = None
        return seq

    def begin(self, step: StepView, now: Micros) -> None:
        self.lanes.begin(step, now)
        self._step = step.number
        for request_id, running in list(self._prefilling.items()):
            if running.seq.decoding:
                del self._prefilling[request_id]
                self._decodes(running)
        self._lift()
        self._ranked = self._chosen = None

    def peek(self) -> Seq | None:
        tenant = self._choice()
        return None if tenant is None else self.lanes.queue(tenant).peek()

    def pop(self) -> Seq:
        tenant = self._choice()
        if tenant is None:
            raise IndexError("pop from an empty wait queue")
        seq = self.lanes.pop(tenant)
        account = self._waiting[tenant]
        ahead = seq.target - (self._prefix.match(seq.request) if self._prefix else 0)
        running = _Running(seq, account, max(ahead, 0))
        account.ahead += running.ahead
        self._running[seq.request.id] = self._prefilling[seq.request.id] = running
        self._gone(seq)
        self._rank_again(tenant, account)
        return seq

    def served(self, seq: Seq, prefill: int, decode: int, now: Micros) -> None:
        super().served(seq, prefill, decode, now)
        running = self._running.get(seq.request.id)
        account = self._account(seq) if running is None else running.account
        account.served += prefill + self._weight * decode
        if running is not None and prefill:
            paid = min(prefill, running.ahead)
            running.ahead -= paid
            account.ahead -= paid
        elif running is not None:
            self._stops(running)

    def left(self, seq: Seq, now: Micros) -> None:
        super().left(seq, now)
        if (running := self._running.get(seq.request.id)) is not None:
            self._stops(running)
        if (account := self._requests.pop(seq.request.id, None)) is not None:
            account.requests -= 1

    def stable_until(self, now: Micros) -> Micros | None:
        tenant = self._choice()
        if tenant is None:
            return None
        inside = self.lanes.queue(tenant).stable_until(now)
        gains = {account.decoding for account in self._waiting.values()}
        head_gains_least = not self._slack and self._waiting[tenant].decoding == min(gains)
        return inside if len(gains) == 1 or head_gains_least else earliest(now + 1, inside)

    def _account(self, seq: Seq) -> _Account:
        tenant = seq.request.tenant
        account = self._accounts.get(tenant)
        if account is None:
            self._close()
            account = self._accounts[tenant] = _Account()
        if seq.request.id not in self._requests:
            self._requests[seq.request.id] = account
            account.requests += 1
        return account

    def _close(self) -> None:
        """Forget the tenants without requests that would be lifted beyond what they have, if they came back."""
        if len(self._accounts) <= 2 * len(self._requests) + _FORGETFUL:
            return
        floor = self._floor(self._waiting.values())
        self._accounts = {
            tenant: account for tenant, account in self._accounts.items() if account.requests or account.served > floor
        }

    def _lift(self) -> None:
        """Unused service is not saved up: who joins has at least what the least served of those who wait has."""
        joined, self._joined = self._joined, {}
        if not joined:
            return
        known = [account for tenant, account in self._waiting.items() if tenant not in joined]
        floor = self._floor(known)
        for tenant in joined:
            account = self._waiting[tenant]
            account.served += max(0.0, floor - account.counter(self._step, self._weight))
            if not known:  # nobody waited; now the first who joins does
                known = [account]
                floor = self._floor(known)

    def _floor(self, waiting: Collection[_Account]) -> float:
        """The lowest counter of those who wait; if nobody does, that of the last who did."""
        last = 0.0 if self._last is None else self._last.counter(self._step, self._weight)
        return min((account.counter(self._step, self._weight) for account in waiting), default=last)

    def _decodes(self, running: _Running) -> None:
        running.account.ahead -= running.ahead
        running.ahead = 0
        running.origin = running.seq.origin + running.seq.charged
        running.account.decoding += 1
        running.account.origins += running.origin

    def _stops(self, running: _Running) -> None:
        """It runs no more."""
        account = running.account
        account.ahead -= running.ahead
        if running.origin is not None:
            account.decoding -= 1
            account.origins -= running.origin
        self._running.pop(running.seq.request.id, None)
        self._prefilling.pop(running.seq.request.id, None)

    def _gone(self, seq: Seq) -> None:
        """`seq` waits no more."""
        tenant = seq.request.tenant
        self._last = self._accounts[tenant]
        self._last.line.remove(seq.request.id)
        if not self._last.line:
            del self._waiting[tenant]
            self._joined.pop(tenant, None)

    def _ranking(self) -> list[_Rank]:
        if self._ranked is None:
            self._ranked = sorted(self._rank(tenant, account) for tenant, account in self._waiting.items())
        return self._ranked

    def _rank(self, tenant: str, account: _Account) -> _Rank:
        return (account.counter(self._step, self._weight), account.line.first_key() or (), tenant)

    def _rank_again(self, tenant: str, account: _Account) -> None:
        """It has been chosen, and paid for it."""
        self._chosen = None
        ranked = self._ranking()
        ranked[:] = [place for place in ranked if place[2] != tenant]
        if tenant in self._waiting:
            insort(ranked, self._rank(tenant, account))

    def _choice(self) -> str | None:
        """The tenant that goes first."""
        if self._chosen is None and self._waiting:
            ranked = self._ranking()
            limit = ranked[0][0] + self._slack
            near = [place for place in ranked if place[0] <= limit] if self._slack else ranked[:1]
            self._chosen = min(near, key=lambda place: (self._head_key(place[2]), place))[2]
        return self._chosen

    def _head_key(self, tenant: str) -> SortKey:
        queue = self.lanes.queue(tenant)
        return (queue.head_key() if isinstance(queue, Queue) else None) or ()
