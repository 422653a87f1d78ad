"""Poll one backend: whether it is healthy, which models it serves, how many requests it can run at once, and its load.

    /health, /v1/models                   every poll; an error means that the poll has failed
    /server_info, or /get_server_info     slots, unless `slots_per_backend` is configured
    /metrics                              load, if the router or the admission policy reads it; KV memory, if programs do

The last two are optional. A backend that answers one of them with 404 or another 4xx is not asked for it again until it has
been down. Any other problem keeps the last value, because a busy engine is not a smaller one.

**Slots.** SGLang's `/server_info` holds its arguments beside their results: `max_running_requests` as configured, or null, and
for each data-parallel rank an internal state with `effective_max_running_requests_per_dp`, which that rank really runs. The
sum over the ranks counts if all report it, otherwise what is configured. Two ranks that run 256 each make 512 slots. Other
engines and routers report `max_running_requests` at the top, or pass their arguments on as `server_args`. vLLM, started with
`VLLM_SERVER_DEV_MODE=1`, has `vllm_config.scheduler_config.max_num_seqs`, for each data-parallel engine. TensorRT-LLM writes
its last iterations to `/metrics`, a list in JSON; each has `maxNumActiveRequests`.

**Load.** The gauges of vLLM and SGLang in Prometheus' text format:

    waiting      vllm:num_requests_waiting                            sglang:num_queue_reqs
    running      vllm:num_requests_running                            sglang:num_running_reqs
    KV usage     vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc  sglang:token_usage      (0 to 1)

There is one series for each engine, data-parallel rank or model behind an address: counts are added up, usage is averaged.

**KV memory.** What the same page says of it is in `kv_pages`, and SGLang's capacity is in `/server_info`. It is read again with
each poll, or every `KvPolling.interval_secs`, because it changes when an engine comes up, restarts or is resized.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from maitred.admission.config import MAX_SLOTS
from maitred.gateway.config import GatewayConfig
from maitred.gateway.kv_pages import BackendType, KvReport, parse_info_capacities, parse_kv_report
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ProtocolError
from maitred.wire.origin import Origin
from maitred.wire.timeouts import timeout

log = logging.getLogger("maitred.gateway")
MAX_POLL_BYTES: Final = 1024 * 1024
"""Largest answer of /health and /v1/models."""
MAX_INFO_BYTES: Final = 8 * 1024 * 1024
"""Largest answer of /metrics and of /server_info, which repeats all arguments for each data-parallel rank."""
SERVER_INFO_PATHS: Final = ("/server_info", "/get_server_info")
"""Where the arguments are; the second is the older path."""
_AS_JSON: Final = "?config_format=json"
"""The query with which vLLM writes its configuration as JSON. Without it, the configuration is one text."""
_MAX_ID_CHARS: Final = 1_024
"""Longest id of a model. It stands in metrics and in the log."""
METRICS_PATH: Final = "/metrics"
_KEY_REFUSED: Final = (401, 403)
WAITING_METRICS: Final = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
RUNNING_METRICS: Final = ("vllm:num_requests_running", "sglang:num_running_reqs")
KV_USAGE_METRICS: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_GAUGE_SAMPLE: Final = re.compile(
    rf"^({'|'.join((*WAITING_METRICS, *RUNNING_METRICS, *KV_USAGE_METRICS))})(?:\{{.*\}})?[ \t]+([0-9.eE+-]+)", re.MULTILINE
)


class ModelList(msgspec.Struct):
    """The answer to `/v1/models`."""

    data: list[dict[str, Any]]


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

    def __init__(self, client: UpstreamClient, origin: Origin, config: GatewayConfig) -> None:
        self._client = client
        self._origin = origin
        self._timeout_secs = config.health_timeout_secs
        self._max_models, self._lists_too_many = config.max_models, False
        self._wants_slots = config.slots_per_backend is None
        self._reports_slots = True
        self._slots: int | None = None
        self._may_have_iterations = True
        self._iteration_slots: int | None = None
        self._last_problem = ""
        self._load: ReportedLoad | None = None
        self._reports_load = True
        self.kv_polling: KvPolling | None = None
        """How KV memory is read, or None if it is not."""
        self._kv: KvReport | None = None
        self._info_capacities: Sequence[int] = ()
        self.use_key(config.upstream_api_key)

    def use_key(self, key: str | None) -> None:
        """Send `key` with each poll from now on."""
        self._headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]

    async def poll(self) -> PollResult:
        """Poll once. Raises UpstreamError, TimeoutError, and what decoding raises for an answer that is not valid."""
        async with timeout(self._timeout_secs):
            await self._get("/health")
            models = msgspec.json.decode(await self._get("/v1/models"), type=ModelList)
        if (self._wants_slots or self._wants_capacities) and self._reports_slots:
            await self._fetch_slots()
        return PollResult(self._usable_models(models), self._slots)

    def _usable_models(self, listed: ModelList) -> dict[str, dict[str, Any]]:
        """Return the models by id: the first `max_models`, because each costs memory, and time in every page of metrics."""
        found = {model["id"]: model for model in listed.data if _is_model_id(model.get("id"))}
        usable = dict(itertools.islice(found.items(), self._max_models))
        if len(usable) < len(found) and not self._lists_too_many:
            message = "backend %s lists %d models, and gateway.max_models is %d: the others are not served"
            log.warning(message, self._origin, len(found), self._max_models)
        self._lists_too_many = len(usable) < len(found)
        return usable

    async def fetch_load(self) -> ReportedLoad | None:
        """Return the load that the backend reports, or the last one that it reported, or None if it has reported none."""
        await self._fetch_if_reported()
        return self._load

    @property
    def last_load(self) -> ReportedLoad | None:
        """The load that the backend last reported, or None."""
        return self._load

    async def fetch_kv(self) -> KvReport | None:
        """Return what the backend reports of its KV memory, or what it last reported, or None if it reports nothing now."""
        await self._fetch_if_reported()
        return self._kv

    def reset_reported(self) -> None:
        """Forget what the backend has reported. Called when it is down: what comes up again may be another engine."""
        self._reports_slots, self._slots, self._info_capacities = True, None, ()
        self._may_have_iterations, self._iteration_slots = True, None
        self._reports_load, self._load, self._kv = True, None, None

    @property
    def _wants_capacities(self) -> bool:
        """Whether /server_info may say how large the KV memory is."""
        return self.kv_polling is not None and self.kv_polling.backend_type in ("auto", "sglang")

    async def _fetch_if_reported(self) -> None:
        if self._reports_load:
            try:
                async with timeout(self._timeout_secs):
                    await self._fetch_metrics()
            except Exception as error:  # A backend may answer anything.
                log.debug("backend %s does not say how loaded it is: %r", self._origin, error)

    async def _fetch_metrics(self) -> None:
        status, body = await self._fetch(METRICS_PATH, MAX_INFO_BYTES)
        if self.kv_polling is not None and (status == 200 or 400 <= status < 500):
            self._kv = parse_kv_report(body if status == 200 else None, self.kv_polling.backend_type, self._info_capacities)
        self._load = parse_reported_load(body) if status == 200 else self._load
        # A page without known gauges, or a 4xx, shows that this engine does not report its load: it is asked no more. A 5xx may
        # pass. An engine that has reported a load is asked until it is down; and one whose KV memory matters in any case,
        # because it may have answered before its engine was there.
        is_final = status == 200 or 400 <= status < 500
        self._reports_load = self._load is not None or self.kv_polling is not None or not is_final

    async def _fetch_slots(self) -> None:
        trouble = ""
        try:
            async with timeout(self._timeout_secs):
                await self._fetch_server_info()
                if self._wants_slots and self._slots is None and self._may_have_iterations:
                    await self._fetch_iterations()
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
            status, body = await self._fetch(path, MAX_INFO_BYTES)
            if status == 200 and has_text_config(body):
                status, body = await self._fetch(path + _AS_JSON, MAX_INFO_BYTES)
            if status == 200:
                self._info_capacities = parse_info_capacities(body) if self._wants_capacities else ()
                self._slots = parse_reported_slots(body) if self._wants_slots else None
                return
            if not 400 <= status < 500:
                raise ProtocolError(f"{path} answered {status}")
        self._reports_slots, self._slots, self._info_capacities = False, None, ()

    async def _fetch_iterations(self) -> None:
        """Look for the number that TensorRT-LLM reports. Its page has what was not read yet, so it is read no more then."""
        if self._iteration_slots is None:
            status, body = await self._fetch(METRICS_PATH, MAX_INFO_BYTES)
            self._may_have_iterations = status == 200 and body.startswith(b"[")
            self._iteration_slots = parse_iteration_slots(body) if self._may_have_iterations else None
            self._reports_slots = self._reports_slots or self._may_have_iterations
        self._slots = self._iteration_slots

    async def _get(self, path: str) -> bytearray:
        status, body = await self._fetch(path, MAX_POLL_BYTES)
        if status in _KEY_REFUSED:
            hint = "it refuses gateway.upstream_api_key" if self._headers else "if it needs a key, set gateway.upstream_api_key"
            raise ProtocolError(f"{path} answered {status}: {hint}")
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


def _is_model_id(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_ID_CHARS


class ServerArguments(msgspec.Struct):
    """The arguments that are looked for, at the top and inside the answer."""

    max_running_requests: Any = None
    effective_max_running_requests_per_dp: Any = None


class SchedulerConfig(msgspec.Struct):
    """The scheduler's part of vLLM's configuration."""

    max_num_seqs: Any = None


class VllmConfig(msgspec.Struct):
    """vLLM's configuration."""

    scheduler_config: SchedulerConfig | None = None


