"""RecordedRouter: a router that writes its inputs and its choices to a decision log. FollowedRouter: one that tells them.

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
from typing import Any, Final

import msgspec

from maitred.core.contracts import Choice, FleetView, InstanceView, Router
from maitred.core.decisions import DecisionLog, Recorder
from maitred.core.errors import InvariantError
from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.routing.base import check_policy, signals_read
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
    SeenPrefix,
    fields_of,
    request_of,
)
from maitred.routing.policies import WeightedRouter
from maitred.routing.scorers import Scorer

_MAX_FLEETS: Final = 1024


def open_router(
    config: RoutingConfig, seed: int | str, log: DecisionLog | None = None, now: Micros = 0, name: str = ""
) -> Router:
    """Return a new router that draws by `seed`; with `log`, one that tells it, under its `name` if there are several. Raises
    ConfigError for an unknown policy."""
    if log is None:
        return config.router(Random(seed))
    return (RecordedRouter if log.is_written else FollowedRouter)(Open(now, name, config, seed), log)


class RememberedScores:
    """The scores by which a router has chosen last. It puts itself between the router and its scorers."""

    def __init__(self, router: WeightedRouter) -> None:
        self._scorers = [_RememberedScorer(scorer) for scorer, _ in router.weighted]
        self._names, self._weights = list(router.scorers), [weight for _, weight in router.weighted]
        router.weighted[:] = zip(self._scorers, self._weights, strict=True)

    def of(self, instances: Sequence[SeenInstance]) -> list[dict[str, Any]]:
        """Return the scores of instances: by scorer, weighted and added up."""
        found = []
        for place, seen in enumerate(instances):
            scores = [scorer.last[place] for scorer in self._scorers]
            parts = zip(self._names, scores, self._weights, strict=True)
            in_words = " + ".join(f"{weight:.3g} x {name} {score:.3g}" for name, score, weight in parts)
            total = sum(min(1.0, max(0.0, score)) * weight for score, weight in zip(scores, self._weights, strict=True))
            by_scorer = dict(zip(self._names, scores, strict=True))
            found.append({"instance": seen.index, "sum": total, "scores": by_scorer, "in_words": f"{total:.3g} = {in_words}"})
        return found


class _RememberedScorer(Scorer):
    """A scorer, with its last scores."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.last: Sequence[float] = ()

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        self.last = self._scorer.scores(request, fleet)
        return self.last

    def on_chosen(self, request: Request, view: InstanceView) -> None:
        self._scorer.on_chosen(request, view)


class RecordedRouter(Router):
    """The router that `opening` configures, with its log."""

    def __init__(self, opening: Open, log: DecisionLog) -> None:
        self._name = opening.router
        self._router = opening.config.router(Random(opening.seed))
        self.signals = signals_read(self._router)
        """What the router looks at (`signals_read`)."""
        self._log = log
        self._scores = RememberedScores(self._router) if log.is_narrated and isinstance(self._router, WeightedRouter) else None
        self._recorder = Recorder(log, ROOM_NAME, opening)
        self._numbers = FleetNumbers()
        self._shown: OrderedDict[int, list[SeenInstance]] = OrderedDict()
        """What the router is shown, by number, the one shown longest ago first."""

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        instances = [SeenInstance.of(view, request, self.signals) for view in fleet]
        prefix = None if request.prefix is None else AskedKeys(request.prefix)
        given = Choose(now, self._name, fields_of(request), self._numbers.of(fleet), instances, prefix)
        (chosen,) = self.apply(given)
        return Choice(chosen.instance, chosen.reason)

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        self.apply(RequestEnd(now, self._name, fields_of(request), instance))

    def apply(self, given: RoutingInput) -> Sequence[RoutingDecision]:
        """Take an input, and return what was chosen."""
        decisions = self._recorder.record(given, lambda: given.apply_to(self))
        if self._scores is not None and isinstance(given, Choose):
            self._log.tell_scores(given.request["id"], self._scores.of(given.instances))
        return decisions

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

    def check(self) -> None:
        """Raise InvariantError if what it shows the router contradicts itself, or the router does."""
        self._numbers.check()
        if len(self._shown) > _MAX_FLEETS:
            raise InvariantError(f"{len(self._shown)} fleets are kept for the router, and may be {_MAX_FLEETS}")
        check_policy(self._router)


class FollowedRouter(Router):
    """The router that `opening` configures, of which a log that is not written is told.

    It chooses among what its driver shows it, as without a log: what it has read need not be said in a line. While the log is
    not used there is no call in between.
    """

    def __init__(self, opening: Open, log: DecisionLog) -> None:
        self._name = opening.router
        self._router = router = opening.config.router(Random(opening.seed))
        self.signals = signals_read(router)
        self._recorder = Recorder(log, ROOM_NAME, opening)
        self._numbers = FleetNumbers()
        self.use_log(is_used=True)
        log.note_core(ROOM_NAME, self)

    def use_log(self, *, is_used: bool) -> None:
        """Tell the log each input from now on, or none."""
        self.choose = self._choose_and_tell if is_used else self._router.choose  # type: ignore[method-assign]
        self.on_request_end = self._end_and_tell if is_used else self._router.on_request_end  # type: ignore[method-assign]

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        """Replaced by `use_log`."""
        raise NotImplementedError

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        """Replaced by `use_log`."""

    def check(self) -> None:
        """Raise InvariantError if the numbers of the fleets are wrong, or the router contradicts itself."""
        self._numbers.check()
        check_policy(self._router)

    def _choose_and_tell(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        instances = [SeenInstance.of(view, request, self.signals) for view in fleet]
        asked, prefix = request, None
        if request.prefix is not None:
            prefix = AskedKeys(request.prefix)
            asked = msgspec.structs.replace(request, prefix=SeenPrefix(prefix))
        given = Choose(now, self._name, fields_of(request), self._numbers.of(fleet), instances, prefix)
        (chosen,) = self._recorder.record(given, lambda: [_decision(request.id, self._router.choose(asked, fleet, now), now)])
        return Choice(chosen.instance, chosen.reason)

    def _end_and_tell(self, request: Request, instance: int, now: Micros) -> None:
        self._router.on_request_end(request, instance, now)
        self._recorder.record(RequestEnd(now, self._name, fields_of(request), instance), tuple)


class FleetNumbers:
    """The numbers of the fleets that drivers show, the last `_MAX_FLEETS`."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[int, tuple[int, FleetView]] = OrderedDict()
        """By identity, the one shown longest ago first."""
        self._num_fleets = 0

    def of(self, fleet: FleetView) -> int:
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

    def check(self) -> None:
        """Raise InvariantError if too many fleets are kept, one under another's identity, or two with one number."""
        kept = self._numbers
        if len(kept) > _MAX_FLEETS:
            raise InvariantError(f"{len(kept)} fleets have a number, and may be {_MAX_FLEETS}")
        if any(identity != id(fleet) for identity, (_, fleet) in kept.items()):
            raise InvariantError("the number of a fleet is kept under the identity of another object")
        numbers = {number for number, _ in kept.values()}
        if len(numbers) < len(kept) or any(not 0 <= number < self._num_fleets for number in numbers):
            raise InvariantError(f"the fleets have the numbers {sorted(numbers)} of {self._num_fleets}")


def _decision(request: RequestId, chosen: Choice, now: Micros) -> RoutingDecision:
    return RoutingDecision(now, request, chosen.instance, chosen.reason)
