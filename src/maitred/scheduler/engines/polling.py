"""Poll one backend: whether it is healthy, which models it serves, how many requests it can run at once, and its load.

    the health path, /v1/models              every poll; an error means that the poll has failed
    /server_info, or /get_server_info     slots, unless `slots_per_backend` is configured; SGLang's KV capacity, for programs
    /metrics                              load, if the router or the admission policy reads it; KV memory, if programs do; and
                                          the slots of TensorRT-LLM, which says them there

**Health.** The path is `gateway.health_path`. Without that key it is `/health`; a backend that has no such path (404, 405,
501), as Ollama and NIM have none, is up as long as `/v1/models` answers. It is asked for `/health` again when it has been down.

**The others are optional.** A backend that answers /server_info with 404 or another 4xx is not asked for it again until it has
been down; how often /metrics is asked for is in `readings`. Any other problem keeps the last value, because a busy
engine is not a smaller one."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from maitred.scheduler.config import FleetConfig
from maitred.scheduler.engines.kv_pages import BackendType, kv_report
from maitred.scheduler.engines.metrics import parse_engine_report
from maitred.scheduler.engines.readings import MAX_PAGE_BYTES, MetricsReader, fetch_page
from maitred.scheduler.engines.report import EngineReport
from maitred.scheduler.engines.server_info import (
    AS_JSON,
    SERVER_INFO_PATHS,
    has_text_config,
    parse_info_capacities,
    parse_reported_slots,
)
from maitred.wire.client import UpstreamClient
from maitred.wire.clock import Clock
from maitred.wire.errors import ProtocolError
from maitred.wire.origin import Origin
from maitred.wire.timeouts import timeout

log = logging.getLogger("maitred.gateway")
MAX_POLL_BYTES: Final = 1024 * 1024
"""Largest answer of the health path and /v1/models."""
DEFAULT_HEALTH_PATH: Final = "/health"
_MAX_ID_CHARS: Final = 1_024
"""Longest id of a model. It stands in metrics and in the log."""
_KEY_REFUSED: Final = (401, 403)
_NO_SUCH_PATH: Final = (404, 405, 501)


class ModelList(msgspec.Struct):
    """The answer to `/v1/models`. Ollama without a model says null."""

    data: list[dict[str, Any]] | None


class PollResult(msgspec.Struct):
    """The result of a successful poll."""

    models: dict[str, dict[str, Any]]
    """The models that the backend serves, by id."""
    slots: int | None
    """Requests that the backend reports it can run at once, or None if it reports no number."""


class KvPolling(msgspec.Struct, frozen=True):
    """How the KV memory of backends is read."""

    backend_type: BackendType = "auto"
    interval_secs: float | None = None
    """Seconds between two readings; None: it is read with each poll."""


class BackendPoller:
    """Polls the backend at `origin`."""

    def __init__(
        self, client: UpstreamClient, origin: Origin, config: FleetConfig, kv_polling: KvPolling | None, clock: Clock
    ) -> None:
        """`kv_polling` says how KV memory is read; None: it is not."""
        self._client = client
        self._origin = origin
        self._timeout_secs = config.health_timeout_secs
        self._health_path: str | None = config.health_path or DEFAULT_HEALTH_PATH
        """Where its health is, or None if it has no such path."""
        self._configured_health_path = config.health_path
        self._max_models, self._lists_too_many = config.max_models, False
        self._has_odd_numbers = False
        """Whether the models have numbers like NaN."""
        self._wants_slots = config.slots_per_backend is None
        self._reports_slots = True
        self._slots: int | None = None
        self._has_reported = False
        """Whether a poll has succeeded since what was reported was last forgotten."""
        self._last_problem = ""
        self._kv_polling = kv_polling
        self._info_capacities: Sequence[int] = ()
        self.metrics = MetricsReader(client, origin, config.health_timeout_secs, clock)
        """Reads its metrics, for polls and for learned slots."""
        self.use_key(config.upstream_api_key)

    def use_key(self, key: str | None) -> None:
        """Send `key` with each poll from now on."""
        self._headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
        self.metrics.headers = self._headers

    async def poll(self, *, wants_metrics: bool) -> PollResult:
        """Poll once; with `wants_metrics`, read the metrics as well. Raises UpstreamError, TimeoutError, and what decoding
        raises for an answer that is not valid."""
        async with timeout(self._timeout_secs):
            await self._check_health()
            models, trouble = read_models(await self._get("/v1/models"))
        self._note_numbers(trouble)
        if (self._wants_slots or self._wants_capacities) and self._reports_slots:
            await self._fetch_slots()
        if wants_metrics or (self._wants_slots and self._slots is None and self._may_tell_slots_in_metrics):
            await self.metrics.read()
        self._has_reported = True
        report = self.metrics.report
        slots_in_metrics = report.slots if report is not None and self._wants_slots else None
        return PollResult(self._usable_models(models), slots_in_metrics if self._slots is None else self._slots)

    def kv_report(self) -> EngineReport | None:
        """Return the last report of the backend on its KV memory, or None if there is none."""
        kind = "auto" if self._kv_polling is None else self._kv_polling.backend_type
        return kv_report(self.metrics.report, kind, self._info_capacities)

    def forget_reported(self) -> None:
        """Forget what the backend has reported since it was last up, if anything. Called when it is down: what comes up again
        may be another engine."""
        if not self._has_reported:
            return
        self._has_reported = False
        self._health_path = self._configured_health_path or DEFAULT_HEALTH_PATH
        self._reports_slots, self._slots, self._info_capacities = True, None, ()
        self.metrics.reset()

    @property
    def _wants_capacities(self) -> bool:
        """Whether /server_info may say how large the KV memory is."""
        return self._kv_polling is not None and self._kv_polling.backend_type in ("auto", "sglang")

    @property
    def _may_tell_slots_in_metrics(self) -> bool:
        """Whether this may be TensorRT-LLM that has not said its slots yet. Its page has what was not read before, and others
        may want it, so it is read no more for its slots then."""
        report = self.metrics.report
        return report is None or (report.engine == "trtllm" and report.slots is None)

    async def _check_health(self) -> None:
        if self._health_path is None:
            return
        status, _ = await fetch_page(self._client, self._origin, self._health_path, self._headers, MAX_POLL_BYTES)
        if status in _NO_SUCH_PATH and self._configured_health_path is None:
            await self._get("/v1/models")
            log.info("backend %s has no %s: it is up while it answers /v1/models", self._origin, DEFAULT_HEALTH_PATH)
            self._health_path = None
        elif not 200 <= status < 300:
            raise self._refused(self._health_path, status)

    def _note_numbers(self, trouble: str) -> None:
        if trouble and not self._has_odd_numbers:
            log.warning("backend %s: a number of its /v1/models is none, and counts as not given: %s", self._origin, trouble)
        self._has_odd_numbers = bool(trouble)

    def _usable_models(self, listed: ModelList) -> dict[str, dict[str, Any]]:
        """Return the models by id: the first `max_models`, because each costs memory, and time in every page of metrics."""
        found = {model["id"]: model for model in listed.data or () if _is_model_id(model.get("id"))}
        usable = dict(itertools.islice(found.items(), self._max_models))
        if len(usable) < len(found) and not self._lists_too_many:
            message = "backend %s lists %d models, and gateway.max_models is %d: the others are not served"
            log.warning(message, self._origin, len(found), self._max_models)
        self._lists_too_many = len(usable) < len(found)
        return usable

    async def _fetch_slots(self) -> None:
        trouble = ""
        try:
            async with timeout(self._timeout_secs):
                await self._fetch_server_info()
        except TimeoutError:
            trouble = f"no answer within {self._timeout_secs:g} s"
        except Exception as error:  # A backend may answer anything.
            trouble = str(error)
        # Polls repeat every second, so a problem is logged when it begins or changes, and not each time.
        if trouble and trouble != self._last_problem:
            log.warning("backend %s does not say how many requests it can run: %s", self._origin, trouble)
        self._last_problem = trouble

    async def _fetch_server_info(self) -> None:
        for path in SERVER_INFO_PATHS:
            status, body = await self._fetch_info(path)
            if status == 200 and has_text_config(body):
                status, body = await self._fetch_info(path + AS_JSON)
            if status == 200:
                self._info_capacities = parse_info_capacities(body) if self._wants_capacities else ()
                self._slots = parse_reported_slots(body) if self._wants_slots else None
                return
            if not 400 <= status < 500:
                raise ProtocolError(f"{path} answered {status}")
        self._reports_slots, self._slots, self._info_capacities = False, None, ()

    async def _fetch_info(self, path: str) -> tuple[int, bytearray]:
        return await fetch_page(self._client, self._origin, path, self._headers, MAX_PAGE_BYTES)

    async def _get(self, path: str) -> bytearray:
        status, body = await fetch_page(self._client, self._origin, path, self._headers, MAX_POLL_BYTES)
        if status != 200:
            raise self._refused(path, status)
        return body

    def _refused(self, path: str, status: int) -> ProtocolError:
        """Return the error of a path that must answer 200."""
        if status not in _KEY_REFUSED:
            return ProtocolError(f"{path} answered {status}")
        hint = "it refuses gateway.upstream_api_key" if self._headers else "if it needs a key, set gateway.upstream_api_key"
        return ProtocolError(f"{path} answered {status}: {hint}")


def read_models(page: bytes | bytearray) -> tuple[ModelList, str]:
    """Return the models that /v1/models lists, and the fault of a number there, or "". A number that JSON does not have, as
    Python writes an infinite limit, is null then: no reason to serve nothing. Raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(page, type=ModelList), ""
    except msgspec.DecodeError as error:
        try:
            found = json.loads(page.decode(), parse_constant=_number, parse_float=_number, parse_int=_number)
        except (ValueError, RecursionError):
            raise error from None
        return msgspec.json.decode(json.dumps(found), type=ModelList), str(error)  # What else is wrong is found here as well.


def _number(text: str) -> float | None:
    """Return a number as Python writes it, or None if JSON has none that is written so."""
    try:
        return int(text)
    except ValueError:  # also for thousands of digits
        value = float(text)
        return value if math.isfinite(value) else None


def _is_model_id(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_ID_CHARS


def parse_reported_load(page: bytes | bytearray) -> EngineReport | None:
    """Return the load on a `/metrics` page, for routing and flow control, or None if it does not say how many requests run."""
    report = parse_engine_report(page)
    return report if report is not None and report.has_load else None
