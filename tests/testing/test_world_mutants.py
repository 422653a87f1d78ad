"""Faults that are planted in the gateway, each found by the world: what it holds against a gateway is no ornament."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maitred.core.decisions import DecisionLog
from maitred.gateway import proxy
from maitred.gateway.bodies.body_budget import BodyLease
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.scheduler.drivers.admission import RealTimeAdmission
from maitred.testing.world.simulation import Simulation
from maitred.testing.world.swarm import draw_scenario
from maitred.wire.client import UpstreamClient
from maitred.wire.protocol import ServerConnection
from maitred.wire.response import UpstreamResponse

MAX_EVENTS = 100_000
Patch = Callable[[pytest.MonkeyPatch], None]
pytestmark = pytest.mark.skipif(not str(proxy.__file__).endswith(".py"), reason="compiled classes cannot be patched")


def _wrap(owner: type, name: str, wrapper: Callable[[Any], Any]) -> Patch:
    """Return what replaces a method by what `wrapper` makes of it."""
    return lambda patches: patches.setattr(owner, name, wrapper(getattr(owner, name)))


def _slot_stays_after_a_failure(release: Any) -> Any:
    def mutant(self: Any, request_id: int, end: Any, *further: Any) -> None:
        if end.value != "failed":
            release(self, request_id, end, *further)

    return mutant


def _lease_is_leaked(release: Any) -> Any:
    return lambda self: None if self.held_bytes > 700 else release(self)


def _head_is_sent_twice(start: Any) -> Any:
    def mutant(self: Any, status: int, headers: Any, piece: bytes, more: bool) -> Any:
        if status == 200 and more:
            self._write(b"HTTP/1.1 200 OK\r\n\r\n"[:17] + b"content-length: 0\r\n\r\n")
        return start(self, status, headers, piece, more)

    return mutant


def _broken_answer_ends_well(on_error: Any) -> Any:
    def mutant(self: Any, error: Any) -> None:
        if type(error).__name__ == "Truncated":
            self.on_body(b"", False)
        else:
            on_error(self, error)

    return mutant


def _client_is_not_closed(close: Any) -> Any:
    async def mutant(self: Any) -> None:
        await asyncio.sleep(0)

    return mutant


def _input_is_not_logged(log_input: Any) -> Any:
    def mutant(self: Any, room: str, given: Any, raised: str | None = None) -> None:
        if type(given).__name__ != "Release" or given.id % 5:
            log_input(self, room, given, raised)

    return mutant


def _ids_are_mixed_up(next_id: Any) -> Any:
    def mutant(self: Any, given: bytes | None) -> Any:
        number, request_id = next_id(self, given)
        return number, request_id if number % 7 else b"another"

    return mutant


def _end_is_told_twice(end: Any) -> Any:
    def mutant(self: Any, record: Any, exchange: Any) -> None:
        end(self, record, exchange)
        if exchange.status == 200:
            end(self, record, exchange)

    return mutant


def _last_piece_is_lost(send: Any) -> Any:
    def mutant(self: Any, piece: bytes, more: bool) -> Any:
        return send(self, piece if more else piece[:-20], more)

    return mutant


MUTANTS: dict[str, Patch] = {
    "slot stays after a failure": _wrap(RealTimeAdmission, "release", _slot_stays_after_a_failure),
    "lease is leaked": _wrap(BodyLease, "release", _lease_is_leaked),
    "head is sent twice": _wrap(ServerConnection, "start_response", _head_is_sent_twice),
    "broken answer ends well": _wrap(UpstreamResponse, "on_error", _broken_answer_ends_well),
    "client is not closed": _wrap(UpstreamClient, "close", _client_is_not_closed),
    "input is not logged": _wrap(DecisionLog, "log_input", _input_is_not_logged),
    "ids are mixed up": _wrap(RequestIds, "next", _ids_are_mixed_up),
    "end is told twice": _wrap(RequestObserver, "end", _end_is_told_twice),
    "last piece is lost": _wrap(ServerConnection, "send_piece", _last_piece_is_lost),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    MUTANTS[name](monkeypatch)
    num_events, seed = 0, 0
    while num_events < MAX_EVENTS:
        seed += 1
        folder = tmp_path / str(seed)
        folder.mkdir()
        simulation = Simulation(draw_scenario(seed), folder)
        try:
            outcome = simulation.run()
        except Exception:  # It was found at once.
            return
        if outcome.violations:
            return
        num_events += outcome.num_events
    pytest.fail(f"not found within {MAX_EVENTS:,} events")
