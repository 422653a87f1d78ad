"""Which program a request belongs to, and what its backend gets of that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from test_gateway_programs import driver, program, refusal, small
from world import CHAT, Backend, run, world

from maitred.gateway.bodies.agent_headers import SessionReader
from maitred.gateway.bodies.large_body import count_characters
from maitred.gateway.bodies.program_fields import MAX_ID_CHARS, ProgramReader
from maitred.gateway.routes import ROUTES
from maitred.wire.exchange import ApiError

ROUTE = ROUTES[CHAT]
SESSION_HEADERS = ("X-Session-Id", "x-claude-code-session-id")


def read(body: object, headers: dict[str, str] | None = None, *, stream: bool = False, path: str = CHAT) -> Any:
    """Return what a request says of its program, and its body as the backend gets it."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return ProgramReader(SessionReader(SESSION_HEADERS)).read(named, raw, ROUTES[path], stream=stream)


@pytest.mark.parametrize(
    ("body", "headers", "wanted"),
    [
        ({"program_id": "p"}, {}, "p"),
        ({"extra_body": {"program_id": "p"}}, {}, "p"),
        ({"program_id": "p", "extra_body": {"program_id": "q"}}, {}, "p"),
        ({"program_id": "p"}, {"x-maitred-program-id": "q"}, "p"),
        ({}, {"x-maitred-program-id": " p "}, "p"),
        ({}, {"x-maitred-program-id": "ü"}, "ü"),
        ({}, {"x-program-id": "p"}, "p"),
        ({}, {"x-program-id": "q", "x-maitred-program-id": "p"}, "p"),
        ({}, {"x-session-id": "p"}, "p"),
        ({}, {"x-claude-code-session-id": "p"}, "p"),
        ({}, {"x-claude-code-session-id": "q", "x-session-id": "p"}, "p"),
        ({}, {"x-session-id": "", "x-claude-code-session-id": "p"}, "p"),
        ({}, {"x-other": "p"}, ""),
        ({"extra_body": "program_id"}, {}, ""),
        ({"extra_body": None}, {}, ""),
        ({"metadata": {"program_id": "p"}}, {}, ""),
        ({"program_id": "x" * MAX_ID_CHARS}, {}, "x" * MAX_ID_CHARS),
    ],
)
def test_where_the_id_may_stand(body: object, headers: dict[str, str], wanted: str) -> None:
    assert read(body, headers).program == wanted


def test_a_parent_is_named_in_the_same_ways() -> None:
    assert read({"program_id": "p", "parent_program_id": "q"}).parent == "q"
    assert read({"extra_body": {"parent_program_id": "q"}}).parent == "q"
    assert read({}, {"x-maitred-parent-program-id": "q"}).parent == "q"
    assert read({}, {"x-session-id": "q"}).parent == ""


@pytest.mark.parametrize("value", [b"null", b'""', b'"  "', b"7", b"1.5", b"true", b"[]", b'["x"]', b"{}", b'"\xff"'])
@pytest.mark.parametrize("where", ["program_id", "parent_program_id", "extra_body.program_id"])
def test_an_id_that_is_no_text_is_refused(value: bytes, where: str) -> None:
    key = where.removeprefix("extra_body.")
    member = b'"%b":%b' % (key.encode(), value)
    with pytest.raises(ApiError) as raised:
        read(b"{%b}" % member if key == where else b'{"extra_body":{%b}}' % member)

    assert (raised.value.status, raised.value.code) == (400, "invalid_program_id")
    assert str(raised.value) == f"{key} must be a string that is not empty"


@pytest.mark.parametrize("header", ["x-maitred-program-id", "x-program-id", "x-maitred-parent-program-id"])
def test_an_empty_header_is_refused(header: str) -> None:
    with pytest.raises(ApiError, match=f"{header} must be a string that is not empty"):
        read({}, {header: " "})


def test_an_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(ApiError, match="program_id must have at most 512 characters"):
        read({"program_id": "x" * (MAX_ID_CHARS + 1)})


@pytest.mark.parametrize(
    ("body", "forwarded"),
    [
        (b'{"program_id":"p","model":"m"}', b'{"model":"m"}'),
        (b'{"model":"m","extra_body":{"program_id":"p"}}', b'{"model":"m"}'),
        (
            b'{"extra_body":{"program_id":"p","parent_program_id":"q","docker_ids":["d"]}}',
            b'{"extra_body":{"docker_ids":["d"]}}',
        ),
        (b'{"program_id":"p","extra_body":{"program_id":"q"},"n":1.50}', b'{"n":1.50}'),
        (
            b'{"program_id":"p","a": [1e3, "\\u00fc"],"big":12345678901234567890123}',
            b'{"a":[1e3, "\\u00fc"],"big":12345678901234567890123}',
        ),
        (b'{ "model": "m", "extra_body": {} }', b'{ "model": "m", "extra_body": {} }'),
    ],
)
def test_only_the_ids_are_taken_out_of_the_body(body: bytes, forwarded: bytes) -> None:
    assert read(body).body == forwarded


def test_a_body_without_ids_is_forwarded_as_the_same_object() -> None:
    body = b'{ "model": "m" }'
    assert read(body, {"x-session-id": "p"}).body is body


def test_a_name_that_is_no_text_is_an_error_of_the_client() -> None:
    for body in (b'{"program_id":"p","\xff":1}', b'{"extra_body":{"\xff":1}}', b'{"stream":true,"stream_options":{"\xff":1}}'):
        with pytest.raises(ApiError, match="not valid JSON") as raised:
            read(body, stream=True)
        assert raised.value.status == 400