class ServerInfo(ServerArguments):
    """The answer to `/server_info`, as far as it is read."""

    vllm_config: VllmConfig | str | None = None
    internal_states: list[ServerArguments] | None = None
    server_args: ServerArguments | None = None


_decode_server_info = msgspec.json.Decoder(ServerInfo).decode


def parse_reported_slots(body: bytes | bytearray) -> int | None:
    """Return how many requests the backend can run at once, or None if it does not report it. Raises msgspec.DecodeError."""
    info = _decode_server_info(body)
    states = info.internal_states or []
    ranks: list[int] = [state.effective_max_running_requests_per_dp for state in states]
    if ranks and all(map(_is_plausible, ranks)):
        return min(sum(ranks), MAX_SLOTS)
    if isinstance(info.vllm_config, VllmConfig) and info.vllm_config.scheduler_config is not None:
        seqs: int = info.vllm_config.scheduler_config.max_num_seqs
        return seqs if _is_plausible(seqs) else None
    for arguments in (info, info.server_args, *states):
        if arguments is not None and _is_plausible(arguments.max_running_requests):
            slots: int = arguments.max_running_requests
            return slots
    return None


class Iteration(msgspec.Struct):
    """One iteration of TensorRT-LLM, as far as it is read."""

    max_active: Any = msgspec.field(default=None, name="maxNumActiveRequests")


