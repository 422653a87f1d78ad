"""Instances as routers see them, and a driver that counts requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from maitred.core.contracts import FleetView, InstanceView, Router
from maitred.core.request import Request, RequestId
from maitred.kv.block_hashes import PromptTokenIds
from maitred.routing import RoutingConfig, check_policy


@dataclass
class View:
    index: int
    in_flight: int = 0
    waiting: int | None = 0
    running: int | None = 0
    kv_usage: float | None = 0.0
    cached: int = 0
    kv_tokens: int | None = None

    def cached_blocks(self, request: Request) -> int:
        return self.cached


def request(
    number: RequestId = 0, *, model: str = "", program: str = "", key: str = "", tenant: str = "", tokens: Sequence[int] = ()
) -> Request:
    prefix = PromptTokenIds(tuple(tokens)) if tokens else None
    length = len(tokens) or 10
    return Request(
        id=number,
        arrival=0,
        prompt_tokens=length,
        model=model,
        program=program,
        routing_key=key,
        tenant=tenant,
        prefix=prefix,
    )


def router(policy: str, scorers: str = "", seed: int = 0) -> Router:
    return RoutingConfig(policy=policy, scorers=scorers).router(Random(seed))


@dataclass
class Driver:
    """Sends requests and counts them in flight, as a gateway or simulator does."""

    router: Router
    views: Sequence[View]
    there: dict[RequestId, tuple[Request, View]] = field(default_factory=dict)
    number: RequestId = 0
    checks: bool = True
    """Whether the router is checked after each event, which costs O(what it keeps)."""

    def send(self, fleet: FleetView | None = None, sent: Request | None = None) -> int:
        self.number += 1
        sent = sent or request(self.number)
        chosen = self.router.choose(sent, self.views if fleet is None else fleet, now=0).instance
        view = next(view for view in self.views if view.index == chosen)
        view.in_flight += 1
        self.there[self.number] = (sent, view)
        self._check()
        return chosen

    def end(self, number: RequestId) -> None:
        sent, view = self.there.pop(number)
        view.in_flight -= 1
        self.router.on_request_end(sent, view.index, now=0)
        self._check()

    def _check(self) -> None:
        if self.checks:
            check_policy(self.router)


def least(fleet: Sequence[InstanceView]) -> set[int]:
    """Return the indices of the instances with the fewest in flight, found by looking at all."""
    fewest = min(view.in_flight for view in fleet)
    return {view.index for view in fleet if view.in_flight == fewest}
