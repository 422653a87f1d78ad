"""Polling: no answer of a backend ends it, or delays what is known of another backend."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from world import Backend, BackendRequest, run, whole, world

from maitred.gateway import GatewayConfig
from maitred.routing import RoutingConfig
from maitred.scheduler.engines.polling import MAX_POLL_BYTES
from maitred.scheduler.engines.readings import MAX_PAGE_BYTES


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

        connect = ConnectionPool.acquire_new

        async def take(pool: ConnectionPool) -> Any:
            if pool.authority.endswith(str(bad.port)):
                "a..b".encode("idna")
            return await connect(pool)

        bad, good = Backend(), Backend()
        monkeypatch.setattr(ConnectionPool, "acquire_new", take)
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
            monkeypatch.setattr(w.gateway.scheduler.watch, "_poll", lambda _: 1 / 0)
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


def test_the_log_names_a_few_models_of_many(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "maitred.gateway")

    async def scenario() -> str:
        backend = Backend(models=tuple(f"m{number}" for number in range(10)))
        async with world(backend) as w:
            await w.wait_until(lambda: w.state.ready)
            return backend.url

    assert f"backend {run(scenario())} is up, serving m0, m1, m2, m3, m4, m5, m6, m7 and 2 more" in caplog.messages


class Refusing(Backend):
    """A backend that answers the paths in `refused` with a status, and counts what it is asked."""

    def __init__(self, refused: dict[str, bytes], respond: Any = None) -> None:
        super().__init__(*([] if respond is None else [respond]))
        self.refused = refused
        self.asked: Counter[str] = Counter()

    async def _answer(self, received: BackendRequest) -> None:
        path = received.head.split()[1].decode().partition("?")[0].rstrip("/")
        self.asked[path] += 1
        if path in self.refused:
            await received.send(whole(b"no", self.refused[path]))
        else:
            await super()._answer(received)


@pytest.mark.parametrize("status", [b"404 Not Found", b"405 Method Not Allowed", b"501 Not Implemented"])
def test_a_backend_without_a_health_path_is_up_while_it_lists_its_models(status: bytes, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "maitred.gateway")

    async def scenario() -> None:
        backend = Refusing({"/health": status})
        async with world(backend) as w:
            await w.wait_until(lambda: backend.asked["/v1/models"] > 4)
            assert (await w.request())[0] == 200
            assert backend.asked["/health"] == 1
            backend.refused["/v1/models"] = status
            await w.wait_until(lambda: not w.state.ready)
            backend.refused = {"/health": b"503 Service Unavailable"}
            await w.wait_until(lambda: "/health answered 503" in w.state.backends[0].problem)

    run(scenario())
    said = [
        record.message for record in caplog.records if "has no /health: it is up while it answers /v1/models" in record.message
    ]
    assert len(said) == 1


def test_a_configured_health_path_is_asked_and_has_no_substitute() -> None:
    async def scenario() -> None:
        backend = Refusing({"/health": b"404 Not Found", "/v1/health/ready": b"204 No Content"})
        async with world(backend, health_path="/v1/health/ready") as w:
            assert backend.asked["/health"] == 0
            backend.refused["/v1/health/ready"] = b"404 Not Found"
            await w.wait_until(lambda: w.state.backends[0].problem == "/v1/health/ready answered 404")
            await w.wait_until(lambda: not w.state.ready)

    run(scenario())


@pytest.mark.parametrize("path", ["health", "", "/a b", "/a\r\nb"])
def test_a_health_path_is_a_path(path: str) -> None:
    with pytest.raises(ValueError, match="health_path must be a path such as /health"):
        GatewayConfig(health_path=path)


def test_a_backend_that_lists_null_serves_no_model() -> None:
    """As Ollama does before a model is pulled."""

    async def scenario() -> None:
        backend = Odd()
        backend.odd = b'{"object": "list", "data": null}'
        async with world(backend) as w:
            assert w.state.backends[0].models == []

    run(scenario())


REFUSALS = [b"501 Not Implemented", b"404 Not Found", b"405 Method Not Allowed", b"403 Forbidden", b"503 Service Unavailable"]


@pytest.mark.parametrize("status", REFUSALS)
def test_metrics_that_are_refused_are_asked_for_rarely(status: bytes) -> None:
    """While requests are in flight a limit is searched for, with a look every 50 ms. Whole page and samples are asked for once,
    and what is no refusal once more after a second, two and four."""

    async def scenario() -> None:
        release = asyncio.Event()

        async def hold(received: BackendRequest) -> None:
            await release.wait()
            await received.send(whole(b"{}"))

        backend = Refusing({"/metrics": status}, hold)
        async with world(backend, slots=None, routing=RoutingConfig(policy="least-loaded(load=effective)")) as w:
            load = [asyncio.create_task(w.request()) for _ in range(20)]
            polls = backend.health_polls + 40
            await w.wait_until(lambda: w.state.backends[0].slots == 32 and backend.health_polls > polls)
            assert backend.asked["/metrics"] <= 5
            release.set()
            await asyncio.gather(*load)

    run(scenario())


@pytest.mark.parametrize("page", [b"<html>" * 100, b"go_goroutines 5\n", b"x" * (MAX_PAGE_BYTES + 1)])
def test_a_load_that_cannot_be_read_is_unknown_and_told_once(page: bytes, caplog: Any) -> None:
    async def scenario() -> None:
        backend = Backend()
        backend.metrics = page
        async with world(backend, routing=RoutingConfig(policy="least-loaded(load=effective)")) as w:
            await w.wait_until(lambda: backend.health_polls > 20)
            assert backend.metrics_polls <= 3
            assert w.gateway.scheduler.fleet.backends[0].waiting is None

    run(scenario())
    said = [record.message for record in caplog.records if "does not say how loaded it is: /metrics" in record.message]
    assert len(said) == 1


def test_rows_that_fit_no_rule_are_told_once_and_their_load_is_unknown(caplog: Any) -> None:
    async def scenario() -> None:
        backend = Backend()
        backend.metrics = b"".join(b'vllm:num_requests_running{replica="%d"} 3\n' % n for n in (0, 1))
        async with world(backend, routing=RoutingConfig(policy="least-loaded(load=effective)")) as w:
            await w.wait_until(lambda: backend.metrics_polls > 3)
            assert w.gateway.scheduler.fleet.backends[0].running is None

    run(scenario())
    said = [record.message for record in caplog.records if "differ in the label `replica`" in record.message]
    assert len(said) == 1


def test_metrics_that_come_back_are_used_again() -> None:
    async def scenario() -> None:
        backend = Backend()
        backend.metrics = b"vllm:num_requests_running 3\n"
        async with world(backend, routing=RoutingConfig(policy="least-loaded(load=effective)")) as w:
            seen = w.gateway.scheduler.fleet.backends[0]
            await w.wait_until(lambda: seen.running == 3)
            backend.metrics = None
            await w.wait_until(lambda: seen.running is None)
            backend.metrics = b"vllm:num_requests_running 4\n"
            await w.wait_until(lambda: seen.running == 4)

    run(scenario())


def test_the_first_request_finds_the_backends_polled() -> None:
    async def scenario() -> None:
        late = Backend()
        polled = asyncio.Event()

        class Slow(Backend):
            async def _answer(self, received: BackendRequest) -> None:
                if received.head.startswith(b"GET /health"):
                    await asyncio.sleep(0.05)  # within the half second that the start waits
                    polled.set()
                await super()._answer(received)

        async with world(Slow(), late, ready=False) as w:
            assert polled.is_set()
            assert [backend.healthy for backend in w.state.backends] == [True, True]
            assert (await w.request())[0] == 200

    run(scenario())


def test_a_backend_that_never_answers_delays_the_start_for_a_moment_only() -> None:
    async def scenario() -> None:
        async with world(Mute(), Backend(), ready=False, health_timeout_secs=15.0) as w:
            assert [backend.healthy for backend in w.state.backends] == [False, True]

    run(scenario())


def test_a_backend_that_refuses_from_the_start_is_logged_once(caplog: Any) -> None:
    async def scenario() -> str:
        gone, good = Backend(), Backend()
        await gone.start()
        await gone.stop()
        gone.start = _do_nothing  # type: ignore[method-assign]
        async with world(gone, good, ready=False) as w:
            await w.wait_until(lambda: good.health_polls > 5)
            return gone.url

    url = run(scenario())
    said = [record.message for record in caplog.records if url in record.message]
    assert len(said) == 1
    assert said[0].startswith(f"backend {url} is not up: cannot connect to 127.0.0.1:")


async def _do_nothing() -> None:
    pass


@pytest.mark.parametrize("path", ["/ready", "/readiness"])
def test_a_gateway_that_is_about_to_end_is_not_ready_and_serves_on(path: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            assert (await w.request(path, method="GET"))[0] == 200
            server = w.gateway._snapshots.server
            assert server is not None
            server.is_draining = True  # as after SIGTERM
            status, headers, _ = await w.request(path, method="GET")
            assert (status, headers["connection"]) == (503, "close")
            assert (await w.request())[0] == 200
            assert (await w.request("/liveness", method="GET"))[0] == 200

    run(scenario())
