"""UsageLimits: how many requests and tokens a tenant may have per minute and per day.

A request *reserves* when it asks to enter: one request, and the tokens that it is expected to take (`Ticket.cost`). It is
refused, and reserves nothing, if one of its limits has no room for that. When it has ended, it is *settled*: tokens that it
reserved and did not use are given back, and what it used beyond counts from then on. A request whose answer never began, and
which its client did not give up while an engine had it, is given back whole.

    The rule: of what was reserved, no more than the limit lies within any 60 seconds (any 24 hours).

It is counted in `waiting.usage_window`.

Which rules hold for a request: of the rules for all models together that of its tenant, else that for each tenant; and likewise
of the rules for its model, else of those for each model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from maitred.admission.gates.policy_gate import Refusal
from maitred.admission.terms.enums import ReleaseReason
from maitred.admission.terms.limits import EACH, LIMIT_KEYS, LimitRule, LimitState, LimitStatus, UsageRecord
from maitred.admission.terms.ticket import SLOT_HOLDING_STATES, Ticket, TicketState
from maitred.admission.waiting.usage_window import Reservation, UsageWindow, WindowKey, WindowShare
from maitred.core.request import RequestId
from maitred.core.units import SECOND, Micros, to_seconds

MAX_WINDOWS: Final = 100_000
"""Windows that are kept. Beyond, those are forgotten that have been used least recently: clients may invent tenants."""
_MINUTE: Final = 60 * SECOND
_DAY: Final = 24 * 3600 * SECOND
_LEFT_AT_ENGINE: Final = (ReleaseReason.CLIENT_GONE, ReleaseReason.GATEWAY_GONE)
"""Ends of requests that an engine may have worked for."""


class LimitKind(NamedTuple):
    """A kind of limit."""

    key: str
    words: str
    span: Micros
    is_of_tokens: bool


KINDS: Final = tuple(
    LimitKind(key, key.replace("_", " "), _MINUTE if key.endswith("minute") else _DAY, key.startswith("tokens"))
    for key in LIMIT_KEYS
)


class _Bound(NamedTuple):
    """A limit that holds for a request."""

    kind: LimitKind
    limit: int
    window: UsageWindow


class UsageLimits:
    """The windows of all tenants, and what the requests have reserved that are there."""

    def __init__(self, reserved: dict[RequestId, Reservation]) -> None:
        """`reserved` gets the reservations by request. A pool that rejects a request takes its reservation out."""
        self.is_on = False
        """Whether there are rules."""
        self._reserved = reserved
        self._windows: dict[WindowKey, UsageWindow] = {}
        """The one used last is last."""
        self._changed: dict[WindowKey, UsageWindow] = {}
        """Those that `take_changed` has not returned since."""
        self._recalled: dict[WindowKey, list[tuple[int, int]]] = {}
        """The amounts that were taken over of each, with the numbers of their slots."""
        self._rules: dict[tuple[str, str | None], LimitRule] = {}

    def use(self, rules: Sequence[LimitRule]) -> None:
        """Go by other rules from now on. What was counted stays."""
        self._rules, self.is_on = {(rule.tenant, rule.model): rule for rule in rules}, bool(rules)

    @property
    def has_windows(self) -> bool:
        """Whether anything was counted."""
        return bool(self._windows)

    def mark_all(self) -> None:
        """Have `take_changed` return all windows."""
        self._changed = dict(self._windows)

    def take_changed(self, most: int, now: Micros) -> list[UsageRecord]:
        """Return windows that have changed since they were returned, `most` at most, those first that changed first."""
        taken = []
        for key in [*islice(self._changed, most)]:
            window = self._changed.pop(key)
            window.expire(now)
            kind, tenant, model = key
            aged = [(age, amount) for age, amount in window.aged(now) if amount]
            taken.append(UsageRecord(kind, tenant, model, aged))  # type: ignore[arg-type]
        return taken

    def recall(self, records: Sequence[UsageRecord], now: Micros, *, anew: bool = False) -> None:
        """Count what another process had counted, in place of what was recalled of these windows before; `anew`: and nothing
        else. What was counted here since stays."""
        if anew:
            for counted in (self._windows, self._changed, self._recalled):
                counted.clear()
        for record in records:
            kind = next(kind for kind in KINDS if kind.key == record.kind)
            window = self._window(kind, record.tenant, record.model, now)
            for number, amount in self._recalled.pop(record.key, ()):
                window.give_back(amount, number)
            self._recalled[record.key] = window.recall(record.aged, now)
            self._changed[record.key] = window

    def reserve(self, ticket: Ticket, now: Micros) -> Refusal | None:
        """Reserve what a newcomer needs; or return why it is refused."""
        bounds = [*self._bounds(ticket, now)]
        refused = [refusal for bound in bounds if (refusal := _refusal(bound, ticket, now)) is not None]
        if refused:
            # The one that lasts longest: who comes back when another limit has room again would be refused by this one.
            return max(refused, key=_severity)
        self._changed |= {bound.window.key: bound.window for bound in bounds}
        shares = [
            WindowShare(b.window, b.window.add(need, now), need, b.kind.is_of_tokens) for b, need in _needs(bounds, ticket)
        ]
        if shares:
            self._reserved[ticket.id] = Reservation(shares, _status(bounds, now))
        return None

    def settle(self, request_id: RequestId, state: TicketState, end: ReleaseReason, tokens: int | None, now: Micros) -> None:
        """Settle what a request has reserved that has left. `state` is that in which it was, `tokens` what it had, if known."""
        reservation = self._reserved.pop(request_id, None)
        if reservation is None:
            return
        is_at_engine = state in SLOT_HOLDING_STATES and end in _LEFT_AT_ENGINE
        windows = [share.window for share in reservation.shares]
        # Not one that was forgotten meanwhile: what counts now of its key is another one.
        self._changed |= {window.key: window for window in windows if self._windows.get(window.key) is window}
        if state is not TicketState.STREAMING and not is_at_engine:
            reservation.give_back()
        elif tokens is not None:
            reservation.settle(tokens, now)

    def status(self, request_id: RequestId) -> LimitStatus | None:
        """Return the tightest limits that hold for a request that is here, as they were when it came; None if none holds."""
        reservation = self._reserved.get(request_id)
        return None if reservation is None else reservation.status

    def _bounds(self, ticket: Ticket, now: Micros) -> Iterator[_Bound]:
        for model, rule in self._rules_of(ticket):
            for kind in KINDS:
                limit = getattr(rule, kind.key)
                if limit is not None:
                    yield _Bound(kind, limit, self._window(kind, ticket.tenant, model, now))

    def _rules_of(self, ticket: Ticket) -> Iterator[tuple[str | None, LimitRule]]:
        """Yield the rules for a request, and of which model each is; None: of all."""
        rules, tenant, model = self._rules, ticket.tenant, ticket.pool
        rule = rules.get((tenant, None)) or rules.get((EACH, None))
        if rule is not None:
            yield None, rule
        keys = ((tenant, model), (EACH, model), (tenant, EACH), (EACH, EACH))
        rule = next((found for key in keys if (found := rules.get(key)) is not None), None)
        if rule is not None:
            yield model, rule

    def _window(self, kind: LimitKind, tenant: str, model: str | None, now: Micros) -> UsageWindow:
        key, windows = (kind.key, tenant, model), self._windows
        # Taken out and put back, so that the dict is in the order of use.
        window = windows.pop(key, None) or UsageWindow(kind.span, key)
        windows[key] = window
        if len(windows) > MAX_WINDOWS:
            oldest = next(iter(windows))
            for known in (windows, self._changed, self._recalled):
                known.pop(oldest, None)
        window.expire(now)
        return window


def _needs(bounds: Sequence[_Bound], ticket: Ticket) -> Iterator[tuple[_Bound, int]]:
    return ((bound, ticket.cost if bound.kind.is_of_tokens else 1) for bound in bounds)


def _refusal(bound: _Bound, ticket: Ticket, now: Micros) -> Refusal | None:
    kind, limit, window = bound
    need = ticket.cost if kind.is_of_tokens else 1
    if window.used + need <= limit:
        return None
    wait = window.wait_for(need, limit, now)
    message = f"Rate limit reached for {kind.words}: limit {limit}, used {window.used}, requested {need}. "
    message += "It would be exceeded at any time." if wait is None else f"Try again in {to_seconds(wait):.0f} s."
    status = _status([bound], now)
    return Refusal(kind.key, message=message, retry_after=wait, is_final=wait is None, limits=status)


def _severity(refusal: Refusal) -> tuple[bool, Micros]:
    """Return what is larger for the refusal that lasts longer."""
    return refusal.is_final, refusal.retry_after or 0


def _status(bounds: Sequence[_Bound], now: Micros) -> LimitStatus:
    told: dict[bool, LimitState] = {}
    for kind, limit, window in bounds:
        state, before = window.state(limit, now), told.get(kind.is_of_tokens)
        if before is None or state.remaining < before.remaining:
            told[kind.is_of_tokens] = state
    return LimitStatus(told.get(False), told.get(True))
