"""A timer that rings at the next deadline of a core. Compiled (`tools/compile.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from maitred.core.units import Micros, to_seconds
from maitred.wire.clock import Clock


class DeadlineTimer:
    """One timer inside one event loop, set anew after each input of the core."""

    def __init__(self, on_due: Callable[[], object], clock: Clock) -> None:
        """`on_due` is called when the deadline has passed by `clock`."""
        self._on_due, self._clock = on_due, clock
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: Micros = 0
        """For which deadline the timer is set, if there is one."""

    def set_to(self, deadline: Micros | None) -> None:
        """Ring at `deadline`; None: not at all. A timer that is due earlier stays: when it rings, it is set to the next one."""
        if deadline is None or (self._timer is not None and self._deadline <= deadline):
            return
        self.cancel()
        # One millisecond more, because the loop may ring that much early.
        delay = max(0.0, to_seconds(deadline - self._clock.now())) + 0.001
        self._timer, self._deadline = asyncio.get_running_loop().call_later(delay, self._ring), deadline

    def cancel(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._on_due()
