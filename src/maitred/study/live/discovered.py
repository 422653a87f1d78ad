"""The backends of `maitred bench --discover`: found as `maitred serve` finds its own, and followed while a run goes on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from maitred.core.errors import ConfigError, MaitredError
from maitred.emulator.clients.destinations import Destinations
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.interface import SOURCES, Discovery
from maitred.wire.machine import Machine

_FIRST_SECS: Final = 10.0
"""Seconds for which a source may look before it has said something."""


class BenchError(MaitredError):
    """The endpoint cannot be measured."""


@asynccontextmanager
async def discovered(sources: Sequence[str]) -> AsyncIterator[Destinations]:
    """Yield the backends that `sources` list, which come and go until the context ends. Raises BenchError if there are none at
    first, and ConfigError for a source that is unknown or cannot be made."""
    found = Destinations()
    discovery = Discovery(FleetConfig(discover=tuple(sources)), found, Machine())
    log = logging.getLogger("maitred.gateway")
    level = log.level
    log.setLevel(logging.ERROR)  # What a source cannot do at first is said by the one error below, or by none.
    discovery.start()
    try:
        await discovery.wait_until_listed(_FIRST_SECS)
        log.setLevel(level)
        if not found.origins:
            reasons = (f"{state.name}: {state.problem or 'it lists none'}" for state in discovery.sources)
            raise BenchError(f"there is no backend to measure; {'; '.join(reasons)}")
        yield found
    finally:
        log.setLevel(level)
        await discovery.close()


def check_sources(sources: Sequence[str], *, where: str) -> None:
    """Raise ConfigError for a source that is unknown, cannot be made, or is named twice."""
    for spec in sources:
        if sources.count(spec) > 1:
            raise ConfigError(f"{spec} is there twice", where=where, hint="name each source once")
        try:
            SOURCES.create(spec)
        except ConfigError as error:
            raise ConfigError(str(error), where=where) from error
