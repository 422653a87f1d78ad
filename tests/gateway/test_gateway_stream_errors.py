"""How streams end that have failed after their head: with the error event of their API, as the last event."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import CHAT, STREAM_HEAD, Backend, BackendRequest, ClientConnection, GatewayWorld, apart, chunk, run, whole, world

from maitred.gateway.forwarding.stream_dialects import dialect_of, error_object
from maitred.wire.exchange import messages_error_type

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
STREAM = {"model": "m", "stream": True}
CREATED = (
    b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"resp_7","model":"m"}}\n\n'
)
DELTA = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":41,"delta":"a"}\n\n'
BEGINNINGS = {
    CHAT: (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',),
    MESSAGES: (
        b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n',
        b'event: ping\ndata: {"type": "ping"}\n\n',
    ),
    RESPONSES: (CREATED, DELTA),
}
PATHS = list(BEGINNINGS)


def read_event(event: bytes) -> tuple[str, dict[str, Any]]:
    """Return the name and the data of one event."""
    fields = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
    return fields.get("event", ""), msgspec.json.decode(fields["data"])


def told(path: str, event: bytes) -> str:
    """Return the message of an error event, which must be that of the API at `path`."""
    name, data = read_event(event)
    if path == MESSAGES:
        assert (name, data["type"]) == ("error", "error")
        assert set(data["error"]) == {"type", "message"}
        return str(data["error"]["message"])
    if path == RESPONSES:
        assert name == data["type"] == "response.failed"
        assert data["response"]["status"] == "failed"
        return str(data["response"]["error"]["message"])
    assert name == ""
    return str(data["error"]["message"])


class Broken:
    """Sends `pieces` of a stream, and breaks off when `may_end` is set."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.may_end = asyncio.Event()

    async def __call__(self, received: BackendRequest) -> None:
        await received.send(STREAM_HEAD)
        for piece in self.pieces:
            await received.send(chunk(piece))
        await self.may_end.wait()
        raise ConnectionError


async def open_stream(w: GatewayWorld, path: str, awaited: bytes) -> ClientConnection:
    """Return the connection of a stream that has sent `awaited` and nothing else."""
    client = await w.connect()
    await client.send_request(path, STREAM)
    assert (await client.read_head())[0] == 200
    got = b""
    while got != awaited:
        got += await client.read_chunk()
    return client


async def rest(client: ClientConnection) -> bytes:
    """Return the rest of a stream, which must have an end."""
    read = b""
    while piece := await client.read_chunk():
        read += piece
    return read


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_of_which_the_backend_dies_ends_with_an_error_event(path: str) -> None:
    async def scenario() -> bytes:
        begun = BEGINNINGS[path]
        async with world(Backend(broken := Broken(*begun))) as w:
            client = await open_stream(w, path, b"".join(begun))
            broken.may_end.set()
            event = await rest(client)
            await w.wait_until_idle()
            assert w.state.classes["default"].failed == 1
            return event

    assert "in the middle of its response" in told(path, run(scenario()))


ENDS = {
    CHAT: (b"data: [DONE]\n\n",),
    "/v1/completions": (b"data: [DO", b"NE]\n\n"),
    MESSAGES: (b'event: message_stop\ndata: {"type":"message_stop"}\n\n',),
    RESPONSES: (b'event: response.completed\ndata: {"type":"response.completed"}', b"\n\n"),
}


@pytest.mark.parametrize("path", ENDS)
def test_no_error_follows_the_end_of_a_stream_of_which_http_has_none(path: str) -> None:
    async def scenario() -> bytes:
        pieces = (*BEGINNINGS.get(path, BEGINNINGS[CHAT]), *ENDS[path])
        async with world(Backend(broken := Broken(*pieces))) as w:
            client = await open_stream(w, path, b"".join(pieces))
            broken.may_end.set()
            return await rest(client)

    assert run(scenario()) == b""


