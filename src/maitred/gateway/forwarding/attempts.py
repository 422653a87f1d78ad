"""The attempts of a request: it is sent to one backend, and to another one if that fails.

    Placement      which backend has it first, and which one next (`scheduler.placements`)
    Attempt        the request at that backend (`attempt`)
    RetryPolicy    whether and when it is sent again (`retries`)

**A backend that fails**, or answers with an error that another one may not give, is replaced by another one while the response
is not committed. What every attempt came to is told to `scheduler.ejection`, so a backend that fails many requests gets no more
of them.

For example, with `max_attempts: 2` and four backends of which two refuse connections and the third disconnects, the fourth is
still tried. A timeout or a malformed response is not retried: the request would only keep the next backend busy as well. After
an error of an engine that is not busy, the same one is tried again where no other backend is left. A kept connection that was
dead before the request came is no attempt: the client makes a new one (`wire.client`).

**The response** is withheld until its first data, and then committed (`_commit`): admission is asked whether the request still
has its slot, and from there on it is no victim, is not taken away from its backend, and is not sent again. The rest must come
from the same backend. If it breaks off, a stream ends with an event that says so. Otherwise the connection to the client is cut
as well, because a truncated response must not look whole.

A backend that rejects the `stream_options` which the gateway has added for its own sake gets the request again without them
(`UsageRefused`). Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.units import Micros
from maitred.gateway import error_responses
from maitred.gateway.bodies.answer_usage import AnswerReader
from maitred.gateway.bodies.program_fields import STREAM_OPTIONS, withdraw_usage
from maitred.gateway.config import GatewayConfig
from maitred.gateway.forwarding.attempt import Attempt
from maitred.gateway.forwarding.attempt_outcomes import AttemptOutcomes
from maitred.gateway.forwarding.held_answer import HeldAnswer
from maitred.gateway.forwarding.proxy_request import ProxyRequest
from maitred.gateway.forwarding.response_forwarder import ResponseForwarder
from maitred.gateway.forwarding.retries import RETRYABLE_STATUSES, RetryPolicy
from maitred.gateway.observe.request_record import RequestRecord
from maitred.gateway.observe.state import GatewayCounters
from maitred.scheduler.interface import (
    FailedAttempts,
    NotFoundThere,
    Place,
    Scheduler,
    UpstreamRequest,
    UsageRefused,
    with_rank,
)
from maitred.wire.client import UpstreamClient
from maitred.wire.client_framing import NO_BLOCK
from maitred.wire.errors import UpstreamError
from maitred.wire.exchange import ResponseWriter
from maitred.wire.machine import Machine
from maitred.wire.response import UpstreamResponse

_OK: Final = 200
_NOT_FOUND: Final = 404
_REFUSALS: Final = (400, 422)
"""How engines refuse a member of a body."""
_FAILED: Final = ReleaseReason.FAILED  # members of enums are slow to look up


class Attempts:
    """Sends requests that may be sent: those that need no slot, or hold one."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        scheduler: Scheduler,
        client: UpstreamClient,
        counters: GatewayCounters,
        reads_usage: bool,
        machine: Machine,
    ) -> None:
        """`reads_usage` says that the usage of every generated answer is read."""
        self._config, self._clock = config, machine.clock
        self._scheduler = scheduler
        self._admission = scheduler.admission
        self._fleet = fleet = scheduler.fleet
        self._router = scheduler.router
        self._client = client
        self._counters = counters
        self._reads_usage = reads_usage
        self._programs = scheduler.programs
        self._may_send = scheduler.may_send
        self._retries = RetryPolicy(config.retry, config.max_attempts, self._clock.now(), machine.random)
        self._outcomes = AttemptOutcomes(fleet, counters, self._retries)

    async def send(self, proxied: ProxyRequest, writer: ResponseWriter, now: Micros) -> ReleaseReason:
        """Send a request to one backend after the other, from `now` on, until one answers. Return DRAINED when the response has
        been sent whole, FAILED when it broke off. Raises ApiError if no backend answers, and MemoryLost if the program of the
        request has to wait for memory elsewhere; nothing has been sent then."""
        placement = self._scheduler.placement(proxied)
        if proxied.failed is not None:
            proxied.failed.tried.clear()  # It has waited, and what has failed it may be well again.
        place = placement.first(proxied, now)
        while place is not None:
            try:
                return await self._send_to(place, now, proxied, writer)
            except UpstreamError as error:
                failed = note_failure(proxied, error)
            placement.on_failure(place, failed)
            if not (self._retries.allows_retry(failed) and placement.has_another(proxied) and await self._may_retry(failed)):
                break
            place, now = await placement.next(proxied, place), self._clock.now()
        return await self._give_up(proxied)

    async def _may_retry(self, failed: FailedAttempts) -> bool:
        """Return whether the budget lets a request be sent once more, after the time that must pass before."""
        if not self._retries.is_within_budget(failed, self._fleet.ejection.num_answers, self._clock.now()):
            self._counters.retries_over_budget += 1
            return False
        backoff = self._retries.backoff_secs(failed)
        if backoff:
            await asyncio.sleep(backoff)
        return True

    async def _give_up(self, proxied: ProxyRequest) -> ReleaseReason:
        """Pass on the last answer of an engine, if there is one. Raises ApiError if there is none."""
        failed = proxied.failed
        answer = None if failed is None else failed.answer
        if not isinstance(answer, HeldAnswer):
            serving = proxied.served.backends
            rest = self._fleet.ejection.rest_time(serving)
            if rest is not None:
                raise error_responses.upstream_busy(rest)
            if not serving:  # Its adapter was unloaded while it waited, say.
                raise error_responses.model_unavailable(self._fleet, proxied.request.model)
            raise error_responses.upstream_failed(None if failed is None else failed.failure)
        forwarder, record = answer.forwarder, proxied.record
        record.on_passed_on(answer.sent.backend, forwarder.arrived, is_stream=forwarder.is_stream)
        self._commit(proxied, forwarder)
        further = forwarder.forward()
        if further is None:
            return self._outcomes.on_complete(answer.sent, record, record.last_data_at)
        return await self._await_rest(further, answer.sent, record)

    async def _send_to(self, place: Place, now: Micros, proxied: ProxyRequest, writer: ResponseWriter) -> ReleaseReason:
        """Send the request to one backend at `now`, and its response to the client. Raises UpstreamError while nothing has been
        sent, and ApiError if the request loses its slot before its first byte."""
        record, router = proxied.record, self._router if proxied.memory_lease is None else None
        # Not `with`, which would make two calls of methods that are looked up, for each request.
        sent = Attempt(self._fleet, self._outcomes, router, place[0], proxied, now)
        try:
            if proxied.failed is not None:
                self._counters.retries += 1
                sent.may_be_abandoned = proxied.failed.num_abandoned < self._config.max_attempts
            sent.response = response = await self._request(place, proxied)
            if response.status == _NOT_FOUND and proxied.may_be_elsewhere:
                raise NotFoundThere(f"{place[0].url} answers 404")
            forwarder = ResponseForwarder(proxied, response, writer, record)
            if proxied.memory_lease is not None or (self._reads_usage and proxied.route.generates):
                forwarder.reader = self._reader(response, proxied, is_stream=forwarder.is_stream)
            if not forwarder.take_arrived():
                await forwarder.wait_for_data()
            if proxied.hides_usage and (response.status in _REFUSALS or forwarder.first_error is not None):
                await forwarder.wait_for_words()
                if STREAM_OPTIONS in forwarder.withheld:
                    raise self._withdraw_usage(sent, proxied)
            if response.status in RETRYABLE_STATUSES or (record.error is not None and forwarder.can_be_replaced):
                raise sent.hold(forwarder)
            self._outcomes.on_answer(sent, is_whole=not record.is_stream)
            sent.is_committed = True
            self._commit(proxied, forwarder)
            rest = forwarder.forward()
            if rest is None:  # Nothing was waited for since the data has come.
                end = self._outcomes.on_complete(sent, record, record.last_data_at)
            else:
                end = await self._await_rest(rest, sent, record)
            sent.is_complete = end is not _FAILED and response.status == _OK
            if end is _FAILED:
                sent.has_failed = True
            return end
        except BaseException as error:
            sent.fail(error)
            raise
        finally:
            sent.leave()

    async def _await_rest(self, rest: Awaitable[None], sent: UpstreamRequest, record: RequestRecord) -> ReleaseReason:
        """Return how the request has ended when the rest of its response has been sent: FAILED if that broke off."""
        try:
            await rest
        except UpstreamError as error:
            self._outcomes.on_failure(sent, error)
            return _FAILED
        return self._outcomes.on_complete(sent, record, self._clock.now())

    def _commit(self, proxied: ProxyRequest, forwarder: ResponseForwarder) -> None:
        """Go over to the response of one backend, of which the first data has just come: from here on the request is no victim,
        and is not sent again. Raises ApiError if it has lost its slot already."""
        if proxied.memory_lease is not None:
            proxied.memory_lease.is_stream = forwarder.is_stream
        now = proxied.record.last_data_at
        if proxied.route.needs_slot and not self._admission.confirm_first_byte(proxied.request.id, now):
            raise error_responses.preempted()
        proxied.is_committed = True

    def _request(self, place: Place, proxied: ProxyRequest) -> Awaitable[UpstreamResponse]:
        (backend, rank, _), headers, block = place, proxied.headers, proxied.block
        trace = proxied.record.trace
        if trace is not None:
            headers = [*headers, *trace.headers()]
        if rank is not None:
            headers, block = with_rank([*block.headers, *headers], rank), NO_BLOCK
        may_send = self._may_send and partial(self._may_send, proxied.request.id)
        # By position: keywords behind so many arguments would be a dictionary for each request.
        return self._client.request(backend.origin, proxied.method, proxied.path, headers, proxied.body, block, may_send)

    def _reader(self, response: UpstreamResponse, proxied: ProxyRequest, *, is_stream: bool) -> AnswerReader:
        """Return what reads the usage of an answer where that is of interest, and tells the programs how far the answer to a
        step has come."""
        lease, programs = proxied.memory_lease, self._programs
        on_progress = None if lease is None or programs is None else partial(programs.add_progress, lease)
        return AnswerReader(response.headers, is_stream=is_stream, hides_usage=proxied.hides_usage, on_progress=on_progress)

    def _withdraw_usage(self, sent: UpstreamRequest, proxied: ProxyRequest) -> UsageRefused:
        """Take back what the gateway has asked for and the backend rejects, and return the failure that this is."""
        proxied.body, proxied.hides_usage = withdraw_usage(proxied.body), False
        self._outcomes.on_answer(sent, is_whole=True)
        return UsageRefused(f"{sent.backend.url} rejects stream_options")


def note_failure(proxied: ProxyRequest, error: UpstreamError) -> FailedAttempts:
    """Count a failed attempt of a request, and return all of them."""
    proxied.record.num_failed += 1
    failed = proxied.failed
    if failed is None:
        failed = proxied.failed = FailedAttempts()
    failed.add(error)
    return failed
