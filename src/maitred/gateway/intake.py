"""What the gateway reads of a request: a few headers, a few fields of the body. Everything else passes through untouched.

Headers are gone through once, as bytes. Those of one hop (RFC 9110, 7.6.1) end here, as do the ones addressed to us.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from maitred.gateway.routes import Route
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
AUTHORIZATION = b"authorization"
_NOT_FORWARDED = HOP_BY_HOP | PRIORITY | {b"host", b"content-length", b"expect", REQUEST_ID}


class Fields(msgspec.Struct, gc=False):
    """The body, as far as we look at it. What a value means beyond that is the backend's to judge."""

    model: Any = None
    stream: Any = None
    service_tier: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    max_output_tokens: Any = None

    @property
    def output_limit(self) -> int | None:
        """Tokens; None: the client sets no limit that we can read."""
        for limit in (self.max_completion_tokens, self.max_tokens, self.max_output_tokens):
            if isinstance(limit, int):
                return limit
        return None


_decode = msgspec.json.Decoder(Fields).decode


class Inbound(msgspec.Struct, gc=False):
    """The headers of a request, sorted. Of those that are given twice the first counts."""

    forward: Headers
    """For the backend; without x-request-id."""
    request_id: bytes | None = None
    priority: bytes | None = None
    """Of the headers that name a class."""
    authorization: bytes | None = None
    tenant: bytes | None = None

    @property
    def asked(self) -> str | None:
        """The class that is asked for. None: no header asks for one, or none that can be read as text."""
        named = (self.priority or b"").strip()
        return named.decode("latin-1") if named and named.isascii() and named.decode("ascii").isprintable() else None


class HeaderReader:
    """Sorts headers. `tenant_header` names the caller, where that is to be believed; `kept_back` are further headers that the
    backend does not get."""

    def __init__(self, tenant_header: bytes | None = None, kept_back: Collection[bytes] = ()) -> None:
        self._tenant = tenant_header
        self._kept_back = _NOT_FORWARDED.union(kept_back, [tenant_header] if tenant_header else [])

    def read(self, headers: Headers) -> Inbound:
        inbound = Inbound([])
        kept_back, forward = self._kept_back, inbound.forward
        connection = b""
        for header in headers:
            name = header[0]
            if name not in kept_back:
                forward.append(header)
            elif name == b"connection":
                connection += header[1] + b","
            else:
                self._ours(inbound, name, header[1])
        if connection and connection.lower() not in _NAMING_NONE:
            inbound.forward = _without(forward, connection)
        return inbound

    def _ours(self, inbound: Inbound, name: bytes, value: bytes) -> None:
        if name == AUTHORIZATION:
            inbound.authorization = inbound.authorization or value
        elif name == REQUEST_ID:
            inbound.request_id = inbound.request_id or value
        elif name == self._tenant:
            inbound.tenant = inbound.tenant or value
        elif name in PRIORITY and inbound.priority is None:
            inbound.priority = value


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


def read_fields(body: bytes, route: Route) -> Fields:
    """Raises ApiError 400."""
    try:
        fields = _decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(f"the request body is not what it should be: {error}") from error
    except RecursionError as error:
        raise _invalid("the request body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(f"the request body is not valid JSON: {not_json(error, body)}") from error
    if fields.model is None and not route.needs_model:
        return fields
    if not isinstance(fields.model, str) or not fields.model:
        raise must_name_a_model()
    return fields


def must_name_a_model() -> ApiError:
    return _invalid("you must name a model", param="model")


def _without(headers: Headers, connection: bytes) -> Headers:
    named = {token.strip().lower() for token in connection.split(b",")}
    return [header for header in headers if header[0] not in named]


def _invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", param=param)
