"""Placer: what says where the requests of gateways go, as the scheduler's end of the link asks it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from maitred.admission import ReleaseReason
from maitred.core.units import Micros
from maitred.scheduler.link.gateway_books import BookedRequest
from maitred.scheduler.link.messages import AttemptOutcome


class NoPlace(StrEnum):
    """Why a request that holds a slot goes nowhere, and gives it up."""

    NO_BACKEND = "no_backend"
    """No backend may have it."""
    MEMORY_LOST = "memory_lost"
    """Its program has to wait for memory elsewhere."""


LinkPlace: TypeAlias = tuple[int, int | None]
"""A backend, and the rank to ask for there or None."""
GoOn: TypeAlias = Callable[[Callable[[Micros], LinkPlace | NoPlace], Micros], None]


class Placer:
    """Says where a request goes that holds a slot, and is told what becomes of it there. What it is told may be ignored."""

    def place(self, request: BookedRequest, now: Micros) -> LinkPlace | NoPlace:
        """Return where a request is from now on, or why it is nowhere. Not at a backend that has failed it
        (`BookedRequest.tried`), where there is another."""
        raise NotImplementedError

    def move(self, request: BookedRequest, then: GoOn) -> None:
        """Find another place for a request of an agent program that its backend has failed (`BookedRequest.failure`). `then` is
        called now or later, with what places the request as `place` does; that is not called if the request has ended."""
        raise NotImplementedError

    def arrive(self, request: BookedRequest, now: Micros) -> None:
        """Note that a request is at its backend of which this scheduler did not know."""

    def leave(self, request: BookedRequest, end: ReleaseReason, now: Micros) -> None:
        """Note that a request is at its backend no more, and how it has ended there."""

    def first_byte(self, request: BookedRequest, now: Micros) -> None:
        """Note that the response of a request has begun."""

    def on_outcome(self, request: BookedRequest | None, outcome: AttemptOutcome, now: Micros) -> None:
        """Note what an attempt says of its backend; None: that of a request without a slot, or one that has ended."""

    def progress(self, request: BookedRequest, pieces: int, now: Micros) -> None:
        """Note how many pieces the answer of a request has had so far."""
