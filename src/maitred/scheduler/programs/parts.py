"""What decides about programs, put together: their driver, the KV memories of the backends, and what keeps the programs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.files.line_file import PRIVATE
from maitred.programs import Programs, ProgramsConfig
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.engines.polling import KvPolling
from maitred.scheduler.programs.memories import ProgramMemories
from maitred.scheduler.programs.redis_store import RedisProgramStore
from maitred.scheduler.programs.state import ProgramStateKeeper
from maitred.scheduler.programs.store import ProgramStore
from maitred.scheduler.redis_clients import REDIS_SCHEMES
from maitred.wire.clock import Clock

log = logging.getLogger("maitred.gateway")
NO_STATE = "none"
"""The value of `programs.state` for no file."""


class ProgramParts:
    """The parts of one scheduler."""

    def __init__(
        self,
        config: ProgramsConfig,
        fleet: FleetView,
        clock: Clock,
        *,
        default_state: str | None = None,
        log: DecisionLog | None = None,
        file_mode: int = PRIVATE,
    ) -> None:
        """`default_state` is the file that keeps the programs if the configuration names none; `log` gets every input and
        decision, if there is one; `file_mode` is for files that are made. Raises ConfigError."""
        self.driver = RealTimePrograms(Programs(config, clock.now(), log), clock)
        self.memories = ProgramMemories(fleet, self.driver)
        self.keeper: ProgramStateKeeper | None = None
        """What keeps the programs across restarts, or None if nothing does."""
        store = _open_store(config, default_state, file_mode)
        if store is not None:
            self.keeper = ProgramStateKeeper(store, self.driver, self.memories, fleet)
        fleet.observe(self.memories if self.keeper is None else self.keeper)

    def start(self) -> None:
        """Begin to keep the programs, inside this event loop."""
        if self.keeper is not None:
            self.keeper.start()

    def follow(self, leads: Callable[[], bool]) -> None:
        """Keep programs only while this scheduler leads, which `leads` returns."""
        if self.keeper is not None:
            self.keeper.leads = leads

    def begin_term(self) -> None:
        """Decide about programs from now on, in place of whoever did so before."""
        if self.keeper is not None:
            self.keeper.begin_term()

    async def close(self) -> None:
        """Stop, and write what is left."""
        self.driver.close()
        if self.keeper is not None:
            await self.keeper.close()


def kv_polling(config: ProgramsConfig) -> KvPolling | None:
    """Return how the KV memory of backends is read for programs, or None if it is not."""
    is_read = config.mode == "tr" or (config.mode != "off" and config.metrics)
    return KvPolling(config.backend_type, config.metrics_interval_secs) if is_read else None


def _open_store(config: ProgramsConfig, default_state: str | None, file_mode: int) -> ProgramStore | RedisProgramStore | None:
    """Open the store of the programs, or return None if there is none. A file that the user has not named may be impossible:
    then a warning is all."""
    if config.state == NO_STATE:
        return None
    if config.state is not None and config.state.startswith(REDIS_SCHEMES):
        return RedisProgramStore(config.state)
    if config.state is not None:
        return ProgramStore(config.state, file_mode)
    if default_state is None:
        return None
    try:
        return ProgramStore(default_state, file_mode)
    except ConfigError as error:
        log.warning("programs will not be known after a restart: %s", error)
        return None
