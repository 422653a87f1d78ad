"""Which paused programs fit now, and where.

`plan_resumes` is ThunderAgent's resume pass: choose by what all backends have left together, then place the chosen ones,
largest first, each at the backend with most room (it is called Best Fit Decreasing there; the field calls it worst fit).

Example: 10,000 and 6,000 tokens are left at a and b, buffers are 100 tokens, and programs of 2,000, 3,000, 4,000 and 5,000
tokens wait. Together they need 14,400 of the 16,000 that are left, so all are chosen. 5,000 goes to a (4,900 left), 4,000 to
b (1,900 left), 3,000 to a (1,800 left); 2,000 fits nowhere and waits.

A program that is larger than what any one backend has left must not use up what is left together, or it would keep
smaller ones out for nothing. So it is not chosen; the flavour `thunderagent` chooses it all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from maitred.programs.program import Program


class Room(NamedTuple):
    """What one backend has left."""

    backend: int
    tokens: float


class Placement(NamedTuple):
    """A program, and the index of the backend where it fits."""

    program: Program
    backend: int


def plan_resumes(waiting: Iterable[Program], rooms: Sequence[Room], buffer_tokens: int, *, is_strict: bool) -> list[Placement]:
    """Return which of `waiting`, programs in the order of their turns, are to be resumed where. Each needs its tokens and
    `buffer_tokens` more."""
    rooms = [room for room in rooms if room.tokens > buffer_tokens]
    if not rooms:
        return []
    chosen = _choose(waiting, rooms, buffer_tokens, is_strict=is_strict)
    # Python's sort keeps the order of equals, so programs of one size keep that of their turns.
    chosen.sort(key=lambda program: -program.tokens)
    return _place(chosen, rooms, buffer_tokens)


def _choose(waiting: Iterable[Program], rooms: Sequence[Room], buffer_tokens: int, *, is_strict: bool) -> list[Program]:
    """Return the programs that fit together into the sum of `rooms`, first come first; one that does not fit is passed over."""
    budget = sum(room.tokens for room in rooms)
    largest = budget if is_strict else max(room.tokens for room in rooms)
    chosen = []
    for program in waiting:
        need = program.tokens + buffer_tokens
        if need <= budget and need <= largest:
            budget -= need
            chosen.append(program)
    return chosen


def _place(chosen: Sequence[Program], rooms: Sequence[Room], buffer_tokens: int) -> list[Placement]:
    # Smallest first, so the room is negated. Equal rooms keep their order, hence the position.
    heap = [(-room.tokens, position, room.backend) for position, room in enumerate(rooms)]
    heapify(heap)
    placements = []
    for program in chosen:
        most = -heap[0][0]
        need = program.tokens + buffer_tokens
        if need > most:
            continue
        _, position, backend = heap[0]
        placements.append(Placement(program, backend))
        heapreplace(heap, (need - most, position, backend))
    return placements
