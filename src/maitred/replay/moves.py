"""Moves: what requests did in the queues of pools, by which it is found who went past one that waited.

The last ones are kept, in order: who joined a queue, left it, or got a slot. When a wait has ended, or somebody asks, they are
read from its beginning on: how many were ahead over time, and who got a slot first though they came later or are less urgent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.replay.story import Passed, Wait

_MAX_PLACES: Final = 20
_MAX_EXAMPLES: Final = 5


class QueueMove(NamedTuple):
    """What another request did in a queue."""

    at: Micros
    is_join: bool
    pool: str
    urgency: int
    number: RequestId
    joined: int
    """When it joined its queue, as a number that grows; for one that never waited, when it came."""
    reason: str
    """Why it was admitted, or "" if it joined, or left without a slot."""
    is_first_again: bool
    waited: bool


def settle(moves: deque[QueueMove], number: RequestId, wait: Wait) -> None:
    """Find the places over time of a wait, and who went past, from what others did meanwhile."""
    own, later = _during(moves, number, wait)
    if own is None:
        return
    ahead, places, passed = wait.ahead, [(0.0, wait.ahead)], dict[str, list[int]]()
    for move in later:
        goes_first = move.urgency > own.urgency or (
            move.urgency == own.urgency and not own.is_first_again and (move.joined < own.joined or move.is_first_again)
        )
        if move.is_join:
            ahead += goes_first
        else:
            ahead -= goes_first and move.waited
            if move.reason and (move.joined > own.joined or move.urgency < own.urgency):
                passed.setdefault(_rule(move, own, wait), []).append(move.number)
        if ahead != places[-1][1]:
            places.append(((move.at - wait.began) / 1000, max(0, ahead)))
    step = -(-len(places) // _MAX_PLACES)
    wait.places = places[::step] if places[::step][-1] == places[-1] else [*places[::step], places[-1]]
    wait.passed = [Passed(rule, len(numbers), numbers[:_MAX_EXAMPLES]) for rule, numbers in passed.items()]


def _during(moves: deque[QueueMove], number: RequestId, wait: Wait) -> tuple[QueueMove | None, Iterator[QueueMove]]:
    """Return how a request joined its queue, and what others did in the same pool while it waited."""
    for index, own in enumerate(moves):
        if own.is_join and own.number == number and own.at == wait.began:
            later = islice(moves, index + 1, None)
            until = later if wait.ended is None else takewhile(partial(_is_until, wait.ended), later)
            return own, (move for move in until if move.pool == own.pool and move.number != number)
    return None, iter(())


def _is_until(last: Micros, move: QueueMove) -> bool:
    return move.at <= last


def _rule(move: QueueMove, own: QueueMove, wait: Wait) -> str:
    """Return by which rule a request got a slot before one that waited."""
    if move.urgency > own.urgency:
        return "higher_class"
    if move.reason == "starved":
        return "starved"
    if wait.reason == "tenant_limit":
        return "tenant_limit"
    return "first_again" if move.is_first_again else "turn"
