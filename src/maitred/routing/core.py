"""RecordedRouter: a router that writes its inputs and its choices to a decision log.

A router reads what its driver owns: views of instances that change between two choices, the keys of a prompt. So that a log of
it can be run again, the router behind sees none of these, but what a line says of them (`inputs`). What was logged is therefore
what was read. A driver without a log asks the router itself.

A router may know a fleet by the identity of the object that it is shown (`FleetView`). So the line has a number for that
object, and the router behind is shown an object for each number. Of these the last `_MAX_FLEETS` are kept, more than any router
keeps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import Final

from maitred.core.contracts import Choice, FleetView, Router
from maitred.core.decisions import DecisionLog, Recorder
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import signals_read
from maitred.routing.config import RoutingConfig
from maitred.routing.inputs import (
    ROOM_NAME,
    AskedKeys,
    Choose,
    Open,
    RequestEnd,
    RoutingDecision,
    RoutingInput,
    SeenInstance,
    fields_of,
    request_of,
)

_MAX_FLEETS: Final = 1024


def open_router(
    config: RoutingConfig, seed: int | str, log: DecisionLog | None = None, now: Micros = 0, name: str = ""
) -> Router:
    """Return a new router that draws by `seed`; with `log`, one that writes it, under its `name` if there are several. Raises
    ConfigError for an unknown policy."""
    return config.router(Random(seed)) if log is None else RecordedRouter(Open(now, name, config, seed), log)


class RecordedRouter(Router):
    """The router that `opening` configures, with its log."""

    def __init__(self, opening: Open, log: DecisionLog) -> None:
        self._name = opening.router
        self._router = opening.config.router(Random(opening.seed))
        self.signals = signals_read(self._router)
        """What the router looks at (`signals_read`)."""
        self._recorder = Recorder(log, ROOM_NAME, opening)
        self._numbers: OrderedDict[int, tuple[int, FleetView]] = OrderedDict()
        """The numbers of the fleets that drivers showed, by identity, the one shown longest ago first."""
        self._num_fleets = 0
        self._shown: OrderedDict[int, list[SeenInstance]] = OrderedDict()
        """What the router is shown, by number, the one shown longest ago first."""

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        instances = [SeenInstance.of(view, request, self.signals) for view in fleet]
        prefix = None if request.prefix is None else AskedKeys(request.prefix)
        given = Choose(now, self._name, fields_of(request), self._number_of(fleet), instances, prefix)
        (chosen,) = self.apply(given)
        return Choice(chosen.instance, chosen.reason)

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self.apply(RequestEnd(now, self._name, fields_of(request), instance))

    def apply(self, given: RoutingInput) -> Sequence[RoutingDecision]:
        """Take an input, and return what was chosen."""
        return self._recorder.record(given, lambda: given.apply_to(self))

    def choose_seen(self, given: Choose) -> Choice:
        """Let the router choose among what a line says."""
        shown = self._shown.get(given.fleet)
        if shown is None:  # Objects of its own, because who follows the log may look at those of the input later.
            shown = self._shown[given.fleet] = [SeenInstance(each.index) for each in given.instances]
        self._shown.move_to_end(given.fleet)
        if len(self._shown) > _MAX_FLEETS:
            self._shown.popitem(last=False)
        for instance, seen in zip(shown, given.instances, strict=True):
            instance.become(seen)
        return self._router.choose(request_of(given.request, given.prefix), shown, given.at)

    def end_seen(self, given: RequestEnd) -> None:
        """Tell the router of the end of a request."""
        self._router.on_request_end(request_of(given.request), given.instance, given.at)

    def _number_of(self, fleet: FleetView) -> int:
        """Return the number of a fleet. The fleet is kept with it, so that no other object gets its identity meanwhile."""
        known = self._numbers.get(id(fleet))
        if known is None:
            known = self._numbers[id(fleet)] = (self._num_fleets, fleet)
            self._num_fleets += 1
            if len(self._numbers) > _MAX_FLEETS:
                self._numbers.popitem(last=False)
        else:
            self._numbers.move_to_end(id(fleet))
        return known[0]
