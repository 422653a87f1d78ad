"""session-affinity: the requests of one session go to one instance.

The KV of a conversation, an agent's run or a tenant's system prompt is in the prefix cache of the instance that served
it last. So the first request of a session is placed by another policy, and the following ones go where it went. If that
instance is not among those shown (it is down, or was tried already), the other policy places the session anew. The
session then stays at the new instance and does not go back, because what it has built up since is there.

A limited number of sessions is remembered. The one that was idle for longest is forgotten first, and placed as a new
one if it comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import TypeAlias

from maitred.core.contracts import Choice, FleetView, Router
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import ROUTERS, BaseRouter, RouterInfo, Signals, signals_read
from maitred.routing.per_fleet_cache import PerFleetCache
from maitred.routing.policies import LeastLoaded

_SessionKey: TypeAlias = tuple[str, str, str]
"""The model, the kind of name (program, routing key or tenant) and the name. Each model is served by other
instances."""


@ROUTERS.register("session-affinity")
class SessionAffinity(BaseRouter):
    """The instance of the session's last request. Requests belong to one session if they have the same `program`, else
    the same `routing_key`, else the same tenant; a request without any of them is placed by `policy`, like the first of
    a session.

    `policy` is least-loaded by default; `sessions` is how many are remembered.
    """

    about = RouterInfo(
        summary="where the last request of the same program, routing key or tenant went; the first by another policy",
        complexity="O(1), and the other policy's for the first of a session",
        reads="program, routing key, tenant; what the other policy reads",
    )

    def __init__(self, rng: Random, policy: Router | None = None, sessions: int = 100_000) -> None:
        """Raises ValueError for a memory of less than one session."""
        if sessions < 1:
            raise ValueError(f"sessions must be at least 1, not {sessions}")
        self.inner = policy or LeastLoaded(rng)
        self.signals = Signals.SESSION | signals_read(self.inner)
        self._max_sessions = sessions
        self._instance_of: OrderedDict[_SessionKey, int] = OrderedDict()
        """The instance of each session, the one that was idle for longest first."""
        self._fleet_indices = PerFleetCache(lambda fleet: frozenset(view.index for view in fleet))

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        session = _session_key(request)
        if session is None:
            return self.inner.choose(request, fleet, now)
        instance = self._instance_of.get(session)
        if instance is not None and instance in self._fleet_indices.get(fleet):
            self._instance_of.move_to_end(session)
            return Choice(instance, "same_session")
        choice = self.inner.choose(request, fleet, now)
        self._instance_of[session] = choice.instance
        self._instance_of.move_to_end(session)
        if len(self._instance_of) > self._max_sessions:
            self._instance_of.popitem(last=False)
        return choice

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self.inner.on_request_end(request, instance, now)


def _session_key(request: Request) -> _SessionKey | None:
    for kind, name in (("program", request.program), ("routing_key", request.routing_key), ("tenant", request.tenant)):
        if name:
            return request.model, kind, name
    return None
