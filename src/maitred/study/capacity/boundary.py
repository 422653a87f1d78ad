"""The bisection behind every answer of `maitred capacity`: sizes, rates, ends of intervals, and how slow steps may be."""

from __future__ import annotations


class BoundarySearch:
    """Finds the largest whole number that holds, from `low` to `high`. Call `next_number` and `tell` in turn.

    If a number holds, everything below is taken to hold. The search begins at an estimate, takes steps of 1, 2, 4, ... away
    from it until one number holds and one does not, and halves the interval between them. From a good estimate that is four or
    five numbers, however many there could be.

        estimate 10, truth 12:     10 holds, 11 holds, 13 does not, 12 holds     ->  12 in four numbers
    """

    def __init__(self, low: int, high: int, start: int) -> None:
        """`start` is the estimate."""
        self._low, self._high = low, high
        self._holds, self._fails = low - 1, high + 1
        self._start = min(max(start, low), high)
        self._step = 1

    @property
    def largest(self) -> int | None:
        """The largest number that holds, as far as it is known; None if none is known."""
        return self._holds if self._holds >= self._low else None

    def next_number(self) -> int | None:
        """Return the number to be tried next, or None if the search has ended."""
        if self._fails - self._holds == 1:
            return None
        none_holds, none_fails = self._holds < self._low, self._fails > self._high
        if none_holds and none_fails:
            return self._start
        if none_fails or none_holds:
            away = self._holds + self._step if none_fails else self._fails - self._step
            self._step *= 2
            return min(max(away, self._low), self._high)
        return (self._holds + self._fails) // 2

    def tell(self, number: int, holds: bool) -> None:
        """Report whether a number holds."""
        if holds:
            self._holds = max(self._holds, number)
        else:
            self._fails = min(self._fails, number)
