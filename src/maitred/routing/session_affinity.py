"""session-affinity: who belongs together stays together.

The KV of a conversation, an agent's run or a tenant's system prompt lies in the prefix cache of the instance that served it
last. So the first request of a session is placed by another policy, and those that follow go where it went. Where that
instance is not among those shown (it is down, or was tried already), the other policy places the session anew, and there it
stays: it does not go back, for what it has built up since lies at the new place.

Only so many sessions are remembered; the one that was quiet for longest is forgotten first, and placed as if it were new.
"""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import TypeAlias

from maitred.contracts import Choice, FleetView, Router
from maitred.request import Request
from maitred.routing.fleets import PerFleet
from maitred.routing.least_loaded import LeastLoaded
from maitred.routing.policy import ROUTERS, BaseRouter, Reads, RouterInfo, what_it_reads
from maitred.units import Micros

_Session: TypeAlias = tuple[str, str, str]
"""Its model, the kind of its name, and its name: each model is served elsewhere."""


@ROUTERS.register("session-affinity")
class SessionAffinity(BaseRouter):
    """Where the session's last request went. A session is what has the same `program`, else the same `routing_key`, else the
    same tenant; what has none of them is placed by `policy`, as is the first request of a session.

    `policy` is least-loaded if nobody says; `sessions` is how many are remembered.
    """

    about = RouterInfo(
        line="where the last request of the same program, routing key or tenant went; the first by another policy",
        complexity="O(1), and the other policy's for the first of a session",
        reads="program, routing key, tenant; what the other policy reads",
    )

    def __init__(self, rng: Random, policy: Router | None = None, sessions: int = 100_000) -> None:
        """Raises ValueError for a memory of less than one session."""
        if sessions < 1:
            raise ValueError(f"sessions must be at least 1, not {sessions}")
        self.inside = policy or LeastLoaded(rng)
        self.reads = Reads.SESSION | what_it_reads(self.inside)
        self._most = sessions
        self._places: OrderedDict[_Session, int] = OrderedDict()
        """The instance of each session, the one that was quiet for longest first."""
        self._members = PerFleet(lambda fleet: frozenset(view.index for view in fleet))

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        session = _session(request)
        if session is None:
            return self.inside.choose(request, fleet, now)
        place = self._places.get(session)
        if place is not None and place in self._members.of(fleet):
            self._places.move_to_end(session)
            return Choice(place, "same_session")
        choice = self.inside.choose(request, fleet, now)
        self._places[session] = choice.instance
        self._places.move_to_end(session)
        if len(self._places) > self._most:
            self._places.popitem(last=False)
        return choice

    def left(self, request: Request, instance: int, now: Micros) -> None:
        self.inside.left(request, instance, now)


def _session(request: Request) -> _Session | None:
    for kind, name in (("program", request.program), ("routing_key", request.routing_key), ("tenant", request.tenant)):
        if name:
            return request.model, kind, name
    return None
