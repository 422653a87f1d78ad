"""Who has waited longer than the threshold of its class, and may be promoted (see `promotions`).

Looking at every queue at every admission would cost more than all the rest. So it is known since when somebody may starve, and
before that nobody is looked at: who joins can only bring that forward, and when nobody was found it is reckoned anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from maitred.admission.queues import LaneQueue
from maitred.admission.rules import LaneRules
from maitred.admission.ticket import Ticket
from maitred.units import Micros

_NEVER: Final[Micros] = 1 << 62


class Starving:
    """Those who starve in `queues`, by lane."""

    __slots__ = ("_lanes", "_rules", "since")

    def __init__(self, queues: Sequence[LaneQueue], rules: Sequence[LaneRules]) -> None:
        self._rules = rules
        self._lanes = [(queues[lane], r.starvation) for lane, r in enumerate(rules) if r.starvation is not None]
        """Queues from which somebody may be promoted, least urgent first, with the time after which he may."""
        self.since: Micros = _NEVER
        """Nobody who waits has starved before this instant."""

    def joined(self, ticket: Ticket) -> None:
        """It stands in the queue of its lane now."""
        threshold = self._rules[ticket.lane].starvation
        if threshold is not None:
            self.since = min(self.since, ticket.submitted_at + threshold + 1)

    def heads(self, now: Micros) -> Iterator[Ticket]:
        """Of each queue the next one, if he starves; least urgent first. To be asked from `since` on."""
        for queue, threshold in self._lanes:
            head = queue.peek()
            if head is not None and now - head.submitted_at > threshold:
                yield head
        oldest = [(queue.oldest(), threshold) for queue, threshold in self._lanes]
        self.since = min((t.submitted_at + threshold + 1 for t, threshold in oldest if t is not None), default=_NEVER)

    def next_after(self, now: Micros) -> Micros | None:
        """When the next of those who are next in their queues begins to starve."""
        heads = [(queue.peek(), threshold) for queue, threshold in self._lanes]
        starve = [head.submitted_at + threshold + 1 for head, threshold in heads if head is not None]
        return min((at for at in starve if at > now), default=None)
