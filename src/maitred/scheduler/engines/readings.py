"""MetricsReader: reads the `/metrics` page of one engine for all who go by it, and how often it may be asked.

**The page.** A poll reads it if something goes by the load or the memory of the engine, and learned slots read it while
requests are in flight. It costs the engine's own processor: vLLM's has 48 KB and takes 3 ms, twenty times per second while a
limit is searched for. So learned slots ask for the samples alone that the table has (`metrics`), by the parameter
`name[]` of Prometheus' client library, which the page has under `/metrics/` (1.4 KB, 0.2 ms). An engine that answers this with
anything but its load is asked for the whole page from then on.

**Backing off.** An engine that has no such page, or whose page says nothing, is not asked at each look. One that refuses from
the beginning (404, 405, 403, 501 and the like) is asked again every 30 s; one that fails in another way, which may pass
(another 5xx, no answer in time, a page of another program, one that is too large), after 1, 2, 4, 8, 16 and then every 30 s.
Meanwhile its last report stands, and `Backend.note_load` says for how long. A page without a load is read again for its load
after 30 s.

**What is told**, once: that a page names no metric of a known engine, and what on a page fits no row of the table. The load of
such an engine is unknown, and a number that is wrong by a factor would do more harm.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import msgspec

from maitred.admission.learned_slots import EngineReading
from maitred.core.units import Micros, from_seconds
from maitred.scheduler.engines.metrics import METRIC_NAMES, parse_engine_report
from maitred.scheduler.engines.report import EngineReport
from maitred.wire.client import UpstreamClient
from maitred.wire.clock import Clock
from maitred.wire.errors import ProtocolError
from maitred.wire.messages import Headers
from maitred.wire.origin import Origin
from maitred.wire.timeouts import timeout

log = logging.getLogger("maitred.gateway")
METRICS_PATH: Final = "/metrics"
_SAMPLES_PATH: Final = f"{METRICS_PATH}/?" + "&".join(f"name[]={name}" for name in METRIC_NAMES)
"""The page with the samples alone that are read."""
MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
"""Largest answer of /metrics and of /server_info, which repeats all arguments for each data-parallel rank."""
_UNKNOWN_ENGINE: Final = f"{METRICS_PATH} has no metric of an engine that is known here"
_LONGEST_PAUSE_SECS: Final = 30.0
_MAY_PASS: Final = (408, 425, 429)
"""Statuses from 400 to 499 that say nothing about whether there is such a page."""
_NOT_IMPLEMENTED: Final = 501


class MetricsReader:
    """Reads one engine."""

    def __init__(self, client: UpstreamClient, origin: Origin, timeout_secs: float, clock: Clock) -> None:
        self.headers: Headers = []
        """Sent with each request."""
        self.problem = ""
        """Why there is no report, or "" if there is one."""
        self._client, self._origin, self._timeout_secs, self._clock = client, origin, timeout_secs, clock
        self._told: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Forget the engine: it is down, and what comes up may be another one."""
        self.report: EngineReport | None = None
        """What the engine last said, or None if it has said nothing, or says now that it has no such page."""
        self._failures = 0
        """Reads in a row without a report."""
        self._is_refused = False
        """Whether it has said from the beginning that it has no such page."""
        self._asks_from: Micros = 0
        """When it may be asked."""
        self._asks_load_from: Micros = 0
        """When it may be asked for its load, which its page lacked."""
        self._has_samples_path = True

    @property
    def may_report_load(self) -> bool:
        """Whether the engine may be asked for its load now."""
        return self._clock.now() >= max(self._asks_from, self._asks_load_from)

    async def read(self, *, samples_only: bool = False) -> EngineReport | None:
        """Return a report, or None if there is none, for whatever reason. An engine that may not be asked now is not asked."""
        if self._clock.now() < self._asks_from:
            return None
        try:
            async with timeout(self._timeout_secs):
                status, report = await self._fetch_report(samples_only=samples_only)
        except TimeoutError:
            self._back_off(f"no answer within {self._timeout_secs:g} s")
        except Exception as error:  # A backend may answer anything.
            self._back_off(str(error) or repr(error))
        else:
            if report is not None:
                return self._take(report)
            if status == 200:
                self._tell_once(f"{_UNKNOWN_ENGINE}, so its load is unknown")
            self._back_off(_UNKNOWN_ENGINE if status == 200 else f"{METRICS_PATH} answered {status}", _is_refusal(status))
        return None

    def _take(self, report: EngineReport) -> EngineReport:
        for misfit in report.misfits:
            self._tell_once(f"{misfit}: it is taken for unknown")
        if report.engine == "trtllm" and not report.has_load and self.report is not None:
            # No iteration since the page was last read: the engine is idle, or in a long one. The last one stands anew.
            report = msgspec.structs.replace(self.report)
        if not report.has_load and report.engine != "trtllm":
            self._asks_load_from = self._clock.now() + from_seconds(_LONGEST_PAUSE_SECS)
        self._failures, self.problem, self.report = 0, "", report
        return report

    def _back_off(self, problem: str, is_final: bool = False) -> None:
        self._is_refused = is_final and (self._is_refused or (self.report is None and not self._failures))
        pause = _LONGEST_PAUSE_SECS if self._is_refused else min(2.0**self._failures, _LONGEST_PAUSE_SECS)
        self._failures = min(self._failures + 1, 10)
        self._asks_from = self._clock.now() + from_seconds(pause)
        self.problem = problem
        if is_final:
            self.report = None
        log.debug("backend %s does not say how loaded it is: %s", self._origin, problem)

    def _tell_once(self, what: str) -> None:
        if what not in self._told and len(self._told) < 32:
            self._told.add(what)
            log.warning("backend %s: %s", self._origin, what)

    async def _fetch_report(self, *, samples_only: bool) -> tuple[int, EngineReport | None]:
        if samples_only and self._has_samples_path:
            status, page = await fetch_page(self._client, self._origin, _SAMPLES_PATH, self.headers, MAX_PAGE_BYTES)
            report = parse_engine_report(page) if status == 200 else None
            if report is not None and (report.has_load or report.misfits):
                return status, report
            self._has_samples_path = False
        status, page = await fetch_page(self._client, self._origin, METRICS_PATH, self.headers, MAX_PAGE_BYTES)
        return status, parse_engine_report(page) if status == 200 else None


def parse_engine_reading(page: bytes | bytearray) -> EngineReading | None:
    """Return the reading of a page for learned slots, or None if it has no gauge of running requests of a known engine."""
    report = parse_engine_report(page)
    return None if report is None else report.reading


async def fetch_page(
    client: UpstreamClient, origin: Origin, path: str, headers: Headers, max_bytes: int
) -> tuple[int, bytearray]:
    """Return status and body of the answer to a GET. Raises UpstreamError, and ProtocolError for a body of more bytes."""
    response = await client.request(origin, "GET", path, headers)
    body = bytearray()
    with contextlib.closing(response):
        async for piece in response:
            body += piece
            if len(body) > max_bytes:
                raise ProtocolError(f"{path.partition('?')[0]} answered with more than {max_bytes} bytes")
    return response.status, body


def _is_refusal(status: int) -> bool:
    """Return whether an engine that answers so has no such page, or not for us."""
    return (400 <= status < 500 and status not in _MAY_PASS) or status == _NOT_IMPLEMENTED
