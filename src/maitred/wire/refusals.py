"""The errors that a server answers with before its handler has a request, or when the handler fails."""

from __future__ import annotations

from typing import Final

from maitred.wire.exchange import ApiError, Exchange
from maitred.wire.messages import FramingError
from maitred.wire.server_framing import ServerFraming

FRAMING_CODES: Final = {
    400: "bad_request",
    431: "headers_too_large",
    501: "unsupported_transfer_coding",
    505: "unsupported_http_version",
}


def framing_refused(error: FramingError) -> ApiError:
    """Return the error for a request that breaks the rules of HTTP."""
    return ApiError(error.status, str(error), kind="invalid_request_error", code=FRAMING_CODES[error.status])


def request_timeout(message: str) -> ApiError:
    """Return the error for a request that is too slow."""
    return ApiError(408, message, kind="invalid_request_error", code="request_timeout")


def internal_error(server: str = "server") -> ApiError:
    """Return the error for a handler that has failed, in a `server` of this name."""
    return ApiError(500, f"the {server} failed; its log says why", kind="server_error", code="internal_error")


def encode_refusal(framing: ServerFraming, error: ApiError, exchange: Exchange | None) -> bytes:
    """Return the whole response that tells a client of `error`, the last one on its connection. It answers `exchange`, or what
    has no exchange yet. Raises FramingMisuse if another response has started."""
    path, added = (framing.path_in_head, None) if exchange is None else (exchange.path, exchange.added_headers)
    headers, body = error.answer(path)
    framing.keep_alive = False
    return framing.start_response(error.status, [*headers, *(added or ())]) + framing.send_data(body, False)
