"""Readings of an engine for learned slots, from its `/metrics` page: what runs, what waits, KV usage, preemptions.

    running       vllm:num_requests_running                            sglang:num_running_reqs
    waiting       vllm:num_requests_waiting_by_reason (capacity),      sglang:num_queue_reqs
                  or vllm:num_requests_waiting
    KV usage      vllm:kv_cache_usage_perc                             sglang:token_usage      (0 to 1)
    preemptions   vllm:num_preemptions_total
    progress      vllm:generation_tokens_total                         sglang:generation_tokens_total

There is one series for each engine, data-parallel rank or model behind an address: counts are added up, usage is averaged.
Where vLLM tells why requests wait, only those count that wait for capacity: others may never leave, and are no sign of a
limit. An engine without these gauges, or without such a page, is asked again after half a minute, not at each look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Final

from maitred.admission.learned_slots import EngineReading
from maitred.gateway.polling import MAX_INFO_BYTES, METRICS_PATH
from maitred.wire.client import Origin, UpstreamClient
from maitred.wire.errors import ProtocolError

log = logging.getLogger("maitred.gateway")
_RUNNING: Final = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING_FOR_CAPACITY: Final = "vllm:num_requests_waiting_by_reason"
_WAITING: Final = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_PREEMPTIONS: Final = ("vllm:num_preemptions_total",)
_PROGRESS: Final = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
_NAMES: Final = (*_RUNNING, _WAITING_FOR_CAPACITY, *_WAITING, *_KV_USAGE, *_PREEMPTIONS, *_PROGRESS)
_SAMPLE: Final = re.compile(rf"^({'|'.join(_NAMES)})(\{{.*\}})?[ \t]+([0-9.eE+-]+)", re.MULTILINE)
_RETRY_SECS: Final = 30.0


def parse_engine_reading(page: bytes | bytearray) -> EngineReading | None:
    """Return what a `/metrics` page says, or None if it has no gauge of running requests of a known engine."""
    found: dict[str, list[float]] = {}
    for name, labels, text in _SAMPLE.findall(page.decode("utf-8", "replace")):
        if name != _WAITING_FOR_CAPACITY or 'reason="capacity"' in labels:
            found.setdefault(name, []).append(_number(text))
    running = _first(found, _RUNNING)
    if not running:
        return None
    usage, progress = _first(found, _KV_USAGE), _first(found, _PROGRESS)
    return EngineReading(
        running=round(sum(running)),
        waiting=round(sum(_first(found, (_WAITING_FOR_CAPACITY, *_WAITING)))),
        kv_usage=min(1.0, sum(usage) / len(usage)) if usage else 0.0,
        preemptions=round(sum(_first(found, _PREEMPTIONS))),
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
        self.key: str | None = None
        """Sent as `Authorization: Bearer`, if there is one."""

    @property
    def may_report(self) -> bool:
        """Whether the engine publishes what is read here, as far as is known."""
        return asyncio.get_running_loop().time() >= self._asks_from

    async def read(self) -> EngineReading | None:
        """Return a reading, or None if there is none, for whatever reason."""
        try:
            async with asyncio.timeout(self._timeout_secs):
                status, page = await self._fetch()
        except Exception as error:  # A backend may answer anything.
            log.debug("backend %s cannot be read: %r", self._origin, error)
            return None
        reading = parse_engine_reading(page) if status == 200 else None
        if reading is None and (status == 200 or 400 <= status < 500):
            self._asks_from = asyncio.get_running_loop().time() + _RETRY_SECS
        return reading

    async def _fetch(self) -> tuple[int, bytearray]:
        headers = [] if self.key is None else [(b"authorization", b"Bearer " + self.key.encode())]
        response = await self._client.request(self._origin, "GET", METRICS_PATH, headers)
        page = bytearray()
        with contextlib.closing(response):
            async for piece in response:
                page += piece
                if len(page) > MAX_INFO_BYTES:
                    raise ProtocolError(f"{METRICS_PATH} answered with more than {MAX_INFO_BYTES} bytes")
        return response.status, page


def _first(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    """Return the values of the first of these metrics that is present."""
    return next((found[name] for name in names if name in found), [])


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value < 1e15 else 0.0
