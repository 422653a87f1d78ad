"""Errors of /v1/messages, which Anthropic's SDKs read in a shape of their own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from world import ANSWER, Backend, BackendRequest, GatedAnswer, GatewayWorld, run, whole, world

from maitred.wire.exchange import ApiError

MESSAGES = "/v1/messages"
CHUNKED = "host: x\r\ntransfer-encoding: chunked\r\n\r\n"


def read_error(body: bytes) -> str:
    """Return the type in an error of Anthropic's shape, which must have nothing else in it."""
    answered = msgspec.json.decode(body)
    assert answered["type"] == "error"
    assert answered.keys() == {"type", "error"}
    assert answered["error"].keys() == {"type", "message"}
    assert answered["error"]["message"]
    found: str = answered["error"]["type"]
    return found


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (410, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (431, "invalid_request_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_the_type_follows_from_the_status(status: int, expected: str) -> None:
    error = ApiError(status, "no", kind="server_error", code="c", param="p")
    for path in (MESSAGES, "/v1/messages/count_tokens", "/v1/messages?beta=true"):
        assert msgspec.json.decode(error.body(path)) == {"type": "error", "error": {"type": expected, "message": "no"}}


@pytest.mark.parametrize("path", ["", "/v1/chat/completions", "/v1/messagesx", "/v1", "/x/v1/messages"])
def test_other_paths_have_errors_as_openai_has_them(path: str) -> None:
    error = ApiError(429, "no", kind="rate_limit_error", code="c", param="p")
    body = msgspec.json.decode(error.body(path))
    assert body == {"error": {"message": "no", "type": "rate_limit_error", "param": "p", "code": "c"}}


def test_refusals_of_the_gateway() -> None:
    async def scenario() -> dict[str, tuple[int, str]]:
        async def ask(
            w: GatewayWorld, path: str = MESSAGES, body: Any = None, method: str = "POST", **h: str
        ) -> tuple[int, str]:
            status, headers, answered = await w.request(path, body, method, **h)
            assert headers["content-type"] == "application/json"
            assert headers["request-id"] == headers["x-request-id"]  # where Anthropic's SDKs look for it
            return status, read_error(answered)

        async with world(api_key="k", tenant_api_keys={"acme": "t"}, max_body_bytes=1000) as w:
            key = {"x_api_key": "k"}
            return {
                "no key": await ask(w),
                "no JSON": await ask(w, body=b"{", **key),
                "no model": await ask(w, body={}, **key),
                "unknown model": await ask(w, body={"model": "x"}, **key),
                "too large": await ask(w, body=b" " * 1001, **key),
                "GET": await ask(w, body=b"", method="GET", **key),
                "operator's": await ask(w, "/v1/messages/batches", b"", "GET", x_api_key="t"),
                "with a query": await ask(w, "/v1/messages/count_tokens?beta=true", {"model": "x"}, **key),
            }

    assert run(scenario()) == {
        "no key": (401, "authentication_error"),
        "no JSON": (400, "invalid_request_error"),
        "no model": (400, "invalid_request_error"),
        "unknown model": (404, "not_found_error"),
        "too large": (413, "request_too_large"),
        "GET": (405, "invalid_request_error"),
        "operator's": (404, "not_found_error"),
        "with a query": (404, "not_found_error"),
    }


def test_failures_of_backends_and_full_queues() -> None:
    async def scenario() -> None:
        async def answer_nonsense(received: BackendRequest) -> None:
            await received.send(b"nonsense\r\n\r\n")

        async with world(Backend(answer_nonsense), max_attempts=1) as w:
            status, _, body = await w.request(MESSAGES + "?beta=true")
            assert (status, read_error(body)) == (502, "api_error")

        gate = GatedAnswer()
        full = {"classes": {"default": {"queue_size": 0}}}
        async with world(Backend(gate), slots=1, admission=full) as w:
            first = await w.start_request()
            await w.wait_until(lambda: w.state.in_flight == 1)
            status, headers, body = await w.request(MESSAGES)
            gate.open.set()
            await first.read_response()
            assert (status, read_error(body)) == (429, "rate_limit_error")
            assert "retry-after" in headers

    run(scenario())


def test_each_answer_says_the_id_of_its_request_where_the_sdks_look_for_it() -> None:
    async def answer_with_own(received: BackendRequest) -> None:
        await received.send(whole(ANSWER, headers=b"request-id: of-the-engine\r\nx-request-id: of-the-engine\r\n"))

    async def scenario() -> None:
        async with world(Backend(answer_with_own)) as w:
            _, headers, _ = await w.request(MESSAGES + "?beta=true", x_request_id="mine")
            assert (headers["request-id"], headers["x-request-id"]) == ("mine", "mine")
            assert (await w.request())[1]["request-id"] == "of-the-engine"  # no header of that API: passed on
            w.backends[0].status = b"500 no"
            await w.wait_until(lambda: not w.state.backends[0].healthy)
            status, headers, body = await w.request(MESSAGES)
            assert (status, read_error(body)) == (503, "overloaded_error")
            assert headers["request-id"].startswith("maitred-")

    async def waiting() -> None:
        gate = GatedAnswer()
        async with world(Backend(gate), sse_keepalive_secs=0.01) as w:
            client = await w.connect()
            await client.send_request(MESSAGES, {"model": "m", "stream": True})
            status, headers = await client.read_head()
            assert (status, headers["request-id"]) == (200, headers["x-request-id"])
            gate.open.set()
            while await client.read_chunk():
                pass

    run(scenario())
    run(waiting())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (f"POST {MESSAGES} HTTP/1.1\r\n{CHUNKED}zz\r\n", 400),
        (f"POST {MESSAGES} HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400),
        (f"POST {MESSAGES}?beta=true HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 501),
        (f"POST {MESSAGES} HTTP/1.1\r\nhost: x\r\nx: {'y' * 100_000}\r\n\r\n", 431),
        (f"POST {MESSAGES} HTTP/1.1\r\nhost: x\r\nno header\r\n\r\n", 400),
    ],
)
def test_requests_that_break_the_rules_of_http(sent: str, status: int) -> None:
    async def scenario() -> None:
        async with world() as w:
            connection = await w.connect()
            connection.writer.write(sent.encode())
            answered, _, body = await connection.read_response()
            assert answered == status
            read_error(body)

    run(scenario())


def test_a_broken_request_behind_one_of_another_api_has_its_own_shape() -> None:
    async def scenario() -> None:
        async with world() as w:
            connection = await w.connect()
            await connection.send_request(MESSAGES)
            assert (await connection.read_response())[0] == 200
            connection.writer.write(b"nonsense\r\n\r\n")
            status, _, body = await connection.read_response()
            assert (status, msgspec.json.decode(body)["error"]["code"]) == (400, "bad_request")

    run(scenario())
