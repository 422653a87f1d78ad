"""How often a proxied request asks for what is known already: the time once per event, its model once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from world import Backend, BackendRequest, GatewayWorld, chunk, run, run_on_sockets, world

from maitred import is_compiled
from maitred.admission.classes.priority import AdmissionPriority
from maitred.scheduler.backends.served_models import ServedModels
from maitred.wire.clock import Clock
from maitred.wire.machine import Machine

CLASSES = {"mode": "priority"}
MEMORY = {"mode": "tr", "backend_capacity_tokens": 1_000_000}


class Count:
    """Counts the calls of a function; with `of`, in place of that method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0
        self._function = function

    @classmethod
    def of(cls, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Count:
        count = cls(getattr(owner, name))

        def method(*args: object) -> Any:
            return count(*args)

        monkeypatch.setattr(owner, name, method)
        return count

    def __call__(self, *args: object) -> Any:
        self.calls += 1
        return self._function(*args)

    async def fewest(self, w: GatewayWorld, body: dict[str, object]) -> int:
        """Return the calls during a request, without those of timers that came between: the fewest of five requests."""
        counts = []
        for _ in range(5):
            before = self.calls
            assert (await w.request(body=body))[0] == 200
            await asyncio.sleep(0)
            counts.append(self.calls - before)
        return min(counts)


@pytest.mark.parametrize("programs", [None, MEMORY], ids=["routed", "of a program"])
def test_the_clock_is_read_when_a_request_comes_and_when_its_answer_does(programs: dict[str, object] | None) -> None:
    """A request that need not wait is taken in, admitted, routed and sent at one instant; a short answer has come, is sent and
    has ended at another one."""
    count = Count(time.monotonic_ns)
    machine = Machine(clock=Clock(count))

    async def scenario() -> None:
        async with world(Backend(), admission=CLASSES, programs=programs, machine=machine, health_interval_secs=3600.0) as w:
            body = {"model": "m"} if programs is None else {"model": "m", "program_id": "p"}
            assert await count.fewest(w, body) == 2

    run_on_sockets(scenario())


@pytest.mark.skipif(is_compiled(), reason="watches a method, which a compiled class does not allow")
def test_a_request_asks_once_which_backends_serve_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    count, listed = (Count.of(monkeypatch, ServedModels, name) for name in ("find", "backends_serving"))

    async def scenario() -> None:
        async with world(Backend(), Backend(), admission=CLASSES, health_interval_secs=3600.0) as w:
            asked = listed.calls
            assert await count.fewest(w, {"model": "m"}) == 1
            assert listed.calls == asked

    run(scenario())


@pytest.mark.skipif(is_compiled(), reason="watches a method, which a compiled class does not allow")
@pytest.mark.parametrize("cost", ["requests", "tokens"])
def test_a_request_that_is_admitted_at_once_has_its_slots_counted_once(monkeypatch: pytest.MonkeyPatch, cost: str) -> None:
    count = Count.of(monkeypatch, AdmissionPriority, "set_slot_units")

    async def scenario() -> None:
        async with world(Backend(), slots=1_000, admission={**CLASSES, "slot_cost": cost}, health_interval_secs=3600.0) as w:
            assert await count.fewest(w, {"model": "m", "max_tokens": 10}) == 1

    run(scenario())


def test_a_request_that_waits_sees_which_backends_serve_its_model_then() -> None:
    """The model was known by another backend when the request came."""

    async def scenario() -> None:
        may_end = asyncio.Event()

        async def held(received: BackendRequest) -> None:
            await received.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"{"))
            await may_end.wait()
            await received.send(chunk(b"}") + chunk(b""))

        first, second = Backend(held, models=("m",)), Backend(models=("n",))
        async with world(first, second, slots=1, admission=CLASSES) as w:
            blocker = await w.start_request({"model": "m"})
            await w.wait_until(lambda: w.state.in_flight == 1)
            waiting = asyncio.create_task(w.request(body={"model": "m"}))
            await w.wait_until(lambda: w.state.waiting == 1)
            fleet = w.gateway.scheduler.fleet
            fleet.drain(fleet.backends[0])
            second.models = ("n", "m")
            may_end.set()
            assert (await waiting)[0] == 200
            assert len(second.received) == 1
            await blocker.read_response()

    run(scenario())
