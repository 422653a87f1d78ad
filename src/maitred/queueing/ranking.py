"""Ranking: the tenants of which somebody waits, in the order of their counters. Only those whose counter has changed find a new
place."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container
from typing import TypeAlias

from maitred.contracts import SortKey
from maitred.queueing.token_counters import TokenCounters

Rank: TypeAlias = tuple[float, SortKey, str]
"""Of a tenant: its counter, the arrival of its earliest request, its name."""


class Ranking:
    """See the module."""

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        self._ranked: list[Rank] = []
        self._ranks: dict[str, Rank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, tenant: str) -> bool:
        """Whether somebody waits of it, as of the last `ranked`."""
        return tenant in self._ranks

    def ranked(self) -> list[Rank]:
        """The first to go first, as of now."""
        changed = self._counters.changed
        for account in changed.values():
            before = self._ranks.pop(account.tenant, None)
            if before is not None:
                del self._ranked[bisect_left(self._ranked, before)]
            earliest = account.line.first_key()
            if earliest is not None:
                rank = self._ranks[account.tenant] = (self._counters.counter(account), earliest, account.tenant)
                insort(self._ranked, rank)
        changed.clear()
        return self._ranked

    def floor(self, joined: Container[str]) -> float | None:
        """The lowest counter of those that are not in `joined`; None: there are no others."""
        for counter, _, tenant in self.ranked():
            if tenant not in joined:
                return counter
        return None
