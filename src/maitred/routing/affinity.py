"""Routers that send a request where its KV is, up to a bound of the load: `session-affinity` and `cache-aware`.

**session-affinity.** The KV of a conversation, an agent's run or a tenant's system prompt is in the prefix cache of the
instance that served it last. So the first request of a session is placed by another policy, and the following ones go where it
went. The session moves if that instance is not among those shown (it is down, or was tried already): the other policy places
it anew. If the instance is overloaded (`load_bound`), the session moves to the one with the fewest requests in flight. It
stays at the new instance and does not go back, because what it has built up since is there. A limited number of sessions is
remembered. The one that was idle for longest is forgotten first, and placed as a new one if it comes back.

**cache-aware.** The instance that was sent most of the prompt before (`sent_prefixes`), of equals the one with the fewest in
flight, if that is more than a share of the prompt (`cache_threshold`) and the instance is not overloaded; else the instance
with the fewest in flight. (SMG's `cache_aware`; below the threshold SMG takes the instance that has been sent the least text.)

Example: 32 conversations with one long system prompt. The first goes to an idle instance, and the others follow the prefix
until that instance has `abs_threshold` requests more than another one. The next goes there, and from then on both have the
system prompt. Each later turn matches most where the turns before it went, so conversations stay where they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import chain, islice
from math import isnan
from random import Random
from typing import TypeAlias

from maitred.core.contracts import Choice, FleetView, InstanceView, Router
from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import MAX_CHECKED, ROUTERS, BaseRouter, RouterInfo, Signals, check_policy, signals_read
from maitred.routing.load_bound import ABS_THRESHOLD, REL_THRESHOLD, LoadBound
from maitred.routing.per_fleet import InFlightRouter, PerFleetCache, check_views, views_by_index
from maitred.routing.policies import LeastLoaded
from maitred.routing.sent_prefixes import DEFAULT_BLOCK_TOKENS, SentPrefixes

SessionKey: TypeAlias = tuple[str, str, str]
"""The model, the kind of name (program, routing key or tenant) and the name. Each model is served by other instances."""


class SessionName(Enum):
    """What names the session of a request."""

    CLOSEST = "closest"
    """Its program, else its routing key, else its tenant."""
    ROUTING_KEY = "routing-key"


def session_of(request: Request, by: SessionName = SessionName.CLOSEST) -> SessionKey | None:
    """Return the session that a request belongs to, or None if it belongs to none."""
    if by is SessionName.ROUTING_KEY:
        return (request.model, "routing_key", request.routing_key) if request.routing_key else None
    for kind, name in (("program", request.program), ("routing_key", request.routing_key), ("tenant", request.tenant)):
        if name:
            return request.model, kind, name
    return None


@ROUTERS.register("session-affinity")
class SessionAffinity(BaseRouter):
    """The instance of the session's last request. Requests belong to one session if they have the same `program`, else the same
    `routing_key`, else the same tenant; a request without any of them is placed by `policy`, like the first of a session.

    `policy` is least-loaded by default; `sessions` is how many are remembered. `by=routing-key` looks at nothing but routing
    keys. The thresholds are those of `load_bound`.
    """

    about = RouterInfo(
        summary="where the last request of the same program, routing key or tenant went, unless that is overloaded; the first "
        "by another policy",
        complexity="O(1), and the other policy's for the first of a session",
        reads="program, routing key, tenant; in flight; what the other policy reads",
    )

    def __init__(
        self,
        rng: Random,
        policy: Router | None = None,
        sessions: int = 100_000,
        by: SessionName = SessionName.CLOSEST,
        balance_abs_threshold: float = ABS_THRESHOLD,
        balance_rel_threshold: float = REL_THRESHOLD,
    ) -> None:
        """Raises ValueError for a memory of less than one session, and for thresholds that are out of range."""
        if sessions < 1:
            raise ValueError(f"sessions must be at least 1, not {sessions}")
        self.inner = policy or LeastLoaded(rng)
        self.signals = Signals.SESSION | signals_read(self.inner)
        self._max_sessions, self._by = sessions, by
        self._bound = LoadBound(balance_abs_threshold, balance_rel_threshold)
        self._limit_beside_idle = self._bound.limit(0)
        self._instance_of: OrderedDict[SessionKey, int] = OrderedDict()
        """The instance of each session, the one that was idle for longest first."""
        self._views = PerFleetCache(views_by_index)
        self._least = InFlightRouter()

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        session = session_of(request, self._by)
        if session is None:
            return self.inner.choose(request, fleet, now)
        instance = self._instance_of.get(session)
        view = None if instance is None else self._views.get(fleet).get(instance)
        if view is not None and not self._is_overloaded(view, fleet):
            self._instance_of.move_to_end(session)
            return Choice(view.index, "same_session")
        choice = self.inner.choose(request, fleet, now) if view is None else self._least.choose(request, fleet, now)
        self._instance_of[session] = choice.instance
        self._instance_of.move_to_end(session)
        if len(self._instance_of) > self._max_sessions:
            self._instance_of.popitem(last=False)
        return choice

    def _is_overloaded(self, view: InstanceView, fleet: FleetView) -> bool:
        in_flight = view.in_flight
        return in_flight > self._limit_beside_idle and in_flight > self._bound.limit(self._least.fewest(fleet))

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self.inner.on_request_end(request, instance, now)
        self._least.on_request_end(request, instance, now)

    def check(self) -> None:
        kept = self._instance_of
        if len(kept) > self._max_sessions:
            raise InvariantError(f"{len(kept)} sessions are remembered, and may be {self._max_sessions}")
        # The ends of the order: what has just been placed, and what is forgotten next.
        for model, kind, name in chain(islice(kept, MAX_CHECKED), islice(reversed(kept), MAX_CHECKED)):
            instance = kept[model, kind, name]
            if instance < 0 or not name:
                raise InvariantError(f"the {kind} {name!r} of model {model!r} is at instance {instance}")
        self._views.check(check_views)
        self._least.check()
        check_policy(self.inner)


@ROUTERS.register("cache-aware")
class CacheAwareRouter(BaseRouter):
    """The instance that was sent most of the prompt before, if that is more than a share of it and the instance is not
    overloaded; else the one with the fewest requests in flight (SMG's `cache_aware`).

    `cache_threshold` is the share, 0 to 1. The other thresholds are those of `load_bound`; `block` and `most` are those of the
    scorer `prefix-affinity`.
    """

    about = RouterInfo(
        summary="where most of the prompt was sent before, unless that is overloaded; else fewest requests in flight",
        complexity="O(log n + blocks), and O(n) where all hold the prefix",
        reads="the prompt, in flight",
    )

    def __init__(
        self,
        cache_threshold: float = 0.3,
        balance_abs_threshold: float = ABS_THRESHOLD,
        balance_rel_threshold: float = REL_THRESHOLD,
        block: int = DEFAULT_BLOCK_TOKENS,
        most: int | None = None,
    ) -> None:
        """Raises ValueError for a value that is out of range."""
        if isnan(cache_threshold) or not 0 <= cache_threshold <= 1:
            raise ValueError(f"cache_threshold must be from 0 to 1, not {cache_threshold:g}")
        self._cache_threshold = cache_threshold
        self._bound = LoadBound(balance_abs_threshold, balance_rel_threshold)
        self._sent = SentPrefixes(block, most)
        self.signals = Signals.PROMPT if most is not None else Signals.PROMPT | Signals.MEMORY
        self._views = PerFleetCache(views_by_index)
        self._least = InFlightRouter()

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        views = self._views.get(fleet)
        block_hashes = self._sent.blocks_of(request)
        choice = self._least.choose(request, fleet, now)
        if (holder := self._holder(block_hashes, views)) is not None:
            if holder.in_flight > self._bound.limit(views[choice.instance].in_flight):
                choice = Choice(choice.instance, "prefix_overloaded")
            else:
                choice = Choice(holder.index, "prefix")
        self._sent.note(block_hashes, views[choice.instance])
        return choice

    def _holder(self, block_hashes: Sequence[int], views: Mapping[int, InstanceView]) -> InstanceView | None:
        """Return the instance that was sent most of the prompt, or None if none was sent more than the share that counts."""
        matched = self._sent.matched_blocks(block_hashes)
        holders = [(count, views[index]) for index, count in matched.items() if index in views]
        if not holders:
            return None
        most, view = max(holders, key=lambda holder: (holder[0], -holder[1].in_flight))
        return view if most > self._cache_threshold * len(block_hashes) else None

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self._least.on_request_end(request, instance, now)

    def check(self) -> None:
        self._sent.check()
        self._views.check(check_views)
        self._least.check()
