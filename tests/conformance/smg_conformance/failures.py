"""What was expected and did not come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .scenario import CannotCheck

PUNCTUAL_SECS = 0.04
"""Timelines leave at least this between two steps whose order matters: one that lagged by more was not what the file says."""


class Failure(msgspec.Struct, frozen=True):
    text: str
    late: bool = False
    """Something took too long, and nothing else: a loaded machine does that, too."""

    def __str__(self) -> str:
        return self.text


def unless_late(failure: Failure, lag_secs: float) -> Failure:
    """Return the failure, as one of lateness if the timeline lagged: what was expected of it did not happen when it should."""
    if failure.late or lag_secs <= PUNCTUAL_SECS:
        return failure
    return Failure(f"{failure.text} (the timeline lagged by {lag_secs:.2f} s)", late=True)


def differs(what: str, expected: object, got: object) -> Iterator[Failure]:
    """Nothing if they are equal."""
    if expected != got:
        yield Failure(f"{what}: expected {expected}, got {got}")


def outside(what: str, expected: Any, secs: float) -> Iterator[Failure]:
    """Whether a duration is none of [least, most], or not about the one number that is given. Raises CannotCheck."""
    match expected:
        case [int() | float() as least, int() | float() as most]:
            pass
        case int() | float() if not isinstance(expected, bool):
            least, most = 0.9 * expected - 0.05, 1.1 * expected + 0.3  # it began and ended on a loaded machine
        case _:
            raise CannotCheck(f"{what}: {expected!r}")
    if not least <= secs <= most:
        yield Failure(f"{what}: expected {least:.2f} to {most:.2f} s, got {secs:.2f} s", late=secs > most)
