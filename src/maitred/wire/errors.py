"""The limits of the upstream client, and the errors by which a request to an upstream fails.

Each error says whether the upstream may have seen the request.
"""

from __future__ import annotations

import errno
from typing import Final

import msgspec

from maitred.core.errors import MaitredError

MAX_SECS: Final = 1e9
"""Longest time that a limit can say, in seconds."""
_MAX_SIZE: Final = 1 << 31
"""The most that a limit can say, in bytes or connections: more than any machine has use for."""


class UpstreamLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits per upstream origin. Times are in seconds, sizes in bytes."""

    connect_secs: float = 3.0
    """Seconds to make a connection, shared by the addresses of the backend that are tried in turn; and to wait for a place
    in the pool."""
    head_secs: float = 600.0
    """Seconds from sending the request to the end of the response head. A completion that is not streamed does all its work in
    this time."""
    idle_secs: float = 300.0
    """Seconds between two pieces of a response body, not counting time in which the client does not read."""
    keep_alive_secs: float = 4.0
    """Seconds that an idle connection is kept; less than the backend's own limit (uvicorn: 5 s)."""
    dns_ttl_secs: float = 30.0
    """Seconds between two look-ups of a backend's name. Until the next good answer, the last one is used."""
    max_connections: int = 4096
    """Connections open at once; further requests wait for one of them. Admission should hold requests back before this limit
    does."""
    max_head: int = 65_536
    """Largest response head (status line and all headers), in bytes."""
    high_water: int = 65_536
    """Bytes of a response body that may wait for a slow client. At this level the backend is read no further until all of them
    are sent."""

    def __post_init__(self) -> None:
        for name in ("connect_secs", "head_secs", "idle_secs", "dns_ttl_secs"):
            if not 0 < getattr(self, name) <= MAX_SECS:
                raise ValueError(f"{name} must be more than 0, and at most {MAX_SECS:g} seconds")
        if not 0 <= self.keep_alive_secs <= MAX_SECS:
            raise ValueError(f"keep_alive_secs must be from 0 to {MAX_SECS:g} seconds; 0 keeps no connection")
        for name in ("max_connections", "max_head", "high_water"):
            if not 1 <= getattr(self, name) <= _MAX_SIZE:
                raise ValueError(f"{name} must be from 1 to {_MAX_SIZE:,}")


_LOCAL_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL))
"""The errors that mean that no descriptors, buffers or ports are left on this machine."""


class UpstreamError(MaitredError):
    """The upstream did not give a whole, well-formed response. The root of these errors."""

    reason = "upstream_error"
    """A stable word for logs and metrics."""
    was_sent = True
    """Whether the request was sent, so that the upstream may have seen it."""


class ConnectError(UpstreamError):
    """No connection could be made.

    The upstream has not seen the request, unless a kept connection was lost with it just before (`was_sent`).
    """

    reason = "connect_failed"
    was_sent = False

    @property
    def is_refusal(self) -> bool:
        """Whether the host has answered that nothing listens there; else nothing is known of the process."""
        return isinstance(self.__cause__, OSError) and self.__cause__.errno == errno.ECONNREFUSED


class ConnectTimeout(ConnectError):  # noqa: N818
    """The host did not answer when a connection was to be made: it has vanished, or accepts none now."""

    reason = "connect_timeout"


class LocalError(UpstreamError):
    """This machine could not make a connection, because it has no descriptors, buffers or ports left.

    The upstream has not seen the request, and no other one could be reached either.
    """

    reason = "local"
    was_sent = False


class Withheld(UpstreamError):  # noqa: N818
    """The caller was not allowed to send the request any more when the connection for it was there."""

    reason = "withheld"
    was_sent = False


class Disconnected(UpstreamError):  # noqa: N818  (the peer's act, by its usual name)
    """The upstream closed the connection before its response began. It may have seen the request."""

    reason = "disconnected"


class Truncated(UpstreamError):  # noqa: N818
    """The upstream closed the connection in the middle of its response.

    A caller that has passed on no part of the response may still try another upstream.
    """

    reason = "truncated"


class ProtocolError(UpstreamError):
    """The upstream sent no HTTP/1.1 response that can be trusted: garbage, two lengths, a head beyond the limit."""

    reason = "protocol_error"


class UpstreamTimeout(UpstreamError):  # noqa: N818
    """The upstream was silent for too long, before the head or between two pieces of the body."""

    reason = "timeout"


class PoolTimeout(UpstreamTimeout):
    """No connection to the upstream became free in time: as many as may be open carry other requests."""

    was_sent = False


def connect_error(error: OSError, message: str) -> ConnectError | LocalError:
    """Return the error for a connection that could not be made; `error` is its cause."""
    failure = LocalError(message) if error.errno in _LOCAL_ERRNOS else ConnectError(message)
    failure.__cause__ = error
    return failure
