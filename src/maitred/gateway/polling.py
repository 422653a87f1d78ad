"""Ask one backend how it is: whether it is healthy, which models it serves, how many requests it can run at once, and, where
that matters to anybody, how loaded it is.

The last two are optional. A backend that answers 404 does not report it, and is not asked again before it has been down; any
other trouble with it leaves what was known, because an engine that is busy is not a smaller one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

import msgspec

from maitred.gateway import engine_load, server_info
from maitred.gateway.config import GatewayConfig
from maitred.gateway.engine_load import ReportedLoad
from maitred.wire.client import Origin, UpstreamClient
from maitred.wire.errors import ProtocolError

log = logging.getLogger("maitred.gateway")
MAX_POLL_BYTES: Final = 1024 * 1024
"""Bytes that the answer to a poll may have."""
MAX_INFO_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a /server_info, which repeats all arguments for each data-parallel rank, or of /metrics."""


class ModelList(msgspec.Struct):
    """The answer of `/v1/models`."""

    data: list[dict[str, Any]]


class PollResult(msgspec.Struct):
    """What a poll found."""

    models: dict[str, dict[str, Any]]
    """By id."""
    slots: int | None
    """Requests that it says it can run at once."""


class BackendPoller:
    """Polls the backend at `origin`."""

    def __init__(self, client: UpstreamClient, origin: Origin, config: GatewayConfig) -> None:
        self._client = client
        self._origin = origin
        self._timeout_secs = config.health_timeout_secs
        self._wants_slots = config.slots_per_backend is None
        self._reports_slots = True
        self._slots: int | None = None
        self._last_problem = ""
        self._load: ReportedLoad | None = None
        self._reports_load = True
        self.use_key(config.upstream_api_key)

    def use_key(self, key: str | None) -> None:
        """To be sent with each poll from now on."""
        self._headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]

    async def poll(self) -> PollResult:
        """Raises UpstreamError, TimeoutError, and what decoding raises if the answer is none."""
        async with asyncio.timeout(self._timeout_secs):
            await self._get("/health")
            models = msgspec.json.decode(await self._get("/v1/models"), type=ModelList)
        if self._wants_slots and self._reports_slots:
            await self._fetch_slots()
        return PollResult({model["id"]: model for model in models.data if isinstance(model.get("id"), str)}, self._slots)

    async def fetch_load(self) -> ReportedLoad | None:
        """How loaded it says it is, or said last; None: it does not say."""
        if self._reports_load:
            try:
                async with asyncio.timeout(self._timeout_secs):
                    await self._fetch_metrics()
            except Exception as error:  # there is no end to what may be answered
                log.debug("backend %s does not say how loaded it is: %r", self._origin, error)
        return self._load

    def reset_reported(self) -> None:
        """It is down: what comes up again may be something else."""
        self._reports_slots, self._slots = True, None
        self._reports_load, self._load = True, None

    async def _fetch_metrics(self) -> None:
        status, body = await self._fetch(engine_load.METRICS_PATH, MAX_INFO_BYTES)
        self._load = engine_load.parse_reported_load(body) if status == 200 else self._load
        self._reports_load = self._load is not None or not (status == 200 or 400 <= status < 500)

    async def _fetch_slots(self) -> None:
        trouble = ""
        try:
            async with asyncio.timeout(self._timeout_secs):
                await self._fetch_server_info()
        except TimeoutError:
            trouble = f"no answer within {self._timeout_secs:g} s"
        except Exception as error:  # as with any poll, there is no end to what may be answered
            trouble = str(error)
        if trouble and trouble != self._last_problem:
            log.warning("backend %s does not say how many requests it can run: %s", self._origin, trouble)
        self._last_problem = trouble

    async def _fetch_server_info(self) -> None:
        for path in server_info.SERVER_INFO_PATHS:
            status, body = await self._fetch(path, MAX_INFO_BYTES)
            if status == 200:
                self._slots = server_info.parse_reported_slots(body)
                return
            if not 400 <= status < 500:
                raise ProtocolError(f"{path} answered {status}")
        self._reports_slots, self._slots = False, None

    async def _get(self, path: str) -> bytearray:
        status, body = await self._fetch(path, MAX_POLL_BYTES)
        if status != 200:
            raise ProtocolError(f"{path} answered {status}")
        return body

    async def _fetch(self, path: str, max_bytes: int) -> tuple[int, bytearray]:
        response = await self._client.request(self._origin, "GET", path, self._headers)
        body = bytearray()
        with contextlib.closing(response):
            async for piece in response:
                body += piece
                if len(body) > max_bytes:
                    raise ProtocolError(f"{path} answered with more than {max_bytes} bytes")
        return response.status, body
