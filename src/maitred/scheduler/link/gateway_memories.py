"""The memories of agent programs' requests at a gateway's end of a link: what each has asked for, and what it was granted last.

Nothing is decided here. They are kept so that each `Hello` can tell of all of them: a scheduler that knows them goes on, and
another one takes them over where they are.
"""

from __future__ import annotations

import msgspec

from maitred.core.units import Micros
from maitred.scheduler.link.messages import BeginProgram, Memory
from maitred.scheduler.link.terms import LiveMemory, ProgramTerms


class _Asked(msgspec.Struct):
    terms: ProgramTerms
    begun_at: Micros
    memory: int = -1


class GatewayMemories:
    """The memories of one gateway, by the numbers that it gave them."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Asked] = {}

    def begin(self, number: int, terms: ProgramTerms, now: Micros) -> BeginProgram:
        """Note that a request asks for memory, and return what is to be said."""
        self._by_number[number] = _Asked(terms, now)
        return BeginProgram(number, terms)

    def end(self, number: int) -> bool:
        """Forget a memory. Return whether it was here."""
        return self._by_number.pop(number, None) is not None

    def note(self, told: Memory) -> bool:
        """Note where a memory is. Return False if its request has ended meanwhile."""
        asked = self._by_number.get(told.number)
        if asked is None:
            return False
        asked.memory = -1 if told.memory is None else told.memory
        return True

    def introduce(self, now: Micros) -> list[LiveMemory]:
        """Return all of them as a `Hello` states them, in the order in which they were asked for."""
        return [LiveMemory(number, now - each.begun_at, each.terms, each.memory) for number, each in self._by_number.items()]
