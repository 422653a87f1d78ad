"""What somebody who looks into KV memory finds."""

from __future__ import annotations

import msgspec


class PrefixProbe(msgspec.Struct, frozen=True, gc=False):
    """What locking a chain would find, in blocks."""

    num_cached: int
    num_unreferenced: int
    """Of these, those that nobody holds: to lock them takes as many of the free ones."""


class PrefixHit(msgspec.Struct, frozen=True, gc=False):
    """What the memory holds already of a sequence that wants to enter."""

    num_tokens: int = 0
    """Whole blocks' worth, and at least one less than it needs: a token must be computed for one to come out."""
    num_unreferenced: int = 0
    """Blocks of these that nobody holds: to use them takes as many of the free ones."""


NO_HIT = PrefixHit()
