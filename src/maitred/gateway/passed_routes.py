"""Routes that the gateway does not know, and bodies that are no JSON: what is found in them before they are passed on.

An engine serves more than the gateway knows (`request_fields.ROUTES`), and some of it changes the engine or stops it. What a
path does cannot be read from the body that comes with it, so a path that nobody has named is the operator's, whatever the body:

    POST /v1/chat/completions              known: it takes a slot, in the class of the client
    GET /v1/responses/ID, /version         it only reads, and takes no slot (`READ_PATHS`, `READ_PREFIXES`)
    POST /v1/video {"model": "m"}          open to clients if the operator has named it (`gateway.passed_paths`)
    POST /sleep, GET /flush_cache          for the operator alone, as /admin is; another client gets 404

Of what is passed on, a POST whose body names a model, in JSON or in a form, takes a slot.

Without a model, a request may be about something that one backend has and the others have not, such as a stored response. So
the backends are asked one after another, until one does not answer 404.

Example: two backends, and the response resp_1 is stored at the second. `GET /v1/responses/resp_1` goes to the first, which
answers 404, then to the second, and the client reads what that answers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

import msgspec

from maitred.gateway.auth import ApiKeys
from maitred.gateway.error_responses import no_route
from maitred.gateway.request_fields import AUTHORIZATION_HEADER, ROUTES, BodyFields, Route
from maitred.wire.exchange import ApiError, Exchange

READ_PATHS: Final = frozenset(
    ("/get_model_info", "/get_server_info", "/health_generate", "/model_info", "/server_info", "/v1/loads", "/version")
)
"""Paths that an engine answers about itself. For clients with a key, under GET."""
READ_PREFIXES: Final = ("/v1/responses/",)
"""What clients have stored themselves, under any method: `GET /v1/responses/ID`, `POST /v1/responses/ID/cancel`."""
_METHODS: Final = frozenset(("DELETE", "GET", "PATCH", "POST", "PUT"))
_WITH_MODEL: Final = Route("", needs_model=False, generates=False, is_json=False)
_WITHOUT_MODEL: Final = Route("", needs_model=False, generates=False, is_json=False, needs_slot=False, asks_each=True)
_decode_fields = msgspec.json.Decoder(BodyFields).decode


def read_passed(exchange: Exchange, body: bytes, keys: ApiKeys, passed_paths: Collection[str] = ()) -> tuple[Route, BodyFields]:
    """Return how to pass a request on, and what its body says. `passed_paths` are open to all clients beside those known here.
    Raises ApiError 404 for a request that is for the operator alone."""
    route = ROUTES.get(exchange.path)
    if route is not None:
        return route, find_fields(exchange, body)
    if exchange.method not in _METHODS:
        raise no_route(exchange.path)
    if exchange.path not in passed_paths and not _only_reads(exchange):
        try:
            keys.require_administrator(exchange.get_header(AUTHORIZATION_HEADER), exchange.client, exchange.headers)
        except ApiError as error:
            raise no_route(exchange.path) from error
    fields = find_fields(exchange, body)
    takes_slot = exchange.method == "POST" and fields.model is not None
    return _WITH_MODEL if takes_slot else _WITHOUT_MODEL, fields


def _only_reads(exchange: Exchange) -> bool:
    """Return whether a request is for something that a client may read, or has stored itself."""
    path = exchange.path
    if path in READ_PATHS:
        return exchange.method == "GET"
    return path.startswith(READ_PREFIXES) and ".." not in unquote(path)


def find_fields(exchange: Exchange, body: bytes) -> BodyFields:
    """Return the fields of a body, as far as they are found: all are None if it is neither a JSON object nor a form."""
    content_type = exchange.get_header(b"content-type") or b""
    if content_type.partition(b";")[0].strip().lower() == b"multipart/form-data":
        return BodyFields(model=find_form_field(body, content_type, "model"))
    try:
        fields = _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return BodyFields()
    return fields if isinstance(fields.model, str) and fields.model else BodyFields()


def find_form_field(body: bytes, content_type: bytes, name: str) -> str | None:
    """Return the value of a field of a multipart form (RFC 7578), or None if it has none, or an empty one."""
    boundary = next((part.strip() for part in content_type.split(b";") if part.strip().lower().startswith(b"boundary=")), b"")
    delimiter = b"--" + boundary.partition(b"=")[2].strip(b'"')
    for part in body.split(delimiter)[1:] if len(delimiter) > 2 else ():
        head, _, value = part.partition(b"\r\n\r\n")
        if b'name="%b"' % name.encode() in head and b"filename" not in head:
            return value.removesuffix(b"\r\n").decode("utf-8", "replace").strip() or None
    return None
