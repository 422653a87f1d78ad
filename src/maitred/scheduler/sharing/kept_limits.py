"""What is learned of engines (`admission.learned_slots`), kept by the gateways for the scheduler that leads next.

    a leader     tells its gateways what it has learned, once a second where that has changed, and each that is welcomed
    a gateway    keeps the last that it was told, and brings it in its hello
    a new term   begins with the newest that any gateway has brought, before it grants anything by its hello

So a takeover does not search an engine anew, which would have half as many more requests for a moment. What a leader has
found out in its own term is worth more than what is brought later. For how long a limit was trusted is not told: the engine may
have started anew while nobody looked, and an early probe lends a slot for a moment. No clock is asked: epochs, and numbers
within each, say what is newest.
"""

from __future__ import annotations

from typing import Final

import msgspec

from maitred.admission.learned_slots import LearnedLimit
from maitred.core.units import SECOND, Micros
from maitred.scheduler.backends.slot_learning import SlotLearning
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.link.messages import Note
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.link.terms import KeptLimits

LIMITS: Final = "limits"
"""The kind of the notes that tell them."""


class LimitNews:
    """The end of a scheduler."""

    def __init__(self, learning: SlotLearning) -> None:
        self._learning = learning
        self._heard = (0, 0)
        """Epoch and number of what has been taken over in this term."""
        self._before = dict[str, LearnedLimit]()
        """What was known when the term began, or when something was taken over: what differs was found out since."""
        self._told = dict[str, LearnedLimit]()
        self._number = 0
        self._due_at: Micros = 0

    def begin_term(self) -> None:
        """Take over what is brought from now on."""
        self._heard, self._before, self._told = (0, 0), self._learning.learned(), {}

    def tell(self, end: SchedulerEnd, now: Micros, *, at_once: bool = False) -> None:
        """Tell the gateways what is known, if that has changed, once a second or `at_once`."""
        if (now < self._due_at and not at_once) or end.epoch is None:
            return
        self._due_at = now + SECOND
        known = self._learning.learned()
        if known != self._told:
            self._told = known
            end.tell(self._note(end.epoch, known))

    def welcome(self, end: SchedulerEnd, gateway: GatewayId, kept: KeptLimits | None) -> None:
        """Take over what a gateway has brought, and tell it what is known."""
        if end.epoch is None:
            return
        if kept is not None and self._heard < (kept.epoch, kept.number) and kept.epoch != end.epoch:
            self._heard = kept.epoch, kept.number
            known = self._learning.learned()
            self._learning.recall({url: it for url, it in kept.limits.items() if known.get(url) == self._before.get(url)})
            self._before |= {url: it for url, it in self._learning.learned().items() if it != known.get(url)}
        if known := self._learning.learned():
            end.tell(self._note(end.epoch, known), gateway)

    def _note(self, epoch: int, known: dict[str, LearnedLimit]) -> Note:
        self._number += 1
        return Note(LIMITS, 0, msgspec.msgpack.encode(KeptLimits(epoch, self._number, known)))
