"""Polling: no answer of a backend ends it, or delays what is known of another backend."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from world import Backend, BackendRequest, run, whole, world

from maitred.gateway.polling import MAX_POLL_BYTES


class Odd(Backend):
    """A backend that answers polls for its models with `odd`, and is never asked for anything else."""

    odd = b""

    async def _answer(self, received: BackendRequest) -> None:
        if received.head.startswith(b"GET /v1/models") and self.odd:
            await received.send(whole(self.odd))
        else:
            await super()._answer(received)


class Mute(Backend):
    """A backend that accepts connections, and does not answer polls while `mute` is set."""

    mute = True

    async def _answer(self, received: BackendRequest) -> None:
        if self.mute and received.head.startswith(b"GET "):
            await received.wait_until_disconnected()
        await super()._answer(received)


ODD = {
    "no UTF-8": (b'{"data": [{"id": "\xff"}]}', "UnicodeDecodeError"),
    "a thousand brackets in each other": (b'{"data": [{"id": ' + b"[" * 100_000, "RecursionError"),
    "no list": (b"[]", "ValidationError"),
    "more than is read of it": (b'{"data": []}' + b" " * MAX_POLL_BYTES, "more than 1048576 bytes"),
}


@pytest.mark.parametrize("what", ODD)
def test_an_odd_answer_is_a_failure_of_its_backend_alone(what: str, caplog: Any) -> None:
    async def scenario() -> None:
        odd, good = Odd(), Backend()
        odd.odd, problem = ODD[what]
        async with world(odd, good, ready=False) as w:
            await w.wait_until(lambda: problem in w.state.backends[0].problem and w.state.backends[1].healthy)
            assert any(problem in record.message and odd.url in record.message for record in caplog.records)
            odd.odd = b""
            await good.stop()
            await w.wait_until(lambda: [backend.healthy for backend in w.state.backends] == [True, False])

    run(scenario())


@pytest.mark.parametrize(
    ("key", "hint"),
    [(None, "if it needs a key, set gateway.upstream_api_key"), ("wrong", "it refuses gateway.upstream_api_key")],
)
def test_a_backend_that_wants_a_key_says_which_key_of_the_configuration_that_is(key: str | None, hint: str) -> None:
    class Locked(Backend):
        async def _answer(self, received: BackendRequest) -> None:
            unlocked = received.head.startswith(b"GET /health")
            await received.send(whole(b"{}", b"200 OK" if unlocked else b"401 Unauthorized"))

    async def scenario() -> None:
        async with world(Locked(), ready=False, upstream_api_key=key) as w:
            await w.wait_until(lambda: w.state.backends[0].problem == f"/v1/models answered 401: {hint}")

    run(scenario())


def test_a_host_that_cannot_be_a_name_harms_no_other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        from maitred.wire.client import ConnectionPool

        connect = ConnectionPool.acquire

        async def take(pool: ConnectionPool) -> Any:
            if pool.authority.endswith(str(bad.port)):
                "a..b".encode("idna")
            return await connect(pool)

        bad, good = Backend(), Backend()
        monkeypatch.setattr(ConnectionPool, "acquire", take)
        async with world(bad, good, ready=False) as w:
            await w.wait_until(lambda: "idna" in w.state.backends[0].problem and w.state.backends[1].healthy)
            await good.stop()
            await w.wait_until(lambda: not w.state.backends[1].healthy)

    run(scenario())


def test_a_silent_backend_delays_no_other_discovery() -> None:
    async def scenario() -> None:
        silent, late = Mute(), Backend()
        async with world(silent, late, ready=False, health_timeout_secs=15.0) as w:
            await w.wait_until(lambda: w.state.backends[1].healthy)
            await late.stop()
            await w.wait_until(lambda: not w.state.backends[1].healthy)  # though the poll of the first has not ended

    async def bounded() -> None:
        async with asyncio.timeout(5):
            await scenario()

    run(bounded())


def test_a_watch_that_ends_is_said_loudly(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with world() as w:
            monkeypatch.setattr(w.gateway._fleet, "_mark_up", lambda *_: 1 / 0)
            await w.wait_until(lambda: any(record.levelno == logging.CRITICAL for record in caplog.records))
            monkeypatch.undo()

    run(scenario())
    assert "watched no more" in caplog.text


def test_who_was_told_that_a_backend_is_down_is_told_that_it_is_up(caplog: pytest.LogCaptureFixture) -> None:
    """Both are warnings, as lower levels may be hidden. The first time that a backend is up is no warning."""

    async def scenario() -> str:
        backend = Backend()
        async with world(backend) as w:
            await backend.stop()
            await w.wait_until(lambda: not w.state.ready)
            await backend.start()
            await w.wait_until(lambda: w.state.ready)
            return backend.url

    url = run(scenario())
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [message for message in said if " is up" in message or " is down" in message] == [
        f"backend {url} is down: cannot connect to {url.removeprefix('http://')}: connection refused",
        f"backend {url} is up, serving m",
    ]
