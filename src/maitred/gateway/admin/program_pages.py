"""What a gateway shows of its programs, put together: profiles, pages and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from maitred.core.steps import Steps
from maitred.gateway.admin.program_endpoints import ProgramEndpoints
from maitred.gateway.observe.program_metrics import ProgramCollector
from maitred.gateway.observe.program_profiles import ProgramProfiler
from maitred.gateway.observe.program_views import ProgramViews
from maitred.gateway.observe.shared_page import SharedPages
from maitred.programs import ProgramsConfig
from maitred.scheduler.interface import ProgramParts, Scheduler


class ProgramPages:
    """Pages, profiles and metrics of the programs of one gateway."""

    def __init__(self, config: ProgramsConfig, scheduler: Scheduler, parts: ProgramParts, file_mode: int) -> None:
        """`file_mode` is for files that are made. Raises ConfigError."""
        self._parts = parts
        self._profiler = ProgramProfiler(parts.driver, config.profile_dir, file_mode) if config.profile else None
        self._collector = ProgramCollector(parts.driver, parts.memories)
        self.views = ProgramViews(
            parts.driver.core, parts.memories, scheduler.fleet, self._profiler, scheduler.watch.kv_interval_secs
        )

    def start(self) -> None:
        """Begin to write profiles, inside this event loop."""
        if self._profiler is not None:
            self._profiler.start()

    async def close(self) -> None:
        """Stop, and write what is left."""
        if self._profiler is not None:
            await self._profiler.close()

    def endpoints(self, pages: SharedPages) -> ProgramEndpoints:
        """Return the paths that show programs; `pages` makes what they show."""
        return ProgramEndpoints(self._parts.driver, self.views, pages, has_profiles=self._profiler is not None)

    def health_fields(self) -> Steps[dict[str, Any]]:
        """Return in steps what /health says of the programs."""
        return self.views.health_fields()

    def metric_families(self) -> Iterator[Metric]:
        """Yield the metrics of the programs."""
        keeper = self._parts.keeper
        return self._collector.families(state_failed=None if keeper is None else keeper.failed)
