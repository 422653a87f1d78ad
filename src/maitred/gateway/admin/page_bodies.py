"""The bodies of requests for pages."""

from __future__ import annotations

from typing import Final

import msgspec

from maitred.gateway import error_responses
from maitred.gateway.bodies.content_coding import coding_not_taken
from maitred.wire.exchange import Exchange


class NamedBackend(msgspec.Struct, frozen=True):
    """The body of a request about one backend."""

    backend: str
    """Its URL."""


_decode_named_backend = msgspec.json.Decoder(NamedBackend).decode
_MAX_BODY_BYTES: Final = 64 * 1024
"""Largest body of a request to these paths."""


async def read_page_body(exchange: Exchange) -> bytes:
    """Return the body of a request for a page, which has at most 64 KiB. Raises ApiError 415 for one that is compressed, and
    what `Exchange.read_body` raises."""
    coding = (exchange.get_list(b"content-encoding") or b"").strip().lower()
    if coding not in (b"", b"identity"):
        raise coding_not_taken(coding.decode("latin-1"), ())
    return await exchange.read_body(_MAX_BODY_BYTES)


def named_backend(body: bytes) -> str:
    """Return the URL of the backend that `body` names. Raises ApiError 400 for a body that names none."""
    try:
        return _decode_named_backend(body).backend
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise error_responses.no_backend_named(str(error)) from error
