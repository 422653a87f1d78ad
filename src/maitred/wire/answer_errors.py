"""Errors inside an answer whose status is 200.

The head of a stream goes out before its tokens, so an engine that fails later can say so only in an event. Some engines send an
error in the body of a JSON answer with status 200, too. Each API has its own words:

    data: {"error": {"message": "...", "code": 500}}                   chat and completions: vLLM, SGLang, llama.cpp, gateways
    data: {"error": "...", "error_type": "..."}                        TGI
    data: {"object": "error", "message": "...", "code": 500}           older vLLM
    data: {"choices": [{"finish_reason": "error", ...}]}               OpenRouter, vLLM
    data: {"choices": [{"error": {"message": "..."}, ...}]}            OpenRouter
    data: {"type": "error", "message": "..."}                          /v1/responses
    data: {"type": "response.failed", "response": {"error": {...}}}    /v1/responses
    event: error, data: {"type": "error", "error": {...}}              /v1/messages
    event: error, data: any text
    error: {"message": "...", "code": 500}                             older llama.cpp

A text of the model is never taken for an error: events are decoded, and only their own members count.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from maitred.core.errors import JSON_ERRORS
from maitred.wire.sse import EVENT_END, LINE_END

HINT: Final = b"error"
"""What every event or body with an error contains. Most others do not, and to look for it costs little."""
_JSON_HINT: Final = b'"error"'
"""What every JSON object with an error contains. In a text of the model the quotes are escaped."""
_MAX_MESSAGE: Final = 500
"""Characters of a message that are kept. It goes into logs, and an engine may put a whole traceback or prompt into it."""
_STATUS_DIGITS: Final = 3
"""Digits of a status. `int` raises ValueError for a text of thousands of digits."""
_STATUS_OF_WORD: Final = {
    **dict.fromkeys(("invalid_request_error", "BadRequestError", "invalid_prompt"), 400),
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded"), 429),
    "overloaded_error": 529,
}
"""The statuses for which types and codes stand."""


class AnswerError(msgspec.Struct, frozen=True):
    """An error that an answer with status 200 reports."""

    message: str
    status: int | None = None
    """The HTTP status that the engine names in it, 400 to 599, or None."""

    @property
    def is_fault_of_client(self) -> bool:
        """Whether any other backend would answer the same (400 to 499, but for 408 and 429)."""
        return self.status is not None and self.status < 500 and self.status not in (408, 429)


class _Members(msgspec.Struct, gc=False):
    """The members of an event or body that may tell of an error; empty if absent."""

    error: msgspec.Raw = msgspec.Raw()
    object: msgspec.Raw = msgspec.Raw()
    type: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()
    code: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    choices: msgspec.Raw = msgspec.Raw()
    status: msgspec.Raw = msgspec.Raw()


_decode_members: Final = msgspec.json.Decoder(_Members).decode


def error_in_stream(stream: bytes) -> tuple[AnswerError, int] | None:
    """Return the first error among the events of a piece of a stream, and where its event begins; None if there is none. The
    piece must begin with an event; an event that is cut at its end is no error yet."""
    if stream.find(HINT) < 0:
        return None
    start = 0
    for blank in EVENT_END.finditer(stream):
        found = error_in_event(stream[start : blank.start()])
        if found is not None:
            return found, start
        start = blank.end()
    found = error_in_event(stream[start:])
    return None if found is None else (found, start)


def error_in_event(event: bytes) -> AnswerError | None:
    """Return the error that an event reports (its lines, without the blank one), or None."""
    if event.find(HINT) < 0:
        return None
    name, data = b"", []
    for line in LINE_END.split(event):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.strip())
        elif field == b"event":
            name = value.strip()
        elif field == b"error" and value.lstrip().startswith(b"{"):
            return _error_of_value(_decoded(value.strip()) or value)
    body = b"\n".join(data)
    found = error_in_body(body)
    if found is None and name == b"error" and data:
        found = _error_of_value(_decoded(body) or body)
    return found


def error_in_body(body: bytes) -> AnswerError | None:
    """Return the error that a JSON object reports, or None; None for what is no JSON object, too."""
    if body.find(_JSON_HINT) < 0:
        return None
    try:
        members = _decode_members(body)
    except JSON_ERRORS:
        return None
    return _error_of(members)


def _error_of(members: _Members) -> AnswerError | None:
    error = _decoded(members.error)
    if error:  # null, which every event of /v1/responses has, is none
        return _error_of_value(error)
    if b'"error"' in (bytes(members.type), bytes(members.object)):
        return _error_of_value({"message": _decoded(members.message), "code": _decoded(members.code)})
    if members.response:
        response = members.response
        return error_in_body(bytes(response)) if bytes(members.type) == b'"response.failed"' else None
    return _error_of_choices(_decoded(members.choices)) if HINT in bytes(members.choices) else None


def _error_of_value(error: object) -> AnswerError:
    """Return the error of the value of a member `error`."""
    if not isinstance(error, dict):
        text = error.decode("utf-8", "replace") if isinstance(error, bytes) else str(error)
        return AnswerError(_shortened(text))
    message = error.get("message") or error.get("detail") or error.get("type") or error.get("code") or "no message"
    return AnswerError(_shortened(str(message)), _status_of(error))


def _status_of(error: dict[str, Any]) -> int | None:
    for value in (error.get("code"), error.get("status_code"), error.get("status"), error.get("http_status")):
        number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) <= _STATUS_DIGITS else value
        if type(number) is int and 400 <= number <= 599:
            return number
    words = (word for word in (error.get("type"), error.get("code")) if isinstance(word, str))
    return next((_STATUS_OF_WORD[word] for word in words if word in _STATUS_OF_WORD), None)


def _error_of_choices(choices: object) -> AnswerError | None:
    """Return the error that one of the choices reports, as a member or as the reason for its end, or None."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("error"):
            return _error_of_value(choice["error"])
        if isinstance(choice, dict) and choice.get("finish_reason") == "error":
            return AnswerError("finish_reason: error")
    return None


def _decoded(raw: msgspec.Raw | bytes) -> Any:
    """Return the value of a JSON text, or None for what is none."""
    try:
        return msgspec.json.decode(raw) if raw else None
    except JSON_ERRORS:
        return None


def _shortened(message: str) -> str:
    return " ".join(message.split())[:_MAX_MESSAGE]
