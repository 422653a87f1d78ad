"""Recorded prompts are run-length coded; a prefix cache wants a key per page that stands for all up to there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

Runs: TypeAlias = Sequence[tuple[int, int]]
"""`[start, count]` stands for `start`, `start + 1`, ..."""
Namespace: TypeAlias = tuple[str | None, str | None]


def decoded(runs: Runs) -> list[int]:
    return [token for start, count in runs for token in range(start, start + count)]


def namespace(extra_key: str | None, cache_salt: str | None) -> Namespace:
    """Requests of different namespaces share nothing. An empty salt is none; an empty extra key is one."""
    return extra_key, cache_salt or None


class Keys:
    """Gives each (what is before, page) a number of its own."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._known: dict[tuple[Hashable, tuple[int, ...]], int] = {}

    def chain(self, space: Namespace, tokens: Sequence[int]) -> list[int]:
        """A key per full page."""
        before: Hashable = space
        keys = []
        for start in range(0, len(tokens) - self.page_size + 1, self.page_size):
            page = tuple(tokens[start : start + self.page_size])
            before = self._known.setdefault((before, page), len(self._known))
            keys.append(before)
        return keys
