"""Random numbers of a world: one seeded generator for each concern.

The order of events, the delay of bytes and each kind of fault draw from generators of their own. So a fault that is turned
off, or one more client, leaves the draws of everything else as they were: what a failure needs can be found by taking away the
rest.
"""

from __future__ import annotations

from random import Random


class Draws:
    """The generators that follow from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Random] = {}

    def of(self, concern: str) -> Random:
        """Return the generator of a concern, the same one at each call."""
        stream = self._streams.get(concern)
        if stream is None:
            stream = self._streams[concern] = Random(f"{self.seed}/{concern}")
        return stream
