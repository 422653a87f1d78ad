"""Limits of the upstream client."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Per upstream origin. Times are seconds, sizes are bytes."""

    connect_secs: float = 3.0
    """To get a connection, waiting for a place in the pool included."""
    head_secs: float = 600.0
    """From sending the request to the end of the response head. A completion that is not streamed has all its work here."""
    idle_secs: float = 300.0
    """Between two pieces of a response body, not counting time in which we would not read."""
    keep_alive_secs: float = 4.0
    """How long an idle connection is kept: less than the 5 s after which uvicorn, and so most engines, closes it."""
    max_connections: int = 4096
    """Open at once. More requests wait for one of them; admission should have held them back before that."""
    max_head: int = 65_536
    """The status line and all headers."""
    high_water: int = 65_536
    """Body bytes waiting for a consumer at which the upstream is read no further, until all of them are taken."""
