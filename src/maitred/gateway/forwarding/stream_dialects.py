"""How the streams of each API say that they have failed, and how a silence is filled in them.

Once the head of a stream has gone out with its status 200, an error can only be told in an event. Clients know that of their
own API and skip others: to a client of /v1/messages, an error in the words of a chat is an answer without a text.

    /v1/messages       event: error            {"type": "error", "error": {"type": "api_error", "message": ...}}
    /v1/responses      event: response.failed  {"type": "response.failed", "response": {"status": "failed", "error": ...}}
    all others         (no name)               {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

An error is the last event of its stream: no `[DONE]` follows, nor any other end. Nor does it follow one: a stream that has its
own end, and lacks only that of HTTP, is whole for its client (`has_ended`).

A silence is filled with `event: ping` on /v1/messages, where that is an event of the API. Elsewhere it is filled with a
comment, which clients skip; but once an event had an `id:`, some take the blank line behind a comment for an empty event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from maitred.core.errors import JSON_ERRORS
from maitred.wire import sse
from maitred.wire.answer_errors import error_in_body
from maitred.wire.exchange import ApiError, messages_error_type

_encode: Final = msgspec.json.Encoder().encode
_MAX_MESSAGE_BYTES: Final = 2_000
"""What is shown of a body that is no error object."""
_DONE_EVENTS: Final = (b"data: [DONE]", b"data:[DONE]")
_NO_STREAM: Final = "the backend has answered with no stream"


class StreamDialect:
    """The words of chats and completions, and of every API without words of its own."""

    keepalive: bytes = sse.KEEPALIVE_COMMENT
    """What fills a silence between two events."""
    has_keepalive_events = False
    """Whether that is an event, and not a comment."""
    shows_whole_answers = True
    """Whether a client may make something of an answer that came whole, as an event."""
    end_types: tuple[bytes, ...] = ()
    """The last event of a whole stream has one of these, or is `[DONE]`."""

    def has_ended(self, tail: bytes) -> bool:
        """Return whether a stream has its own end. `tail` is what the client has last: a part of the last event, at least."""
        last = sse.EVENT_END.split(tail.rstrip())[-1]
        is_done = last != b"" and any(end.endswith(last) for end in _DONE_EVENTS)
        return is_done or any(kind in last for kind in self.end_types)

    def error_event(self, status: int, error: Mapping[str, Any], sent: bytes = b"") -> bytes:
        """Return the event that ends a stream with an error. `status` is that of an answer with this error, `error` the error
        object of OpenAI, and `sent` what the client has of the stream: its first piece and its last ones."""
        return sse.encode_event(_encode({"error": error}))

    def refusal_event(self, error: ApiError, sent: bytes = b"") -> bytes:
        """Return the event that ends a stream with an error of the gateway."""
        return self.error_event(error.status, error_object(error.status, error.body("")), sent)

    def answer_event(self, status: int, body: bytes) -> bytes:
        """Return the event that stands for an answer that is no stream."""
        if status == HTTPStatus.OK:
            told = error_in_body(body)
            if told is None and self.shows_whole_answers and _is_json(body):
                return sse.encode_event(b" ".join(body.splitlines()))
            if told is None:
                return self.error_event(HTTPStatus.BAD_GATEWAY, {"message": _NO_STREAM})
            status = told.status or HTTPStatus.INTERNAL_SERVER_ERROR
        return self.error_event(status, error_object(status, body))


class MessagesDialect(StreamDialect):
    """The words of /v1/messages."""

    keepalive = b'event: ping\ndata: {"type": "ping"}\n\n'
    has_keepalive_events = True
    shows_whole_answers = False
    end_types = (b'"message_stop"',)

    def error_event(self, status: int, error: Mapping[str, Any], sent: bytes = b"") -> bytes:
        own = {"type": messages_error_type(status), "message": error["message"]}
        return sse.encode_event(_encode({"type": "error", "error": own}), b"error")


class ResponsesDialect(StreamDialect):
    """The words of /v1/responses."""

    shows_whole_answers = False
    end_types = (b'"response.completed"', b'"response.incomplete"', b'"response.failed"')

    def error_event(self, status: int, error: Mapping[str, Any], sent: bytes = b"") -> bytes:
        code = error.get("code")
        own = {"code": code if isinstance(code, str) and code else _responses_code(status), "message": error["message"]}
        numbers = _SEQUENCE_NUMBER.findall(sent)
        event = {
            "type": "response.failed",
            "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
            "response": {**_NO_RESPONSE, **_begun_response(sent), "status": "failed", "error": own},
        }
        return sse.encode_event(_encode(event), b"response.failed")


_OTHERS: Final = StreamDialect()
_BY_PATH: Final[Mapping[str, StreamDialect]] = {"/v1/messages": MessagesDialect(), "/v1/responses": ResponsesDialect()}
_TYPES: Final = {429: "rate_limit_error"}
_RESPONSES_CODES: Final = {429: "rate_limit_exceeded"}
_SEQUENCE_NUMBER: Final = re.compile(rb'"sequence_number"\s*:\s*(\d{1,12})\b')
_NO_RESPONSE: Final = {"id": "", "object": "response", "output": []}
_CREATED: Final = b"response.created"


def dialect_of(path: str) -> StreamDialect:
    """Return the words of the API at `path`."""
    return _BY_PATH.get(path, _OTHERS)


def error_object(status: int, body: bytes) -> dict[str, Any]:
    """Return the error object, in OpenAI's words, of an answer with an error. There is always a `message`."""
    try:
        answer = msgspec.json.decode(body)
    except JSON_ERRORS:
        answer = None
    members = answer if isinstance(answer, dict) else {}
    error = members.get("error")
    if isinstance(error, dict):
        return {**error, "message": _message(error) or _encode(error).decode()}
    told = error_in_body(body)
    message = _message(members) if told is None else told.message
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    message = message or _text(body) or f"the backend has answered {status}"
    return {"message": message, "type": kind, "param": None, "code": status}


def _is_json(body: bytes) -> bool:
    """Return whether a body is a JSON object or list, and not the page of a proxy, say."""
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except JSON_ERRORS:
        return False
    return True


def _message(members: Mapping[str, Any]) -> str:
    return next((value for key in ("message", "detail") if isinstance(value := members.get(key), str) and value), "")


def _text(body: bytes) -> str:
    return " ".join(body[:_MAX_MESSAGE_BYTES].decode("utf-8", "replace").split())


def _responses_code(status: int) -> str:
    return _RESPONSES_CODES.get(status) or ("invalid_prompt" if status < 500 else "server_error")


def _begun_response(sent: bytes) -> dict[str, Any]:
    """Return the response that a stream has begun with, or nothing if it has not."""
    event = next((event for event in sse.EVENT_END.split(sent) if _CREATED in event), b"")
    try:
        response = msgspec.json.decode(sse.event_data(event)).get("response")
    except (*JSON_ERRORS, AttributeError):
        return {}
    return response if isinstance(response, dict) else {}
