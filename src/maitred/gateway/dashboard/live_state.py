"""What the dashboard shows: the state of the gateway, and with it who waits since when, the programs and the latencies.

All lists are bounded, so that a page with ten thousand requests is as large as one with a hundred. Ages are told as the instant
since when (`since`, seconds on the clock of `at`), so that nothing has to be sent while somebody only waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

import msgspec

from maitred.core.steps import Steps, in_batches
from maitred.core.units import Micros, to_seconds
from maitred.gateway.dashboard.latency_window import LatencyPoint, LatencyWindow
from maitred.gateway.dashboard.recent_decisions import RecentDecision, RecentDecisions
from maitred.gateway.observe.program_views import ProgramCounts, ProgramView, ProgramViews
from maitred.gateway.observe.shadow import ShadowFollower, ShadowState
from maitred.gateway.observe.state import BackendState, GatewayCounters, GatewayState
from maitred.gateway.observe.state_snapshots import StateSnapshots
from maitred.scheduler.interface import RealTimeAdmission

_LEASES_IN_STEP: Final = 500
_OLDEST_SHOWN: Final = 8
"""Waiting requests of each class that are named."""
_PROGRAMS_SHOWN: Final = 60
_EXAMPLES_SHOWN: Final = 12


class WaitingRow(msgspec.Struct, frozen=True):
    """A request that waits for a slot."""

    id: str
    """The id that its client knows (`x-request-id`), or its number."""
    tenant: str
    model: str
    since: float
    """When it arrived."""


class QueueView(msgspec.Struct):
    """The requests of one class that wait for a slot, in all pools."""

    waiting: int = 0
    median_since: float | None = None
    """When the middle one of them arrived; null if none waits."""
    oldest: list[WaitingRow] = []
    """Those that have waited longest, the first one first."""


class ProgramsView(msgspec.Struct, frozen=True):
    """The agent programs."""

    counts: ProgramCounts
    shown: dict[str, ProgramView]
    """By name: those that are paused, those that will be, and then those with most tokens."""


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """What the dashboard shows."""

    at: float
    """Now, in seconds on the monotonic clock of the process that schedules."""
    state: GatewayState
    """Without its backends, which are beside it by URL."""
    backends: dict[str, BackendState]
    queues: dict[str, QueueView]
    """By class."""
    programs: ProgramsView | None
    """Null if requests are routed one by one."""
    ttft: dict[str, dict[str, LatencyPoint]]
    """By class, and the second (as `at`) at which an interval of ten seconds ended."""
    decisions: list[RecentDecision]
    """The last ones of admission since somebody looks, the newest first."""
    shadow: ShadowState | None = None
    """Null if there is none."""


class LiveViews:
    """Looks at one gateway."""

    def __init__(
        self,
        snapshots: StateSnapshots,
        admission: RealTimeAdmission,
        counters: GatewayCounters,
        window: LatencyWindow,
        programs: ProgramViews | None,
        now: Callable[[], Micros],
        recent: RecentDecisions,
        shadow: ShadowFollower | None = None,
    ) -> None:
        self._snapshots, self._admission, self._counters = snapshots, admission, counters
        self._window, self._programs, self._now = window, programs, now
        self._recent, self._shadow = recent, shadow

    def take(self) -> Steps[LiveState]:
        """Return in steps what there is to show. O(requests that are here)."""
        snapshot = yield from self._snapshots.take()
        queues = yield from self._queues()
        programs = None
        if self._programs is not None:
            programs = ProgramsView(*(yield from self._programs.survey(_PROGRAMS_SHOWN)))
        state = snapshot.state
        backends, state.backends = {backend.url: backend for backend in state.backends}, []
        return LiveState(
            at=_rounded(self._now()),
            state=state,
            backends=backends,
            queues=queues,
            programs=programs,
            ttft=self._window.points(),
            decisions=self._recent.look(),
            shadow=None if self._shadow is None else self._shadow.state(_EXAMPLES_SHOWN),
        )

    def _queues(self) -> Steps[dict[str, QueueView]]:
        waiting: dict[str, list[tuple[Micros, int, WaitingRow]]] = {}
        for some in in_batches(self._admission.leases, _LEASES_IN_STEP):
            for lease in some:
                if lease.is_waiting:
                    request = lease.request
                    tenant, since = self._counters.tenant_label(request.tenant), _rounded(request.arrival)
                    shown = WaitingRow(request.client_id or str(request.id), tenant, request.model, since)
                    waiting.setdefault(request.priority_class.label, []).append((request.arrival, request.id, shown))
            yield
        views = {}
        for label, requests in waiting.items():
            half = heapq.nsmallest(len(requests) // 2 + 1, (arrival for arrival, _, _ in requests))
            oldest = [shown for _, _, shown in heapq.nsmallest(_OLDEST_SHOWN, requests)]
            views[label] = QueueView(len(requests), _rounded(half[-1]), oldest)
            yield
        return views


def _rounded(instant: Micros) -> float:
    return round(to_seconds(instant), 1)
