"""What was observed while a scenario was played. Backends have the names b1, b2, ... everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from ..smg_conformance.client import Exchange
from ..smg_conformance.engines import Visit
from .decisions import Change, read_changes
from .scenario import CannotCheck, Config, Send

Question: TypeAlias = tuple[str, str, str]
"""Method, path, body."""


class Request:
    """One request of the timeline."""

    def __init__(self, send: Send, tag: str) -> None:
        self.send = send
        self.tag = tag
        self.exchange = Exchange(send.program or f"#{tag}")
        self.estimate: int | None = None
        """The tokens of its program when it reached its engine, if that was to be seen."""

    @property
    def answered(self) -> bool:
        return self.exchange.status is not None and self.exchange.complete


class Observation(msgspec.Struct, kw_only=True):
    """What the gateway says of itself at one instant."""

    at: float = 0.0
    programs: Mapping[str, Mapping[str, Any]] = {}
    """GET /programs."""
    health: Mapping[str, Any] = {}
    """GET /health."""
    pages: Mapping[str, Mapping[str, Any]] = {}
    """Of each backend, what the page with ThunderAgent's metrics says."""

    def of_backends(self, field: str) -> int:
        """The sum of a field of all backends, which their pages have or the health page has."""
        of_health: Mapping[str, Mapping[str, Any]] = self.health.get("per_backend", {})
        return sum(page.get(field, of_health.get(name, {}).get(field, 0)) for name, page in self.pages.items())


class Released(msgspec.Struct):
    program: str
    at: float
    exchange: Exchange


class Record:
    """All of it. Times are those of the loop, in seconds."""

    def __init__(self, config: Config, sends: Sequence[Send]) -> None:
        self.config = config
        self.requests = [Request(send, str(number)) for number, send in enumerate(sends, 1)]
        self.visits: Sequence[Visit] = ()
        self.observations: dict[str, Observation] = {}
        self.end = Observation()
        self.marks: Observation = Observation()
        """The observation with the most marked programs."""
        self.released: list[Released] = []
        self.state_changes: list[dict[str, str]] = []
        self._changes: Sequence[Change] | None = None
        self.profiles: dict[str, Mapping[str, Any]] = {}
        """The last profile that was seen of each program."""
        self.asked: dict[Question, Exchange] = {}
        self.state: Mapping[str, Any] = {}
        """The state of the gateway after everything."""
        self.csv = ""
        self.log: Sequence[str] = ()
        self.started_at = 0.0
        self.lag_secs = 0.0
        """The most by which a step was late, or this process stood still."""

    @property
    def changes(self) -> Sequence[Change]:
        """What the decision log says, in order. Raises CannotCheck if it says nothing of programs."""
        if self._changes is None:
            raise CannotCheck("the decision log says nothing of programs")
        return self._changes

    def read_decisions(self, log: Path) -> None:
        """Read the decision log of a gateway that has ended."""
        self._changes = read_changes(log, self.config.backends)

    def requests_of(self, program: str) -> list[Request]:
        return [request for request in self.requests if request.send.program == program]

    def is_under_way(self, program: str, at: float) -> bool:
        """Whether a request of a program was sent before that and not over."""
        exchanges = [request.exchange for request in self.requests_of(program)]
        return any(0 < exchange.sent_at < at and (exchange.ended_at or at) >= at for exchange in exchanges)

    def visit(self, request: Request) -> Visit | None:
        return next((visit for visit in self.visits if visit.name == request.tag), None)

    def backend_of(self, request: Request) -> str | None:
        """The name of the backend that got the request first, or None if none did."""
        visit = self.visit(request)
        return None if visit is None else self.config.backends[visit.engine]

    def story(self) -> Iterator[str]:
        """Line by line: what became of each request, in the order in which they were sent, and what was observed."""
        for request in self.requests:
            exchange = request.exchange
            sent = f"{exchange.sent_at - self.started_at:6.2f} s {exchange.name} ({request.send.characters // 5} tokens)"
            yield f"{sent}: {exchange} at {self.backend_of(request)}{_took(exchange)}"
        for name, seen in self.observations.items():
            yield f"{name}: {_short(seen.programs)}"
        yield f"end: {_short(self.end.programs)}"
        yield from (f"decided: {change}" for change in self._changes or ())
        yield f"lag: {self.lag_secs:.3f} s"


def _took(exchange: Exchange) -> str:
    return "" if exchange.ended_at is None else f" after {exchange.wall:.2f} s {exchange.body[:200]!r}"


def _short(programs: Mapping[str, Mapping[str, Any]]) -> str:
    fields = ("backend", "state", "status", "total_tokens")
    return ", ".join(f"{name} {'/'.join(str(said.get(field)) for field in fields)}" for name, said in programs.items())
