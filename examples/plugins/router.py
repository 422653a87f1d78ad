"""A router: rendezvous hashing with bounded loads.

To try it, in this folder:

    maitred simulate --trace sample:mixed --num-instances 4 \\
        --routing-policy "router:BoundedRendezvous(factor=1.5)"
"""

from __future__ import annotations

from hashlib import blake2b
from math import ceil

from maitred.core.contracts import Choice, FleetView
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing import BaseRouter, RouterInfo, Signals


class BoundedRendezvous(BaseRouter):
    """The instance that hashes highest with the session, as long as it has no more than `factor` times the mean in flight.

    Every gateway chooses alike without telling the others, and where an instance goes, only its own sessions move (Thaler and
    Ravishankar 1998). The bound is that of Mirrokni et al. (2018): a session that is too large spills over to the next highest.
    """

    about = RouterInfo(
        summary="the highest hash of session and instance, among those with at most factor times the mean in flight",
        complexity="O(n log n)",
        reads="program, routing key, tenant, in flight",
    )
    signals = Signals.SESSION

    def __init__(self, factor: float = 1.25) -> None:
        """Raises ValueError for a factor that is not above 1."""
        if factor <= 1:
            raise ValueError(f"factor must be above 1, not {factor}")
        self._factor = factor

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        session = request.program or request.routing_key or request.tenant
        limit = ceil(self._factor * (sum(view.in_flight for view in fleet) + 1) / len(fleet))
        by_hash = sorted(fleet, key=lambda view: _hash(session, view.index), reverse=True)
        chosen = next(view for view in by_hash if view.in_flight < limit)
        return Choice(chosen.index, "highest_hash" if chosen is by_hash[0] else "spilled_over")


def _hash(session: str, index: int) -> bytes:
    """The same in every process, as Python's own `hash` is not."""
    return blake2b(f"{session}/{index}".encode(), digest_size=8).digest()
