"""Draining a backend by an admin call: nothing more is sent there, what it has is left to it, and it comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from test_gateway_programs import body, program, small
from world import ANSWER, Backend, GatedAnswer, GatewayWorld, run, world

from maitred.programs import ProgramState


async def post(w: GatewayWorld, path: str, body: object, **headers: str) -> tuple[int, Any]:
    status, _, answer = await w.request(path, body, **headers)
    return status, msgspec.json.decode(answer)


def test_a_drained_backend_gets_nothing_more_until_it_is_undrained() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), Backend()) as w:
            first, second = w.backends
            held = await w.start_request()
            await w.wait_until(lambda: first.received)
            status, answer = await post(w, "/admin/drain", {"backend": first.url})
            assert (status, answer) == (200, {"backend": first.url, "draining": True, "in_flight": 1})
            assert [backend.draining for backend in w.state.backends] == [True, False]
            for _ in range(4):
                assert (await w.request())[2] == ANSWER
            assert (len(first.received), len(second.received)) == (1, 4)

            gated.open.set()
            assert (await held.read_response())[2] == ANSWER  # what it had is answered
            assert (await post(w, "/admin/undrain", {"backend": first.url + "/"}))[1]["draining"] is False
            await w.request()
            assert len(first.received) == 2

    run(scenario())


def test_without_another_backend_requests_are_refused() -> None:
    async def scenario() -> None:
        async with world() as w:
            await post(w, "/admin/drain", {"backend": w.backends[0].url})
            status, _, answer = await w.request()
            assert (status, msgspec.json.decode(answer)["error"]["code"]) == (503, "no_healthy_backend")

    run(scenario())


def test_programs_leave_a_drained_backend_between_two_requests() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(small), Backend(small), programs={"backend_capacity_tokens": 10_000}) as w:
            first, second = w.backends
            await post(w, "/admin/drain", {"backend": second.url})
            await w.request(body=body("idle"))
            first.respond = gated
            busy = await w.start_request(body("busy", 50))
            await w.wait_until(lambda: len(first.received) == 2)

            await post(w, "/admin/undrain", {"backend": second.url})
            await post(w, "/admin/drain", {"backend": first.url})
            assert program(w, "idle").state is ProgramState.PAUSED
            assert program(w, "busy").backend == 0
            gated.open.set()
            assert (await busy.read_response())[0] == 200
            await w.wait_until(lambda: program(w, "busy").state is ProgramState.PAUSED)
            for name in ("idle", "busy"):
                assert (await w.request(body=body(name)))[0] == 200
                assert program(w, name).backend == 1
            assert (len(first.received), len(second.received)) == (2, 2)
            assert w.gateway.programs is not None
            assert w.gateway.programs.core.lost_kv_tokens == 0  # A drained backend loses nothing.

    run(scenario())


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"backend": "http://10.0.0.9:1"}, 404, "unknown_backend"),
        ({}, 400, "no_backend_named"),
        ({"backend": 5}, 400, "no_backend_named"),
        (b"[", 400, "no_backend_named"),
        (b'{"x":' + b"[" * 50_000, 400, "no_backend_named"),
    ],
)
def test_a_body_that_names_no_backend(given: object, status: int, code: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            for path in ("/admin/drain", "/admin/undrain"):
                answered, answer = await post(w, path, given)
                assert (answered, answer["error"]["code"]) == (status, code)

    run(scenario())


def test_only_the_shared_key_may_drain() -> None:
    async def scenario() -> None:
        async with world(api_key="secret", tenant_api_keys={"acme": "tenant"}) as w:
            asked = {"backend": w.backends[0].url}
            assert (await post(w, "/admin/drain", asked))[0] == 401
            assert (await post(w, "/admin/drain", asked, authorization="Bearer tenant"))[0] == 403
            assert not w.state.backends[0].draining
            assert (await post(w, "/admin/drain", asked, authorization="Bearer secret"))[0] == 200
            assert (await w.request("/admin/drain", method="GET", authorization="Bearer secret"))[0] == 405

    run(scenario())
