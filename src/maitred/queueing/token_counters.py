"""What each tenant was given, in units of prompt tokens: the accounts of `vtc`.

A prompt is charged when its request is admitted, and settled as its chunks are computed; whatever of it the prefix cache had
is given back when the sequence decodes. Output is charged as it comes out: a tenant of which d sequences decode gains d tokens
per step, so its counter follows from the step's number, and nobody counts tokens.
"""

from __future__ import annotations

from maitred.queueing.heap import SeqHeap
from maitred.request import RequestId
from maitred.seq import Seq

_SPARE = 1024
"""So many more accounts than requests are kept before those that no longer matter are closed."""


class Account:
    """What one tenant was given."""

    __slots__ = ("ahead", "decoding", "line", "origins", "requests", "served", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.served = 0.0
        """Settled."""
        self.ahead = 0
        """Prompt tokens of admitted requests that are still to be computed."""
        self.decoding = 0
        """Sequences that decode."""
        self.origins = 0
        """Sum of the steps at which they would have begun to emit the tokens that are not settled yet."""
        self.requests = 0
        """That wait or run."""
        self.line = SeqHeap()
        """Those that wait, by arrival."""


class _Running:
    origin: int | None = None
    """Its part of `Account.origins`; None: it is not known to decode."""

    def __init__(self, seq: Seq, account: Account, ahead: int) -> None:
        self.seq = seq
        self.account = account
        self.ahead = ahead
        """Its part of `Account.ahead`."""


class TokenCounters:
    """The accounts of the tenants of one instance, as of step `step`."""

    def __init__(self, output_weight: float) -> None:
        self._weight = output_weight
        self.step = 0
        self._accounts: dict[str, Account] = {}
        self._requests: dict[RequestId, Account] = {}
        self._running: dict[RequestId, _Running] = {}
        self._prefilling: dict[RequestId, _Running] = {}
        self.decoding: dict[str, Account] = {}
        """The accounts that grow with each step."""
        self.changed: dict[str, Account] = {}
        """The accounts that changed since somebody last cleared this."""

    def counter(self, account: Account) -> float:
        return account.served + account.ahead + self._weight * (account.decoding * self.step - account.origins)

    def came(self, seq: Seq) -> Account:
        """`seq` waits from now on. Returns its tenant's account."""
        account = self._account(seq.request.tenant)
        if self._requests.setdefault(seq.request.id, account) is account:
            account.requests += 1
        account.line.push((seq.request.arrival, seq.request.id), seq)
        self.changed[account.tenant] = account
        return account

    def gone(self, seq: Seq) -> Account:
        """`seq` waits no more. Returns its tenant's account."""
        account = self._account(seq.request.tenant)
        account.line.remove(seq.request.id)
        self.changed[account.tenant] = account
        return account

    def admit(self, seq: Seq, prefill: int) -> Account:
        """`seq` runs from now on, and is expected to compute `prefill` tokens. Returns its tenant's account."""
        account = self.gone(seq)
        account.ahead += prefill
        self._running[seq.request.id] = self._prefilling[seq.request.id] = _Running(seq, account, prefill)
        return account

    def advance(self, step: int) -> None:
        """`step` steps have been made."""
        self.step = step
        for request_id, running in list(self._prefilling.items()):
            if running.seq.decoding:
                del self._prefilling[request_id]
                self._decodes(running)
        self.changed.update(self.decoding)

    def served(self, seq: Seq, prefill: int, decode: int) -> None:
        """As `WaitQueue.served`: without prefill, `seq` decodes no more."""
        running = self._running.get(seq.request.id)
        account = self._account(seq.request.tenant) if running is None else running.account
        account.served += prefill + self._weight * decode
        self.changed[account.tenant] = account
        if running is not None and prefill:
            paid = min(prefill, running.ahead)
            running.ahead -= paid
            account.ahead -= paid
        elif running is not None:
            self._stops(running)

    def left(self, seq: Seq) -> None:
        """`seq` is gone for good."""
        if (running := self._running.get(seq.request.id)) is not None:
            self._stops(running)
        if (account := self._requests.pop(seq.request.id, None)) is not None:
            account.requests -= 1

    def lift(self, account: Account, floor: float) -> None:
        """It has at least `floor` from now on."""
        account.served += max(0.0, floor - self.counter(account))
        self.changed[account.tenant] = account

    def close(self, floor: float) -> None:
        """Forget the tenants without requests that would be lifted to `floor` if they came back, once there are many."""
        if len(self._accounts) > 2 * len(self._requests) + _SPARE:
            self._accounts = {t: a for t, a in self._accounts.items() if a.requests or a.served > floor}

    def __len__(self) -> int:
        """How many accounts are open."""
        return len(self._accounts)

    def _account(self, tenant: str) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant)
        return account

    def _decodes(self, running: _Running) -> None:
        account = running.account
        account.ahead -= running.ahead
        running.ahead = 0
        running.origin = running.seq.origin + running.seq.charged
        account.decoding += 1
        account.origins += running.origin
        self.decoding[account.tenant] = account

    def _stops(self, running: _Running) -> None:
        """It runs no more."""
        account, request_id = running.account, running.seq.request.id
        account.ahead -= running.ahead
        if running.origin is not None:
            account.decoding -= 1
            account.origins -= running.origin
            if not account.decoding:
                del self.decoding[account.tenant]
        del self._running[request_id]
        self._prefilling.pop(request_id, None)
        self.changed[account.tenant] = account
