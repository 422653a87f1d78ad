"""What a scheduler tells its gateways for the time when they may have none (`unlinked`)."""

from __future__ import annotations

from typing import Final

import msgspec

SHARES: Final = "shares"
"""The kind of the note that tells it."""


class Shares(msgspec.Struct, frozen=True):
    """How much there is, and among how many."""

    slots: dict[str, int] = {}
    """By pool."""
    gateways: int = 1
