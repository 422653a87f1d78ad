"""MemoryForecast: how much KV memory the running requests will need at most, if their answers end when they are predicted to.

Memory falls only when a request ends, so its peaks are just before ends. With the requests in the order of their ends, last one
first, h(i) the tokens that request i holds now and r(i) those that it will still emit,

    M(i) = h(1) + ... + h(i) + i × r(i)

is what the requests 1 to i hold when request i ends: those behind it have ended before. The largest M is the need. (The memory
that a batch needs is foreseen like that in LightLLM's Past-Future scheduler, and in SGLang's `PrefillAdder` for `ignore_eos`.)

A candidate with h and r changes only what is held until it ends: M(i) + h + r(i) for the requests that end before it, and an M
of its own. So it is judged by a bisection, after one pass over the requests.

Example: two requests hold 80 and 5 tokens, and emit 10 and 100 more. Their peaks are 5 + 100 = 105 and 5 + 80 + 2 × 10 = 105.
With a candidate of 5 tokens that emits 50, the second peak is 105 + 5 + 10 = 120, and its own 5 + 5 + 2 × 50 = 110.

When all have made a step, every h is 1 larger and every r 1 smaller. So no M changes, and the peak with the candidate, which
has not begun, falls by 1 at most: a candidate that lacks n tokens lacks memory for n more steps.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class MemoryForecast:
    """The memory of some requests over time. All counts are tokens."""

    def __init__(self, requests: Iterable[tuple[int, int]]) -> None:
        """`requests` are pairs: the tokens that a request will still emit, and those that it holds."""
        self._requests = sorted(requests, reverse=True)
        self._added: list[tuple[int, int]] = []
        """Requests that began since the sums were made, of which few follow each other."""
        self._need_of_added = 0
        self._make_sums()

    def _make_sums(self) -> None:
        self._ends = [-left for left, _ in self._requests]
        self._held = list(accumulate([held for _, held in self._requests], initial=0))
        # By request: the largest M(i) + r(i) of this one and those that end before it.
        peaks = [self._held[number] + (number + 1) * left for number, (left, _) in enumerate(self._requests, 1)]
        peaks.append(0)
        self._peaks_with_another = list(accumulate(reversed(peaks), max))[::-1]

    @property
    def peak(self) -> int:
        """The largest need at any time."""
        self._merge()
        return max([self._held[number] + number * left for number, (left, _) in enumerate(self._requests, 1)], default=0)

    def missing(self, left: int, held: int, capacity: int) -> int:
        """Return how many of `capacity` tokens will be missing until such a candidate ends, or 0 or less if they suffice."""
        # Those that were added need at most all that they will hold at last, at the same time. Mostly that shows that there is
        # enough, and the sums are not made anew for each request that begins.
        missing = self._peak_with(left, held) + self._need_of_added - capacity
        if missing <= 0 or not self._added:
            return missing
        self._merge()
        return self._peak_with(left, held) - capacity

    def add(self, left: int, held: int) -> None:
        """Count a request that begins."""
        self._added.append((left, held))
        self._need_of_added += left + held

    def _peak_with(self, left: int, held: int) -> int:
        place = bisect_right(self._ends, -left)
        own = self._held[place] + held + (place + 1) * left
        return max(own, self._peaks_with_another[place] + held)

    def _merge(self) -> None:
        if self._added:
            self._requests = sorted([*self._requests, *self._added], reverse=True)
            self._added, self._need_of_added = [], 0
            self._make_sums()
