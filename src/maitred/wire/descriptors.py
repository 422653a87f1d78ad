"""Descriptors: which connections of clients are closed so that new clients, backends and files get a descriptor.

The system gives the lowest free number. So the number of a new descriptor says how many are in use at least, and nothing has to
be counted:

    below `mark`                nothing happens
    from `mark` to `last`       idle connections of clients are closed, those that have been idle for longest first
    from `last` to the limit    a client for whom no connection can be closed is turned away: what is left is for connections
                                to backends, and for files

A connection is idle while it has no request, or has begun to send the head of one; over TLS also until its handshake has ended.

Example: a limit of 256 makes `mark` 224 and `last` 240. A client with 400 idle connections is at 224 of them, less some, since
each further one closes the oldest. Another client's connection is the newest, and stays.

This module decides, and touches no descriptor.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from operator import itemgetter
from typing import Final, TypeVar

_RESERVED_SHARE: Final = 8
"""One descriptor in this number is in the reserve."""
_MIN_RESERVED, _MAX_RESERVED = 16, 1_024
"""Bounds of the reserve: with few descriptors an eighth would not do for files and polls, and of very many it would never be
used."""
_BATCH_SHARE: Final = 8
"""The reserve has this number of parts, of which one is freed at once."""
_Connection = TypeVar("_Connection")


class DescriptorRoom:
    """The room that a limit of descriptors leaves."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        reserved = min(max(limit // _RESERVED_SHARE, _MIN_RESERVED), _MAX_RESERVED)
        self.mark = limit - reserved
        """The number from which on idle connections are closed."""
        self.last = limit - reserved // 2
        """The number from which on no client is let in for whom none can be closed."""
        self._batch = max(1, reserved // _BATCH_SHARE)

    def num_missing(self, descriptor: int, num_closing: int) -> int:
        """Return how many connections must be closed because of a new descriptor with this number; `num_closing` are being
        closed already."""
        missing = descriptor - self.mark + 1 - num_closing
        # Some more than are missing: looking for the idlest takes a while where there are thousands.
        return missing + self._batch if missing > 0 else 0


def choose_idlest(idle: Iterable[tuple[float, _Connection]], count: int) -> list[_Connection]:
    """Return `count` connections, or all if there are fewer: those that have been idle for longest, by the time since when."""
    return [connection for _, connection in nsmallest(count, idle, key=itemgetter(0))]
