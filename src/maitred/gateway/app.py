"""The gateway as a raw ASGI app: its routes, and one request from intake to release."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

import msgspec

from maitred.admission import Admission, AdmissionConfig, Look, RecordedAdmission
from maitred.decisions import DecisionLog
from maitred.errors import ConfigError
from maitred.gateway import refusals
from maitred.gateway.append_file import AppendFile
from maitred.gateway.call import Call
from maitred.gateway.capacity import Capacity
from maitred.gateway.config import GatewayConfig
from maitred.gateway.counts import Counts
from maitred.gateway.driver import Driver
from maitred.gateway.fleet import Fleet
from maitred.gateway.intake import REQUEST_ID
from maitred.gateway.metrics import GatewayCollector
from maitred.gateway.observer import Observer
from maitred.gateway.pages import Pages
from maitred.gateway.reception import Reception
from maitred.gateway.recording import Recording
from maitred.gateway.relay import Relay
from maitred.gateway.reload import Reloading, Settings
from maitred.gateway.routes import ROUTES
from maitred.gateway.service import Service
from maitred.gateway.state import GatewayState
from maitred.routing import Reads, RoutingConfig, what_it_reads
from maitred.wire import asgi
from maitred.wire.asgi import ApiError, Receive, Scope, Send
from maitred.wire.client import Client

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
        reload: Callable[[], Settings] | None = None,
        fallback: str | None = None,
    ) -> None:
        """`reload` reads again where the configuration came from. `fallback` is why it is less than what was said there."""
        if not config.backends:
            raise ConfigError("no backend is named", where="--backend", hint="--backend http://127.0.0.1:9001, once for each")
        self.config = config
        self.counts = Counts(config.tenant_metric_top_n)
        self._client = Client(config.upstream)
        router = (routing or RoutingConfig()).router(random.Random(seed))
        self._reads = what_it_reads(router)
        self._fleet = Fleet(config, self._client, self._follow, self._wants_load)
        self._log = _decision_file(config)
        self._recording = None if config.record is None else Recording(config.record)
        self.core = _core(admission or AdmissionConfig(), self._log, self._fleet.load)
        self._driver = Driver(self.core, self._fleet.load)
        self._capacity = Capacity(self._fleet, self._driver, fallback)
        self._observer = Observer(self._driver, self._fleet, self._capacity, self.counts)
        relay = Relay(config, self._client, self._fleet, router, self._driver, self.counts)
        self._service = Service(config, self._driver, relay)
        self._watch: asyncio.Task[None] | None = None
        reads = self._reads if self._recording is None else self._reads | Reads.SESSION
        self._reception = Reception(config, lambda: self.core.config, self._fleet, self.counts, self._driver.now, reads)
        settings = Settings(gateway=config, admission=self.core.config, routing=routing or RoutingConfig())
        self._reloading = Reloading(settings, reload, self._adopt, self.counts.reloads)
        self._pages = Pages(
            self._fleet,
            GatewayCollector(self.counts, self.core, self.state),
            self.state,
            self._reloading,
            self.settings,
            lambda: self._reception.keys,
            lambda: self._capacity.fallback,
        )

    async def start(self) -> None:
        """Begin to watch the backends. Called by the lifespan protocol."""
        for file in (self._log, self._recording):
            if file is not None:
                file.start()
        self._watch = asyncio.create_task(self._fleet.watch())
        self._watch.add_done_callback(_watch_ended)

    async def stop(self) -> None:
        """Let go of everything. Called by the lifespan protocol, when the last request has ended."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        self._driver.close()
        await self._client.close()
        for file in (self._log, self._recording):
            if file is not None:
                file.close()

    def state(self) -> GatewayState:
        """What is waiting, in flight and done, and how the backends are."""
        failed = self._log is not None and self._log.failed
        return self._observer.state(parked_body_bytes=self._reception.parked_bytes, decision_log_failed=failed)

    def settings(self) -> Settings:
        """What is in force."""
        return msgspec.structs.replace(self._reloading.settings, admission=self.core.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await asgi.lifespan(receive, send, self.start, self.stop)
            return
        method, path = scope["method"], scope["path"]
        if path not in ROUTES:
            await self._pages.serve(scope, send)
        elif method == "POST":
            await self._proxy(scope, receive, send)
        else:
            await asgi.send_error(send, refusals.wrong_method(method, "POST"))

    def reload_soon(self) -> None:
        """Read the configuration again: what SIGHUP is for. What came of it is logged."""
        self._reloading.reload_soon()

    def _wants_load(self) -> bool:
        """Whether anybody decides by the load that backends report."""
        return Reads.LOAD in self._reads or self.core.reads_load

    def _adopt(self, settings: Settings) -> None:
        """Raises ConfigError, and then nothing has changed."""
        self._capacity.adopt(settings.admission)
        self._reception.configure(settings.gateway)
        self._fleet.configure(settings.gateway)

    async def _proxy(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = await self._reception.receive(scope, receive, send)
        if call is None:
            return
        if self._recording is None or not call.route.generates:
            await self._answer(call, receive, send)
            return
        with self._recording.of(call.request, send) as recorded:
            await self._answer(call, receive, recorded.send)

    async def _answer(self, call: Call, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        departure = asgi.Departure(receive, task.cancel)
        try:
            await self._service.serve(call, send, departure)
        except ApiError as error:
            departure.stop()
            await asgi.send_error(send, error, [(REQUEST_ID, call.request_id)])
        except asyncio.CancelledError:
            if not departure.happened:
                await self._break_off(call, send, refusals.shutting_down())
                raise
            task.uncancel()
        except Exception:
            log.exception("request %s failed", call.request_id.decode("latin-1"))
            await self._break_off(call, send, refusals.internal())
        finally:
            departure.stop()
            self._reception.done(call)

    async def _break_off(self, call: Call, send: Send, error: ApiError) -> None:
        """Answer with an error if nothing else was; else return without an end, and the server cuts the connection."""
        if not call.answered:
            await asgi.send_error(send, error, [(REQUEST_ID, call.request_id)])

    def _follow(self, models: Iterable[str]) -> None:
        self._capacity.follow(models)


def _watch_ended(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled():
        log.critical("backends are watched no more: restart the gateway", exc_info=watch.exception())


def _decision_file(config: GatewayConfig) -> AppendFile | None:
    path = config.decision_log
    return None if path is None else AppendFile(path, where="gateway.decision_log", what="decisions")


def _core(config: AdmissionConfig, file: AppendFile | None, look: Look) -> Admission:
    if file is None:
        return Admission(config, {}, look)
    return RecordedAdmission(config, {}, DecisionLog(file.write), look, now=Driver.now())
