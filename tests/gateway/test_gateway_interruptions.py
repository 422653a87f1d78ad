"""A request may be cancelled for several reasons at once: in any combination and order it ends once, and leaks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations

import msgspec
import pytest
from world import Backend, BackendRequest, GatewayWorld, run, world

from maitred.admission import ReleaseReason
from maitred.core.request import PriorityClass, Request
from maitred.gateway.bodies.large_body import LARGE_BYTES
from maitred.scheduler.drivers.admission import AdmissionRejected
from maitred.wire.exchange import Exchange
from maitred.wire.messages import Headers, RequestHead

INTERRUPTIONS = ("preempted", "abandoned", "left", "stopped")
ORDERS = [order for n in range(1, 5) for order in permutations(INTERRUPTIONS, n)]


class Client:
    """Calls the gateway in this process, as a connection would."""

    def __init__(self, w: GatewayWorld, body: bytes) -> None:
        self.sent: list[tuple[int, bytes]] = []
        headers = [(b"x-smg-priority", b"bulk")]
        head = RequestHead("POST", b"/v1/chat/completions", headers, True, False, len(body), True, "/v1/chat/completions", b"")
        self._exchange = Exchange(head, self)
        self._exchange.on_body(body)
        self._exchange.on_body_end()
        self.task = asyncio.create_task(w.gateway(self._exchange))

    def disconnect(self) -> None:
        self._exchange.on_disconnect()

    @property
    def status(self) -> int | None:
        return self.sent[0][0] if self.sent else None

    @property
    def code(self) -> str | None:
        return msgspec.json.decode(self.sent[0][1])["error"]["code"] if self.sent else None

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> None:
        assert not more
        self.sent.append((status, piece))

    def send_piece(self, piece: bytes, more: bool) -> None: ...

    def send_continue(self) -> None: ...

    def on_body_read(self) -> None: ...


def preemptor(number: int = 1_000_000) -> Request:
    return Request(id=number, arrival=0, prompt_tokens=1, model="m", priority_class=PriorityClass.INTERACTIVE)


def interruptions(w: GatewayWorld, client: Client) -> dict[str, Callable[[], object]]:
    (flight,) = (flight for backend in w.gateway.scheduler.fleet.backends for flight in backend.requests)
    return {
        "preempted": lambda: w.gateway.scheduler.admission.submit(
            preemptor(), 1, client.task, w.gateway.scheduler.admission.clock.now()
        ),
        "abandoned": flight.cancel,
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
            w.gateway.scheduler.admission.resize_pool("m", 1)
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
        w.gateway.scheduler.admission.release(preemptor().id, ReleaseReason.DRAINED)
    goes_on = not {"left", "stopped"} & set(order) and (on_preempt == "retry" or "preempted" not in order)
    await settled(w, client, order, goes_on=goes_on)
    await w.wait_until_idle()


def test_a_victim_that_was_admitted_and_does_not_know_it_yet() -> None:
    """It gets a slot, and in the same iteration of the loop a higher class takes it: nothing of it reaches a backend."""

    async def scenario() -> None:
        admission = {"classes": {"interactive": {"can_preempt": True}}}
        async with world(Backend(mute), slots=1, admission=admission) as w:
            driver = w.gateway.scheduler.admission
            first = preemptor(1_000_001)
            driver.submit(first, 1, asyncio.current_task(), driver.clock.now())
            client = Client(w, b'{"model": "m"}')
            await w.wait_until(lambda: w.state.waiting)
            driver.release(first.id, ReleaseReason.DRAINED)
            assert (w.state.in_flight, w.state.waiting) == (1, 0)
            driver.submit(preemptor(), 1, asyncio.current_task(), driver.clock.now())
            await client.task
            assert (client.status, client.code) == (503, "scheduler_preempted")
            assert w.backends[0].received == []
            assert w.state.classes["interactive"].in_flight == 1
            driver.release(preemptor().id, ReleaseReason.DRAINED)

    run(scenario())


def test_a_request_that_is_refused_is_not_there() -> None:
    async def scenario() -> None:
        async with world(slots=1, admission={"classes": {"interactive": {"queue_size": 0}}}) as w:
            driver = w.gateway.scheduler.admission
            driver.submit(preemptor(), 1, asyncio.current_task(), driver.clock.now())
            with pytest.raises(AdmissionRejected, match="queue_full"):
                driver.submit(preemptor(1_000_001), 1, asyncio.current_task(), driver.clock.now())
            assert len(driver.leases) == 1
            driver.release(preemptor().id, ReleaseReason.DRAINED)

    run(scenario())


def test_a_request_whose_body_is_being_read_when_the_gateway_ends_is_told_so() -> None:
    async def scenario() -> None:
        async with world(Backend(mute)) as w:
            client = Client(w, b'{"model": "m", "messages": [%s]}' % b", ".join([b"{}"] * LARGE_BYTES))
            await asyncio.sleep(0)
            client.task.cancel()
            await asyncio.wait({client.task})
            assert (client.status, client.code, client.task.cancelled()) == (503, "shutting_down", True)
            assert w.gateway.counters.refused_before_admission["shutting_down"] == 1
            assert w.state.parked_body_bytes == 0
            assert w.backends[0].received == []

    run(scenario())
