"""The counters of `vtc`: how much service each tenant was given, in units of prompt tokens, and the order of the tenants by
that.

A prompt is charged when its request is admitted (`pending_prefill`), and settled as its chunks are computed; what the prefix
cache had of it is given back when the sequence begins to decode. Output tokens are charged as they come out. A tenant of which
d sequences decode gains d output tokens per step, so its counter follows from the step index, and nothing is done per token:

    counter = raised + settled_prefill + pending_prefill
              + output_weight * (settled_output + num_decoding * step - origin_sum)

A simulation that skips steps settles tokens more rarely, and reads the counters more rarely, and must order the tenants alike.
So counters are exact: whole numbers of `1 / units` prompt tokens, where `output_weight` is a whole number of units too, as each
float is (0.5 is 1 of 2). Floats would part two tenants that are equal by a rounding error.

For example, with `output_weight` 2 a tenant has had 100 prompt tokens computed, and two of its sequences have decoded since
steps 10 and 14. At step 20 its counter is 100 + 2 * (2 * 20 - 24) = 132: 10 and 6 output tokens. When the first of them ends,
`charge` settles its 10 tokens, and 10 is taken off `origin_sum`.

This module is compiled with mypyc where a build asks for it (tools/compile.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container
from typing import TypeAlias

from maitred.core.contracts import SortKey
from maitred.core.lazy_heap import IndexedHeap
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState

_SPARE_ACCOUNTS = 1024
"""Accounts of idle tenants are closed when the accounts outnumber the requests by this."""


class ServiceAccount:
    """What one tenant was given."""

    __slots__ = (
        "num_decoding",
        "num_requests",
        "origin_sum",
        "pending_prefill",
        "raised",
        "settled_output",
        "settled_prefill",
        "tenant",
        "waiting",
    )

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.raised = 0
        """What was added when the tenant had requests again after it had none, in units (see `TokenCounters`)."""
        self.settled_prefill = 0
        """Prompt tokens computed."""
        self.settled_output = 0
        """Output tokens of sequences, or parts of them, that decode no more."""
        self.pending_prefill = 0
        """Prompt tokens of admitted requests that are still to be computed."""
        self.num_decoding = 0
        """Sequences that decode."""
        self.origin_sum = 0
        """Sum over the decoding sequences of the step at which each began to emit the tokens that are not settled yet."""
        self.num_requests = 0
        """Requests in the instance, waiting or running."""
        self.waiting: IndexedHeap[RequestId, SortKey, SequenceState] = IndexedHeap()
        """The waiting requests, by arrival."""


class _RunningCharge:
    """What one admitted sequence adds to the account of its tenant."""

    origin: int | None = None
    """What the sequence adds to `origin_sum`, or None while it is not known to decode."""

    def __init__(self, seq: SequenceState, account: ServiceAccount, pending_prefill: int) -> None:
        self.seq = seq
        self.account = account
        self.pending_prefill = pending_prefill
        """What the sequence adds to the account's `pending_prefill`."""


