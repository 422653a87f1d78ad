"""Pages of other origins that may use the gateway from a browser (`gateway.cors_origins`; CORS, as the Fetch standard has it).

    OPTIONS with Origin and Access-Control-Request-Method   a preflight: 204 without a key, as browsers send none with it
    any other request with Origin                           its answer says that the page may read it

An origin that is not in the list is told nothing, so its browser keeps the answer from the page. What a backend says about
origins is left out of answers that the gateway marks: browsers refuse two values.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from maitred.wire.exchange import Exchange

ANY_ORIGIN: Final = "*"
_METHODS: Final = b"DELETE, GET, HEAD, PATCH, POST, PUT"
_MAX_AGE: Final = b"600"
"""Seconds for which a browser may keep the answer to a preflight."""
_EXPOSED: Final = b"request-id, retry-after, x-request-id, x-smg-error-code"


class CrossOrigins:
    """The origins whose pages may use the gateway."""

    def __init__(self, origins: Collection[str]) -> None:
        self._any = ANY_ORIGIN in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def answer_preflight(self, exchange: Exchange) -> bool:
        """Return True if the request is a preflight of an allowed origin, which then has been answered. Mark the answer to
        another request of an allowed origin."""
        origin = exchange.get_header(b"origin")
        if origin is None or not (self._any or origin in self._origins):
            return False
        exchange.cors_headers = [
            (b"access-control-allow-origin", ANY_ORIGIN.encode() if self._any else origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]
        if exchange.method != "OPTIONS" or exchange.get_header(b"access-control-request-method") is None:
            return False
        exchange.cors_headers += [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _MAX_AGE)]
        asked = exchange.get_list(b"access-control-request-headers")
        if asked is not None:
            exchange.cors_headers.append((b"access-control-allow-headers", asked))
        exchange.start_response(204, [], b"", False)
        return True
