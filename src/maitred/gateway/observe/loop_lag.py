"""LoopLag: how late the event loop is.

Everything in the gateway runs in one event loop. Where it is late, every request is: a stream stands still, and time to first
token grows, although backends are idle. So four times a second a timer notes by how much it rang too late. A loop that is busy
for 30 ms at a time shows values up to that; a machine that is overloaded, or a slow disk in the wrong place, shows seconds.

    timer set at 0 ms for 250 ms, rings at 262 ms: a lag of 12 ms
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from maitred.core.histogram import Histogram
from maitred.core.units import Micros
from maitred.gateway.observe.metric_families import histogram
from maitred.wire.clock import Clock

INTERVAL_SECS: Final = 0.25
"""Seconds between two looks."""
_INTERVAL: Final[Micros] = 250_000


class LoopLag:
    """Measures the lag of the running event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lags = Histogram()
        """The lags that were seen, µs."""
        self._timer: asyncio.TimerHandle | None = None
        self._due: Micros = 0

    def start(self) -> None:
        """Measure from now on."""
        self._due = self._clock.now() + _INTERVAL
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECS, self._on_timer)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def families(self) -> Iterator[Metric]:
        """Yield its metric."""
        text = "How late the event loop was, four times a second."
        yield histogram("maitred_event_loop_lag_seconds", text, [], [([], self.lags)])

    def _on_timer(self) -> None:
        self.lags.observe(max(0, self._clock.now() - self._due))  # uvloop may ring a millisecond early.
        self.start()
