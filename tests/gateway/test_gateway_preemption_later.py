"""Preemption over real sockets by requests that wait already, and victims whose slot their preemptor can have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from test_gateway_preemption import BULK, INTERACTIVE, PREEMPTING, RETRYING, STREAM, Engine
from world import (
    ANSWER,
    CHAT,
    Backend,
    BackendRequest,
    ClientConnection,
    GatewayWorld,
    admission_config,
    answer,
    run,
    whole,
    world,
)

from maitred.admission.terms.lead import Lead
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.config import GatewayConfig
from maitred.routing import RoutingConfig

LIMITED = {**PREEMPTING, "tenant_policies": {"header:a": {"max_in_flight": 1}}}
TENANT_A = {**INTERACTIVE, "x_smg_tenant_id": "a"}
ROUND_ROBIN = RoutingConfig(policy="round-robin")


async def hold_bulk(w: GatewayWorld, model: str = "m") -> ClientConnection:
    """Send a bulk request that its engine keeps."""
    connection = await w.connect()
    before = sum(len(backend.received) for backend in w.backends)
    await connection.send_request(CHAT, {**STREAM, "model": model}, x_class="bulk", **BULK)
    await w.wait_until(lambda: sum(len(backend.received) for backend in w.backends) > before)
    return connection


class OneGated:
    """An engine that keeps bulk requests, and requests for the model `n` until `open` is set; it answers others at once."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.open = asyncio.Event()

    async def __call__(self, received: BackendRequest) -> None:
        if msgspec.json.decode(received.body)["model"] == "n":
            await self.open.wait()
        await self.engine(received)


def test_a_waiter_preempts_when_its_tenant_frees_a_slot_at_another_model() -> None:
    async def scenario() -> None:
        gated = OneGated()
        backend = Backend(gated, models=("m", "n"))
        async with world(backend, slots=1, admission=LIMITED, trust_tenant_header=True) as w:
            elsewhere = await w.start_request({"model": "n"}, **TENANT_A)
            await w.wait_until(lambda: backend.received)
            victim = await hold_bulk(w)
            waiter = await w.start_request(**TENANT_A)
            await w.wait_until(lambda: w.state.waiting == 1)
            gated.open.set()

            assert (await elsewhere.read_response())[0] == 200
            assert (await waiter.read_response())[::2] == (200, ANSWER)
            assert (await victim.read_response())[0] == 503

    run(scenario())


def test_the_requests_of_one_tenant_do_not_turn_preemption_off_for_another() -> None:
    """Two of tenant a wait while a third is in flight; that of b takes the slot of a bulk request at once."""

    async def scenario() -> None:
        gated = OneGated()
        backend = Backend(gated, models=("m", "n"))
        async with world(backend, slots=1, admission=LIMITED, trust_tenant_header=True) as w:
            await w.start_request({"model": "n"}, **TENANT_A)
            await w.wait_until(lambda: backend.received)
            victim = await hold_bulk(w)
            held_back = [await w.start_request(**TENANT_A) for _ in range(2)]
            await w.wait_until(lambda: w.state.waiting == 2)

            assert (await w.request(**INTERACTIVE, x_smg_tenant_id="b"))[::2] == (200, ANSWER)
            assert (await victim.read_response())[0] == 503
            gated.open.set()
            assert [(await one.read_response())[0] for one in held_back] == [200, 200]

    run(scenario())


def test_a_waiter_preempts_after_a_reload_that_lets_its_class() -> None:
    async def scenario() -> None:
        def reload(config: GatewayConfig) -> GatewaySettings:
            return GatewaySettings(gateway=config, admission=admission_config(**PREEMPTING), routing=RoutingConfig())

        async with world(Backend(Engine()), slots=1, reload=reload) as w:
            victim = await hold_bulk(w)
            waiter = await w.start_request(**INTERACTIVE)
            await w.wait_until(lambda: w.state.waiting == 1)
            assert (await w.request("/admin/reload", b""))[0] == 200

            assert (await waiter.read_response())[::2] == (200, ANSWER)
            assert (await victim.read_response())[0] == 503

    run(scenario())


def test_a_waiter_preempts_when_the_fleet_is_as_large_again_as_what_is_in_flight() -> None:
    """A backend reports one slot less than it has requests, and then as many."""

    async def scenario() -> None:
        backend = Backend(Engine())
        backend.info = {"max_running_requests": 2}
        async with world(backend, slots=None, admission=PREEMPTING) as w:
            await w.wait_until(lambda: w.state.backends[0].slots == 2)
            victims = [await hold_bulk(w) for _ in range(2)]
            backend.info = {"max_running_requests": 1}
            await w.wait_until(lambda: w.state.backends[0].slots == 1)
            waiter = await w.start_request(**INTERACTIVE)
            await w.wait_until(lambda: w.state.waiting == 1)
            backend.info = {"max_running_requests": 2}

            assert (await waiter.read_response())[::2] == (200, ANSWER)
            assert (await victims[1].read_response())[0] == 503
            victims[0].disconnect()

    run(scenario())


