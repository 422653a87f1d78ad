"""Send an admitted request on, and its answer back.

While nothing of an answer has been shown, a backend that fails can be replaced by the next one: by any number of those that
could not be reached, but only by few that had the request, since it may be the request that brings them down. From there on the
answer belongs to the client piece by piece, and if it breaks off, so must the client's connection: an answer cut short must not
look whole.

One request from admission to its last byte: it waits for a slot, is answered, and gives the slot back exactly once.

A victim of preemption is stopped wherever it is (see `driver`), which closes its connection to the backend. Its slot is free
before anything is said to its client, who may be slow to read. Then it is refused; or, if victims are to be tried again, it
waits for its turn once more, and its client notices nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from maitred.admission import ReleaseReason
from maitred.core.contracts import Router
from maitred.gateway import error_responses
from maitred.gateway.config import GatewayConfig
from maitred.gateway.counters import GatewayCounters
from maitred.gateway.driver import AdmissionRejected, RealTimeAdmission, SlotLease
from maitred.gateway.fleet import Backend, BackendFleet
from maitred.gateway.request_intake import ProxyRequest
from maitred.gateway.response_forwarder import ResponseForwarder
from maitred.wire.asgi import DisconnectWatcher, Send
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ConnectError, Disconnected, Truncated, UpstreamError
from maitred.wire.response import UpstreamResponse


class BackendAbandoned(UpstreamError):  # noqa: N818
    """The upstream was declared down before its answer began."""

    reason = "abandoned"


RETRYABLE_ERRORS = (Disconnected, Truncated, BackendAbandoned)
"""The failures of a backend that had the request after which another is tried. After a timeout it would only be kept busy as
well."""


class UpstreamRetry:
    def __init__(
        self,
        config: GatewayConfig,
        client: UpstreamClient,
        fleet: BackendFleet,
        router: Router,
        driver: RealTimeAdmission,
        counts: GatewayCounters,
    ) -> None:
        self._config = config
        self._client = client
        self._fleet = fleet
        self._router = router
        self._driver = driver
        self._counters = counts

    async def forward_request(self, call: ProxyRequest, send: Send, departure: DisconnectWatcher) -> ReleaseReason:
        """Until the answer has been handed to the client whole (DRAINED), or broke off after it had begun (FAILED: the caller
        must cut the connection). Raises ApiError when there is none, and nothing has been sent."""
        untried: Sequence[Backend] = self._fleet.backends_serving(call.request.model)
        tried: list[Backend] = []
        failure: UpstreamError | None = None
        attempts = 0
        while untried:
            if failure is not None:
                self._counters.retries += 1
            choice = self._router.choose(call.request, untried, self._driver.now())
            backend = self._fleet.backends[choice.instance]
            try:
                return await self._try_backend(backend, call, send, departure)
            except UpstreamError as error:
                failure = self._count_failure(backend, error)
            attempts += not isinstance(failure, ConnectError)
            if attempts == self._config.max_attempts or not isinstance(failure, (ConnectError, *RETRYABLE_ERRORS)):
                break
            tried.append(backend)
            untried = [other for other in self._fleet.backends_serving(call.request.model) if other not in tried]
        raise error_responses.upstream_failed(failure)

    async def _try_backend(
        self, backend: Backend, call: ProxyRequest, send: Send, departure: DisconnectWatcher
    ) -> ReleaseReason:
        """Raises UpstreamError only while nothing has been sent, and ApiError when nothing may be."""
        flight = self._fleet.add_request(backend, call.request.model)
        response: UpstreamResponse | None = None
        try:
            response = await self._client.request(backend.origin, "POST", call.path, call.headers, call.body)
            answer = ResponseForwarder(call, response, send, departure, self._config.sse_keepalive_secs)
            await answer.wait_for_data()
            flight.response_started = True
            if call.route.needs_slot and not self._driver.confirm_first_byte(call.request.id):
                raise error_responses.preempted()
            return await self._forward_response(answer, backend, call, response)
        except asyncio.CancelledError:
            if not flight.absorb_abandonment():
                raise
            raise BackendAbandoned(f"{backend.url} is down: {backend.problem}") from None
        finally:
            if response is not None:
                response.close()
            self._fleet.remove_request(flight)
            self._router.on_request_end(call.request, backend.index, self._driver.now())

    async def _forward_response(
        self, answer: ResponseForwarder, backend: Backend, call: ProxyRequest, response: UpstreamResponse
    ) -> ReleaseReason:
        def first_data() -> None:
            if call.request.stream and response.status == 200:
                waited = self._driver.now() - call.request.arrival
                self._counters.ttft[call.request.priority_class].observe(waited)

        try:
            await answer.forward(first_data)
        except UpstreamError as error:
            self._count_failure(backend, error)
            return ReleaseReason.FAILED
        return ReleaseReason.DRAINED

    def _count_failure(self, backend: Backend, error: UpstreamError) -> UpstreamError:
        self._counters.upstream_failures[error.reason] += 1
        if isinstance(error, ConnectError):
            self._fleet.mark_down(backend, str(error))
        return error


class SlottedProxy:
    def __init__(self, config: GatewayConfig, driver: RealTimeAdmission, relay: UpstreamRetry) -> None:
        self._config = config
        self._driver = driver
        self._relay = relay

    async def proxy_request(self, call: ProxyRequest, send: Send, departure: DisconnectWatcher) -> None:
        """Raises ApiError when there is no answer, and nothing was sent. An answer that breaks off is left without an end."""
        if not call.route.needs_slot:
            await self._relay.forward_request(call, send, departure)
            return
        request, end = call.request, ReleaseReason.FAILED
        try:
            stay = self._driver.submit(request, call.token_cost)
            end = await self._hold_slot(stay, call, send, departure)
        except AdmissionRejected as refused:
            raise error_responses.admission_rejected(
                refused, self._driver.core.config, self._config.queue_timeout_status
            ) from refused
        except asyncio.CancelledError:
            end = ReleaseReason.CLIENT_GONE
            raise
        finally:
            self._driver.release(request.id, end)

    async def _hold_slot(self, stay: SlotLease, call: ProxyRequest, send: Send, departure: DisconnectWatcher) -> ReleaseReason:
        while True:
            try:
                await stay.wait()
                return await self._relay.forward_request(call, send, departure)
            except asyncio.CancelledError:
                if not stay.absorb_preemption():
                    raise
            if not stay.yield_slot():
                raise error_responses.preempted()
