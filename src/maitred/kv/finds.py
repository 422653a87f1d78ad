"""What somebody who looks into KV memory finds."""

from __future__ import annotations

import msgspec


class Look(msgspec.Struct, frozen=True, gc=False):
    """What locking a chain would find, in blocks."""

    cached: int
    idle: int
    """Of these, those that nobody holds: to lock them takes as many of the free ones."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """What the memory holds already of a sequence that wants to enter."""

    tokens: int = 0
    """Whole blocks' worth, and at least one less than it needs: a token must be computed for one to come out."""
    idle: int = 0
    """Blocks of these that nobody holds: to use them takes as many of the free ones."""


NOTHING = Found()
