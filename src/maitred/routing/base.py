"""What routers have in common: their registry, what they look at, their description, and how ties are broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Flag, auto
from random import Random
from typing import Final, cast

import msgspec

from maitred.core.contracts import FleetView, InstanceView, Router
from maitred.core.registry import Registry
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.instance_weights import EQUAL_WEIGHTS, InstanceWeights
from maitred.routing.scorer_weights import DEFAULT_WEIGHTS, ScorerWeights


class Signals(Flag):
    """What a router or scorer looks at beside `in_flight`. Some of it costs the driver something to know."""

    NOTHING = 0
    LOAD = auto()
    """`waiting`, `running` and `kv_usage` of instances."""
    CACHES = auto()
    """`cached_blocks` of instances."""
    PROMPT = auto()
    """`prefix` of requests."""
    SESSION = auto()
    """`program` and `routing_key` of requests."""
    MEMORY = auto()
    """`kv_tokens` of instances."""
    ALL = LOAD | CACHES | PROMPT | SESSION | MEMORY


class RouterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a user must know to choose a router or a scorer; each class carries one as `about`."""

    summary: str
    """Which instance it chooses, or the score, in one line without a full stop and without its name."""
    complexity: str
    """The cost of a choice with n instances."""
    reads: str = "nothing"
    """What it looks at, in words."""


def signals_read(policy: object) -> Signals:
    """Return the `signals` of a router or scorer. One without that attribute may look at anything."""
    signals = getattr(policy, "signals", Signals.ALL)
    return signals if isinstance(signals, Signals) else Signals.ALL


MAX_CHECKED: Final = 5_000
"""Entries of one table that one `check` looks at, so that it holds up the event loop for a few milliseconds whatever is kept:
6 ms with a million sessions, 4 ms with four million blocks that were sent. Of a larger table each `check` looks at another
part, or at the parts in which a defect shows first."""


def check_policy(policy: object) -> None:
    """Call the `check` of a router or scorer. One without that method, as a user's may be, has nothing that is checked."""
    check = getattr(policy, "check", None)
    if check is not None:
        check()


ROUTERS: Registry[Router] = Registry(
    "routing policy",
    Router,
    group="maitred.routers",
    packages=["maitred.routing"],
    methods=["choose", "on_request_end"],
    flag="--routing-policy",
    headings={"summary": "chooses", "complexity": "cost, with n instances", "reads": "looks at"},
    defaults={Random: Random(0), ScorerWeights: DEFAULT_WEIGHTS, InstanceWeights: EQUAL_WEIGHTS},
)
"""`RoutingConfig` supplies the random generator of the run, the scorers of `weighted`, and the weights of instances."""


class BaseRouter(Router):
    """A router that keeps nothing about requests in flight, and looks at nothing that costs."""

    signals = Signals.NOTHING

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        pass

    def check(self) -> None:
        """Raise InvariantError if what the router keeps contradicts itself. An idle gateway calls this once a minute, between
        requests, so it must take at most about 20 ms, whatever is kept (`MAX_CHECKED`)."""


class RandomTieBreaker(BaseRouter):
    """A router that draws among equals."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def _break_tie(self, request: Request, tied: Sequence[InstanceView]) -> InstanceView:
        """Return one of `tied`, with equal chances; nothing is drawn for one alone. Conformance runs override this with
        recorded choices."""
        return tied[int(self._rng.random() * len(tied))] if len(tied) > 1 else tied[0]


def effective_load(view: InstanceView) -> int | None:
    """Return BLIS's EffectiveLoad, which counts a request in flight twice; None if the instance does not report its queue."""
    waiting, running = view.waiting, view.running
    return None if waiting is None or running is None else waiting + running + view.in_flight


def known_loads(fleet: FleetView, measure: Callable[[InstanceView], int | None]) -> list[int]:
    """Return the `measure` of each instance; where one of them does not report it, the requests in flight of each.

    Like is compared with like. An instance that says nothing of its queue is neither idle nor full, and what this driver has
    sent there is not comparable with what others report, which contains the requests of other drivers.
    """
    loads = [measure(view) for view in fleet]
    return [view.in_flight for view in fleet] if None in loads else cast("list[int]", loads)
