"""What routers have in common: their registry, what they say of themselves, and how they break ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Flag, auto
from random import Random

import msgspec

from maitred.core.contracts import InstanceView, Router
from maitred.core.registry import Registry
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.scorer_weights import DEFAULT_WEIGHTS, ScorerWeights


class Signals(Flag):
    """What a policy looks at beside `num_in_flight`: some of it costs its driver something to know."""

    NOTHING = 0
    LOAD = auto()
    """`waiting`, `running` and `kv_usage` of instances."""
    CACHES = auto()
    """`cached_blocks` of instances."""
    PROMPT = auto()
    """`prefix` of requests."""
    SESSION = auto()
    """`program` and `routing_key` of requests."""
    ALL = LOAD | CACHES | PROMPT | SESSION


class RouterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one must know to choose a router or a scorer; each class carries one as `about`."""

    summary: str
    """Whom it chooses, in one line: no full stop, no name of its own."""
    complexity: str
    """What a choice costs with n instances."""
    reads: str = "nothing"
    """What it looks at, in words."""


def describe_router(factory: Callable[..., object]) -> RouterInfo:
    """What the routers or scorers that `factory` makes say of themselves, or their docstring does."""
    made = getattr(factory, "func", factory)
    about = getattr(made, "about", None)
    if isinstance(about, RouterInfo):
        return about
    said = (made.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return RouterInfo(summary=said or "it does not say", complexity="it does not say", reads="it does not say")


def signals_read(policy: object) -> Signals:
    """A router or scorer that does not say might look at anything."""
    said = getattr(policy, "signals", Signals.ALL)
    return said if isinstance(said, Signals) else Signals.ALL


ROUTERS: Registry[Router] = Registry(
    "routing policy",
    Router,
    group="maitred.routers",
    packages=["maitred.routing"],
    methods=["choose", "on_request_end"],
    defaults={Random: Random(0), ScorerWeights: DEFAULT_WEIGHTS},
)
"""`RoutingConfig` supplies the dice of the run, and the scorers of `weighted`."""


class BaseRouter(Router):
    """A router that keeps nothing about those who are in flight, and looks at nothing that costs."""

    signals = Signals.NOTHING

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        pass


class RandomTieBreaker(BaseRouter):
    """A router that draws among equals."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def _break_tie(self, request: Request, tied: Sequence[InstanceView]) -> InstanceView:
        """Any of `tied`, with equal chances; nothing is drawn for one alone. Conformance runs put recorded choices here."""
        return tied[int(self._rng.random() * len(tied))] if len(tied) > 1 else tied[0]