class TokenCounters:
    """The accounts of the tenants of one instance, as of step `step`."""

    def __init__(self, output_weight: float) -> None:
        self._weight, self.units = output_weight.as_integer_ratio()
        """What an output token counts, and a prompt token."""
        self.step = 0
        self._accounts: dict[str, ServiceAccount] = {}
        self._requests: dict[RequestId, ServiceAccount] = {}
        self._running: dict[RequestId, _RunningCharge] = {}
        self._prefilling: dict[RequestId, _RunningCharge] = {}
        self.decoding_accounts: dict[str, ServiceAccount] = {}
        """The accounts with sequences that decode, which grow with each step."""
        self.changed_accounts: dict[str, ServiceAccount] = {}
        """The accounts that changed since `TenantRanking` last cleared this."""

    def counter(self, account: ServiceAccount) -> int:
        """Return the service that `account` was given, as of `step`, in units."""
        output = account.settled_output + account.num_decoding * self.step - account.origin_sum
        return account.raised + self.units * (account.settled_prefill + account.pending_prefill) + self._weight * output

    def add_waiting(self, seq: SequenceState) -> ServiceAccount:
        """Note that `seq` waits. Returns its tenant's account."""
        account = self._account(seq.request.tenant)
        if seq.request.id not in self._requests:  # a preempted one is there already
            self._requests[seq.request.id] = account
            account.num_requests += 1
        account.waiting.push(seq.request.id, (seq.request.arrival, seq.request.id), seq)
        self.changed_accounts[account.tenant] = account
        return account

    def remove_waiting(self, seq: SequenceState) -> ServiceAccount:
        """Note that `seq` waits no more. Returns its tenant's account."""
        account = self._account(seq.request.tenant)
        account.waiting.remove(seq.request.id)
        self.changed_accounts[account.tenant] = account
        return account

    def admit(self, seq: SequenceState, prefill_tokens: int) -> ServiceAccount:
        """Note that `seq` runs, and is expected to compute `prefill_tokens`. Returns its tenant's account."""
        account = self.remove_waiting(seq)
        account.pending_prefill += prefill_tokens
        charge = _RunningCharge(seq, account, prefill_tokens)
        self._running[seq.request.id] = self._prefilling[seq.request.id] = charge
        return account

    def advance(self, step: int) -> None:
        """Set the index of the step."""
        self.step = step
        for request_id, charge in list(self._prefilling.items()):
            if charge.seq.is_decoding:
                del self._prefilling[request_id]
                self._start_decoding(charge)
        self.changed_accounts.update(self.decoding_accounts)

    def charge(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int) -> None:
        """Settle what `seq` was given, as `WaitQueue.on_served` says: without prefill tokens, it decodes no more."""
        charge = self._running.get(seq.request.id)
        account = self._account(seq.request.tenant) if charge is None else charge.account
        account.settled_prefill += prefill_tokens
        account.settled_output += decode_tokens
        self.changed_accounts[account.tenant] = account
        if charge is not None and prefill_tokens:
            paid = min(prefill_tokens, charge.pending_prefill)
            charge.pending_prefill -= paid
            account.pending_prefill -= paid
        elif charge is not None:
            self._stop(charge)

    def discard(self, seq: SequenceState) -> None:
        """Forget `seq`, which has left the instance for good."""
        if (charge := self._running.get(seq.request.id)) is not None:
            self._stop(charge)
        if (account := self._requests.pop(seq.request.id, None)) is not None:
            account.num_requests -= 1

    def raise_to(self, account: ServiceAccount, floor: int) -> None:
        """Raise the counter of `account` to `floor` if it is lower."""
        account.raised += max(0, floor - self.counter(account))
        self.changed_accounts[account.tenant] = account

    def close_idle(self, floor: int) -> None:
        """Forget, once there are many, the tenants without requests that would be raised to `floor` if they came back."""
        if len(self._accounts) > 2 * len(self._requests) + _SPARE_ACCOUNTS:
            self._accounts = {t: a for t, a in self._accounts.items() if a.num_requests or self.counter(a) > floor}

    def __len__(self) -> int:
        """The number of open accounts."""
        return len(self._accounts)

    def _account(self, tenant: str) -> ServiceAccount:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = ServiceAccount(tenant)
        return account

    def _start_decoding(self, charge: _RunningCharge) -> None:
        account = charge.account
        account.pending_prefill -= charge.pending_prefill  # what is left of it was in the prefix cache
        charge.pending_prefill = 0
        # Tokens from before a preemption are settled already: it is as if the sequence had begun that much later.
        charge.origin = charge.seq.decode_origin_step + charge.seq.num_accounted_output_tokens
        account.num_decoding += 1
        account.origin_sum += charge.origin
        self.decoding_accounts[account.tenant] = account

    def _stop(self, charge: _RunningCharge) -> None:
        """Note that a sequence runs no more."""
        account, request_id = charge.account, charge.seq.request.id
        account.pending_prefill -= charge.pending_prefill
        if charge.origin is not None:
            account.num_decoding -= 1
            account.origin_sum -= charge.origin
            if not account.num_decoding:
                del self.decoding_accounts[account.tenant]
        del self._running[request_id]
        self._prefilling.pop(request_id, None)
        self.changed_accounts[account.tenant] = account


TenantRank: TypeAlias = tuple[int, SortKey, str]
"""Of a tenant: its counter, the arrival and id of its earliest waiting request, its name."""


class TenantRanking:
    """The tenants with waiting requests, in the order of their counters. Only those that changed are sorted in again."""

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        self._ranked: list[TenantRank] = []
        self._ranks: dict[str, TenantRank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, tenant: str) -> bool:
        """Whether requests of `tenant` waited, as of the last `in_order`."""
        return tenant in self._ranks

    def in_order(self) -> list[TenantRank]:
        """Return the tenants by counter, the lowest first, as of now."""
        changed = self._counters.changed_accounts
        for account in changed.values():
            before = self._ranks.pop(account.tenant, None)
            if before is not None:
                del self._ranked[bisect_left(self._ranked, before)]
            earliest = account.waiting.peek_key()
            if earliest is not None:
                rank = self._ranks[account.tenant] = (self._counters.counter(account), earliest, account.tenant)
                insort(self._ranked, rank)
        changed.clear()
        return self._ranked

    def lowest_counter(self, excluding: Container[str]) -> int | None:
        """Return the lowest counter of the tenants that are not in `excluding`, or None if there are no others."""
        for counter, _, tenant in self.in_order():
            if tenant not in excluding:
                return counter
        return None
