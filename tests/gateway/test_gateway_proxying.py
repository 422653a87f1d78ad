"""What passes through the gateway unchanged, and what it answers itself."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import msgspec
import pytest
from world import ANSWER, CHAT, STREAM_HEAD, Backend, BackendRequest, answer, apart, chunk, run, whole, world

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.gateway import GatewayConfig
from maitred.gateway.access.inbound_head import HeadReader
from maitred.gateway.app import Gateway
from maitred.gateway.bodies.request_fields import end_to_end_headers, parse_body_fields
from maitred.gateway.routes import ROUTES
from maitred.wire.exchange import ApiError, Exchange
from maitred.wire.messages import HeadMemo, RequestHead


def test_the_body_goes_through_byte_for_byte() -> None:
    async def scenario() -> None:
        odd = b'{ "model" : "m",\n "x": [1.50, "\\u00e9"], "x": 2 }'
        async with world() as w:
            status, headers, body = await w.request(body=odd)
            assert (status, body) == (200, ANSWER)
            assert headers["content-length"] == str(len(ANSWER))
            assert w.backends[0].received[0].body == odd

    run(scenario())


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", CHAT + "?a=%20b"])
def test_paths(path: str) -> None:
    async def scenario() -> bytes:
        async with world() as w:
            assert (await w.request(path))[0] == 200
            return w.backends[0].received[0].head.split(b"\r\n")[0]

    assert run(scenario()) == b"POST %b HTTP/1.1" % path.encode()


def test_request_headers() -> None:
    """Hop-by-hop headers and those for the gateway are not forwarded; all others are."""

    async def scenario() -> dict[bytes, bytes]:
        async with world() as w:
            await w.request(
                authorization="Bearer k",
                traceparent="00-a-b-01",
                x_custom="1",
                connection="keep-alive, x-of-this-hop",
                x_of_this_hop="1",
                te="trailers",
                proxy_authorization="p",
                x_smg_priority="bulk",
                x_maitred_priority="bulk",
            )
            return w.backends[0].received[0].headers

    headers = run(scenario())
    assert headers.pop(b"x-request-id").startswith(b"maitred-")
    assert headers.pop(b"host").startswith(b"127.0.0.1:")
    assert headers == {
        b"authorization": b"Bearer k",
        b"traceparent": b"00-a-b-01",
        b"x-custom": b"1",
        b"content-length": b"13",
        b"accept-encoding": b"identity",
    }


def test_a_connection_header_given_twice() -> None:
    """Two lines mean the same as one line with a comma."""
    headers = [(b"connection", b"x-a"), (b"x-a", b"1"), (b"x-b", b"1"), (b"x-c", b"1"), (b"connection", b"close, X-B")]
    assert HeadReader().sort_headers(headers).forwarded.headers == [(b"x-c", b"1")]
    assert end_to_end_headers(headers) == [(b"x-c", b"1")]


def test_response_headers() -> None:
    async def scenario() -> dict[str, str]:
        async def respond(received: BackendRequest) -> None:
            await received.send(
                whole(b"{}", headers=b"x-custom: 1\r\nkeep-alive: timeout=5\r\nconnection: x-hop\r\nx-hop: 1\r\n")
            )

        async with world(Backend(respond)) as w:
            return (await w.request(x_request_id="mine"))[1]

    assert run(scenario()) == {
        "content-type": "application/json",
        "x-maitred-queue-ms": "0",
        "content-length": "2",
        "x-custom": "1",
        "x-request-id": "mine",
    }


def test_a_request_id_is_passed_or_made() -> None:
    async def scenario() -> tuple[str, list[bytes]]:
        async with world() as w:
            given = (await w.request(x_request_id="abc"))[1]["x-request-id"]
            made = (await w.request())[1]["x-request-id"]
            assert made.startswith("maitred-")
            seen = [received.headers[b"x-request-id"] for received in w.backends[0].received]
            assert seen[1].decode() == made
            return given, seen[:1]

    assert run(scenario()) == ("abc", [b"abc"])


def test_a_backends_error_is_an_answer_like_any_other() -> None:
    async def scenario() -> tuple[int, bytes, int]:
        async def respond(received: BackendRequest) -> None:
            await received.send(whole(b'{"error":{}}', b"422 Unprocessable Entity"))

        async with world(Backend(respond)) as w:
            status, _, body = await w.request()
            return status, body, w.state.classes["default"].completed

    assert run(scenario()) == (422, b'{"error":{}}', 1)


def test_a_stream_arrives_event_by_event() -> None:
    async def scenario() -> None:
        step = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD)
            for event in (b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"):
                await received.send(chunk(event))
                await step.wait()
                step.clear()
            await received.send(b"0\r\n\r\n")

        async with world(Backend(respond)) as w:
            connection = await w.start_request({"model": "m", "stream": True})
            status, headers = await connection.read_head()
            assert (status, headers["transfer-encoding"]) == (200, "chunked")
            for event in (b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"):
                assert await connection.read_chunk() == event  # the next is not sent before the step that follows
                step.set()
            assert await connection.read_chunk() == b""
            await connection.send_request()  # the connection is good for another
            step.set()
            assert w.state.classes["default"].completed == 1

    run(scenario())


def test_bodies_of_every_kind_are_counted_as_drained() -> None:
    async def scenario() -> int:
        async def until_close(received: BackendRequest) -> None:
            await received.send(b"HTTP/1.1 200 OK\r\n\r\nall")
            raise ConnectionError

        async def empty(received: BackendRequest) -> None:
            await received.send(whole(b""))

        async def two_halves(received: BackendRequest) -> None:
            await received.send(whole(ANSWER)[:-5])
            await apart()
            await received.send(ANSWER[-5:])

        async with world() as w:
            for respond, body in ((until_close, b"all"), (empty, b""), (two_halves, ANSWER)):
                w.backends[0].respond = respond
                assert (await w.request())[2] == body
            await w.wait_until_idle()
            return w.state.classes["default"].completed

    assert run(scenario()) == 3


def test_models_are_merged_and_each_listed_once() -> None:
    async def scenario() -> list[str]:
        async with world(Backend(models=("a", "b")), Backend(models=("b", "c"))) as w:
            status, _, body = await w.request("/v1/models", method="GET")
            assert status == 200
            return [model["id"] for model in msgspec.json.decode(body)["data"]]

    assert run(scenario()) == ["a", "b", "c"]


def test_one_model() -> None:
    async def scenario() -> None:
        async with world(Backend(models=("a/b", "c"))) as w:
            for path in ("/v1/models/a/b", "/v1/models/a%2Fb"):
                status, _, body = await w.request(path, method="GET")
                assert (status, msgspec.json.decode(body)["id"]) == (200, "a/b")
            status, _, body = await w.request("/v1/models/a", method="GET")
            assert (status, msgspec.json.decode(body)["error"]["code"]) == (404, "model_not_found")

    run(scenario())


def test_each_model_has_its_backends_and_its_slots() -> None:
    async def scenario() -> None:
        async with world(Backend(models=("a", "b")), Backend(models=("b",)), slots=3) as w:
            assert {name: pool.capacity for name, pool in w.state.pools.items()} == {"a": 3, "b": 6}
            for _ in range(4):
                await w.request(body={"model": "a"})
            assert [len(backend.received) for backend in w.backends] == [4, 0]

    run(scenario())


def test_least_loaded() -> None:
    async def scenario() -> list[int]:
        gate = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await gate.wait()
            await received.send(whole(ANSWER))

        async with world(Backend(respond), Backend(respond)) as w:
            connections = [await w.start_request() for _ in range(6)]
            await w.wait_until(lambda: sum(len(backend.received) for backend in w.backends) == 6)
            gate.set()
            for connection in connections:
                await connection.read_response()
            return [len(backend.received) for backend in w.backends]

    assert run(scenario()) == [3, 3]


BAD = {
    "no JSON": (b'{"model": ', 400, None, None),
    "no object": (b"[1]", 400, None, None),
    "no UTF-8": (b'{"model": "\xff"}', 400, None, None),
    "a number that is none": (b'{"model": "m", "max_tokens": 1e400}', 400, None, None),
    "a number of many digits": (b'{"model": "m", "max_tokens": ' + b"9" * 5_000 + b"}", 400, None, None),
    "brackets in each other": (b'{"model": "m", "x": ' + b"[" * 5_000, 400, None, None),
    "no body": (b"", 400, None, None),
    "no model": (b"{}", 400, None, "model"),
    "an empty model": (b'{"model": ""}', 400, None, "model"),
    "a model that is no text": (b'{"model": 5}', 400, None, "model"),
    "an unknown model": (b'{"model": "x"}', 404, "model_not_found", "model"),
    "too large": (b'{"model": "m", "x": "' + b"y" * 10_000 + b'"}', 413, "request_too_large", None),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_get_an_error_object_and_cost_no_slot(what: str) -> None:
    body, expected, code, param = BAD[what]

    async def scenario() -> tuple[int, dict[str, Any], int]:
        async with world(max_body_bytes=10_000) as w:
            connection = await w.start_request(body)
            status, _, answered = await connection.read_response()
            await connection.send_request()  # and the connection is still good
            assert (await connection.read_response())[0] == 200
            error = msgspec.json.decode(answered)["error"]
            assert w.gateway.counters.refused_before_admission.total() == 1
            return status, error, w.state.classes["default"].admitted

    status, error, admitted = run(scenario())
    assert status == expected
    assert error.pop("message")
    assert error == {"type": "invalid_request_error", "param": param, "code": code}
    assert admitted == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[1]", "Expected `object`"),
        (b'{"model": "m", "max_tokens": 1e400}', "Number out of range - at `$.max_tokens`"),
        (b'{"model": "m", "x": ' + b"[" * 200_000, "nested too deeply"),  # how deep is too deep depends on the Python
    ],
)
def test_what_is_wrong_with_a_body_is_said(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=re.escape(words)):
        parse_body_fields(body, ROUTES[CHAT])


def test_our_own_mistakes_are_answered_in_openais_form(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> tuple[int, str]:
        async with world() as w:
            monkeypatch.setattr("maitred.gateway.intake.request_intake.parse_body_fields", lambda body, route: 1 / 0)
            status, headers, body = await w.request()
            assert msgspec.json.decode(body)["error"]["type"] == "server_error"
            return status, headers["x-smg-error-code"]

    assert run(scenario()) == (500, "internal_error")


def test_a_large_body_in_chunks_is_refused_too() -> None:
    async def scenario() -> int:
        async with world(max_body_bytes=1_000) as w:
            connection = await w.connect()
            connection.writer.write(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            connection.writer.write(chunk(b"x" * 1_001))
            return (await connection.read_head())[0]

    assert run(scenario()) == 413


def test_a_client_that_asks_before_it_sends_a_large_body() -> None:
    async def scenario() -> None:
        body = b'{"model": "m"}'
        async with world() as w:
            connection = await w.connect()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.writer.write(head.encode())
            assert (await connection.read_head())[0] == 100
            connection.writer.write(body)
            assert (await connection.read_response())[0] == 200
            assert b"expect" not in w.backends[0].received[0].headers

    run(scenario())


def test_a_client_that_leaves_while_it_sends_its_body() -> None:
    async def scenario() -> None:
        async with world() as w:
            connection = await w.connect()
            connection.writer.write(b"POST " + CHAT.encode() + b' HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{"model"')
            await w.wait_until(lambda: w.state.parked_body_bytes)
            connection.disconnect()
            assert (await w.request())[0] == 200
            assert w.state.classes["default"].admitted == 1

    run(scenario())


def test_routes() -> None:
    async def scenario() -> None:
        async with world() as w:
            status, _, body = await w.request("/v1/nothing", method="OPTIONS")
            assert (status, msgspec.json.decode(body)["error"]["code"]) == (404, "unknown_url")
            status, headers, _ = await w.request(CHAT, method="GET")
            assert (status, headers["allow"]) == (405, "POST")
            status, headers, _ = await w.request("/health")
            assert (status, headers["allow"]) == (405, "GET, HEAD")
            status, _, body = await w.request("/health", method="GET")
            assert (status, body) == (200, b'{"status":"ok"}')

    run(scenario())


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/maitred/state"])
def test_head(path: str) -> None:
    async def scenario() -> tuple[int, int]:
        async with world() as w:
            connection = await w.connect()
            await connection.send_request(path, method="HEAD")
            status, headers = await connection.read_head()
            await connection.send_request()  # no body has come in between
            assert (await connection.read_response())[2] == ANSWER
            return status, int(headers["content-length"])

    status, length = run(scenario())
    assert (status, length > 10) == (200, True)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answers_that_have_no_body_but_speak_of_its_length(status: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def respond(received: BackendRequest) -> None:
            await received.send(b"HTTP/1.1 " + status + b"\r\ncontent-length: 5\r\n\r\n")

        async with world(Backend(respond)) as w:
            connection = await w.start_request()
            answered, headers = await connection.read_head()
            assert answered == int(status[:3])
            assert not {"content-length", "transfer-encoding"} & headers.keys()
            w.backends[0].respond = answer
            await connection.send_request()
            assert (await connection.read_response())[2] == ANSWER

    run(scenario())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_state_and_metrics() -> None:
    async def scenario() -> tuple[dict[str, Any], str]:
        async with world(slots=3) as w:
            await w.request(x_smg_priority="interactive")
            await w.request(body={"model": "m", "stream": True}, x_smg_priority="bulk")
            await w.request(body=b"?")
            state = msgspec.json.decode((await w.request("/maitred/state", method="GET"))[2])
            return state, (await w.request("/metrics", method="GET"))[2].decode()

    state, metrics = run(scenario())
    assert (state["ready"], state["capacity"], state["in_flight"]) == (True, 3, 0)
    assert state["classes"]["interactive"]["completed"] == 1
    lines = set(metrics.splitlines())
    assert 'maitred_scheduler_admit_total{class="interactive",outcome="admitted"} 1.0' in lines
    assert 'maitred_requests_ended_total{class="interactive",end="drained"} 1.0' in lines
    # The client has asked for a stream and was given another answer: that has no first token.
    assert 'maitred_time_to_first_token_seconds_count{class="bulk",model="m"} 0.0' in lines
    assert 'maitred_e2e_request_latency_seconds_count{class="bulk",model="m"} 1.0' in lines
    assert 'maitred_http_responses_total{error_code="invalid_request",status_code="400"}' not in metrics
    assert 'maitred_http_responses_total{error_code="",status_code="400"} 1.0' in lines
    assert 'maitred_scheduler_inflight{class="bulk"} 0.0' in lines
    assert 'maitred_scheduler_capacity{model="m"} 3.0' in lines
    assert 'maitred_refused_total{code="invalid_request"} 1.0' in lines


@pytest.mark.parametrize("backends", [("127.0.0.1:9001",), ("http://a:1", "http://a:1/")])
def test_backends_that_cannot_be(backends: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^backends: "):
        GatewayConfig(backends=backends)


def test_no_backend_at_all() -> None:
    with pytest.raises(ConfigError, match="--backend: no backend is named"):
        Gateway(GatewayConfig())


def test_a_head_that_is_known_is_read_once_and_anew_by_another_reader() -> None:
    head = RequestHead(
        "POST", b"/generate?a=b", [(b"x-smg-priority", b" BULK "), (b"x", b"1")], True, False, 0, True, "/generate", b"a=b"
    )
    head.memo = HeadMemo()

    class Connection:
        def __getattr__(self, name: str) -> None: ...

    reader, other = HeadReader(), HeadReader(withheld=[b"x"])
    first, second = (reader.read_head(Exchange(head, Connection())) for _ in range(2))  # type: ignore[arg-type]
    assert first is second
    assert (first.requested_class, first.names_class, first.target) == (PriorityClass.BULK, True, "/generate?a=b")
    assert (first.route, first.forwarded.lines) == (ROUTES["/generate"], b"x: 1\r\naccept-encoding: identity\r\n")
    assert other.read_head(Exchange(head, Connection())).forwarded.lines == b"accept-encoding: identity\r\n"  # type: ignore[arg-type]
