"""The parts of a gateway that programs need, put together: driver, memories, state, profiles, pages and metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.steps import Steps
from maitred.core.units import Micros
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.line_file import PRIVATE
from maitred.gateway.polling import KvPolling
from maitred.gateway.program_driver import RealTimePrograms
from maitred.gateway.program_endpoints import ProgramEndpoints
from maitred.gateway.program_memories import ProgramMemories
from maitred.gateway.program_metrics import ProgramCollector
from maitred.gateway.program_profiles import ProgramProfiler
from maitred.gateway.program_state import ProgramStateKeeper
from maitred.gateway.program_store import ProgramStore
from maitred.gateway.program_views import ProgramViews
from maitred.gateway.shared_page import SharedPages
from maitred.programs import Programs, ProgramsConfig

log = logging.getLogger("maitred.gateway")
NO_STATE = "none"
"""The value of `programs.state` for no file."""


class ProgramParts:
    """The parts of one gateway. Made before its intake and proxy, which need the driver."""

    def __init__(
        self,
        config: ProgramsConfig,
        fleet: BackendFleet,
        now: Micros,
        default_state: str | None = None,
        log: DecisionLog | None = None,
        file_mode: int = PRIVATE,
    ) -> None:
        """`default_state` is the file that keeps the programs if the configuration names none; `log` gets every input and
        decision, if there is one; `file_mode` is for files that are made. Raises ConfigError."""
        self.driver = RealTimePrograms(Programs(config, now, log))
        self.memories = ProgramMemories(fleet, self.driver)
        self.profiler = ProgramProfiler(self.driver, config.profile_dir, file_mode) if config.profile else None
        self.keeper: ProgramStateKeeper | None = None
        store = _open_store(config, default_state, file_mode)
        if store is not None:
            self.keeper = ProgramStateKeeper(store, self.driver, self.memories, fleet)
        is_read = config.mode == "tr" or config.metrics
        kv_polling = KvPolling(config.backend_type, config.metrics_interval_secs) if is_read else None
        fleet.observe(self.memories if self.keeper is None else self.keeper, kv_polling)
        self._collector = ProgramCollector(self.driver, self.memories)
        self.views = ProgramViews(self.driver.core, self.memories, fleet, self.profiler)

    def start(self) -> None:
        """Begin to write files, inside this event loop."""
        for part in (self.keeper, self.profiler):
            if part is not None:
                part.start()

    async def close(self) -> None:
        """Stop, and write what is left."""
        self.driver.close()
        for part in (self.keeper, self.profiler):
            if part is not None:
                await part.close()

    def endpoints(self, pages: SharedPages) -> ProgramEndpoints:
        """Return the paths that show programs; `pages` makes what they show."""
        return ProgramEndpoints(self.driver, self.views, pages, has_profiles=self.profiler is not None)

    def health_fields(self) -> Steps[dict[str, Any]]:
        """Return in steps what /health says of the programs."""
        return self.views.health_fields()

    def metric_families(self) -> Iterator[Metric]:
        """Yield the metrics of the programs."""
        return self._collector.families(state_failed=None if self.keeper is None else self.keeper.failed)


def _open_store(config: ProgramsConfig, default_state: str | None, file_mode: int) -> ProgramStore | None:
    """Return the file that keeps the programs, or None if there is none. A file that the user has not named may be impossible:
    then a warning is all."""
    if config.state == NO_STATE:
        return None
    if config.state is not None:
        return ProgramStore(config.state, file_mode)
    if default_state is None:
        return None
    try:
        return ProgramStore(default_state, file_mode)
    except ConfigError as error:
        log.warning("programs will not be known after a restart: %s", error)
        return None
