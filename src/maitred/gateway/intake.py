"""What the gateway reads of a request: a few headers, a few fields of the body. Everything else passes through untouched.

Headers are gone through once, as bytes. Those of one hop (RFC 9110, 7.6.1) end here, as do the ones addressed to us.
"""

from __future__ import annotations

from typing import Any

import msgspec

from maitred.admission import parse_class
from maitred.request import PriorityClass
from maitred.wire.asgi import ApiError, Headers, not_json

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NAMING_NONE = (b"keep-alive,", b"close,")
"""The usual headers `Connection`: they name no other header."""
PRIORITY = frozenset((b"x-smg-priority", b"x-maitred-priority"))
REQUEST_ID = b"x-request-id"
_NOT_FORWARDED = HOP_BY_HOP | PRIORITY | {b"host", b"content-length", b"expect", REQUEST_ID}


class Fields(msgspec.Struct, gc=False):
    """The body, as far as we look at it. What a value means beyond that is the backend's to judge."""

    model: Any = None
    stream: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None

    @property
    def max_output_tokens(self) -> int | None:
        for limit in (self.max_completion_tokens, self.max_tokens):
            if isinstance(limit, int):
                return limit
        return None


class Inbound(msgspec.Struct, gc=False):
    """The headers of a request, sorted."""

    forward: Headers
    """For the backend; without x-request-id."""
    request_id: bytes | None
    priority: bytes | None
    """The first of the headers that name a class."""

    @property
    def priority_class(self) -> PriorityClass | None:
        """None: it names a class that there is not."""
        return parse_class(None if self.priority is None else self.priority.decode("latin-1"))


_decode = msgspec.json.Decoder(Fields).decode


def read_headers(headers: Headers) -> Inbound:
    forward: Headers = []
    request_id = priority = None
    connection = b""
    for header in headers:
        name = header[0]
        if name not in _NOT_FORWARDED:
            forward.append(header)
        elif name == REQUEST_ID:
            request_id = header[1]
        elif name == b"connection":
            connection += header[1] + b","
        elif priority is None and name in PRIORITY:
            priority = header[1]
    if connection and connection.lower() not in _NAMING_NONE:
        forward = _without(forward, connection)
    return Inbound(forward, request_id, priority)


def end_to_end(headers: Headers) -> Headers:
    """The headers of a response that are meant for the client."""
    kept: Headers = []
    connection = b""
    for header in headers:
        if header[0] not in HOP_BY_HOP:
            kept.append(header)
        elif header[0] == b"connection":
            connection += header[1] + b","
    if connection and connection.lower() not in _NAMING_NONE:
        return _without(kept, connection)
    return kept


def read_fields(body: bytes) -> Fields:
    """Raises ApiError 400."""
    try:
        fields = _decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(f"the request body is not what it should be: {error}") from error
    except RecursionError as error:
        raise _invalid("the request body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(f"the request body is not valid JSON: {not_json(error, body)}") from error
    if not isinstance(fields.model, str) or not fields.model:
        raise _invalid("you must name a model", param="model")
    return fields


def _without(headers: Headers, connection: bytes) -> Headers:
    named = {token.strip().lower() for token in connection.split(b",")}
    return [header for header in headers if header[0] not in named]


def _invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", param=param)
