"""The shadow's router: it is asked whenever the router in force is, and is shown the same instances with the same loads.

These come of the choices in force. So a choice is compared, and not what many choices of the shadow would have led to. A router
under the rules in force would choose the same, and is not asked. One that was not told of some choices goes on without them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import Final

from maitred.core.request import RequestId
from maitred.routing.base import signals_read
from maitred.routing.config import RoutingConfig
from maitred.routing.inputs import Choose, Open, RequestEnd, RoutingDecision, RoutingInput, SeenInstance, request_of
from maitred.shadow.disagreements import Disagreement, ShadowKind

_MAX_FLEETS: Final = 1024
_MAX_REQUESTS: Final = 100_000


class RoutingShadow:
    """One router beside another."""

    def __init__(self, config: RoutingConfig, in_force: RoutingConfig) -> None:
        """Raises ConfigError for an unknown policy."""
        self.config = config
        self._router = config.router(Random(0))
        self._reads = signals_read(self._router)
        self._seen = signals_read(in_force.router(Random(0)))
        """What the router in force reads, and so what there is to show."""
        self._shown: OrderedDict[int, list[SeenInstance]] = OrderedDict()
        self._chosen: OrderedDict[RequestId, int] = OrderedDict()
        """What the shadow has chosen for the requests that are under way."""
        self.num_compared = 0

    @property
    def lacks(self) -> str:
        """What it would read and the router in force does not; then nothing is compared."""
        missing = self._reads & ~self._seen
        return ", ".join(each.name.lower() for each in missing if each.name is not None)

    def take(self, given: RoutingInput, decisions: Sequence[RoutingDecision]) -> list[Disagreement]:
        """Tell the shadow an input that the router in force has taken with these decisions."""
        if isinstance(given, Open):
            self._router = self.config.router(Random(given.seed))
            self._shown.clear()
            self._chosen.clear()
        elif self.lacks:
            pass
        elif isinstance(given, RequestEnd):
            instance = self._chosen.pop(given.request["id"], given.instance)
            self._router.on_request_end(request_of(given.request), instance, given.at)
        elif isinstance(given, Choose):
            return self._choose(given, decisions)
        return []

    def _choose(self, given: Choose, decisions: Sequence[RoutingDecision]) -> list[Disagreement]:
        request = request_of(given.request, given.prefix)
        choice = self._router.choose(request, self._fleet(given), given.at)
        self._chosen[request.id] = choice.instance
        if len(self._chosen) > _MAX_REQUESTS:
            self._chosen.popitem(last=False)
        found = []
        for decision in decisions:
            self.num_compared += 1
            if decision.instance != choice.instance:
                real, shadow = (f"backend {each.instance} ({each.reason})" for each in (decision, choice))
                who = request.id, request.client_id, request.tenant, request.model
                found.append(Disagreement(ShadowKind.INSTANCE, given.at, *who, real, shadow))
        return found

    def _fleet(self, given: Choose) -> list[SeenInstance]:
        """Return the views for the router: for one fleet the same objects each time, and never those of the router in force."""
        shown = self._shown.get(given.fleet)
        if shown is None:
            shown = self._shown[given.fleet] = [SeenInstance(each.index) for each in given.instances]
            if len(self._shown) > _MAX_FLEETS:
                self._shown.popitem(last=False)
        self._shown.move_to_end(given.fleet)
        for instance, seen in zip(shown, given.instances, strict=True):
            instance.become(seen)
        return shown
