"""Expectations of what the gateway says of itself: programs, health, metrics, profiles.

A program is expected as {backend, state, status, total_tokens} or [backend, state]. Of programs, health, metrics and profiles,
what is expected must be there; there may be more, but no program where none is expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..smg_conformance.failures import Failure, differs
from ..smg_conformance.scenario import CannotCheck
from .record import Observation, Record

_FIELDS = {"backend", "state", "status", "total_tokens", "step_count", "context_len"}


def programs(what: str, expected: Any, seen: Observation) -> Iterator[Failure]:
    """A map of programs. Raises CannotCheck."""
    if not isinstance(expected, Mapping):
        raise CannotCheck(f"{what}: {expected!r}")
    if not expected:
        yield from differs(f"{what}: the programs", [], sorted(seen.programs))
    for name, said in expected.items():
        yield from program(f"{what}: {name}", said, seen.programs.get(name))


def program(what: str, expected: Any, seen: Mapping[str, Any] | None) -> Iterator[Failure]:
    """One program; `seen` is None if there is none. Raises CannotCheck."""
    match expected:
        case [str() | None as backend, str() as state]:
            wanted = {"backend": backend, "state": state}
        case {**fields} if fields.keys() <= _FIELDS:
            wanted = dict(fields)
        case _:
            raise CannotCheck(f"{what}: {expected!r}")
    yield from differs(what, wanted, None if seen is None else {field: seen.get(field) for field in wanted})


def part(what: str, expected: Any, seen: Any) -> Iterator[Failure]:
    """Whether everything that is expected is there, at any depth; numbers are equal whatever their kind."""
    if isinstance(expected, Mapping) and isinstance(seen, Mapping) and expected:
        for key, value in expected.items():
            yield from part(f"{what}.{key}", value, seen.get(key, "nothing"))
    else:
        yield from differs(what, expected, seen)


def metrics_of(expected: Any, record: Record) -> Iterator[Failure]:
    """The page of the only backend. Raises CannotCheck."""
    if len(record.config.backends) != 1:
        raise CannotCheck("the metrics page of one of several backends")
    yield from part("metrics", expected, record.end.pages.get("b1", {}))


def profile(field: str, expected: Any, record: Record) -> Iterator[Failure]:
    """A field of the only profile, as it was last seen; `keys` are its fields. Raises CannotCheck."""
    if len(record.profiles) > 1:
        raise CannotCheck("a profile of several programs")
    for name, said in record.profiles.items():
        if field == "keys":
            yield from differs(f"profile of {name}: keys that it lacks", [], sorted(set(expected) - set(said)))
        else:
            yield from differs(f"profile of {name}: {field}", expected, said.get(field))
    if not record.profiles:
        yield Failure("expected a profile, got none")
