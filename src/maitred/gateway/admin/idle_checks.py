"""What the cores promise of themselves, checked while nothing is to be done.

`check` of a core raises an error if its counters, slots, queues and programs do not match. The tests call it after each event.
A gateway in service calls it once a minute while no request waits or holds a slot: a count that has drifted is found soon, not
weeks later as slots that are gone. What fails is logged, once for each problem, and nothing else changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from maitred.core.errors import InvariantError

log = logging.getLogger("maitred.gateway")
_PERIOD_SECS: Final = 60.0


class IdleChecks:
    """Runs the checks of all cores of one gateway. Must be stopped."""

    def __init__(self, checks: Mapping[str, Callable[[], None]], is_idle: Callable[[], bool]) -> None:
        """`checks` are the checks by the name of their core. `is_idle` returns whether there is no request."""
        self._checks, self._is_idle = checks, is_idle
        self._told: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check once a minute from now on."""
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_SECS, self._on_timer)

    def stop(self) -> None:
        """Check no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def run(self) -> None:
        """Run all checks, and log what fails and was not logged before."""
        for core, check in self._checks.items():
            try:
                check()
            except InvariantError as error:
                problem = f"{core}: {error}"
                if problem not in self._told:
                    self._told.add(problem)
                    log.error("the state of the gateway contradicts itself, which is a defect of maitred: %s", problem)

    def _on_timer(self) -> None:
        self.start()  # First: a check of a plug-in may raise anything, which the event loop logs.
        if self._is_idle():
            self.run()
