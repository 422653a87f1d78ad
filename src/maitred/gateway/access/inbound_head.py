"""The head of a request, as the gateway reads it: once for all requests that have the same one.

    forwarded    the headers for the backend: all but hop-by-hop ones (RFC 9110, 7.6.1) and those meant for the gateway itself;
                 where the gateway reads the answer, `accept-encoding: identity` in place of the client's
    for us       x-request-id, the credentials, the class, and the tenant if a trusted header names one; the first of several,
                 but the last that names the tenant
    target       the route, and path and query for the backend

All of it follows from the head and the configuration alone. So it is kept in the memo of a head that is known
(`wire/known_heads`), and a client that sends the same head again costs one look-up. After a reload it is read anew. Whether a
key is valid is not kept, but asked for each request. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from maitred.admission import parse_class
from maitred.core.request import PriorityClass
from maitred.gateway.bodies.request_fields import (
    COMMON_CONNECTION_VALUES,
    DECISION_HEADER,
    HOP_BY_HOP_HEADERS,
    REQUEST_ID_HEADER,
    drop_named_headers,
    read_credentials,
)
from maitred.gateway.routes import ROUTES, Route
from maitred.wire.client_framing import HeaderBlock
from maitred.wire.exchange import Exchange
from maitred.wire.messages import Headers

PRIORITY_HEADERS: Final = frozenset((b"x-smg-priority", b"x-maitred-priority"))
OBJECTIVE_HEADER: Final = b"x-gateway-inference-objective"
_NOT_FORWARDED: Final = (
    HOP_BY_HOP_HEADERS
    | PRIORITY_HEADERS
    | {DECISION_HEADER, b"host", b"content-length", b"content-encoding", b"expect", REQUEST_ID_HEADER}
)


_PLAIN: Final = (b"accept-encoding", b"identity")
"""What asks for an answer that is not compressed: errors and tokens are read in it, and events put between its own."""


class InboundHead:
    """The head of a request, under one configuration."""

    def __init__(self, reader: HeadReader) -> None:
        self.reader = reader
        self.forwarded = HeaderBlock([])
        """The headers for the backend, without x-request-id."""
        self.request_id: bytes | None = None
        self.credentials: bytes | None = None
        """What names the key of the client, as a value of `Authorization`."""
        self.content_coding: bytes | None = None
        """How the body is compressed: the values of all Content-Encoding headers, or None without one."""
        self.asks_decision = False
        """Whether its client wants to know what was decided about it (`DECISION_HEADER`)."""
        self.tenant: bytes | None = None
        """The value of the trusted header. Of several the last, which the trusted proxy has added."""
        self.priority: bytes | None = None
        """The value of the first header that names a class."""
        self.names_class = False
        """Whether there is such a header, and it is neither empty nor anything but printable ASCII."""
        self.requested_class: PriorityClass | None = PriorityClass.DEFAULT
        """The class that it names, or None if it names none."""
        self.objective: str | None = None
        """What the header of the Gateway API Inference Extension names, where objectives say classes."""
        self.page_problem: str | None = None
        """Why a page in a browser may have sent it (`local_access`), or "" if none may; None before anyone has asked."""
        self.route: Route | None = None
        self.target = ""
        """The path with its query string as they came: what is decoded may hold line ends, or characters that a request line
        cannot have."""


class HeadReader:
    """Reads heads under one configuration."""

    def __init__(
        self,
        tenant_header: bytes | None = None,
        withheld: Collection[bytes] = (),
        added: Collection[tuple[bytes, bytes]] = (),
        read_paths: Collection[str] = (),
    ) -> None:
        """`tenant_header` is the trusted header that names the tenant, or None. `withheld` are further headers that are not
        forwarded, `added` those that the gateway sends with every request. The answers of `read_paths` are read as those of
        `ROUTES` are."""
        self._tenant = tenant_header
        self._withheld = _NOT_FORWARDED.union(withheld, [tenant_header] if tenant_header else [])
        self._added = added
        self._read_paths = read_paths

    def read_head(self, exchange: Exchange) -> InboundHead:
        """Return the head of a request. It must not be changed."""
        memo = exchange.memo
        if memo is None:
            return self._read(exchange)
        known = memo.value
        if not isinstance(known, InboundHead) or known.reader is not self:
            memo.value = known = self._read(exchange)
        return known

    def sort_headers(self, headers: Headers) -> InboundHead:
        """Return the part of a head that follows from its headers alone."""
        inbound = InboundHead(self)
        forward: Headers = []
        connection = b""
        for header in headers:
            name = header[0]
            if name not in self._withheld:
                forward.append(header)
            elif name == b"connection":
                connection += header[1] + b","
            else:
                self._keep_own(inbound, name, header[1])
        if connection and connection.lower() not in COMMON_CONNECTION_VALUES:
            forward = drop_named_headers(forward, connection)
        inbound.forwarded = HeaderBlock([*forward, *self._added])
        return inbound

    def _read(self, exchange: Exchange) -> InboundHead:
        inbound = self.sort_headers(exchange.headers)
        name = (inbound.priority or b"").strip()
        if name and name.isascii() and name.decode("ascii").isprintable():
            inbound.names_class, inbound.requested_class = True, parse_class(name.decode("ascii"))
        inbound.credentials = read_credentials(exchange.headers)
        inbound.route = ROUTES.get(exchange.path)
        if inbound.route is not None or exchange.path in self._read_paths:
            others = [header for header in inbound.forwarded.headers if header[0] != _PLAIN[0]]
            inbound.forwarded = HeaderBlock([*others, _PLAIN])
        inbound.target = exchange.target.decode("latin-1")
        return inbound

    def _keep_own(self, inbound: InboundHead, name: bytes, value: bytes) -> None:
        if name == REQUEST_ID_HEADER:
            inbound.request_id = inbound.request_id or value
        elif name == b"content-encoding":
            inbound.content_coding = value if inbound.content_coding is None else inbound.content_coding + b"," + value
        elif name == self._tenant:
            inbound.tenant = value
        elif name in PRIORITY_HEADERS and inbound.priority is None:
            inbound.priority = value
        elif name == DECISION_HEADER:
            inbound.asks_decision = True
        elif name == OBJECTIVE_HEADER:
            inbound.objective = value.decode("latin-1")
