"""The part of a configuration that says how an instance is chosen, and the warnings about it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec

from maitred.core.contracts import Router
from maitred.core.errors import ConfigError
from maitred.routing.affinity import SessionAffinity
from maitred.routing.base import ROUTERS, Signals, signals_read
from maitred.routing.instance_weights import InstanceWeights
from maitred.routing.policies import WeightedRouter
from maitred.routing.scorer_weights import ScorerWeights, WeightedScorer, parse_scorer_weights
from maitred.routing.scorers import SCORERS
from maitred.routing.weighted import WeightedLeastLoaded, WeightedRandom

_UNKNOWN_SIGNALS: Final = {
    Signals.LOAD: "the queues of the instances, which are not known here",
    Signals.CACHES: "the prefix caches of the instances, which are off, or not known here",
    Signals.MEMORY: "the size of the KV memories, which is not known here",
    Signals.PROMPT: "what prompts say, which is not known here",
    Signals.SESSION: "sessions, of which there are none here",
}


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an instance is chosen. Raises ValueError for scorers that are unknown or cannot be read."""

    policy: str = "least-loaded"
    """How an instance is chosen: a policy of `maitred policies`, with parameters if need be (`session-affinity(power-of-two)`),
    or `module:Class`. See docs/routing.md."""
    scorers: str | tuple[str | WeightedScorer, ...] = ()
    """Scorers of the policy `weighted`, with their weights: `queue-depth:2,load-balance:1`. Also a list of these, or of `{name:
    queue-depth, weight: 2}`; empty: `precise-prefix-cache:2,queue-depth:1,kv-utilization:1`."""

    weights: tuple[float, ...] = ()
    """The rate that each instance serves, by its index (live: in the order of `gateway.backends`), for the policies
    `weighted-random` and `weighted-least-loaded`; only ratios count. Empty: all are alike, and in a simulation of
    `cluster.groups` what each could take."""

    def __post_init__(self) -> None:
        try:
            InstanceWeights(self.weights)
        except ValueError as error:
            raise ValueError(f"weights: {error}") from error
        if not self.scorers:
            return
        try:
            for scorer in self._weights().scorers:
                SCORERS.get(scorer.name)
        except ConfigError as error:
            raise ValueError(f"scorers: {error}") from error

    def router(self, rng: Random) -> Router:
        """Return a new router. Raises ConfigError for an unknown policy."""
        return ROUTERS.create(
            self.policy, {Random: rng, ScorerWeights: self._weights(), InstanceWeights: InstanceWeights(self.weights)}
        )

    def warnings(self, lacks: Signals = Signals.NOTHING) -> list[str]:
        """Return warnings of what works but is hardly meant, a line each; `lacks` is what the driver cannot show. Raises
        ConfigError as `router` does."""
        return list(self._warnings(lacks))

    def _weights(self) -> ScorerWeights:
        return parse_scorer_weights(self.scorers)

    def _warnings(self, lacks: Signals) -> Iterator[str]:
        layers = list(_router_chain(self.router(Random(0))))
        weighted = [layer for layer in layers if isinstance(layer, WeightedRouter)]
        if self.scorers and not weighted:
            yield f"routing scorers have no effect with {self.policy}: they are those of weighted"
        if self.weights and not any(isinstance(layer, WeightedRandom | WeightedLeastLoaded) for layer in layers):
            yield f"routing weights have no effect with {self.policy}: they are those of weighted-least-loaded"
        for layer in weighted:
            for name, scorer in layer.scorers.items():
                for missing in signals_read(scorer) & lacks:
                    yield f"the scorer {name} looks at {_UNKNOWN_SIGNALS[missing]}: it cannot tell instances apart"
                    break
        if Signals.SESSION in lacks and any(isinstance(layer, SessionAffinity) for layer in layers):
            yield f"{self.policy}: no request names a program, routing key or tenant here, so there are no sessions"


def _router_chain(router: Router) -> Iterator[Router]:
    """Yield `router`, its inner router, the inner one of that, and so on."""
    layer: Router | None = router
    while layer is not None:
        yield layer
        layer = getattr(layer, "inner", None)
