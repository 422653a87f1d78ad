"""Recorded prompts are run-length coded. A prefix cache needs a key for each page, which stands for all tokens up to
there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from maitred.compat.sglang.orders import PrioritySign

Runs: TypeAlias = Sequence[tuple[int, int]]
"""`[start, count]` stands for `start`, `start + 1`, ..."""
Namespace: TypeAlias = tuple[str | None, str | None]


def decoded(runs: Runs) -> list[int]:
    return [token for start, count in runs for token in range(start, start + count)]


def namespace(extra_key: str | None, cache_salt: str | None) -> Namespace:
    """Return the namespace: requests of different ones share nothing.

    An empty salt counts as none, an empty extra key does not.
    """
    return extra_key, cache_salt or None


def default_priority(sign: PrioritySign) -> int:
    """Return SGLang's value for a request without a priority: nothing is less urgent."""
    return sign * (1 << 63) - (sign is PrioritySign.LOW_FIRST)


class Keys:
    """Gives each pair of a page and what is before it a number of its own."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._known: dict[tuple[Hashable, tuple[int, ...]], int] = {}

    def page_keys(self, space: Namespace, tokens: Sequence[int]) -> list[int]:
        """Return a key for each full page."""
        before: Hashable = space
        keys = []
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            page = tuple(tokens[start : start + self.page_size])
            before = self._known.setdefault((before, page), len(self._known))
            keys.append(before)
        return keys
