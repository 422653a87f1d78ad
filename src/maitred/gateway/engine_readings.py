"""Readings of an engine for learned slots, from its `/metrics` page: what runs, what waits, KV usage, KV preemptions.

    running       vllm:num_requests_running                            sglang:num_running_reqs
    waiting       vllm:num_requests_waiting_by_reason (capacity),      sglang:num_queue_reqs
                  or vllm:num_requests_waiting
    KV usage      vllm:kv_cache_usage_perc                             sglang:token_usage      (0 to 1)
    preemptions   vllm:num_preemptions_total
    progress      vllm:generation_tokens_total                         sglang:generation_tokens_total

There is one series for each engine, data-parallel rank or model behind an address: counts are added up, usage is averaged.
Where vLLM tells why requests wait, only those count that wait for capacity: others may never leave, and are no sign of a
limit. An engine without these gauges, or without such a page, is asked again after half a minute, not at each look.

A page costs the engine's own processor: vLLM's has 48 KB and takes 3 ms, twenty times per second while a limit is searched for.
So only the samples above are asked for, by the parameter `name[]` of Prometheus' client library, which the page has under
`/metrics/` (1.4 KB, 0.2 ms). An engine that answers this with anything but its gauges is asked for the whole page from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Final

from maitred.admission.learned_slots import EngineReading
from maitred.gateway.polling import (
    KV_USAGE_METRICS,
    MAX_INFO_BYTES,
    METRICS_PATH,
    RUNNING_METRICS,
    WAITING_METRICS,
    first_values,
    parse_sample,
)
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ProtocolError
from maitred.wire.origin import Origin
from maitred.wire.timeouts import timeout

log = logging.getLogger("maitred.gateway")
_WAITING_FOR_CAPACITY: Final = "vllm:num_requests_waiting_by_reason"
_PREEMPTIONS: Final = ("vllm:num_preemptions_total",)
_PROGRESS: Final = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
_NAMES: Final = (*RUNNING_METRICS, _WAITING_FOR_CAPACITY, *WAITING_METRICS, *KV_USAGE_METRICS, *_PREEMPTIONS, *_PROGRESS)
_SAMPLE: Final = re.compile(rf"^({'|'.join(_NAMES)})(\{{.*\}})?[ \t]+([0-9.eE+-]+)", re.MULTILINE)
_RETRY_SECS: Final = 30.0
_SAMPLES_PATH: Final = f"{METRICS_PATH}/?" + "&".join(f"name[]={name}" for name in _NAMES)
"""The page with the samples alone that are read here."""


def parse_engine_reading(page: bytes | bytearray) -> EngineReading | None:
    """Return what a `/metrics` page says, or None if it has no gauge of running requests of a known engine."""
    found: dict[str, list[float]] = {}
    for name, labels, text in _SAMPLE.findall(page.decode("utf-8", "replace")):
        if name != _WAITING_FOR_CAPACITY or 'reason="capacity"' in labels:
            found.setdefault(name, []).append(parse_sample(text))
    running = first_values(found, RUNNING_METRICS)
    if not running:
        return None
    usage, progress = first_values(found, KV_USAGE_METRICS), first_values(found, _PROGRESS)
    return EngineReading(
        running=round(sum(running)),
        waiting=round(sum(first_values(found, (_WAITING_FOR_CAPACITY, *WAITING_METRICS)))),
        kv_usage=min(1.0, sum(usage) / len(usage)) if usage else 0.0,
        kv_preemptions=round(sum(first_values(found, _PREEMPTIONS))),
        progress=round(sum(progress)) if progress else None,
    )


class EngineReader:
    """Reads one engine."""

    def __init__(self, client: UpstreamClient, origin: Origin, timeout_secs: float) -> None:
        self._client = client
        self._origin = origin
        self._timeout_secs = timeout_secs
        self._asks_from = 0.0
        """When it may be asked, s of the event loop's clock."""
        self._path = _SAMPLES_PATH
        self.key: str | None = None
        """Sent as `Authorization: Bearer`, if there is one."""

    @property
    def may_report(self) -> bool:
        """Whether the engine publishes what is read here, as far as is known."""
        return asyncio.get_running_loop().time() >= self._asks_from

    async def read(self) -> EngineReading | None:
        """Return a reading, or None if there is none, for whatever reason."""
        try:
            async with timeout(self._timeout_secs):
                status, page = await self._fetch()
                if (status != 200 or parse_engine_reading(page) is None) and self._path is _SAMPLES_PATH:
                    self._path = METRICS_PATH
                    status, page = await self._fetch()
        except Exception as error:  # A backend may answer anything.
            log.debug("backend %s cannot be read: %r", self._origin, error)
            return None
        reading = parse_engine_reading(page) if status == 200 else None
        if reading is None and (status == 200 or 400 <= status < 500):
            self._asks_from = asyncio.get_running_loop().time() + _RETRY_SECS
            self._path = _SAMPLES_PATH
        return reading

    async def _fetch(self) -> tuple[int, bytearray]:
        headers = [] if self.key is None else [(b"authorization", b"Bearer " + self.key.encode())]
        response = await self._client.request(self._origin, "GET", self._path, headers)
        page = bytearray()
        with contextlib.closing(response):
            async for piece in response:
                page += piece
                if len(page) > MAX_INFO_BYTES:
                    raise ProtocolError(f"{METRICS_PATH} answered with more than {MAX_INFO_BYTES} bytes")
        return response.status, page
