"""Window: what was reserved within the last minute or day. Reservation: what one request has reserved, in several of them.

Nothing is kept of single requests. The span is cut into 60 slots, and what was reserved in a slot counts until the *end* of
that slot is a span ago. So room comes back at most a sixtieth of the span too late, and never too early.

Example: 100 tokens per minute, slots of 1 s. A request reserves 80 at 0.4 s, another is refused 40 at 30 s: the 80 count until
61 s, when the first slot is 60 s old. If the first one ends at 20 s and has used 50, there is room for 50 at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from maitred.admission.terms.limits import LimitState, LimitStatus
from maitred.core.units import Micros

NUM_SLOTS: Final = 60
"""Slots of a window: room comes back a sixtieth of the span late at most, and 60 pairs of numbers are all that is kept. (A
token bucket, which is one number, lets twice the limit through within a span.)"""
WindowKey: TypeAlias = tuple[str, str, str | None]
"""The key of a limit, a tenant, and a model, None: all of them."""


class UsageWindow:
    """The sum of all that was reserved within the last span. `now` never runs backwards."""

    __slots__ = ("_slots", "_span", "_width", "key", "used")

    def __init__(self, span: Micros, key: WindowKey = ("", "", None)) -> None:
        """`key` says what is counted here."""
        self.key = key
        self._span, self._width = span, span // NUM_SLOTS
        self._slots: deque[list[int]] = deque()
        """Number and sum of each slot in which something was reserved, oldest first."""
        self.used = 0
        """Their sum."""

    def expire(self, now: Micros) -> None:
        """Forget what does not count any more."""
        slots = self._slots
        while slots and self._gone_at(slots[0][0]) <= now:
            self.used -= slots.popleft()[1]

    def add(self, amount: int, now: Micros) -> int:
        """Count `amount` from now on. Return the number of its slot."""
        number, slots = now // self._width, self._slots
        if slots and slots[-1][0] == number:
            slots[-1][1] += amount
        else:
            slots.append([number, amount])
        self.used += amount
        return number

    def give_back(self, amount: int, number: int) -> None:
        """Count less of what was reserved in a slot, if that still counts."""
        for slot in reversed(self._slots):
            if slot[0] == number:
                slot[1] -= amount
                self.used -= amount
                return

    def aged(self, now: Micros) -> list[tuple[Micros, int]]:
        """Return the age of each slot, from its beginning, and its sum."""
        return [(now - number * self._width, amount) for number, amount in self._slots]

    def recall(self, aged: Sequence[tuple[Micros, int]], now: Micros) -> list[tuple[int, int]]:
        """Count what another window of this span had as well, as `aged` has returned it, aged since. Return number of slot and
        amount of each. A slot here begins later than its like there by up to its width, so nothing is forgotten too early."""
        newest = now // self._width
        added = [(min(-((age - now) // self._width), newest), amount) for age, amount in aged if amount]
        sums = {slot[0]: slot[1] for slot in self._slots}
        for number, amount in added:
            sums[number] = sums.get(number, 0) + amount
        self._slots = deque([number, sums[number]] for number in sorted(sums))
        self.used = sum(sums.values())
        self.expire(now)
        return added

    def wait_for(self, amount: int, limit: int, now: Micros) -> Micros | None:
        """Return the time until there is room for `amount` if nothing else happens, or None if there never is."""
        if amount > limit:
            return None
        used = self.used
        for number, reserved in self._slots:
            if used + amount <= limit:
                break
            used -= reserved
            wait = self._gone_at(number) - now
        return wait if self.used + amount > limit else 0

    def state(self, limit: int, now: Micros) -> LimitState:
        """Return the state of the window under `limit`. To be called after `expire`."""
        reset = self._gone_at(self._slots[-1][0]) - now if self.used else 0
        return LimitState(limit, max(0, limit - self.used), reset)

    def _gone_at(self, number: int) -> Micros:
        return (number + 1) * self._width + self._span


class WindowShare(NamedTuple):
    """The part of a reservation that is in one window."""

    window: UsageWindow
    slot: int
    amount: int
    is_of_tokens: bool


class Reservation:
    """The reservation of one request."""

    __slots__ = ("shares", "status")

    def __init__(self, shares: Sequence[WindowShare], status: LimitStatus) -> None:
        self.shares = shares
        self.status = status
        """The limits that its client is told."""

    def give_back(self) -> None:
        """Count nothing of the request any more."""
        for share in self.shares:
            share.window.give_back(share.amount, share.slot)

    def settle(self, tokens: int, now: Micros) -> None:
        """Count the tokens that the request had in place of those that it has reserved."""
        for share in self.shares:
            if share.is_of_tokens and tokens < share.amount:
                share.window.give_back(share.amount - tokens, share.slot)
            elif share.is_of_tokens and tokens > share.amount:
                share.window.add(tokens - share.amount, now)
