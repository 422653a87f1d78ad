"""The gateway as a raw ASGI app: its routes, and one request from intake to release."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable

from maitred.admission import Admission, AdmissionConfig, End, RecordedAdmission
from maitred.decisions import DecisionLog
from maitred.errors import ConfigError
from maitred.gateway import refusals
from maitred.gateway.call import Call
from maitred.gateway.config import GatewayConfig
from maitred.gateway.decision_file import DecisionFile
from maitred.gateway.driver import Driver, Refused
from maitred.gateway.fleet import Fleet
from maitred.gateway.intake import REQUEST_ID
from maitred.gateway.metrics import Counts, GatewayCollector
from maitred.gateway.pages import Pages
from maitred.gateway.reception import Reception
from maitred.gateway.relay import Relay
from maitred.gateway.routes import ROUTES
from maitred.gateway.state import GatewayState, observe
from maitred.request import Request
from maitred.routing import RoutingConfig
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
    ) -> None:
        if not config.backends:
            raise ConfigError("no backend is named", where="--backend", hint="--backend http://127.0.0.1:9001, once for each")
        self.config = config
        self.counts = Counts()
        self._client = Client(config.upstream)
        self._fleet = Fleet(config, self._client, self._resize)
        self._log = None if config.decision_log is None else DecisionFile(config.decision_log)
        self.core = _core(admission or AdmissionConfig(), self._log)
        self._driver = Driver(self.core)
        router = (routing or RoutingConfig()).router(random.Random(seed))
        self._relay = Relay(config, self._client, self._fleet, router, self._driver, self.counts)
        self._watch: asyncio.Task[None] | None = None
        self._pages = Pages(self._fleet, GatewayCollector(self.counts, self.state), self.state)
        self._reception = Reception(config, lambda: self.core.config, self._fleet, self.counts, self._driver.now)

    async def start(self) -> None:
        """Begin to watch the backends. Called by the lifespan protocol."""
        if self._log is not None:
            self._log.start()
        self._watch = asyncio.create_task(self._fleet.watch())
        self._watch.add_done_callback(_watch_ended)

    async def stop(self) -> None:
        """Let go of everything. Called by the lifespan protocol, when the last request has ended."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        self._driver.close()
        await self._client.close()
        if self._log is not None:
            self._log.close()

    def state(self) -> GatewayState:
        """What is waiting, in flight and done, and how the backends are."""
        return observe(self.core, self._fleet.backends, decision_log_failed=self._log is not None and self._log.failed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await asgi.lifespan(receive, send, self.start, self.stop)
            return
        method, path = scope["method"], scope["path"]
        if path in ROUTES:
            if method == "POST":
                await self._proxy(scope, receive, send)
            else:
                await asgi.send_error(send, refusals.wrong_method(method, "POST"))
            return
        page = self._pages.find(path)
        if page is None:
            await asgi.send_error(send, refusals.no_route(path))
        elif method in ("GET", "HEAD"):
            await page(scope, send)
        else:
            await asgi.send_error(send, refusals.wrong_method(method, "GET, HEAD"))

    async def _proxy(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = await self._reception.receive(scope, receive, send)
        if call is None:
            return
        task = asyncio.current_task()
        assert task is not None
        departure = asgi.Departure(receive, task.cancel)
        try:
            await self._serve(call, send, departure)
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

    async def _serve(self, call: Call, send: Send, departure: asgi.Departure) -> None:
        """Hold a slot while the answer is made, and give it back exactly once."""
        request, end = call.request, End.FAILED
        try:
            waiting = self._driver.submit(request)
            if waiting is not None:
                await self._wait(request, waiting)
            end = await self._relay.serve(call, send, departure)
        except Refused as refused:
            raise refusals.by_admission(refused.reason, self.config.queue_timeout_status) from refused
        except asyncio.CancelledError:
            end = End.CLIENT_GONE
            raise
        finally:
            self._driver.release(request.id, end)

    async def _wait(self, request: Request, waiting: asyncio.Future[None]) -> None:
        try:
            await waiting
        finally:
            self.counts.queue_wait[request.priority_class].observe(self._driver.now() - request.arrival)

    async def _break_off(self, call: Call, send: Send, error: ApiError) -> None:
        """Answer with an error if nothing else was; else return without an end, and the server cuts the connection."""
        if not call.answered:
            await asgi.send_error(send, error, [(REQUEST_ID, call.request_id)])

    def _resize(self, models: Iterable[str]) -> None:
        """Capacity follows the fleet."""
        for model in models:
            self._driver.resize(model, self._fleet.slots(model))


def _watch_ended(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled():
        log.critical("backends are watched no more: restart the gateway", exc_info=watch.exception())


def _core(config: AdmissionConfig, file: DecisionFile | None) -> Admission:
    if file is None:
        return Admission(config, {})
    return RecordedAdmission(config, {}, DecisionLog(file.write), Driver.now())
