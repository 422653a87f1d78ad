"""Backends that go down: what becomes of the requests in flight there, and how often a request is tried."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
from typing import Any

import msgspec
import pytest
from world import ANSWER, STREAM_HEAD, Backend, BackendRequest, answer, chunk, run, run_on_sockets, whole, world

from maitred.gateway.observe import descriptor_watch

QUICK = {"health_timeout_secs": 0.05, "health_failures": 2}


class Hanging(Backend):
    """A backend that, while `hang` is set, accepts connections and answers nothing, polls included."""

    hang = False

    async def _answer(self, received: BackendRequest) -> None:
        if self.hang and received.head.startswith(b"GET "):
            await received.wait_until_disconnected()
        await super()._answer(received)


async def mute(received: BackendRequest) -> None:
    await received.wait_until_disconnected()


async def dies(received: BackendRequest) -> None:
    raise ConnectionError


def gated(gate: asyncio.Event) -> Any:
    async def respond(received: BackendRequest) -> None:
        await gate.wait()
        await received.send(whole(ANSWER))

    return respond


def test_all_complete_at_the_good_one_when_the_other_hangs() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        hanging, good = Hanging(mute), Backend(gated(gate))
        async with world(hanging, good, slots=4, **QUICK) as w:
            connections = [await w.start_request(x_smg_priority="system") for _ in range(20)]
            await w.wait_until(lambda: (len(hanging.received), len(good.received)) == (4, 4))
            hanging.hang = True
            await w.wait_until(lambda: w.state.capacity == 4)
            gate.set()
            for connection in connections:
                assert (await connection.read_response())[::2] == (200, ANSWER)
            assert (len(hanging.received), len(good.received)) == (4, 20)
            assert w.state.classes["system"].completed == 20
            assert w.gateway.counters.upstream_failures == {"abandoned": 4}

    run(scenario())


def test_a_stream_that_a_dead_backend_holds_costs_the_good_one_no_slot() -> None:
    async def scenario() -> None:
        async def begins(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await received.wait_until_disconnected()

        hanging = Hanging(begins)
        async with world(hanging, Backend(), slots=1, **QUICK) as w:
            stream = await w.start_request({"model": "m", "stream": True}, x_smg_priority="system")
            await stream.read_head()
            assert len(hanging.received) == 1
            hanging.hang = True
            await w.wait_until(lambda: not w.state.backends[0].healthy)
            assert (w.state.capacity, w.state.in_flight) == (2, 1)
            for _ in range(3):
                assert (await w.request(x_smg_priority="system"))[0] == 200
            assert w.state.in_flight == 1  # it goes on, for as long as its client likes to wait
            stream.disconnect()
            await w.wait_until_idle()
            assert w.state.capacity == 1

    run(scenario())


def test_nothing_is_taken_from_the_only_backend() -> None:
    """It may be busy and come back; and no other backend could serve the request."""

    async def scenario() -> None:
        hanging, late = Hanging(mute), Backend()
        async with world(hanging, late, **QUICK) as w:
            await late.stop()
            await w.wait_until(lambda: not w.state.backends[1].healthy)
            connection = await w.start_request()
            await w.wait_until(lambda: hanging.received)
            hanging.hang = True
            state = w.gateway.scheduler.fleet.backends[0]
            await w.wait_until(lambda: state.failures_in_a_row > 3)
            assert (w.state.in_flight, w.state.capacity, state.healthy) == (1, 1, False)
            await late.start()
            assert (await connection.read_response())[0] == 200
            assert len(late.received) == 1

    run(scenario())


def test_a_backend_that_takes_no_more_connections_ends_what_it_has() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def gated(received: BackendRequest) -> None:
            await gate.wait()
            await received.send(whole(ANSWER))

        leaving, other = Backend(gated), Backend(gated)
        async with world(leaving, other, **QUICK) as w:
            connection = await w.start_request()
            await w.wait_until(lambda: leaving.received)
            await w.refuse_connections(leaving)
            await w.wait_for_polls(other, 5)  # as often as the other one, it is polled in vain
            gate.set()
            assert (await connection.read_response())[0] == 200
            assert (len(leaving.received), len(other.received)) == (1, 0)

    run(scenario())


def test_a_request_told_to_stop_as_its_backend_is_given_up_stops() -> None:
    async def scenario() -> None:
        backends = Backend(mute), Backend(mute)
        async with world(*backends) as w:
            connection = await w.start_request()
            await w.wait_until(lambda: any(backend.received for backend in backends))
            flight = next(flight for backend in w.gateway.scheduler.fleet.backends for flight in backend.requests)
            flight.cancel()
            flight.task.cancel()
            status, headers, _ = await connection.read_response()
            assert (status, headers["x-smg-error-code"]) == (503, "shutting_down")
            assert sum(len(backend.received) for backend in backends) == 1

    run(scenario())


@pytest.mark.parametrize(("allowed", "tried"), [(1, 1), (2, 2), (3, 3)])
def test_a_request_that_kills_backends_kills_few(allowed: int, tried: int) -> None:
    async def scenario() -> None:
        async with world(*(Backend(dies) for _ in range(4)), max_attempts=allowed) as w:
            status, headers, _ = await w.request()
            assert (status, headers["x-smg-error-code"]) == (502, "upstream_disconnected")
            assert sum(bool(backend.received) for backend in w.backends) == tried

    run(scenario())


@pytest.mark.parametrize(("allowed", "sent"), [(1, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("programs", [None, {}])
def test_a_request_that_kills_processes_over_kept_connections_is_sent_so_often_and_no_more(
    allowed: int, sent: int, programs: dict[str, Any] | None
) -> None:
    """Each backend stops listening as it dies, so that a second connection to it is refused."""
    poisoned: list[BackendRequest] = []

    async def scenario() -> None:
        async def respond(received: BackendRequest) -> None:
            if b"poison" not in received.body:
                return await answer(received)
            poisoned.append(received)
            backend = next(b for b in w.backends if b"%d" % b.port in received.head)
            assert backend._server is not None
            backend._server.close()
            raise ConnectionError

        backends = [Backend(respond) for _ in range(4)]
        async with world(*backends, max_attempts=allowed, programs=programs, health_interval_secs=30.0) as w:
            for n in range(40):  # every backend has a kept connection
                assert (await w.request(body={"model": "m", "program_id": str(n)}))[0] == 200
            assert all(backend.received for backend in backends)
            status, _, _ = await w.request(body={"model": "m", "x": "poison"})
            assert status in (502, 503)
            assert len(poisoned) == sent
            assert (await w.request())[0] == 200

    run(scenario())


def test_a_kept_connection_that_was_closed_is_replaced_where_there_is_one_backend() -> None:
    async def dies_once(received: BackendRequest) -> None:
        if len(received_by) < 2:
            raise ConnectionError
        await answer(received)

    async def scenario() -> None:
        backend.received = received_by
        async with world(backend, health_interval_secs=30.0) as w:  # its poll leaves a kept connection
            assert (await w.request())[0] == 200
            assert len(received_by) == 2

    received_by: list[BackendRequest] = []
    backend = Backend(dies_once)
    run(scenario())


def test_backends_that_refuse_the_connection_are_no_attempts() -> None:
    async def scenario() -> None:
        backends = [Backend() for _ in range(4)]
        async with world(*backends, health_interval_secs=30.0) as w:
            for backend in backends[:3]:
                await backend.stop()
            assert (await w.request())[0] == 200

    run(scenario())


def test_descriptors_running_out_here_say_nothing_of_the_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with world(Backend(), Backend()) as w:
            loop = asyncio.get_running_loop()
            for backend in w.gateway.scheduler.fleet.backends:
                w.gateway._client.pool(backend.origin).close_idle()

            failed = 0

            async def fails(*_: Any, **__: Any) -> Any:
                nonlocal failed
                failed += 1
                raise OSError(errno.EMFILE, "Too many open files")

            connection = await w.connect()
            w.gateway._client._pools.clear()
            for backend in w.gateway.scheduler.fleet.backends:
                monkeypatch.setattr(w.gateway._client.pool(backend.origin), "_loop", Starved(loop, fails))
            await w.wait_until(lambda: failed >= 6)  # polls of both
            await connection.send_request()
            status, headers, body = await connection.read_response()
            assert (status, headers["x-smg-error-code"], headers["retry-after"]) == (503, "upstream_local", "2")
            assert "open files" in msgspec.json.decode(body)["error"]["message"].lower()
            assert all(backend.healthy for backend in w.state.backends)
            assert all(backend.failures_in_a_row == 0 for backend in w.gateway.scheduler.fleet.backends)
            monkeypatch.undo()

    run(scenario())


def test_a_process_without_descriptors_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(descriptor_watch, "INTERVAL_SECS", 0.01)

    async def scenario() -> None:
        async with world(Backend()) as w:
            client = await w.connect()
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            taken = []
            try:
                with contextlib.suppress(OSError):
                    while True:
                        taken.append(os.open(os.devnull, os.O_RDONLY))
                await w.wait_until(lambda: w.state.is_out_of_descriptors)
                await client.send_request("/metrics", b"", "GET")
                assert b"maitred_out_of_descriptors 1.0" in (await client.read_response())[2]
            finally:
                for descriptor in taken:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await w.wait_until(lambda: not w.state.is_out_of_descriptors)

    run_on_sockets(scenario())
    said = [record.message for record in caplog.records if "descriptors" in record.message]
    assert said[0].startswith("no file descriptors are left (limit 64): new connections are dropped")
    assert said[1:] == ["there are file descriptors again"]


class Starved:
    """An event loop that fails to make connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fails: Any) -> None:
        self._loop = loop
        self.create_connection = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def test_a_poll_that_times_out_while_answers_flow_is_no_death() -> None:
    async def scenario() -> None:
        busy = Hanging()
        async with world(busy, **QUICK) as w:
            busy.hang = True
            polled = busy.health_polls
            state = w.gateway.scheduler.fleet.backends[0]
            async with asyncio.timeout(10):
                while busy.health_polls < polled + 8:
                    assert (await w.request())[0] == 200
                    assert state.healthy
                    assert state.failures_in_a_row == 0

    run(scenario())


