"""The marks that a gateway has to answer (`messages.Mark`)."""

from __future__ import annotations

from collections import deque
from typing import Final

from maitred.core.units import MILLISECOND, Micros
from maitred.scheduler.link.messages import Mark, Marked

_DELAY: Final[Micros] = 50 * MILLISECOND
"""From a mark to its answer: meanwhile the ends of responses are read that backends had sent when the mark came."""


class Marks:
    """The marks of one connection."""

    def __init__(self) -> None:
        self._marks: deque[tuple[Mark, Micros]] = deque()
        """Those that are not answered yet, with when their answers are due."""

    def add(self, mark: Mark, now: Micros) -> None:
        """Take a mark."""
        self._marks.append((mark, now + _DELAY))

    def clear(self) -> None:
        """Answer none of them."""
        self._marks.clear()

    def take_due(self, now: Micros) -> list[Marked]:
        """Return the answers that are due."""
        due = list[Marked]()
        while self._marks and now >= self._marks[0][1]:
            due.append(Marked(self._marks.popleft()[0].instant))
        return due

    @property
    def next_due(self) -> Micros | None:
        """When the next answer is due, µs, or None if there is none."""
        return self._marks[0][1] if self._marks else None
