"""Lead: the slots of a pool beyond what its engines run at once. What they are for stands in `lead_watch`.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class Lead(NamedTuple):
    """The slots of a pool beyond what its engines run at once."""

    kept: int = 0
    """Slots for requests that may preempt."""
    lent: int = 0
    """Slots for all, while a probe is under way."""


NO_LEAD: Final = Lead()


def sum_leads(leads: Iterable[Lead]) -> Lead:
    """Return the lead of several engines together."""
    kept = lent = 0
    for lead in leads:
        kept += lead.kept
        lent += lead.lent
    return Lead(kept, lent)
