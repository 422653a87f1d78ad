"""What a scheduler tells its gateways in notes: for the time when they may have none (`unlinked`), and what it finds."""

from __future__ import annotations

from typing import Final

import msgspec

SHARES: Final = "shares"
"""The kind of the note that tells `Shares`."""
OBJECTIVES: Final = "objectives"
"""The kind of the note that tells the priorities of all objectives that discovery knows, by name."""


class Shares(msgspec.Struct, frozen=True):
    """How much there is, and among how many."""

    slots: dict[str, int] = {}
    """By pool."""
    gateways: int = 1
