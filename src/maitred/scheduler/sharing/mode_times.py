"""ModeTimes: how long one end of a link has been in each of its modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from maitred.core.units import Micros


class ModeTimes:
    """The times of one end."""

    def __init__(self, mode: str, now: Micros) -> None:
        self.mode = mode
        self._since, self._spans = now, Counter[str]()

    def enter(self, mode: str, now: Micros) -> None:
        """Note the mode from now on."""
        if mode != self.mode:
            self._spans[self.mode] += now - self._since
            self.mode, self._since = mode, now

    def spans(self, now: Micros) -> Mapping[str, Micros]:
        """Return the time in each mode so far, µs; 0 for one that never was."""
        spans = Counter(self._spans)
        spans[self.mode] += now - self._since
        return spans
