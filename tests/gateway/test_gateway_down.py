"""What is in flight at a backend when it goes down, and how often a request is tried."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import msgspec
import pytest
from world import ANSWER, STREAM_HEAD, Backend, Turn, chunk, run, whole, world

QUICK = {"health_timeout_secs": 0.05, "health_failures": 2}


class Hanging(Backend):
    """Once told to `hang` it accepts and answers nothing, polls included."""

    hang = False

    async def _act(self, turn: Turn) -> None:
        if self.hang and turn.head.startswith(b"GET "):
            await turn.until_gone()
        await super()._act(turn)


async def mute(turn: Turn) -> None:
    await turn.until_gone()


async def dies(turn: Turn) -> None:
    raise ConnectionError


def gated(gate: asyncio.Event) -> Any:
    async def act(turn: Turn) -> None:
        await gate.wait()
        await turn.say(whole(ANSWER))

    return act


def test_all_complete_at_the_good_one_when_the_other_hangs() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        hanging, good = Hanging(mute), Backend(gated(gate))
        async with world(hanging, good, slots=4, **QUICK) as w:
            wires = [await w.asking(x_smg_priority="system") for _ in range(20)]
            await w.until(lambda: (len(hanging.turns), len(good.turns)) == (4, 4))
            hanging.hang = True
            await w.until(lambda: w.state.capacity == 4)
            gate.set()
            for wire in wires:
                assert (await wire.reply())[::2] == (200, ANSWER)
            assert (len(hanging.turns), len(good.turns)) == (4, 20)
            assert w.state.classes["system"].completed == 20
            assert w.gateway.counters.upstream_failures == {"abandoned": 4}

    run(scenario())


def test_a_stream_that_a_dead_backend_holds_costs_the_good_one_no_slot() -> None:
    async def scenario() -> None:
        async def begins(turn: Turn) -> None:
            await turn.say(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await turn.until_gone()

        hanging = Hanging(begins)
        async with world(hanging, Backend(), slots=1, **QUICK) as w:
            stream = await w.asking({"model": "m", "stream": True}, x_smg_priority="system")
            await stream.head()
            assert len(hanging.turns) == 1
            hanging.hang = True
            await w.until(lambda: not w.state.backends[0].healthy)
            assert (w.state.capacity, w.state.in_flight) == (2, 1)
            for _ in range(3):
                assert (await w.ask(x_smg_priority="system"))[0] == 200
            assert w.state.in_flight == 1  # it goes on, for as long as its client likes to wait
            stream.leave()
            await w.idle()
            assert w.state.capacity == 1

    run(scenario())


def test_nothing_is_taken_from_the_only_backend() -> None:
    """It may be busy, and come back; and there is nowhere else to go before another is up."""

    async def scenario() -> None:
        hanging, late = Hanging(mute), Backend()
        async with world(hanging, late, **QUICK) as w:
            await late.stop()
            await w.until(lambda: not w.state.backends[1].healthy)
            wire = await w.asking()
            await w.until(lambda: hanging.turns)
            hanging.hang = True
            state = w.gateway._fleet.backends[0]
            await w.until(lambda: state.failures_in_a_row > 3)
            assert (w.state.in_flight, w.state.capacity, state.healthy) == (1, 1, False)
            await late.start()
            assert (await wire.reply())[0] == 200
            assert len(late.turns) == 1

    run(scenario())


def test_a_backend_that_takes_no_more_connections_ends_what_it_has() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def gated(turn: Turn) -> None:
            await gate.wait()
            await turn.say(whole(ANSWER))

        leaving, other = Backend(gated), Backend(gated)
        async with world(leaving, other, **QUICK) as w:
            wire = await w.asking()
            await w.until(lambda: leaving.turns)
            assert leaving._server is not None
            leaving._server.close()
            backend = w.gateway._fleet.backends[0]
            w.gateway._client.pool(backend.origin).close_idle()
            await w.until(lambda: "refused" in w.state.backends[0].problem)
            await asyncio.sleep(0.05)  # five more polls
            gate.set()
            assert (await wire.reply())[0] == 200
            assert (len(leaving.turns), len(other.turns)) == (1, 0)

    run(scenario())


def test_a_request_told_to_stop_as_its_backend_is_given_up_stops() -> None:
    async def scenario() -> None:
        backends = Backend(mute), Backend(mute)
        async with world(*backends) as w:
            wire = await w.asking()
            await w.until(lambda: any(backend.turns for backend in backends))
            flight = next(flight for backend in w.gateway._fleet.backends for flight in backend.requests)
            assert flight._task is not None
            flight.abandon()
            flight._task.cancel()
            status, headers, _ = await wire.reply()
            assert (status, headers["x-smg-error-code"]) == (503, "shutting_down")
            assert sum(len(backend.turns) for backend in backends) == 1

    run(scenario())


@pytest.mark.parametrize(("allowed", "tried"), [(1, 1), (2, 2), (3, 3)])
def test_a_request_that_kills_backends_kills_few(allowed: int, tried: int) -> None:
    async def scenario() -> None:
        async with world(*(Backend(dies) for _ in range(4)), max_attempts=allowed) as w:
            status, headers, _ = await w.ask()
            assert (status, headers["x-smg-error-code"]) == (502, "upstream_disconnected")
            assert sum(bool(backend.turns) for backend in w.backends) == tried

    run(scenario())


def test_backends_that_refuse_the_connection_are_no_attempts() -> None:
    async def scenario() -> None:
        backends = [Backend() for _ in range(4)]
        async with world(*backends, health_interval_secs=30.0) as w:
            for backend in backends[:3]:
                await backend.stop()
            assert (await w.ask())[0] == 200

    run(scenario())


def test_descriptors_running_out_here_say_nothing_of_the_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with world(Backend(), Backend()) as w:
            loop = asyncio.get_running_loop()
            for backend in w.gateway._fleet.backends:
                w.gateway._client.pool(backend.origin).close_idle()

            async def fails(*_: Any) -> Any:
                raise OSError(errno.EMFILE, "Too many open files")

            wire = await w.connect()
            w.gateway._client._pools.clear()
            for backend in w.gateway._fleet.backends:
                monkeypatch.setattr(w.gateway._client.pool(backend.origin), "_loop", Starved(loop, fails))
            await asyncio.sleep(0.05)  # a few polls
            await wire.ask()
            status, headers, body = await wire.reply()
            assert (status, headers["x-smg-error-code"], headers["retry-after"]) == (503, "upstream_local", "2")
            assert "open files" in msgspec.json.decode(body)["error"]["message"].lower()
            assert all(backend.healthy for backend in w.state.backends)
            assert all(backend.failures_in_a_row == 0 for backend in w.gateway._fleet.backends)
            monkeypatch.undo()

    run(scenario())


class Starved:
    """A loop that makes no connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fails: Any) -> None:
        self._loop = loop
        self.create_connection = fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)