def drain(w: GatewayWorld, backend: Backend) -> Any:
    return w.request("/admin/drain", {"backend": backend.url})


async def refuse(w: GatewayWorld, backend: Backend) -> None:
    await w.refuse_connections(backend)
    down = w.backends.index(backend)
    await w.wait_until(lambda: not w.state.backends[down].healthy)


@pytest.mark.parametrize("leave", [drain, refuse])
def test_a_victim_is_at_a_backend_whose_slot_the_preemptor_can_have(leave: Callable[[GatewayWorld, Backend], Any]) -> None:
    """The newest bulk request is at the backend that takes no new ones: stopping it would free no slot."""

    async def scenario() -> None:
        engines = Engine(), Engine()
        async with world(*map(Backend, engines), slots=1, admission=PREEMPTING, routing=ROUND_ROBIN) as w:
            first, second = w.backends
            old = await hold_bulk(w)
            new = await hold_bulk(w)
            assert (len(first.received), len(second.received)) == (1, 1)
            await leave(w, second)

            assert (await w.request(**INTERACTIVE))[::2] == (200, ANSWER)
            assert (await old.read_response())[0] == 503
            assert engines[1].gone == 0
            new.disconnect()

    run(scenario())


def test_the_request_of_a_refusing_backend_takes_no_slot_of_another_and_waits_behind_a_chat() -> None:
    async def scenario() -> None:
        engines = Engine(), Engine()
        async with world(*map(Backend, engines), slots=1, admission=RETRYING, routing=ROUND_ROBIN) as w:
            first, second = w.backends
            stays, moved = [await hold_bulk(w) for _ in range(2)]
            second.status = b"503 Service Unavailable"
            await w.wait_until(lambda: (w.state.capacity, w.state.in_flight, w.state.waiting) == (1, 1, 1))
            assert (len(first.received), engines[0].gone) == (1, 0)
            first.respond = answer

            assert (await w.request(**INTERACTIVE))[::2] == (200, ANSWER)
            assert engines[0].gone == 1
            for bulk in (stays, moved):
                assert (await bulk.read_response())[::2] == (200, ANSWER)
            assert len(second.received) == 1

    run(scenario())


def test_a_waiter_preempts_when_a_drained_backend_is_in_use_again() -> None:
    async def scenario() -> None:
        async with world(Backend(Engine()), Backend(Engine()), slots=1, admission=PREEMPTING, routing=ROUND_ROBIN) as w:
            first, second = w.backends
            victim = await hold_bulk(w)
            shown = await hold_bulk(w)
            await drain(w, second)
            await drain(w, first)
            assert (await w.request(**INTERACTIVE))[0] == 503  # no backend is there
            await w.request("/admin/undrain", {"backend": first.url})

            assert (await w.request(**INTERACTIVE))[::2] == (200, ANSWER)
            assert (await victim.read_response())[0] == 503
            shown.disconnect()

    run(scenario())


class OneAtATime:
    """An engine that keeps bulk requests, and answers others once a bulk request has gone."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self, received: BackendRequest) -> None:
        if b"x-class: bulk" not in received.head:
            await self.gone.wait()
            await received.send(whole(ANSWER))
            return
        await received.wait_until_disconnected()
        self.gone.set()
        raise ConnectionError


def test_a_chat_beyond_what_the_engine_runs_has_the_place_of_a_victim_soon() -> None:
    """The engine runs one request at once, and of its two slots the second is beyond that."""

    async def scenario() -> None:
        chats = {"can_preempt": True, "reserved_per_slot": 0.5}
        async with world(Backend(OneAtATime()), slots=2, admission={**RETRYING, "classes": {"interactive": chats}}) as w:
            w.gateway.scheduler.admission.resize_pool("m", 2, Lead(1))
            running = await hold_bulk(w)
            waiting = await w.connect()
            await waiting.send_request(CHAT, STREAM, x_class="bulk", **BULK)
            await w.wait_until(lambda: w.state.waiting == 1)
            assert (await w.request(**INTERACTIVE))[::2] == (200, ANSWER)
            running.disconnect()
            waiting.disconnect()

    run(scenario())
