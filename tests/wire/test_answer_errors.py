"""Errors inside answers with status 200, in the words of each API."""

from __future__ import annotations

import pytest

from maitred.wire.answer_errors import AnswerError, error_in_body, error_in_event, error_in_stream
from maitred.wire.sse import unfinished_event

EVENTS = [
    (b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}', "EngineCore died", 500),
    (b'data: {"error": {"message": "slow down", "code": "429"}}', "slow down", 429),
    (b'data: {"error":{"message":"too long","type":"invalid_request_error","code":null}}', "too long", 400),
    (b'data:{"error":"Request failed during generation","error_type":"generation"}', "Request failed during generation", None),
    (b'data: {"object":"error","message":"bad","type":"InternalServerError","code":500}', "bad", 500),
    (b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"error"}]}', "finish_reason: error", None),
    (b'data: {"choices":[{"index":0,"delta":{"content":""},"error":{"code":502,"message":"provider"}}]}', "provider", 502),
    (b'event: error\ndata: {"type":"error","code":"server_error","message":"oops"}', "oops", None),
    (b'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "Overloaded", 529),
    (b'data: {"error":{"message":"slowly","code":"rate_limit_exceeded"}}', "slowly", 429),
    (b'data: {"error":{"message":"slowly","code":"%b"}}' % (b"4" * 5_000), "slowly", None),
    (b'event: error\r\ndata: {"type":"error","error":{"message":"Overloaded"}}', "Overloaded", None),
    (
        b'event: response.failed\ndata: {"type":"response.failed","response":{"status":"failed","error":{"message":"gone"}}}',
        "gone",
        None,
    ),
    (b"event: error\ndata: something broke", "something broke", None),
    (b'event: error\ndata: {"message":"out of memory","code":500}', "out of memory", 500),
    (b'error: {"code":500,"message":"context shift is off","type":"server_error"}', "context shift is off", 500),
    (b': a comment\ndata: {\ndata: "error": {"message": "two lines"}}', "two lines", None),
]
NO_ERRORS = [
    b'data: {"choices":[{"delta":{"content":"\\"error\\": {\\"message\\": \\"no\\"}"},"finish_reason":null}]}',
    b'data: {"choices":[{"delta":{"content":"error"}}],"error":null}',
    b'data: {"type":"response.created","response":{"status":"in_progress","error":null}}',
    b'data: {"type":"response.incomplete","response":{"status":"incomplete","error":null}}',
    b'data: {"choices":[{"delta":{"content":{"error":"x"}}}]}',
    b'data: {"choices":[{"delta":{"content":"x"},"error":null}]}',
    b"data: [DONE]",
    b": error",
    b"data: error",
    b'data: {"error": {"mess',
]


@pytest.mark.parametrize(("event", "message", "status"), EVENTS)
def test_an_error_event_is_one_in_the_words_of_each_api(event: bytes, message: str, status: int | None) -> None:
    assert error_in_event(event) == AnswerError(message, status)


@pytest.mark.parametrize("event", NO_ERRORS)
def test_no_text_and_no_null_is_an_error(event: bytes) -> None:
    assert error_in_event(event) is None


def test_the_first_error_of_a_piece_says_where_it_begins() -> None:
    token = b'data: {"choices":[{"text":"an error"}]}\n\n'
    found = error_in_stream(token + b'data: {"error":{"message":"x"}}\n\ndata: [DONE]\n\n')
    assert found == (AnswerError("x"), len(token))
    assert error_in_stream(token + token) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"out of memory","code":500}}', "out of memory"),
        (b'{"object":"error","message":"no"}', "no"),
        (b'{"id":"r","status":"failed","error":{"code":"server_error","message":"x"}}', "x"),
        (b'{"choices":[{"message":{"content":"an error"},"finish_reason":"stop"}],"error":null}', None),
        (b'{"choices":[{"text":"{\\"error\\":1}"}]}', None),
        (b"<html>error</html>", None),
        (b'["error"]', None),
    ],
)
def test_a_body_with_an_error(body: bytes, message: str | None) -> None:
    found = error_in_body(body)
    assert (None if found is None else found.message) == message


@pytest.mark.parametrize(
    ("status", "is_fault_of_client"), [(None, False), (500, False), (503, False), (429, False), (408, False), (400, True)]
)
def test_whose_fault_it_is(status: int | None, is_fault_of_client: bool) -> None:
    assert AnswerError("x", status).is_fault_of_client is is_fault_of_client


def test_what_is_left_of_a_stream_is_the_beginning_of_an_event() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        assert unfinished_event(b"data: 1" + end + b"data: 2" + end) == b""
        assert unfinished_event(b"data: 1" + end + b"da") == b"da"
    assert unfinished_event(b"data: 1\n") == b"data: 1\n"