@pytest.mark.parametrize(
    ("options", "wanted", "hides"),
    [
        (None, {"include_usage": True}, True),
        (b"null", {"include_usage": True}, True),
        (b"{}", {"include_usage": True}, True),
        (b'{"continuous_usage_stats":false}', {"continuous_usage_stats": False, "include_usage": True}, True),
        (b'{"include_usage":true}', {"include_usage": True}, False),
        (b'{"include_usage":false}', {"include_usage": False}, False),
        (b'"no object"', "no object", False),
    ],
)
def test_the_usage_of_a_stream_is_asked_for(options: bytes | None, wanted: object, hides: bool) -> None:
    body = b'{"stream":true}' if options is None else b'{"stream":true,"stream_options":%b}' % options
    found = read(body, stream=True)

    assert msgspec.json.decode(found.body) == {"stream": True, "stream_options": wanted}
    assert found.hides_usage is hides


@pytest.mark.parametrize(
    ("path", "stream"), [(CHAT, False), ("/v1/messages", True), ("/v1/responses", True), ("/generate", True)]
)
def test_where_the_usage_comes_unasked_it_is_not_asked_for(path: str, stream: bool) -> None:
    found = read({}, stream=stream, path=path)
    assert (found.body, found.hides_usage) == (b"{}", False)


@pytest.mark.parametrize("text", ["", "plain", "ü", "日本語", "a😀b", "é" * 1000])
def test_characters_are_counted_as_they_would_be_decoded(text: str) -> None:
    assert count_characters(text.encode()) == len(text)


def test_bytes_that_are_no_utf_8_are_counted_all_the_same() -> None:
    assert count_characters(b"\xff\x80a") == 2


@pytest.mark.parametrize("body", [b"{bad", b"[]", b"[1]", b'"x"', b"null", b"5", b'"program_id"', b""])
def test_a_body_that_is_no_object_is_a_400(body: bytes) -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}) as w:
            status, _, answer = await w.request(body=body)
            assert (status, msgspec.json.decode(answer)["error"]["type"]) == (400, "invalid_request_error")
            assert not driver(w).core.programs

    run(scenario())


def test_an_id_that_is_a_number_is_a_400_and_reaches_no_backend() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}) as w:
            assert refusal(await w.request(body={"model": "m", "program_id": 7})) == (400, "invalid_program_id", None)
            assert not w.backends[0].received

    run(scenario())


def test_what_a_backend_gets() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}) as w:
            body = {
                "model": "m",
                "program_id": "p",
                "extra_body": {"program_id": "q", "docker_ids": ["d"]},
                "docker_ids": ["d"],
            }
            headers = {
                "authorization": "Bearer k",
                "accept_encoding": "gzip, br",
                "x_maitred_program_id": "r",
                "x_session_id": "s",
            }
            assert (await w.request(body=body, **headers))[0] == 200
            received = w.backends[0].received[0]

            assert msgspec.json.decode(received.body) == {
                "model": "m",
                "extra_body": {"docker_ids": ["d"]},
                "docker_ids": ["d"],
            }
            assert (received.headers[b"authorization"], received.headers[b"accept-encoding"]) == (b"Bearer k", b"identity")
            assert received.headers[b"x-session-id"] == b"s"
            assert b"x-maitred-program-id" not in received.headers
            assert [p.key.name for p in driver(w).core.programs] == ["p"]

    run(scenario())


def test_without_programs_all_but_the_accepted_codings_is_forwarded_as_it_came() -> None:
    async def scenario() -> None:
        async with world(Backend(small)) as w:
            body = b'{ "model":"m", "program_id":7, "stream":true, "extra_body":{"program_id":"q"} }'
            headers = {"accept_encoding": "gzip", "x_maitred_program_id": "r"}
            assert (await w.request(body=body, **headers))[0] == 200
            received = w.backends[0].received[0]

            assert received.body == body
            assert (received.headers[b"accept-encoding"], received.headers[b"x-maitred-program-id"]) == (b"identity", b"r")

    run(scenario())


def test_a_program_belongs_to_its_tenant_and_has_the_class_of_its_last_request() -> None:
    async def scenario() -> None:
        keys = {"acme": "key-a", "zoo": "key-z"}
        async with world(Backend(small), tenant_api_keys=keys, programs={}) as w:
            body = {"model": "m", "program_id": "p"}
            for key in keys.values():
                assert (await w.request(body=body, authorization=f"Bearer {key}", x_smg_priority="interactive"))[0] == 200

            assert {p.key.tenant for p in driver(w).core.programs} == {"auth:acme", "auth:zoo"}
            assert program(w, "p").priority_class.label == "interactive"
            assert driver(w).release("auth:acme", "p")
            assert [p.key.tenant for p in driver(w).core.programs] == ["auth:zoo"]

    run(scenario())


def test_a_child_knows_its_parent() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}) as w:
            await w.request(body={"model": "m", "program_id": "root"})
            await w.request(body={"model": "m", "program_id": "child", "parent_program_id": "root"})
            assert program(w, "child").parent is program(w, "root")
            assert msgspec.json.decode(w.backends[0].received[1].body) == {"model": "m"}

    run(scenario())


def test_the_class_goes_into_a_body_that_programs_have_changed() -> None:
    async def scenario() -> None:
        async with world(Backend(small), forward_priority="vllm", programs={}) as w:
            await w.request(body={"model": "m", "program_id": "p"}, x_smg_priority="bulk")
            assert msgspec.json.decode(w.backends[0].received[0].body) == {"model": "m", "priority": 1}

    run(scenario())


def test_the_configured_session_headers_count_and_no_others() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={"session_headers": ["X-Agent"]}) as w:
            await w.request(body={"model": "m"}, x_agent="p", x_session_id="q")
            assert [p.key.name for p in driver(w).core.programs] == ["p"]

    run(scenario())
