"""Routes that the gateway does not know, and bodies that are no JSON: what is found in them before they are passed on.

An engine serves more than the gateway knows (`routes.ROUTES`), and some of it changes the engine or stops it. What a
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

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

from maitred.core.errors import JSON_ERRORS
from maitred.core.steps import Steps, run_at_once
from maitred.gateway.access.page_access import Page, PageAccess
from maitred.gateway.bodies.large_body import LargeBody
from maitred.gateway.bodies.request_fields import BodyFields, decode_body_fields
from maitred.gateway.error_responses import no_route
from maitred.gateway.routes import ROUTES, Route
from maitred.wire.exchange import Exchange

READ_PATHS: Final = frozenset(
    ("/get_model_info", "/get_server_info", "/health_generate", "/model_info", "/server_info", "/v1/loads", "/version")
)
"""Paths that an engine answers about itself. For clients with a key, under GET."""
READ_PREFIXES: Final = ("/v1/responses/",)
"""What clients have stored themselves, under any method: `GET /v1/responses/ID`, `POST /v1/responses/ID/cancel`."""
_METHODS: Final = frozenset(("DELETE", "GET", "PATCH", "POST", "PUT"))
_PROMPTS_IN: Final = (
    *("prompt", "prompt_embeds", "text", "input", "inputs", "input_ids", "input_embeds"),
    *("documents", "queries", "items", "text_1", "text_2"),
)
"""Where a route that the gateway does not know may have several prompts."""
_WITH_MODEL: Final = Route("", needs_model=False, generates=False, is_json=False, prompts_in=_PROMPTS_IN)
_WITHOUT_MODEL: Final = Route("", needs_model=False, generates=False, is_json=False, needs_slot=False, asks_each=True)
_MAX_PARTS: Final = 1_000
_MAX_PART_HEAD: Final = 8_192
"""Largest head of a part of a form that is read, in bytes."""
_MAX_FIELD_BYTES: Final = 4_096
"""What is read of the value of a field, in bytes."""
_STEP_BYTES: Final = 512 * 1024
"""What is searched of a form in a step."""
_PARAMETER: Final = re.compile(rb';\s*([^\s;="]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')
_QUOTED_PAIR: Final = re.compile(rb"\\(.)")


def read_passed(
    exchange: Exchange,
    body: bytes,
    access: PageAccess | None,
    passed_paths: Collection[str] = (),
    large: LargeBody | None = None,
) -> tuple[Route, BodyFields]:
    """Return how to pass a request on, and what its body says; a `large` one has been read. `passed_paths` are open to all
    clients beside those known here. `access` says who the operator is; None: the sender is. Raises ApiError 404 for a request
    that is for the operator alone."""
    route = ROUTES.get(exchange.path)
    if route is not None:
        return route, find_fields(exchange, body, large)
    if exchange.method not in _METHODS:
        raise no_route(exchange.path)
    if access is not None and exchange.path not in passed_paths and not _only_reads(exchange):
        access.viewer(Page.ENGINE, exchange, access.port)
    fields = find_fields(exchange, body, large)
    takes_slot = exchange.method == "POST" and fields.model is not None
    return _WITH_MODEL if takes_slot else _WITHOUT_MODEL, fields


def _only_reads(exchange: Exchange) -> bool:
    """Return whether a request is for something that a client may read, or has stored itself."""
    path = exchange.path
    if path in READ_PATHS:
        return exchange.method == "GET"
    return path.startswith(READ_PREFIXES) and ".." not in unquote(path)


def find_fields(exchange: Exchange, body: bytes, large: LargeBody | None = None) -> BodyFields:
    """Return the fields of a body, as far as they are found: all are None if it is neither a JSON object nor a form. A `large`
    body has been read."""
    content_type = exchange.get_header(b"content-type") or b""
    if large is None and is_form(content_type):
        return BodyFields(model=find_form_field(body, content_type, "model"))
    try:
        fields = decode_body_fields(body, is_batch=True, large=large)
    except JSON_ERRORS:
        return BodyFields()
    return fields if fields.model else BodyFields()


def is_form(content_type: bytes) -> bool:
    """Return whether a body of this type is a form with parts."""
    return content_type.partition(b";")[0].strip().lower() == b"multipart/form-data"


def find_form_field(body: bytes, content_type: bytes, name: str) -> str | None:
    """Return the value of a field of a multipart form (RFC 7578), or None if it has none, or an empty one."""
    return run_at_once(search_form_field(body, content_type, name))


def search_form_field(body: bytes, content_type: bytes, name: str) -> Steps[str | None]:
    """Return in steps what `find_form_field` returns.

    Only the first `_MAX_PARTS` parts are looked at, one after the other, so a form costs what looking for its boundary once
    costs.
    """
    boundary = _parameters(content_type).get("boundary", b"")
    if not boundary:
        return None
    delimiter = b"\r\n--" + boundary
    end = (yield from _find(body, delimiter[2:], 0)) - 2
    for _ in range(_MAX_PARTS):
        begin = end + len(delimiter)
        end = (yield from _find(body, delimiter, begin)) if end >= -2 else -3
        if end < 0:
            return None
        head_end = body.find(b"\r\n\r\n", begin, min(end, begin + _MAX_PART_HEAD) + 2)
        if head_end >= 0 and _is_field(body[begin:head_end], name):
            value = body[head_end + 4 : min(end, head_end + 4 + _MAX_FIELD_BYTES)]
            return value.decode("utf-8", "replace").strip() or None
    return None


def _find(body: bytes, text: bytes, begin: int) -> Steps[int]:
    """Return where `text` is next, or -1, in steps."""
    while begin < len(body):
        end = begin + _STEP_BYTES
        found = body.find(text, begin, end + len(text))
        if found >= 0:
            return found
        begin = end
        yield
    return -1


def _is_field(head: bytes, name: str) -> bool:
    """Return whether the head of a part is that of the field `name`, and of no file."""
    for line in head.split(b"\r\n"):
        header, _, value = line.partition(b":")
        if header.strip().lower() == b"content-disposition":
            parameters = _parameters(value)
            return parameters.get("name") == name.encode() and not parameters.keys() & {"filename", "filename*"}
    return False


def _parameters(value: bytes) -> dict[str, bytes]:
    """Return the parameters of a header (RFC 9110, 5.6.6), with names in lower case: `form-data; name=a; x="b; c"`."""
    found = _PARAMETER.findall(value)
    return {name.decode("latin-1").lower(): _QUOTED_PAIR.sub(rb"\1", quoted) or token for name, quoted, token in found}
