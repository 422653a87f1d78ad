"""The contexts that a program has in KV memory between its requests.

A program may have several contexts under one id: an agent and a small sub-agent, or branches of one thought. The KV of each
stays in memory when its request ends, so the program is as large as all of them together. Nothing says which context a request
continues; its size does:

    a request of t tokens continues the largest context of at most 9/8 t tokens;
    if all are larger, it continues the smallest of at most 3 t tokens;
    if all are larger than that, it begins a context of its own beside them;
    a context that the last 8 ends of requests have passed over is taken for dead;
    contexts that do not fit into the memory beside those in use have been evicted there, oldest first.

Example: an agent has ended a request with 10,000 tokens. Its sub-agent asks with 500, which does not continue 10,000, and the
program needs 10,500. The agent asks again with 10,300: that continues the 10,000, so 10,300 are under way and 500 are idle.
After a compaction it asks with 3,000, then 3,400, and so on: the old context counts until the eighth of these has ended. If it
had dropped less, and asked with 4,000, that would have continued the 10,300.

ThunderAgent knows one context: what the last request has ended with, until the next one comes.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, NamedTuple

MAX_PASSED: Final = 8
"""Ends of requests that a context outlives without being continued; hence also the most contexts that are idle. XXX: a guess.
To be measured: after how many requests of its other contexts a recorded agent comes back to one."""
_MOST_TRIMMED: Final = 3
"""The most times that a context is larger than a request that continues it."""


class IdleContext(NamedTuple):
    """A context of which no request is under way."""

    number: int
    """The number of the end of its last request, among all of its program."""
    tokens: int
    """Tokens of it that are in memory still."""


class IdleContexts:
    """The idle contexts of one program."""

    __slots__ = ("_is_one", "_num_ended", "all", "tokens")

    def __init__(self, *, is_one: bool) -> None:
        """`is_one` says whether only the last context is known, and until the next request only."""
        self._is_one = is_one
        self._num_ended = 0
        self.all: list[IdleContext] = []
        """All of them; the one that ended first is first."""
        self.tokens = 0
        """Tokens of all of them."""

    @property
    def last(self) -> int:
        """Tokens of the one that ended last, or 0."""
        return self.all[-1].tokens if self.all else 0

    def beside(self, under_way: int) -> int:
        """Return the tokens that the program needs with `under_way` tokens of requests."""
        return max(self.tokens, under_way) if self._is_one else self.tokens + under_way

    def begin_request(self, tokens: int, others: Collection[int] = (), limit: float = inf) -> None:
        """A request of `tokens` begins beside `others` that are under way: the context that it continues is idle no more.
        `limit`: the tokens of the largest program that fits into the memory."""
        if not self._is_one:
            continued = self._context_of(tokens)
            if continued is not None:
                self.all.remove(continued)
                self.tokens -= continued.tokens
            self._evict(self.tokens + sum(others) + tokens - limit)
        elif not others:
            self.clear()

    def _context_of(self, tokens: int) -> IdleContext | None:
        """Return the context that a request of `tokens` continues, or None; of equal ones the one that ended first."""
        largest = smallest = None
        for context in self.all:
            # A context grows from request to request. It may seem a little larger than the request, whose tokens may be an
            # estimate.
            if 8 * context.tokens <= 9 * tokens:
                if largest is None or context.tokens > largest.tokens:
                    largest = context
            # Agents drop old parts of a context that is full. What is smaller than a third of all is that of a small sub-agent,
            # or comes after a compaction. XXX: a guess; a wrong one counts a dead context, or one too few, for the next
            # requests. To be measured: by how much recorded agents compact.
            elif context.tokens <= _MOST_TRIMMED * tokens and (smallest is None or context.tokens < smallest.tokens):
                smallest = context
        return largest or smallest

    def end_request(self, tokens: int, others: Collection[int] = (), limit: float = inf) -> None:
        """A request has ended with a context of `tokens`; `others` and `limit` as in `begin_request`."""
        self._num_ended += 1
        if self.all:
            if self._is_one:
                self.clear()
            else:
                self._evict(self.tokens + sum(others) + tokens - limit)
            # A context that `MAX_PASSED` ends have passed over is dead, as after a compaction, though nothing says so.
            if self.all and self.all[0].number <= self._num_ended - MAX_PASSED:
                self.tokens -= self.all.pop(0).tokens
        self.all.append(IdleContext(self._num_ended, tokens))
        self.tokens += tokens

    def _evict(self, excess: float) -> None:
        """Count `excess` tokens less, if there are as many: those that ended first."""
        while excess >= 1 and self.all:  # engines evict what was used longest ago
            number, tokens = self.all.pop(0)
            evicted = min(tokens, int(excess))
            if tokens > evicted:
                self.all.insert(0, IdleContext(number, tokens - evicted))
            self.tokens -= evicted
            excess -= evicted

    def keep_last(self) -> None:
        """Forget all but the one that ended last: what is in memory is lost, and that one is expected to come back."""
        if len(self.all) > 1:
            del self.all[:-1]
            self.tokens = self.last

    def clear(self) -> None:
        """Forget all of them."""
        self.all.clear()
        self.tokens = 0