def parse_iteration_slots(page: bytes | bytearray) -> int | None:
    """Return how many requests TensorRT-LLM runs at once, from its `/metrics`; None if there was no iteration since it was last
    read. Raises msgspec.DecodeError."""
    found: list[int] = [each.max_active for each in msgspec.json.decode(page, type=list[Iteration])]
    return found[-1] if found and _is_plausible(found[-1]) else None


def has_text_config(body: bytes | bytearray) -> bool:
    """Return whether this is vLLM's answer with its configuration as text. Raises msgspec.DecodeError."""
    return isinstance(_decode_server_info(body).vllm_config, str)


def _is_plausible(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SLOTS


class ReportedLoad(msgspec.Struct, frozen=True):
    """The load of a backend when it was polled."""

    waiting: int
    running: int
    kv_usage: float | None
    """Share of the KV memory in use, 0 to 1, or None if it is not reported."""


def parse_reported_load(page: bytes | bytearray) -> ReportedLoad | None:
    """Return the load on a `/metrics` page, or None if it has no gauge of running requests of a known engine."""
    found: dict[str, list[float]] = {}
    for name, value in _GAUGE_SAMPLE.findall(page.decode("utf-8", "replace")):
        found.setdefault(name, []).append(parse_sample(value))
    running = first_values(found, RUNNING_METRICS)
    if not running:
        return None
    usage = first_values(found, KV_USAGE_METRICS)
    mean = min(sum(usage) / len(usage), 1.0) if usage else None
    return ReportedLoad(round(sum(first_values(found, WAITING_METRICS))), round(sum(running)), mean)


def first_values(found: dict[str, list[float]], names: tuple[str, ...]) -> list[float]:
    """Return the values of the first of these metrics that is present."""
    return next((found[name] for name in names if name in found), [])


def parse_sample(text: str) -> float:
    """Return the value of a sample on a `/metrics` page, or 0 for one that no gauge or counter of an engine can have."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value < 1e15 else 0.0
