"""PickedAttempts: requests that Envoy sends to the backends that are picked here.

Of a request that holds its slot Envoy is told the backend (`ExtProcStream.send_to`). When the response headers come, admission
is asked whether the request still has its slot, as for every first byte; the answer to them lets the response pass. The slot is
free when the HTTP stream has ended. A request that was sent is sent no second time by the picker: a victim gets its 503,
whatever `admission.on_preempt` says. Envoy itself goes on to the next endpoint that it was told if it cannot connect to the
first (the fallback list of the protocol), and says which one has answered. What Envoy answers in place of a backend that has
failed is a failure of that backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.units import Micros
from maitred.gateway import error_responses
from maitred.gateway.bodies.request_fields import DECISION_HEADER
from maitred.gateway.config import GatewayConfig
from maitred.gateway.envoy.endpoints import Endpoints
from maitred.gateway.envoy.ext_proc_messages import Pick
from maitred.gateway.envoy.ext_proc_stream import ExtProcStream, ResponseHeaders
from maitred.gateway.envoy.picked_answer import PickedAnswer
from maitred.gateway.forwarding.attempt import Attempt
from maitred.gateway.forwarding.attempt_outcomes import AttemptOutcomes
from maitred.gateway.forwarding.attempts import note_failure
from maitred.gateway.forwarding.proxy_request import ProxyRequest
from maitred.gateway.forwarding.retries import RETRYABLE_STATUSES, RetryPolicy, is_busy, read_retry_after
from maitred.gateway.observe.state import GatewayCounters
from maitred.scheduler.interface import AnsweredError, Backend, Place, Scheduler, UpstreamRequest, with_rank
from maitred.wire.errors import ConnectError, Disconnected, UpstreamError, UpstreamTimeout
from maitred.wire.exchange import ResponseWriter
from maitred.wire.machine import Machine
from maitred.wire.messages import Headers

_KEPT: Final = frozenset(
    (b"host", b"content-length", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
     b"x-request-id", b"accept-encoding", b"proxy-connection")
)  # fmt: skip
"""Headers that are Envoy's concern, whatever intake makes of them."""
_UPSTREAM_TIME: Final = b"x-envoy-upstream-service-time"
_OK: Final = 200
_ENVOYS_OWN: Final = (502, 503, 504)


