"""How a request to an upstream can fail. Each says whether the upstream may have seen the request."""

from __future__ import annotations

import errno

from maitred.errors import MaitredError

_OUR_OWN_LIMITS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL))


class UpstreamError(MaitredError):
    """The root: the upstream did not give a whole, well-formed answer."""

    reason = "upstream_error"
    """A stable word for logs and metrics."""


class ConnectError(UpstreamError):
    """No connection could be made: the upstream has not seen the request."""

    reason = "connect_failed"


class LocalError(UpstreamError):
    """This machine could not make a connection (no descriptors, buffers or ports left), which says nothing of the upstream: it
    has not seen the request, and another one would not either."""

    reason = "local"


class Disconnected(UpstreamError):  # noqa: N818  (the peer's act, by its usual name)
    """The upstream closed the connection before its answer began."""

    reason = "disconnected"


class Truncated(UpstreamError):  # noqa: N818
    """The upstream closed the connection in the middle of its answer."""

    reason = "truncated"


class ProtocolError(UpstreamError):
    """What came is no HTTP/1.1 answer that can be trusted: garbage, two lengths, a head beyond the limit."""

    reason = "protocol_error"


class UpstreamTimeout(UpstreamError):  # noqa: N818
    """The upstream was silent for too long: while connecting, before the head, or between two pieces of the body."""

    reason = "timeout"


def not_connected(error: OSError, words: str) -> ConnectError | LocalError:
    """What it means that a connection could not be made; `error` is its cause."""
    failure = LocalError(words) if error.errno in _OUR_OWN_LIMITS else ConnectError(words)
    failure.__cause__ = error
    return failure