def test_a_text_that_speaks_of_the_end_of_a_stream_is_none() -> None:
    dialect = dialect_of(CHAT)
    assert not dialect.has_ended(b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n')
    assert not dialect_of(MESSAGES).has_ended(b'data: {"text":"{\\"type\\":\\"message_stop\\"}"}\n\n')
    assert not dialect.has_ended(b"\n\n")


def test_a_failed_response_goes_on_with_what_has_begun() -> None:
    async def scenario() -> bytes:
        async with world(Backend(broken := Broken(CREATED, DELTA))) as w:
            client = await open_stream(w, RESPONSES, CREATED + DELTA)
            broken.may_end.set()
            return await rest(client)

    _, data = read_event(run(scenario()))
    assert data["sequence_number"] == 42
    assert (data["response"]["id"], data["response"]["model"], data["response"]["object"]) == ("resp_7", "m", "response")
    assert data["response"]["error"]["code"] == "upstream_truncated"


@pytest.mark.parametrize("end", [b'data: {"cut', b'data: {"cut":1}\n'])
def test_no_error_goes_into_an_event(end: bytes) -> None:
    async def scenario() -> None:
        async with world(Backend(broken := Broken(b"data: 1\n\n", end))) as w:
            client = await open_stream(w, CHAT, b"data: 1\n\n" + end)
            broken.may_end.set()
            with pytest.raises(asyncio.IncompleteReadError) as cut:
                await client.read_chunk()
            assert cut.value.partial == b""

    run(scenario())


def test_no_error_goes_into_a_body_with_a_length() -> None:
    async def scenario() -> bytes:
        async def respond(received: BackendRequest) -> None:
            await received.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100\r\n\r\ndata: 1\n\n")
            raise ConnectionError

        async with world(Backend(respond), max_attempts=1) as w:
            client = await w.start_request(STREAM)
            await client.read_head()
            return await client.reader.read()

    assert run(scenario()) == b"data: 1\n\n"


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_a_shutdown_cuts_ends_with_an_error_event(path: str) -> None:
    async def scenario() -> bytes:
        begun = BEGINNINGS[path]
        async with world(Backend(Broken(*begun))) as w:
            client = await open_stream(w, path, b"".join(begun))
            (flight,) = (flight for backend in w.gateway.scheduler.fleet.backends for flight in backend.requests)
            flight.task.cancel()
            return await rest(client)

    assert told(path, run(scenario())) == "the gateway is shutting down"


def test_a_client_that_leaves_is_told_nothing() -> None:
    async def scenario() -> None:
        async with world(Backend(Broken(b"data: 1\n\n"))) as w:
            client = await open_stream(w, CHAT, b"data: 1\n\n")
            client.disconnect()
            await w.wait_until_idle()
            assert w.state.classes["default"].client_gone == 1

    run(scenario())


ERROR_500 = whole(b'{"error":{"message":"no luck","type":"InternalServerError","code":500}}', b"500 Oops")


@pytest.mark.parametrize("path", PATHS)
def test_an_error_behind_a_keepalive_is_an_event_of_the_api(path: str) -> None:
    async def scenario() -> bytes:
        may_answer = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await may_answer.wait()
            await received.send(ERROR_500)

        async with world(Backend(respond), sse_keepalive_secs=0.01, max_attempts=1) as w:
            client = await open_stream(w, path, dialect_of(path).keepalive)
            may_answer.set()
            return (await rest(client)).replace(dialect_of(path).keepalive, b"")

    assert told(path, run(scenario())) == "no luck"


def test_messages_are_kept_alive_by_pings() -> None:
    assert read_event(dialect_of(MESSAGES).keepalive) == ("ping", {"type": "ping"})
    assert dialect_of(CHAT).keepalive == dialect_of(RESPONSES).keepalive == b": keepalive\n\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m1","type":"t"}}', "m1"),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"m2"}}', "m2"),
        (b'{"object":"error","message":"m3","code":500}', "m3"),
        (b'{"error":"m4"}', "m4"),
        (b'{"detail":"m5"}', "m5"),
        (b"Internal\r\nServer Error", "Internal Server Error"),
        (b'{"error":{"code":7}}', '{"code":7}'),
        (b"", "the backend has answered 500"),
        (b"\xff[", "\ufffd["),
    ],
)
def test_every_error_has_a_message(body: bytes, message: str) -> None:
    assert error_object(500, body)["message"] == message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (410, "invalid_request_error"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_types_of_messages(status: int, kind: str) -> None:
    assert messages_error_type(status) == kind


@pytest.mark.parametrize(("path", "is_shown"), [(CHAT, True), (MESSAGES, False), (RESPONSES, False)])
def test_a_whole_answer_in_place_of_a_stream(path: str, is_shown: bool) -> None:
    """Only the client of a chat may find its text in one."""
    event = dialect_of(path).answer_event(200, b'{"choices":\n[]}')
    if is_shown:
        assert event == b'data: {"choices": []}\n\n'
    else:
        assert told(path, event) == "the backend has answered with no stream"


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"", b"17", b'{"choices":[', b"\xff"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_page_in_place_of_a_stream_is_an_error(path: str, body: bytes) -> None:
    assert told(path, dialect_of(path).answer_event(200, body)) == "the backend has answered with no stream"


def test_too_many_requests_have_their_own_type() -> None:
    assert error_object(429, b"too many")["type"] == "rate_limit_error"
    assert error_object(400, b"no")["type"] == "invalid_request_error"
    assert error_object(500, b"no")["type"] == "server_error"


REFUSALS = [
    whole(b'{"error":{"message":"Unrecognized request argument supplied: stream_options"}}', b"400 Bad Request"),
    whole(b'{"detail":[{"loc":["body","stream_options"]}]}', b"422 Unprocessable Entity"),
    STREAM_HEAD + chunk(b'data: {"error":{"message":"no stream_options here","code":400}}\n\n') + chunk(b""),
]


class Strict:
    """Refuses every `stream_options`."""

    def __init__(self, refusal: bytes, *, in_pieces: bool = False) -> None:
        self.refusal = refusal
        self.first_bytes = refusal.index(b"stream_options") if in_pieces else 0

    async def __call__(self, received: BackendRequest) -> None:
        if b"stream_options" not in received.body:
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n") + chunk(b""))
            return
        if self.first_bytes:
            await received.send(self.refusal[: self.first_bytes])
            await apart()
        await received.send(self.refusal[self.first_bytes :])


@pytest.mark.parametrize(
    ("refusal", "in_pieces"), [*((refusal, False) for refusal in REFUSALS), *((refusal, True) for refusal in REFUSALS[:2])]
)
def test_a_refused_question_for_the_usage_is_taken_back(refusal: bytes, in_pieces: bool) -> None:
    async def scenario() -> None:
        strict = Strict(refusal, in_pieces=in_pieces)
        async with world(Backend(strict), Backend(strict), programs={}) as w:
            status, _, said = await w.request(body={**STREAM, "program_id": "p", "temperature": 0.5})
            assert (status, said) == (200, b"data: 1\n\n")
            asked = [received.body for backend in w.backends for received in backend.received]
            assert len(asked) == 2
            assert msgspec.json.decode(asked[1]) == {"model": "m", "stream": True, "temperature": 0.5}
            assert sorted(len(backend.received) for backend in w.backends) == [0, 2]
            assert not w.gateway.counters.upstream_failures

    run(scenario())


def test_an_error_that_comes_in_pieces_ends_when_it_has_come(tmp_path: Path) -> None:
    error = whole(b'{"error":{"message":"no such tool"}}', b"400 Bad Request")

    async def respond(received: BackendRequest) -> None:
        await received.send(error[:-9])
        await asyncio.sleep(1.0)
        await received.send(error[-9:])

    async def scenario() -> None:
        async with world(Backend(respond), programs={}, slots=1, decision_log=str(tmp_path / "log")) as w:
            first = await w.start_request(STREAM)
            await w.wait_until(lambda: w.backends[0].received)
            await asyncio.sleep(0.5)
            second = await w.start_request(STREAM)
            assert [(await each.read_response())[0] for each in (first, second)] == [400, 400]

    run(scenario())
    inputs = [msgspec.json.decode(line) for line in (tmp_path / "log").read_bytes().splitlines() if b'"input":' in line]
    times = [given["at"] for given in inputs if given["input"] in ("submit", "first_byte", "release")]
    assert len(times) == 6
    assert times == sorted(times)


def test_options_of_the_client_stay_and_their_refusal_is_passed_on() -> None:
    async def scenario() -> None:
        async with world(Backend(Strict(REFUSALS[0])), programs={}) as w:
            options = {"stream_options": {"include_usage": True}}
            assert (await w.request(body={**STREAM, **options}))[0] == 400
            status = (await w.request(body={**STREAM, "stream_options": {"other": 1}}))[0]
            assert status == 400
            asked = [msgspec.json.decode(received.body)["stream_options"] for received in w.backends[0].received]
            assert asked == [{"include_usage": True}, {"other": 1, "include_usage": True}, {"other": 1}]

    run(scenario())
