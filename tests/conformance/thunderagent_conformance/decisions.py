"""Which programs were paused, resumed and marked, in order: what the gateway's decision log says.

Several programs change at one tick, and the pages of the gateway show only what came of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOM = "programs"


class Change(msgspec.Struct, frozen=True):
    """One decision that changed a program."""

    program: str
    action: str
    reason: str
    backend: str | None

    def __str__(self) -> str:
        return f"{self.action} {self.program} at {self.backend} ({self.reason})"


def read_changes(log: Path, backends: Sequence[str]) -> Sequence[Change] | None:
    """Return the changes in order, or None if the log says nothing of programs."""
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()] if log.exists() else []
    lines = [line for line in lines if line.get("room") == ROOM]
    return list(_changes(lines, backends)) if lines else None


def _changes(lines: Sequence[dict[str, Any]], backends: Sequence[str]) -> Iterator[Change]:
    """A decision has the number of a program; the first decision about a request tells which program that is."""
    requested: dict[int, str] = {}
    names: dict[int, str] = {}
    for line in lines:
        request = line.get("request")
        if isinstance(request, dict):
            requested[request["id"]] = request["program"]
        decision = line.get("decision")
        if decision is None:
            continue
        program = decision["program"]
        if decision.get("request") in requested:
            names.setdefault(program, requested[decision["request"]])
        backend = decision.get("backend")
        name = None if backend is None else backends[backend % len(backends)]
        yield Change(names.get(program, f"({program})"), decision["action"], decision["reason"], name)
