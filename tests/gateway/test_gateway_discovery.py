"""A gateway whose backends come and go: what becomes of requests, slots, pages and seats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from scripted_source import SCRIPT, Script
from shared_world import shared_world
from world import ANSWER, Backend, GatedAnswer, GatewayWorld, run, world

from maitred.core.units import SECOND
from maitred.gateway import GatewayConfig
from maitred.gateway.admin.reload import GatewaySettings
from maitred.scheduler.backends import seats

M = {"model": "m"}


@pytest.fixture
def script() -> Script:
    return SCRIPT.anew()


def base() -> Backend:
    """Return the backend that the configuration names."""
    return Backend(models=("base",))


def found(*, reload: Any = None, **discovery: float) -> AbstractAsyncContextManager[GatewayWorld]:
    """Return a world with one configured backend and a source of others."""
    section = {"discover": ("scripted_source:Scripted",), "health_interval_secs": 1.0}
    rules = msgspec.convert({"doubted_share": 1.0, **discovery}, type(GatewayConfig().discovery))
    return world(base(), reload=reload, discovery=rules, **section)


def found_urls(w: GatewayWorld) -> Sequence[str]:
    return [backend.url for backend in w.gateway.scheduler.fleet.backends][1:]


async def until_up(w: GatewayWorld, backend: Backend) -> None:
    await w.wait_until(lambda: any(b.url == backend.url and b.healthy for b in w.state.backends))


def test_a_backend_that_goes_ends_what_it_has_and_is_gone_then(script: Script) -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        going, staying = Backend(gated), Backend()
        await going.start()
        await staying.start()
        script.say([going.url])
        async with found(forget_secs=5.0) as w:
            await until_up(w, going)
            held = await w.start_request()
            await w.wait_until(lambda: going.received)
            script.say([staying.url])
            await until_up(w, staying)
            assert [backend.draining for backend in w.state.backends] == [False, True, False]
            for _ in range(3):
                assert (await w.request())[2] == ANSWER
            assert (len(going.received), len(staying.received)) == (1, 3)
            # The slot of what it has still, beside those of the other.
            assert w.gateway.core.view("m").capacity == 64 + 1
            await asyncio.sleep(20)
            assert found_urls(w) == [going.url, staying.url]  # It has a request, however long that takes.
            gated.open.set()
            assert (await held.read_response())[2] == ANSWER
            await w.wait_until_idle()
            assert found_urls(w) == [staying.url]
            assert w.gateway.core.view("m").capacity == 64
            polls = going.health_polls
            await asyncio.sleep(5)
            assert going.health_polls == polls
            assert (
                f'maitred_backend_healthy{{backend="{going.url}"}}'
                not in (await w.request("/metrics", method="GET"))[2].decode()
            )
            w.gateway.scheduler.fleet.check()
        await going.stop()
        await staying.stop()

    run(scenario())


def test_one_that_is_listed_again_is_as_it_was(script: Script) -> None:
    async def scenario() -> None:
        backend = Backend()
        await backend.start()
        script.say([backend.url])
        async with found(forget_secs=5.0) as w:
            await until_up(w, backend)
            before = w.gateway.scheduler.fleet.backends[1]
            script.say([])
            await w.wait_until(lambda: before.is_draining)
            assert (await w.request())[0] == 503
            script.say([backend.url])
            await w.wait_until(lambda: not before.is_draining)
            assert (await w.request())[2] == ANSWER
            assert w.gateway.scheduler.fleet.backends[1] is before
            # What an operator has drained stays so, whatever a source says.
            await w.request("/admin/drain", {"backend": backend.url})
            script.say([])
            script.say([backend.url])
            await asyncio.sleep(10)
            assert before.is_draining
            await w.request("/admin/undrain", {"backend": backend.url})
            assert (await w.request())[2] == ANSWER
        await backend.stop()

    run(scenario())


def test_a_seat_is_taken_by_another_backend_after_a_rest(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "SEAT_REST", 10 * SECOND)

    async def scenario() -> None:
        first, second, third = Backend(), Backend(), Backend(models=("n",))
        for backend in (first, second, third):
            await backend.start()
        script.say([first.url])
        async with found(forget_secs=1.0) as w:
            await until_up(w, first)
            fleet = w.gateway.scheduler.fleet
            script.say([second.url])
            await until_up(w, second)
            await asyncio.sleep(2)
            assert [backend.url for backend in fleet.seats][1:] == [first.url, second.url]
            assert found_urls(w) == [second.url]
            await asyncio.sleep(10)
            script.say([second.url, third.url])
            await until_up(w, third)
            assert [backend.url for backend in fleet.seats][1:] == [third.url, second.url]
            assert (await w.request(body={"model": "n"}))[2] == ANSWER
            assert (await w.request(body=M))[2] == ANSWER
            assert (len(third.received), len(second.received)) == (1, 1)
            fleet.check()
        for backend in (first, second, third):
            await backend.stop()

    run(scenario())


def test_a_source_that_fails_or_ends_keeps_its_backends_and_an_empty_list_is_doubted(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        backend = Backend()
        await backend.start()
        script.say([backend.url])
        async with found(doubted_share=0.5, doubt_secs=30.0) as w:
            await until_up(w, backend)
            for failure in (RuntimeError("a defect"), None):
                script.fail(failure)
                await asyncio.sleep(8)
                assert (await w.request())[2] == ANSWER
            script.say([])
            await asyncio.sleep(20)
            assert (await w.request())[2] == ANSWER
            await asyncio.sleep(15)  # doubt_secs are over
            status, _, answer = await w.request()
            assert (status, msgspec.json.decode(answer)["error"]["code"]) == (503, "no_healthy_backend")
        await backend.stop()

    run(scenario())
    assert "suddenly lists 0 backends: its last list (1) holds for a while" in caplog.text
    assert "cannot be asked: RuntimeError: a defect; its last list (1) holds" in caplog.text


def test_a_reload_adds_and_drains_configured_backends(script: Script) -> None:
    async def scenario() -> None:
        other = Backend()
        await other.start()
        backends: list[str] = []

        def reload(config: GatewayConfig) -> GatewaySettings:
            return GatewaySettings(gateway=msgspec.structs.replace(config, backends=(*config.backends, *backends)))

        async with found(reload=reload, forget_secs=1.0) as w:
            backends.append(other.url)
            assert (await w.request("/admin/reload", b""))[0] == 200
            await until_up(w, other)
            assert (await w.request())[2] == ANSWER
            backends.clear()
            script.say([other.url])  # A source lists it as well, so it stays.
            await asyncio.sleep(1)
            await w.request("/admin/reload", b"")
            await asyncio.sleep(3)
            assert (await w.request())[2] == ANSWER
            script.say([])
            await w.wait_until(lambda: not found_urls(w))
        await other.stop()

    run(scenario())


async def call(w: GatewayWorld, method: str, body: object = b"") -> tuple[int, Any]:
    status, _, answer = await w.request("/admin/backends", body, method)
    return status, msgspec.json.decode(answer)


def test_a_backend_goes_under_the_spelling_under_which_it_came(script: Script) -> None:
    async def scenario() -> None:
        async with found() as w:
            spelled = {"backend": "HTTP://Engine.Example:80/"}
            status, added = await call(w, "POST", spelled)
            assert (status, added["backend"]) == (201, "http://engine.example")
            assert (await call(w, "DELETE", spelled))[0] == 200
            assert (await call(w, "DELETE", {"backend": "no URL"}))[0] == 404

    run(scenario())


def test_a_script_adds_and_takes_away_backends(script: Script) -> None:
    async def scenario() -> None:
        other = Backend()
        await other.start()
        named = {"backend": other.url}
        async with found(forget_secs=1.0) as w:
            expected = {"backend": other.url, "presence": "in_use", "sources": ["admin"], "in_flight": 0}
            assert await call(w, "POST", named) == (201, expected)
            assert await call(w, "POST", {"backend": other.url + "/"}) == (200, expected)
            await until_up(w, other)
            assert (await w.request())[2] == ANSWER
            assert [backend.sources for backend in w.state.backends] == [["config"], ["admin"]]
            script.say([other.url])
            await w.wait_until(lambda: w.state.discovery[0].backends == 1)
            status, answer = await call(w, "DELETE", named)
            assert (status, answer["presence"], answer["sources"]) == (200, "in_use", ["scripted_source:Scripted"])
            status, answer = await call(w, "DELETE", named)
            assert (status, answer["error"]["code"]) == (409, "backend_listed_elsewhere")
            said = "was not added here: it is listed by scripted_source:Scripted; take it away there, or use /admin/drain"
            assert answer["error"]["message"] == f"{other.url} {said}"
            await call(w, "POST", named)
            script.say([])
            await w.wait_until(lambda: w.state.discovery[0].backends == 0)
            assert (await w.request())[2] == ANSWER
            status, answer = await call(w, "DELETE", named)
            assert (status, answer["presence"]) == (200, "leaving")
            assert (await call(w, "DELETE", named))[0] == 200
            await w.wait_until(lambda: not found_urls(w))
            assert (await call(w, "DELETE", named))[1]["error"]["code"] == "unknown_backend"
            listed = (await call(w, "GET"))[1]["backends"]
            assert [each["sources"] for each in listed] == [["config"]]
        await other.stop()

    run(scenario())


@pytest.mark.parametrize("body", [b"", b"{}", b"[", {"backend": "10.0.0.1:8000"}, {"backend": "http://a:1/v1"}])
def test_a_call_that_names_no_backend_changes_nothing(script: Script, body: object) -> None:
    async def scenario() -> None:
        async with found() as w:
            status, answer = await call(w, "POST", body)
            assert (status, answer["error"]["code"]) == (400, "no_backend_named")
            assert "\n" not in answer["error"]["message"]
            assert not found_urls(w)

    run(scenario())


def test_only_the_operator_may_add_backends(script: Script) -> None:
    async def scenario() -> None:
        async with world(base(), api_key="k", tenant_api_keys={"acme": "t"}) as w:
            for key, status in (("t", 403), ("wrong", 401), ("k", 201)):
                answer = await w.request("/admin/backends", {"backend": "http://10.0.0.1:1"}, authorization=f"Bearer {key}")
                assert answer[0] == status
            assert (await w.request("/admin/backends", b"", "PUT", authorization="Bearer k"))[0] == 405

    run(scenario())


def test_the_objectives_that_a_source_knows_say_the_classes_of_requests(script: Script) -> None:
    async def scenario() -> None:
        priorities = {"objective_priorities": {"interactive": 10, "default": 0, "bulk": -100}}
        async with world(discover=("scripted_source:Scripted",), admission=priorities) as w:
            objectives = w.gateway.scheduler.discovery.objectives
            script.know(chat=10, night=-1)
            await w.wait_until(lambda: objectives)
            await w.request(x_gateway_inference_objective="chat")
            await w.request(x_gateway_inference_objective="night")
            script.know(night=10)
            await w.wait_until(lambda: "chat" not in objectives)
            await w.request(x_gateway_inference_objective="chat")
            await w.request(x_gateway_inference_objective="night")
            assert {name: c.admitted for name, c in w.state.classes.items() if c.admitted} == {
                "interactive": 2,
                "default": 1,
                "bulk": 1,
            }

    run(scenario())


def test_gateways_behind_a_scheduler_are_told_of_the_objectives(script: Script) -> None:
    async def scenario() -> None:
        script.know(chat=10, night=-1)
        priorities = {"objective_priorities": {"interactive": 10, "default": 0, "bulk": -100}}
        async with shared_world(discover=("scripted_source:Scripted",), admission=priorities) as w:
            told = [gateway.scheduler.objectives for gateway in w.gateways]
            await w.wait_until(lambda: told == [{"chat": 10, "night": -1}] * 3)
            for number in range(3):
                await w.request(at=number, x_gateway_inference_objective="chat")
            await w.request(x_gateway_inference_objective="night")
            script.know(night=10)
            await w.wait_until(lambda: told == [{"night": 10}] * 3)
            await w.request(x_gateway_inference_objective="chat")
            await w.request(x_gateway_inference_objective="night")
            await w.wait_until_idle()
            views = w.scheduler.admission.core.class_views()
            admitted = {c.label: view.admitted for c, view in views.items() if view.admitted}
            assert admitted == {"interactive": 4, "default": 1, "bulk": 1}

    run(scenario())
