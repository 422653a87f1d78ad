"""What was observed while a scenario was played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .client import Exchange
from .engines import Visit
from .metrics import Metrics
from .scenario import EngineSpec, Send

CLASSES = ("system", "interactive", "default", "bulk")


class Request:
    """One request of the timeline."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.exchange = Exchange(send.name)

    @property
    def name(self) -> str:
        return self.send.name

    @property
    def asked_class(self) -> str:
        """The class it asked for."""
        asked = self.send.priority if isinstance(self.send.priority, str) else "default"
        return asked if asked in CLASSES else "default"


class Record:
    """All of it. Times are those of the loop, in seconds."""

    def __init__(self, requests: Sequence[Request], engines: Sequence[EngineSpec] = ()) -> None:
        self.engines = engines
        self.requests = {request.name: request for request in requests}
        self.started_at = 0.0
        self.lag_secs = 0.0
        """The most by which a step of the timeline was late, or this process stood still."""
        self.visits: Sequence[Visit] = ()
        self.log: Sequence[str] = ()
        """Lines of the gateway's stderr."""
        self.metrics = Metrics("")
        """At the end."""
        self.metrics_at: dict[str, Metrics] = {}
        """By the moment in words, as expectations name it."""
        self.state: dict[str, Any] = {}
        """At the end."""

    def exchange(self, name: str) -> Exchange:
        return self.requests[name].exchange

    @property
    def capacity(self) -> int:
        """Slots of all pools; 0 for one without a limit."""
        return sum(pool["capacity"] or 0 for pool in self.state["pools"].values())

    @property
    def reserved(self) -> dict[str, int]:
        """Slots that are reserved in fact, by class, in all pools."""
        return {name: sum(pool["reserved"][name] for pool in self.state["pools"].values()) for name in CLASSES}

    @property
    def desired(self) -> int:
        """Slots that all classes would reserve if they could, each at most the whole capacity of a pool."""
        pools = self.state["pools"].values()
        return sum(min(pool["capacity"] or 0, desired) for pool in pools for desired in pool["desired"].values())

    def visit(self, name: str) -> Visit | None:
        return next((visit for visit in self.visits if visit.name == name), None)

    def story(self) -> Iterator[str]:
        """Line by line: what became of each request, in the order in which they were sent."""
        for request in self.requests.values():
            exchange, visit = request.exchange, self.visit(request.name)
            sent = f"{exchange.sent_at - self.started_at:6.2f} s {request.name}"
            ended = "" if exchange.ended_at is None else f" after {exchange.wall:.2f} s"
            engine = "no engine saw it"
            if visit is not None:
                engine = f"engine {visit.engine} from {visit.at - self.started_at:.2f} s, {visit.end}"
                engine += "" if visit.ended_at is None else f" at {visit.ended_at - self.started_at:.2f} s"
            yield f"{sent}: {exchange}{ended}; {engine}"

    def at_engine(self, index: int, time: float) -> int:
        """Requests in flight at one engine just after that time."""
        visits = [visit for visit in self.visits if visit.engine == index]
        return sum(visit.at <= time and (visit.ended_at is None or visit.ended_at > time) for visit in visits)

    def at_engines(self, time: float, counts: Callable[[Request], bool] = lambda _: True) -> int:
        """Requests in flight at the engines at that time."""
        known = [visit for visit in self.visits if visit.name in self.requests and counts(self.requests[visit.name])]
        return sum(visit.at < time and (visit.ended_at is None or visit.ended_at >= time) for visit in known)
