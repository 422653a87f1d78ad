"""Requests of pages in a browser (`gateway.cors_origins`)."""

from __future__ import annotations

import pytest
from test_gateway_reload import Files, reload
from world import ANSWER, Backend, BackendRequest, run, whole, world

from maitred.gateway.config import GatewayConfig

APP = "https://app.example"
ASKED = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, x-stainless-os"}


@pytest.mark.parametrize(("origins", "allowed"), [((APP,), APP), (("*",), "*")])
def test_a_preflight_needs_no_key_and_the_answer_may_be_read(origins: tuple[str, ...], allowed: str) -> None:
    async def answer_with_own(received: BackendRequest) -> None:
        await received.send(whole(ANSWER, headers=b"access-control-allow-origin: *\r\n"))

    async def scenario() -> None:
        async with world(Backend(answer_with_own), api_key="k", cors_origins=origins) as w:
            connection = await w.connect()
            await connection.send_request(body=b"", method="OPTIONS", origin=APP, **ASKED)
            status, headers = await connection.read_head()
            assert (status, headers["access-control-allow-origin"]) == (204, allowed)
            assert "POST" in headers["access-control-allow-methods"]
            assert headers["access-control-allow-headers"] == ASKED["access_control_request_headers"]
            lines = {"Access-Control-Request-Headers": "x-more", **ASKED}
            await connection.send_request(body=b"", method="OPTIONS", origin=APP, **lines)
            named = (await connection.read_head())[1]["access-control-allow-headers"]
            assert named == f"x-more, {ASKED['access_control_request_headers']}"
            for key, expected in (("k", 200), ("wrong", 401)):
                await connection.send_request(origin=APP, authorization=f"Bearer {key}")
                status, headers, _ = await connection.read_response()
                assert (status, headers["access-control-allow-origin"]) == (expected, allowed)
            assert len(w.backends[0].received) == 1

    run(scenario())


def test_other_origins_are_told_nothing() -> None:
    async def scenario() -> None:
        async with world(api_key="k", cors_origins=(APP,)) as w:
            status, headers, _ = await w.request(body=b"", method="OPTIONS", origin="https://evil.example", **ASKED)
            assert status == 405
            assert "access-control-allow-origin" not in headers

    run(scenario())


def test_a_reload_changes_the_origins() -> None:
    files = Files()

    async def scenario() -> None:
        async with world(reload=files.read) as w:
            for origins, allowed in (((APP,), APP), (("*",), "*"), ((), None)):
                files.changed = {"cors_origins": origins}
                assert (await reload(w)) == (
                    200,
                    {"reloaded": True, "ignored": [], "warnings": list(files.admission.warnings())},
                )
                _, headers, _ = await w.request(origin=APP)
                assert headers.get("access-control-allow-origin") == allowed

    run(scenario())


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://App.example", ""])
def test_what_is_no_origin_is_an_error(origin: str) -> None:
    with pytest.raises(ValueError, match=r"cors_origins: .* is no origin"):
        GatewayConfig(cors_origins=(origin,))