class PickedAttempts:
    """Tells Envoy where requests go. See `RequestSender`."""

    def __init__(
        self,
        config: GatewayConfig,
        scheduler: Scheduler,
        endpoints: Endpoints,
        counters: GatewayCounters,
        machine: Machine,
        *,
        reads_usage: bool,
    ) -> None:
        """`reads_usage`: the usage of every generated answer is read."""
        self._config, self._clock = config, machine.clock
        self._scheduler, self._fleet, self._admission = scheduler, scheduler.fleet, scheduler.admission
        self._endpoints, self._reads_usage = endpoints, reads_usage
        retries = RetryPolicy(config.retry, config.max_attempts, self._clock.now(), machine.random)
        self._outcomes = AttemptOutcomes(self._fleet, counters, retries)
        self.streams: dict[asyncio.Task[None], ExtProcStream] = {}
        """The streams of requests, by the tasks that serve them."""

    async def send(self, proxied: ProxyRequest, writer: ResponseWriter, now: Micros) -> ReleaseReason:
        """Have Envoy send a request, and return how it has ended when it has. Raises ApiError if no backend may have it, it is
        preempted, or no response begins in time."""
        stream = self.streams[proxied.task]
        place = self._scheduler.placement(proxied).first(proxied, now)
        if place is None:
            rest = self._fleet.ejection.rest_time(proxied.served.backends)
            raise error_responses.upstream_failed(None) if rest is None else error_responses.upstream_busy(rest)
        router = self._scheduler.router if proxied.memory_lease is None else None
        fallbacks = self._fallbacks(place, proxied)
        try:
            with Attempt(self._fleet, self._outcomes, router, place[0], proxied, now) as sent:
                head = await self._ask_backend(stream, place, fallbacks, proxied)
                instead = self._served_by(head, fallbacks)
                if instead is None:
                    return await self._pass(head, sent, stream, proxied)
                self._fail(sent, ConnectError(f"Envoy cannot connect to {place[0].url}"), proxied)
            with Attempt(self._fleet, self._outcomes, None, instead, proxied, self._clock.now()) as sent:
                return await self._pass(head, sent, stream, proxied)
        except UpstreamError as error:
            note_failure(proxied, error)
            raise error_responses.upstream_failed(error) from None

    def _fallbacks(self, place: Place, proxied: ProxyRequest) -> Sequence[Backend]:
        """Return where Envoy may go on to if it cannot connect, the least loaded first. A program stays where it has memory."""
        num_more = self._config.max_attempts - 1
        served, chosen, allowed = proxied.served, place[0], proxied.request.instances
        if num_more <= 0 or proxied.memory_lease is not None or place[1] is not None or len(served.backends) == 1:
            return ()
        willing = self._fleet.ejection.candidates(served.name, served.backends, may_probe=False)
        others = [each for each in willing if each is not chosen and (not allowed or each.index in allowed)]
        return sorted(others, key=attrgetter("in_flight"))[:num_more]

    def _served_by(self, head: ResponseHeaders, fallbacks: Sequence[Backend]) -> Backend | None:
        """Return the backend that has answered in place of the one that was picked, or None: it was that one, or Envoy does not
        say."""
        if not head.served:
            return None
        return next((backend for backend in fallbacks if head.served in self._endpoints.known(backend)), None)

    async def _ask_backend(
        self, stream: ExtProcStream, place: Place, fallbacks: Sequence[Backend], proxied: ProxyRequest
    ) -> ResponseHeaders:
        """Return the response headers. Raises UpstreamError if the backend cannot be named, or is silent for too long."""
        endpoint = await self._endpoints.of(place[0])
        if endpoint is None:
            raise UpstreamError(f"the name of {place[0].url} cannot be resolved")
        if fallbacks:
            found = [await self._endpoints.of(backend) for backend in fallbacks]
            endpoint = ",".join((endpoint, *filter(None, found)))
        proxied.can_restart = False
        headers = [*proxied.block.headers, *proxied.headers]
        if place[1] is not None:
            headers = with_rank(headers, place[1])
        trace = proxied.record.trace
        own = [] if trace is None else trace.headers()
        await stream.send_to(_pick(endpoint, stream.headers, headers), own, proxied.body)
        proxied.drop_body()
        try:
            async with asyncio.timeout(self._config.upstream.head_secs):
                return await stream.response_headers()
        except TimeoutError:
            raise UpstreamTimeout(f"{place[0].url} has not begun to answer in {self._config.upstream.head_secs:g} s") from None

    async def _pass(
        self, head: ResponseHeaders, sent: UpstreamRequest, stream: ExtProcStream, proxied: ProxyRequest
    ) -> ReleaseReason:
        """Let a response pass, and return how it has ended. Raises ApiError if the request has lost its slot before."""
        record, error = proxied.record, _failure(head, sent, self._clock.wall())
        record.status = head.status
        record.is_stream = head.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        record.first_data_at = record.last_data_at = now = self._clock.now()
        sent.is_committed = True
        if record.trace is not None and not isinstance(error, Disconnected):
            record.trace.on_response(head.status)
        if error is not None:
            return await self._pass_failure(error, sent, stream, proxied)
        self._outcomes.on_answer(sent, is_whole=not record.is_stream)
        if proxied.memory_lease is not None:
            proxied.memory_lease.is_stream = record.is_stream
        if proxied.route.needs_slot and not self._admission.confirm_first_byte(proxied.request.id, now):
            raise error_responses.preempted()
        proxied.is_committed = True
        answer = self._answer_to_read(head, proxied)
        if answer is None:
            record.on_first_data_sent()
            await stream.pass_response(_told(proxied))
            await stream.wait_until_ended()
        elif not await self._read(answer, stream, proxied):
            return ReleaseReason.FAILED
        sent.is_complete = head.status == _OK
        return self._outcomes.on_complete(sent, record, self._clock.now())

    def _answer_to_read(self, head: ResponseHeaders, proxied: ProxyRequest) -> PickedAnswer | None:
        """Build the reader of the answer, or return None if its result is not needed or the answer cannot be read."""
        trace, counts_tokens = proxied.record.trace, proxied.route.needs_slot and self._admission.core.uses_costs
        asks = counts_tokens or proxied.memory_lease is not None or (trace is not None and trace.is_sampled)
        asks = asks or (self._reads_usage and proxied.route.generates)
        if not asks or head.status != _OK:
            return None
        answer = PickedAnswer(head, proxied, self._scheduler.programs)
        return answer if answer.is_readable else None

    async def _read(self, answer: PickedAnswer, stream: ExtProcStream, proxied: ProxyRequest) -> bool:
        """Let an answer pass while it is read. Return whether it has come to its end."""
        try:
            await stream.pass_response(_told(proxied), answer.take)
            await stream.wait_until_ended()
        finally:
            answer.end()
        return answer.is_whole or not stream.has_body_sent

    async def _pass_failure(
        self, error: UpstreamError, sent: UpstreamRequest, stream: ExtProcStream, proxied: ProxyRequest
    ) -> ReleaseReason:
        """Let an error pass, and return: the backend has nothing more to do with the request, whoever reads its words."""
        self._fail(sent, error, proxied)
        proxied.is_committed = True
        await stream.pass_response(_told(proxied))
        proxied.record.on_complete(self._clock.now())
        return ReleaseReason.FAILED

    def _fail(self, sent: UpstreamRequest, error: UpstreamError, proxied: ProxyRequest) -> None:
        """Count a failure of a backend in place of which somebody else has answered, or which has answered with an error."""
        sent.has_failed = True
        self._outcomes.on_failure(sent, error)
        if proxied.record.trace is not None:
            proxied.record.trace.on_failure(error)


def _failure(head: ResponseHeaders, sent: UpstreamRequest, wall: Micros) -> UpstreamError | None:
    """Return the failure of a backend that a response tells of, or None: Envoy answers in place of one that has broken off or
    cannot be reached, and says nothing of its time then."""
    if head.status in _ENVOYS_OWN and _UPSTREAM_TIME not in head.headers:
        return Disconnected(f"{sent.backend.url} has failed a request: Envoy answers {head.status} in its place")
    if head.status in RETRYABLE_STATUSES:
        pause = read_retry_after([*head.headers.items()], wall)
        busy = is_busy(head.status, pause, b"")
        return AnsweredError(f"{sent.backend.url} answers {head.status}", is_busy=busy, retry_after=pause)
    return None


def _told(proxied: ProxyRequest) -> Headers:
    """Return the headers by which a client is told how its request has fared here."""
    told = [*(proxied.told_headers or ()), proxied.record.queue_header]
    if proxied.explanation is not None:
        told.append((DECISION_HEADER, proxied.explanation.in_words(proxied)))
    return told


def _pick(endpoint: str, came: Headers, forwarded: Headers) -> Pick:
    """Return how the head of a request that `came` becomes the one that is `forwarded`."""
    names = {name for name, _ in forwarded}
    removed = {name.decode("latin-1") for name, _ in came if name not in names and name not in _KEPT}
    present = set(came)
    added = [header for header in forwarded if header not in present and header[0] not in _KEPT]
    return Pick(endpoint, tuple(sorted(removed)), tuple(added))
