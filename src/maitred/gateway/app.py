"""The gateway as a raw ASGI app: its routes, and one request from intake to release."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

import msgspec

from maitred.admission import Admission, AdmissionConfig, LoadProbe, RecordedAdmission
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.gateway import error_responses
from maitred.gateway.admin_endpoints import AdminEndpoints
from maitred.gateway.capacity import CapacityController
from maitred.gateway.config import GatewayConfig
from maitred.gateway.counters import GatewayCounters
from maitred.gateway.driver import RealTimeAdmission
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.metrics import GatewayCollector
from maitred.gateway.proxy import SlottedProxy, UpstreamRetry
from maitred.gateway.recording import AppendFile, TrafficRecorder
from maitred.gateway.reload import ConfigReloader, GatewaySettings
from maitred.gateway.request_fields import REQUEST_ID_HEADER, ROUTES
from maitred.gateway.request_intake import ProxyRequest, RequestIntake
from maitred.gateway.state_snapshot import GatewayState, StateSnapshots
from maitred.routing import RoutingConfig, Signals, signals_read
from maitred.wire import asgi
from maitred.wire.asgi import ApiError, Receive, Scope, Send
from maitred.wire.client import UpstreamClient

log = logging.getLogger("maitred.gateway")


class Gateway:
    """Serve it with an ASGI server that runs the lifespan protocol. Raises ConfigError for a configuration that cannot work."""

    def __init__(
        self,
        config: GatewayConfig,
        admission: AdmissionConfig | None = None,
        routing: RoutingConfig | None = None,
        *,
        seed: int = 0,
        reload: Callable[[], GatewaySettings] | None = None,
        fallback: str | None = None,
    ) -> None:
        """`reload` reads again where the configuration came from. `fallback` is why it is less than what was said there."""
        if not config.backends:
            raise ConfigError("no backend is named", where="--backend", hint="--backend http://127.0.0.1:9001, once for each")
        self.config = config
        self.counters = GatewayCounters(config.tenant_metric_top_n)
        self._client = UpstreamClient(config.upstream)
        router = (routing or RoutingConfig()).router(random.Random(seed))
        self._reads = signals_read(router)
        self._fleet = BackendFleet(config, self._client, self._on_slots_changed, self._wants_load)
        self._log = _decision_file(config)
        self._recording = None if config.record is None else TrafficRecorder(config.record)
        self.core = _core(admission or AdmissionConfig(), self._log, self._fleet.model_load)
        self._driver = RealTimeAdmission(self.core, self._fleet.model_load)
        self._capacity = CapacityController(self._fleet, self._driver, fallback)
        self._snapshots = StateSnapshots(self._driver, self._fleet, self._capacity, self.counters)
        relay = UpstreamRetry(config, self._client, self._fleet, router, self._driver, self.counters)
        self._service = SlottedProxy(config, self._driver, relay)
        self._poll_task: asyncio.Task[None] | None = None
        reads = self._reads if self._recording is None else self._reads | Signals.SESSION
        self._intake = RequestIntake(config, lambda: self.core.config, self._fleet, self.counters, self._driver.now, reads)
        settings = GatewaySettings(gateway=config, admission=self.core.config, routing=routing or RoutingConfig())
        self._reloader = ConfigReloader(settings, reload, self._apply_settings, self.counters.reloads)
        self._endpoints = AdminEndpoints(
            self._fleet,
            GatewayCollector(self.counters, self.core, self.state),
            self.state,
            self._reloader,
            self.settings,
            lambda: self._intake.keys,
            lambda: self._capacity.fallback,
        )

    async def start(self) -> None:
        """Begin to watch the backends. Called by the lifespan protocol."""
        for file in (self._log, self._recording):
            if file is not None:
                file.start()
        self._poll_task = asyncio.create_task(self._fleet.poll_forever())
        self._poll_task.add_done_callback(_on_polling_ended)

    async def stop(self) -> None:
        """Let go of everything. Called by the lifespan protocol, when the last request has ended."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait({self._poll_task})
        self._driver.close()
        await self._client.close()
        for file in (self._log, self._recording):
            if file is not None:
                file.close()

    def state(self) -> GatewayState:
        """What is waiting, in flight and done, and how the backends are."""
        failed = self._log is not None and self._log.failed
        return self._snapshots.take_snapshot(parked_body_bytes=self._intake.parked_bytes, decision_log_failed=failed)

    def settings(self) -> GatewaySettings:
        """What is in force."""
        return msgspec.structs.replace(self._reloader.settings, admission=self.core.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await asgi.run_lifespan(receive, send, self.start, self.stop)
            return
        method, path = scope["method"], scope["path"]
        if path not in ROUTES:
            await self._endpoints.answer_request(scope, send)
        elif method == "POST":
            await self._proxy(scope, receive, send)
        else:
            await asgi.send_error(send, error_responses.method_not_allowed(method, "POST"))

    def request_reload(self) -> None:
        """Read the configuration again: what SIGHUP is for. What came of it is logged."""
        self._reloader.request_reload()

    def _wants_load(self) -> bool:
        """Whether anybody decides by the load that backends report."""
        return Signals.LOAD in self._reads or self.core.reads_load

    def _apply_settings(self, settings: GatewaySettings) -> None:
        """Raises ConfigError, and then nothing has changed."""
        self._capacity.apply_config(settings.admission)
        self._intake.apply_config(settings.gateway)
        self._fleet.apply_config(settings.gateway)

    async def _proxy(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = await self._intake.take_in(scope, receive, send)
        if call is None:
            return
        if self._recording is None or not call.route.generates:
            await self._answer(call, receive, send)
            return
        with self._recording.record_request(call.request, send) as recorded:
            await self._answer(call, receive, recorded.send)

    async def _answer(self, call: ProxyRequest, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        departure = asgi.DisconnectWatcher(receive, task.cancel)
        try:
            await self._service.proxy_request(call, send, departure)
        except ApiError as error:
            departure.stop()
            await asgi.send_error(send, error, [(REQUEST_ID_HEADER, call.request_id)])
        except asyncio.CancelledError:
            if not departure.is_disconnected:
                await self._send_error_or_cut(call, send, error_responses.shutting_down())
                raise
            task.uncancel()
        except Exception:
            log.exception("request %s failed", call.request_id.decode("latin-1"))
            await self._send_error_or_cut(call, send, error_responses.internal_error())
        finally:
            departure.stop()
            self._intake.release_body(call)

    async def _send_error_or_cut(self, call: ProxyRequest, send: Send, error: ApiError) -> None:
        """Answer with an error if nothing else was; else return without an end, and the server cuts the connection."""
        if not call.response_started:
            await asgi.send_error(send, error, [(REQUEST_ID_HEADER, call.request_id)])

    def _on_slots_changed(self, models: Iterable[str]) -> None:
        self._capacity.on_slots_changed(models)


def _on_polling_ended(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled():
        log.critical("backends are watched no more: restart the gateway", exc_info=watch.exception())


def _decision_file(config: GatewayConfig) -> AppendFile | None:
    path = config.decision_log
    return None if path is None else AppendFile(path, where="gateway.decision_log", what="decisions")


def _core(config: AdmissionConfig, file: AppendFile | None, look: LoadProbe) -> Admission:
    if file is None:
        return Admission(config, {}, look)
    return RecordedAdmission(config, {}, DecisionLog(file.write), look, now=RealTimeAdmission.now())
