"""What each tenant was given, in units of prompt tokens: the accounts of `vtc`.

A prompt is charged when its request is admitted, and settled as its chunks are computed; whatever of it the prefix cache had
is given back when the sequence decodes. Output is charged as it comes out: a tenant of which d sequences decode gains d tokens
per step, so its counter follows from the step's number, and nobody counts tokens.

Ranking: the tenants of which somebody waits, in the order of their counters. Only those whose counter has changed find a new
place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container
from typing import TypeAlias

from maitred.core.contracts import SortKey
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.queueing.heap import SeqHeap

_SPARE_ACCOUNTS = 1024
"""So many more accounts than requests are kept before those that no longer matter are closed."""


class ServiceAccount:
    """What one tenant was given."""

    __slots__ = ("num_decoding", "num_requests", "origin_sum", "pending_prefill", "settled", "tenant", "waiting")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.settled = 0.0
        """Settled."""
        self.pending_prefill = 0
        """Prompt tokens of admitted requests that are still to be computed."""
        self.num_decoding = 0
        """Sequences that decode."""
        self.origin_sum = 0
        """Sum of the steps at which they would have begun to emit the tokens that are not settled yet."""
        self.num_requests = 0
        """That wait or run."""
        self.waiting = SeqHeap()
        """Those that wait, by arrival."""


class _RunningCharge:
    origin: int | None = None
    """Its part of `Account.origin_sum`; None: it is not known to decode."""

    def __init__(self, seq: SequenceState, account: ServiceAccount, pending_prefill: int) -> None:
        self.seq = seq
        self.account = account
        self.pending_prefill = pending_prefill
        """Its part of `Account.pending_prefill`."""


class TokenCounters:
    """The accounts of the tenants of one instance, as of step `step`."""

    def __init__(self, output_weight: float) -> None:
        self._weight = output_weight
        self.step = 0
        self._accounts: dict[str, ServiceAccount] = {}
        self._requests: dict[RequestId, ServiceAccount] = {}
        self._running: dict[RequestId, _RunningCharge] = {}
        self._prefilling: dict[RequestId, _RunningCharge] = {}
        self.decoding_accounts: dict[str, ServiceAccount] = {}
        """The accounts that grow with each step."""
        self.changed_accounts: dict[str, ServiceAccount] = {}
        """The accounts that changed since somebody last cleared this."""

    def counter(self, account: ServiceAccount) -> float:
        return (
            account.settled + account.pending_prefill + self._weight * (account.num_decoding * self.step - account.origin_sum)
        )

    def add_waiting(self, seq: SequenceState) -> ServiceAccount:
        """`seq` waits from now on. Returns its tenant's account."""
        account = self._account(seq.request.tenant)
        if self._requests.setdefault(seq.request.id, account) is account:
            account.num_requests += 1
        account.waiting.push((seq.request.arrival, seq.request.id), seq)
        self.changed_accounts[account.tenant] = account
        return account

    def remove_waiting(self, seq: SequenceState) -> ServiceAccount:
        """`seq` waits no more. Returns its tenant's account."""
        account = self._account(seq.request.tenant)
        account.waiting.remove(seq.request.id)
        self.changed_accounts[account.tenant] = account
        return account

    def admit(self, seq: SequenceState, prefill: int) -> ServiceAccount:
        """`seq` runs from now on, and is expected to compute `prefill` tokens. Returns its tenant's account."""
        account = self.remove_waiting(seq)
        account.pending_prefill += prefill
        self._running[seq.request.id] = self._prefilling[seq.request.id] = _RunningCharge(seq, account, prefill)
        return account

    def advance(self, step: int) -> None:
        """`step` steps have been made."""
        self.step = step
        for request_id, running in list(self._prefilling.items()):
            if running.seq.is_decoding:
                del self._prefilling[request_id]
                self._start_decoding(running)
        self.changed_accounts.update(self.decoding_accounts)

    def charge(self, seq: SequenceState, prefill: int, decode: int) -> None:
        """As `WaitQueue.on_served`: without prefill, `seq` decodes no more."""
        running = self._running.get(seq.request.id)
        account = self._account(seq.request.tenant) if running is None else running.account
        account.settled += prefill + self._weight * decode
        self.changed_accounts[account.tenant] = account
        if running is not None and prefill:
            paid = min(prefill, running.pending_prefill)
            running.pending_prefill -= paid
            account.pending_prefill -= paid
        elif running is not None:
            self._stop(running)

    def discard(self, seq: SequenceState) -> None:
        """`seq` is gone for good."""
        if (running := self._running.get(seq.request.id)) is not None:
            self._stop(running)
        if (account := self._requests.pop(seq.request.id, None)) is not None:
            account.num_requests -= 1

    def raise_to(self, account: ServiceAccount, floor: float) -> None:
        """It has at least `floor` from now on."""
        account.settled += max(0.0, floor - self.counter(account))
        self.changed_accounts[account.tenant] = account

    def close_idle(self, floor: float) -> None:
        """Forget the tenants without requests that would be lifted to `floor` if they came back, once there are many."""
        if len(self._accounts) > 2 * len(self._requests) + _SPARE_ACCOUNTS:
            self._accounts = {t: a for t, a in self._accounts.items() if a.num_requests or a.settled > floor}

    def __len__(self) -> int:
        """How many accounts are open."""
        return len(self._accounts)

    def _account(self, tenant: str) -> ServiceAccount:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = ServiceAccount(tenant)
        return account

    def _start_decoding(self, running: _RunningCharge) -> None:
        account = running.account
        account.pending_prefill -= running.pending_prefill
        running.pending_prefill = 0
        running.origin = running.seq.decode_origin_step + running.seq.num_accounted_output_tokens
        account.num_decoding += 1
        account.origin_sum += running.origin
        self.decoding_accounts[account.tenant] = account

    def _stop(self, running: _RunningCharge) -> None:
        """It runs no more."""
        account, request_id = running.account, running.seq.request.id
        account.pending_prefill -= running.pending_prefill
        if running.origin is not None:
            account.num_decoding -= 1
            account.origin_sum -= running.origin
            if not account.num_decoding:
                del self.decoding_accounts[account.tenant]
        del self._running[request_id]
        self._prefilling.pop(request_id, None)
        self.changed_accounts[account.tenant] = account


TenantRank: TypeAlias = tuple[float, SortKey, str]
"""Of a tenant: its counter, the arrival of its earliest request, its name."""


class TenantRanking:
    """See the module."""

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        self._ranked: list[TenantRank] = []
        self._ranks: dict[str, TenantRank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, tenant: str) -> bool:
        """Whether somebody waits of it, as of the last `ranked`."""
        return tenant in self._ranks

    def in_order(self) -> list[TenantRank]:
        """The first to go first, as of now."""
        changed = self._counters.changed_accounts
        for account in changed.values():
            before = self._ranks.pop(account.tenant, None)
            if before is not None:
                del self._ranked[bisect_left(self._ranked, before)]
            earliest = account.waiting.first_key()
            if earliest is not None:
                rank = self._ranks[account.tenant] = (self._counters.counter(account), earliest, account.tenant)
                insort(self._ranked, rank)
        changed.clear()
        return self._ranked

    def lowest_counter(self, excluding: Container[str]) -> float | None:
        """The lowest counter of those that are not in `joined`; None: there are no others."""
        for counter, _, tenant in self.in_order():
            if tenant not in excluding:
                return counter
        return None
