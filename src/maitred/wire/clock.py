"""Clock: what time it is, for all parts of a process that serves.

    now         an instant, µs. It never runs backwards, and says nothing but how long it is since another one
    wall        the time of day, µs since 1970. It may be set while the process runs, so it is for people: logs, records, dates
    cpu_secs    CPU time that the thread has used

One clock is made where a process is put together (`Machine`), and every part that asks for the time is given it. In a world
whose time is made up, these three functions are, and the time of its event loop is the same as `now`.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from maitred.core.units import Micros


@final
class Clock:
    """A clock; without arguments, that of the system."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        time_ns: Callable[[], int] = time.time_ns,
        thread_time_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """The functions are those of `time`, or return nanoseconds as these do."""
        self._monotonic_ns, self._time_ns, self._thread_time_ns = monotonic_ns, time_ns, thread_time_ns

    def now(self) -> Micros:
        """Return this instant by the monotonic clock, µs."""
        # Not that of uvloop's loop, which has a resolution of milliseconds.
        monotonic_ns = self._monotonic_ns  # Called where it stands, it would be looked for among the methods, each time.
        return monotonic_ns() // 1000

    def wall(self) -> Micros:
        """Return the time of day, µs since 1970 in UTC."""
        return self._time_ns() // 1000

    def cpu_secs(self) -> float:
        """Return the CPU time that this thread has used, in seconds."""
        return self._thread_time_ns() / 1e9