def test_a_stream_whose_tokens_come_keeps_its_backend_up() -> None:
    async def scenario() -> None:
        async def stream(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD)
            while not ended.is_set():
                await received.send(chunk(b"data: 1\n\n"))
                await asyncio.sleep(0.01)  # the time of a token
            await received.send(b"0\r\n\r\n")

        ended = asyncio.Event()
        busy = Hanging(stream)
        async with world(busy, **QUICK) as w:
            client = await w.start_request({"model": "m", "stream": True})
            await client.read_head()
            busy.hang = True
            polled = busy.health_polls
            await w.wait_until(lambda: busy.health_polls >= polled + 8)
            assert w.state.backends[0].healthy
            ended.set()
            while await client.read_chunk():
                pass

    run(scenario())


@pytest.mark.parametrize("programs", [None, {"backend_capacity_tokens": 10_000}])
def test_an_abandonment_costs_no_attempt_and_stalls_in_turn_lose_nothing(programs: dict[str, Any] | None) -> None:
    """Two engines stall one after the other; both work again in the end."""

    async def scenario() -> None:
        gate = asyncio.Event()
        first, second = Hanging(gated(gate)), Hanging(gated(gate))
        async with world(first, second, max_attempts=1, programs=programs, **QUICK) as w:
            client = await w.start_request()
            await w.wait_until(lambda: first.received or second.received)
            stalled, other = (first, second) if first.received else (second, first)
            stalled.hang = True
            await w.wait_until(lambda: other.received)
            stalled.hang = False
            await w.wait_until(lambda: all(backend.healthy for backend in w.state.backends))
            other.hang = True
            await w.wait_until(lambda: sum(backend.healthy for backend in w.state.backends) == 1)
            gate.set()
            assert (await client.read_response())[::2] == (200, ANSWER)

    run(scenario())


def test_what_is_taken_away_again_and_again_stays_at_last() -> None:
    """It may be what stalls the backends, so it does not go through all of them."""

    async def scenario() -> None:
        backends = [Hanging(mute) for _ in range(4)]

        async def stalls(received: BackendRequest) -> None:
            next(b for b in backends if b"%d" % b.port in received.head).hang = True
            await received.wait_until_disconnected()

        for backend in backends:
            backend.respond = stalls
        async with world(*backends, max_attempts=2, **QUICK) as w:
            client = await w.start_request()
            await w.wait_until(lambda: sum(not backend.healthy for backend in w.state.backends) == 3)
            last = w.gateway.scheduler.fleet.backends[next(i for i, b in enumerate(w.state.backends) if b.in_flight)]
            await w.wait_until(lambda: last.failures_in_a_row > 4)
            assert [len(backend.received) for backend in backends].count(1) == 3
            client.disconnect()

    run(scenario())
