"""Which paused programs fit now, and where.

`plan_resumes` is ThunderAgent's resume pass: choose by what all backends have left together, then place the chosen ones,
largest first, each at the backend with most room (it is called Best Fit Decreasing there; the field calls it worst fit).

Example: 10,000 and 6,000 tokens are left at a and b, buffers are 100 tokens, and programs of 2,000, 3,000, 4,000 and 5,000
tokens wait. Together they need 14,400 of the 16,000 that are left, so all are chosen. 5,000 goes to a (4,900 left), 4,000 to
b (1,900 left), 3,000 to a (1,800 left); 2,000 fits nowhere and waits.

Ours differs in two rules (`by_class`), which the flavour `thunderagent` does not have: a program that is larger than what any
one backend has left is not chosen, and the chosen ones of a higher class are placed before larger ones of a lower class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from math import inf
from typing import NamedTuple

from maitred.programs.program import Program


class Room(NamedTuple):
    """The room at one backend."""

    backend: int
    tokens: float
    active_tokens: int = 0
    """Tokens of its programs, by which backends of unknown room are told apart."""


class ResumeCandidate(NamedTuple):
    """A paused program, and the tokens that it needs at a backend, buffer included."""

    program: Program
    need: int


class PlannedResume(NamedTuple):
    """A program, and the index of the backend where it fits."""

    program: Program
    backend: int


def plan_resumes(waiting: Iterable[ResumeCandidate], rooms: Sequence[Room], *, by_class: bool) -> list[PlannedResume]:
    """Return which of `waiting`, programs in the order of their turns, are to be resumed where. `by_class`:
    `ProgramRules.places_by_class`."""
    chosen = _choose(waiting, rooms, max(room.tokens for room in rooms) if by_class else inf)
    # Python's sort keeps the order of equals, so programs of one size keep that of their turns.
    if by_class:
        chosen.sort(key=lambda candidate: (-candidate.program.root.priority_class, -candidate.program.tokens))
    else:
        chosen.sort(key=lambda candidate: -candidate.program.tokens)
    return _place(chosen, rooms)


def _choose(waiting: Iterable[ResumeCandidate], rooms: Sequence[Room], largest: float) -> list[ResumeCandidate]:
    """Return the programs that fit together into the sum of `rooms`, first come first; one that does not fit, or needs more
    than `largest` tokens, is passed over."""
    budget = sum(room.tokens for room in rooms)
    chosen = []
    for candidate in waiting:
        need = candidate.need
        # One that fits nowhere must not use up what is left together, or it would keep smaller ones out for nothing.
        if need <= budget and need <= largest:
            budget -= need
            chosen.append(candidate)
    return chosen


def _place(chosen: Sequence[ResumeCandidate], rooms: Sequence[Room]) -> list[PlannedResume]:
    # ThunderAgent sorts its list again after each placement, and a sort keeps the order of equals: a backend that was first
    # until now stays before those that have as much left. Hence the falling `turn`.
    by_room = sorted(rooms, key=lambda room: -room.tokens)  # stable: of equal ones the first stays first
    heap = [
        (-room.tokens, room.active_tokens if room.tokens == inf else 0, turn, room.backend) for turn, room in enumerate(by_room)
    ]
    heapify(heap)
    placements = []
    for turn, (program, need) in enumerate(chosen, start=1):
        minus_room, active, _, backend = heap[0]
        if need > -minus_room:
            continue
        placements.append(PlannedResume(program, backend))
        heapreplace(heap, (minus_room + need, active + need if minus_room == -inf else 0, -turn, backend))
    return placements
