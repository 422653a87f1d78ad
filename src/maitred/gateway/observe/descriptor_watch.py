"""DescriptorWatch: says in the log when the process has no file descriptors left.

Each request takes two descriptors, and the operating system limits those of a process. When none is left, a new connection is
accepted and closed again at once, below anything that the gateway sees: clients see resets, and the gateway sees nothing. So
once a second the watch asks for a descriptor and gives it back. The first time it gets none, that is logged, with the limit;
the first time it gets one again, that is logged as well. A descriptor with a high number says that few are left, whoever holds
the others: then idle connections of clients are closed, as for a new connection (`wire/descriptors`).

Example: `ulimit -n 64`, and 100 clients. About 50 of them are connected, the log says "no file descriptors are left (limit
64)", and `maitred_out_of_descriptors` is 1.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from collections.abc import Callable
from typing import Final

from maitred.wire.machine import Machine

INTERVAL_SECS: Final = 1.0
"""Seconds between two looks."""
log = logging.getLogger("maitred.gateway")


class DescriptorWatch:
    """Watches the descriptors of this process, from within one event loop."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_exhausted = False
        """Whether none was left at the last look."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, make_room: Callable[[int], object]) -> None:
        """Look now, and every second from now on. `make_room` is told the lowest free descriptor."""
        self._look(make_room)
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECS, self.start, make_room)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, make_room: Callable[[int], object]) -> None:
        try:
            make_room(self._machine.lowest_free_descriptor())
        except OSError as error:
            is_exhausted = error.errno in (errno.EMFILE, errno.ENFILE)
        else:
            is_exhausted = False
        if is_exhausted and not self.is_exhausted:
            message = (
                "no file descriptors are left%s: new connections are dropped; raise the limit (ulimit -n), or send less here"
            )
            log.error(message, self._describe_limit())
        elif self.is_exhausted and not is_exhausted:
            log.warning("there are file descriptors again")
        self.is_exhausted = is_exhausted

    def _describe_limit(self) -> str:
        limit = self._machine.descriptor_limit()
        return "" if limit == sys.maxsize else f" (limit {limit:,})"
