"""What is said of the router in a configuration, and what is to be said about that."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec

from maitred.contracts import Router
from maitred.errors import ConfigError
from maitred.routing.mix import Mix, Weighed, parse_mix
from maitred.routing.policy import ROUTERS, Reads, what_it_reads
from maitred.routing.scorers import SCORERS
from maitred.routing.session_affinity import SessionAffinity
from maitred.routing.weighted import Weighted

_MISSING: Final = {
    Reads.LOAD: "the queues of the instances, which are not known here",
    Reads.CACHES: "the prefix caches of the instances, which are off, or not known here",
    Reads.PROMPT: "what prompts say, which is not known here",
    Reads.SESSION: "sessions, of which there are none here",
}


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an instance is chosen. Raises ValueError for scorers that cannot be."""

    policy: str = "least-loaded"
    """A policy registered in `ROUTERS`, with parameters if need be: `session-affinity(power-of-two)`."""
    scorers: str | tuple[str | Weighed, ...] = ()
    """What `weighted` adds up, as `queue-depth:2, load-balance:1`; nothing: as BLIS has it."""

    def __post_init__(self) -> None:
        if not self.scorers:
            return
        try:
            for part in self._mix().parts:
                SCORERS.get(part.name)
        except ConfigError as error:
            raise ValueError(f"scorers: {error}") from error

    def router(self, rng: Random) -> Router:
        """Raises ConfigError for an unknown policy."""
        return ROUTERS.create(self.policy, {Random: rng, Mix: self._mix()})

    def warnings(self, lacks: Reads = Reads.NOTHING) -> list[str]:
        """What works and is hardly meant, a line each; `lacks` is what the driver cannot show. Raises ConfigError as `router`
        does."""
        return list(self._warnings(lacks))

    def _mix(self) -> Mix:
        return parse_mix(self.scorers)

    def _warnings(self, lacks: Reads) -> Iterator[str]:
        layers = list(_layers(self.router(Random(0))))
        weighted = [layer for layer in layers if isinstance(layer, Weighted)]
        if self.scorers and not weighted:
            yield f"routing scorers have no effect with {self.policy}: they are those of weighted"
        for layer in weighted:
            for name, scorer in layer.scorers.items():
                for missing in what_it_reads(scorer) & lacks:
                    yield f"the scorer {name} looks at {_MISSING[missing]}: it cannot tell instances apart"
                    break
        if Reads.SESSION in lacks and any(isinstance(layer, SessionAffinity) for layer in layers):
            yield f"{self.policy}: no request names a program, routing key or tenant here, so there are no sessions"


def _layers(router: Router) -> Iterator[Router]:
    """The router, the one inside, the one inside that."""
    layer: Router | None = router
    while layer is not None:
        yield layer
        layer = getattr(layer, "inside", None)
