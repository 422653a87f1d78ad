"""The paths of the dashboard, and what keeps its latencies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from maitred.core.histogram import DURATION_BOUNDS
from maitred.core.units import to_seconds
from maitred.gateway.access.page_access import Page, Viewer
from maitred.gateway.admin.endpoints import Endpoint
from maitred.gateway.dashboard.document import dashboard_document
from maitred.gateway.dashboard.latency_window import INTERVAL, LatencyWindow
from maitred.gateway.dashboard.live_feed import LiveFeed
from maitred.gateway.dashboard.live_state import LiveViews
from maitred.gateway.dashboard.recent_decisions import RecentDecisions
from maitred.gateway.observe.program_views import ProgramViews
from maitred.gateway.observe.request_metrics import RequestMetrics
from maitred.gateway.observe.shadow import ShadowFollower
from maitred.gateway.observe.shared_page import SharedPages, write_json
from maitred.gateway.observe.state import GatewayCounters
from maitred.gateway.observe.state_snapshots import StateSnapshots
from maitred.scheduler.interface import RealTimeAdmission
from maitred.wire.clock import Clock
from maitred.wire.exchange import Exchange, send_bytes
from maitred.wire.tasks import end_tasks

DASHBOARD_PATH: Final = "/maitred"
EVENTS_PATH: Final = "/maitred/events"
LIVE_PATH: Final = "/maitred/live"


class Dashboard:
    """The dashboard of one gateway."""

    def __init__(
        self,
        *,
        snapshots: StateSnapshots,
        admission: RealTimeAdmission,
        counters: GatewayCounters,
        metrics: RequestMetrics,
        programs: ProgramViews | None,
        pages: SharedPages,
        clock: Clock,
        shadow: ShadowFollower | None,
    ) -> None:
        self._clock, self._metrics, self._pages = clock, metrics, pages
        self._window = LatencyWindow(self._ttft_counts)
        self.recent = RecentDecisions(admission, counters)
        self._views = LiveViews(snapshots, admission, counters, self._window, programs, clock.now, self.recent, shadow)
        self.refresh: Callable[[], object] = _nothing
        """Called before the latencies are looked at: sums up what other processes have counted."""
        self.feed = LiveFeed(self._make, lambda: _is_draining(snapshots))
        self._task: asyncio.Task[None] | None = None

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoints of the dashboard, by path."""
        return {
            DASHBOARD_PATH: Endpoint(self._answer_document, Page.DASHBOARD),
            LIVE_PATH: Endpoint(self._answer_live, Page.LIVE),
            EVENTS_PATH: Endpoint(self._answer_events, Page.LIVE, ("GET",)),
        }

    def start(self) -> None:
        """Begin to keep latencies, inside this event loop."""
        self._task = asyncio.create_task(self._keep_latencies())

    async def close(self) -> None:
        """Stop."""
        await end_tasks(self._task)
        self.recent.stop()
        await self.feed.close()

    async def _keep_latencies(self) -> None:
        while True:
            self.refresh()
            self._window.look(self._clock.now())
            await asyncio.sleep(to_seconds(INTERVAL))

    def _ttft_counts(self) -> Mapping[str, list[int]]:
        counts: dict[str, list[int]] = {}
        for c, model in self._metrics.labels:
            of_class = counts.setdefault(c.label, [0] * (len(DURATION_BOUNDS) + 1))
            for index, count in enumerate(self._metrics.series(c, model).ttft.share()[0]):
                of_class[index] += count
        return counts

    async def _make(self) -> bytes:
        return await self._pages.page("live", lambda: write_json(self._views.take()))

    async def _answer_document(self, exchange: Exchange, viewer: Viewer) -> None:
        document = dashboard_document()
        send_bytes(exchange, 200, document.body, b"text/html; charset=utf-8", document.headers)

    async def _answer_live(self, exchange: Exchange, viewer: Viewer) -> None:
        send_bytes(exchange, 200, await self._make(), b"application/json", [(b"cache-control", b"no-store")])

    async def _answer_events(self, exchange: Exchange, viewer: Viewer) -> None:
        await self.feed.stream(exchange)


def _nothing() -> None:
    """Do nothing."""


def _is_draining(snapshots: StateSnapshots) -> bool:
    return snapshots.is_draining or (snapshots.server is not None and snapshots.server.is_draining)
