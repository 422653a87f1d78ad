"""A request may be cancelled for several reasons at once: in any combination and order it ends once, and leaks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from typing import Any

import msgspec
import pytest
from world import Backend, BackendRequest, GatewayWorld, run, world

from maitred.admission import ReleaseReason
from maitred.core.request import PriorityClass, Request
from maitred.gateway.driver import AdmissionRejected

INTERRUPTIONS = ("preempted", "abandoned", "left", "stopped")
ORDERS = [order for n in range(1, 5) for order in permutations(INTERRUPTIONS, n)]


class Client:
    """Calls the gateway in this process, as its server would."""

    def __init__(self, w: GatewayWorld, body: bytes) -> None:
        self.sent: list[dict[str, Any]] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._left = asyncio.get_running_loop().create_future()
        self._body = body
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "client": None}
        scope["headers"] = [(b"x-smg-priority", b"bulk")]
        self.task = asyncio.create_task(w.gateway(scope, self._receive, self._send))

    def disconnect(self) -> None:
        self._left.set_result(None)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def code(self) -> str | None:
        return msgspec.json.decode(self.sent[1]["body"])["error"]["code"] if self.sent else None

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.may_send.wait()
        self.sent.append(message)


def preemptor(number: int = 1_000_000) -> Request:
    return Request(id=number, arrival=0, prompt_tokens=1, model="m", priority_class=PriorityClass.INTERACTIVE)


def interruptions(w: GatewayWorld, client: Client) -> dict[str, Callable[[], object]]:
    (flight,) = (flight for backend in w.gateway._fleet.backends for flight in backend.requests)
    return {
        "preempted": lambda: w.gateway._driver.submit(preemptor(), 1),
        "abandoned": flight.abandon,
        "left": client.disconnect,
        "stopped": client.task.cancel,
    }


async def mute(received: BackendRequest) -> None:
    await received.wait_until_disconnected()


async def settled(w: GatewayWorld, client: Client, order: tuple[str, ...], *, goes_on: bool) -> None:
    """Check how the request has ended; or, if it `goes_on`, that it is served again and its client has noticed nothing."""
    if goes_on:
        await w.wait_until(lambda: len(turns(w)) == 2)
        assert (client.sent, client.task.cancelling()) == ([], 0), order
        client.disconnect()
        await asyncio.wait({client.task})
        return
    await asyncio.wait({client.task})
    if "left" in order:
        assert client.status in (None, 503), order  # there may have been no time to see that it left
    elif "stopped" in order:
        assert (client.status, client.code, client.task.cancelled()) == (503, "shutting_down", True), order
    else:
        assert (client.status, client.code, client.task.cancelling()) == (503, "scheduler_preempted", 0), order


def turns(w: GatewayWorld) -> list[BackendRequest]:
    return [received for backend in w.backends for received in backend.received]


@pytest.mark.parametrize("on_preempt", ["reject", "retry"])
def test_told_to_stop_in_one_turn_of_the_loop(on_preempt: str) -> None:
    async def scenario() -> None:
        admission = {"classes": {"interactive": {"can_preempt": True}}, "on_preempt": on_preempt}
        async with world(Backend(mute), Backend(mute), admission=admission, health_interval_secs=30.0) as w:
            w.gateway._driver.resize_pool("m", 1)
            for order in ORDERS:
                await interrupt(w, order, on_preempt)

    run(scenario())


async def interrupt(w: GatewayWorld, order: tuple[str, ...], on_preempt: str) -> None:
    for backend in w.backends:
        backend.received.clear()
    client = Client(w, b'{"model": "m"}')
    await w.wait_until(lambda: turns(w))
    how = interruptions(w, client)
    for interruption in order:
        how[interruption]()
    if "preempted" in order:
        await w.wait_until(lambda: w.state.classes["bulk"].in_flight == 0)
        w.gateway._driver.release(preemptor().id, ReleaseReason.DRAINED)
    goes_on = not {"left", "stopped"} & set(order) and (on_preempt == "retry" or "preempted" not in order)
    await settled(w, client, order, goes_on=goes_on)
    await w.wait_until_idle()


def test_a_client_too_slow_to_take_its_503_holds_no_slot() -> None:
    async def scenario() -> None:
        admission = {"classes": {"interactive": {"can_preempt": True}}}
        async with world(Backend(mute), slots=1, admission=admission) as w:
            client = Client(w, b'{"model": "m"}')
            client.may_send.clear()
            await w.wait_until(lambda: w.backends[0].received)
            w.backends[0].respond = lambda received: received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            assert (await w.request(x_smg_priority="interactive"))[0] == 200
            assert client.sent == []
            client.may_send.set()
            await client.task
            assert (client.status, client.code) == (503, "scheduler_preempted")

    run(scenario())


def test_a_victim_that_was_admitted_and_does_not_know_it_yet() -> None:
    """It gets a slot, and in the same iteration of the loop a higher class takes it: nothing of it reaches a backend."""

    async def scenario() -> None:
        admission = {"classes": {"interactive": {"can_preempt": True}}}
        async with world(Backend(mute), slots=1, admission=admission) as w:
            driver = w.gateway._driver
            first = preemptor(1_000_001)
            driver.submit(first, 1)
            client = Client(w, b'{"model": "m"}')
            await w.wait_until(lambda: w.state.waiting)
            driver.release(first.id, ReleaseReason.DRAINED)
            assert (w.state.in_flight, w.state.waiting) == (1, 0)
            driver.submit(preemptor(), 1)
            await client.task
            assert (client.status, client.code) == (503, "scheduler_preempted")
            assert w.backends[0].received == []
            assert w.state.classes["interactive"].in_flight == 1
            driver.release(preemptor().id, ReleaseReason.DRAINED)

    run(scenario())


def test_a_request_that_is_refused_is_not_there() -> None:
    async def scenario() -> None:
        async with world(slots=1, admission={"classes": {"interactive": {"queue_size": 0}}}) as w:
            driver = w.gateway._driver
            driver.submit(preemptor(), 1)
            with pytest.raises(AdmissionRejected, match="queue_full"):
                driver.submit(preemptor(1_000_001), 1)
            assert len(driver.leases) == 1
            driver.release(preemptor().id, ReleaseReason.DRAINED)

    run(scenario())
