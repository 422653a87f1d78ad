"""The attempts of a request: which backend it is sent to, and to which one next if that fails.

    send_routed()    let the router choose a backend (`fleet`); another one while no part of a response has been sent
    send_granted()   the same for a request of a program: at the backend where that has memory, or where it moves
    _try_backend()   send the request to one backend, and its response to the client (`response_forwarder`)

**A backend that fails**, or answers with an error that another one may not give, is replaced by another one while no part of a
response has been sent. `retries` bounds how often, and holds the answer of an engine until another one is better. What every
attempt came to is told to `ejection`, so a backend that fails many requests gets no more of them.

For example, with `max_attempts: 2` and four backends of which two refuse connections and the third disconnects, the fourth is
still tried. A timeout or a malformed response is not retried: the request would only keep the next backend busy as well. After
an error of an engine that is not busy, the same one is tried again where no other backend is left. A kept connection that was
dead before the request came is no attempt: the client makes a new one (`wire/client`).

Once a part has been sent, the rest must come from the same backend. If it breaks off, a stream ends with an event that says so.
Otherwise the connection to the client is cut as well, because a truncated response must not look whole.

A backend that rejects the `stream_options` which the gateway has added for its own sake gets the request again without them
(`UsageRefused`). Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.contracts import Router
from maitred.core.errors import MaitredError
from maitred.core.units import Micros
from maitred.gateway import error_responses
from maitred.gateway.answer_usage import AnswerReader
from maitred.gateway.backend import Backend, UpstreamRequest, others_serving
from maitred.gateway.config import GatewayConfig
from maitred.gateway.deadline_timer import monotonic_now
from maitred.gateway.driver import RealTimeAdmission
from maitred.gateway.error_responses import BackendAbandoned, NotFoundThere, UsageRefused
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.held_answer import HeldAnswer
from maitred.gateway.program_driver import ProgramStep, RealTimePrograms
from maitred.gateway.program_fields import STREAM_OPTIONS, withdraw_usage
from maitred.gateway.program_memories import ProgramMemories, with_rank
from maitred.gateway.request_intake import ProxyRequest
from maitred.gateway.request_record import ERROR_IN_ANSWER, RequestRecord
from maitred.gateway.response_forwarder import ResponseForwarder
from maitred.gateway.retries import RETRYABLE_STATUSES, AnsweredError, FailedAttempts, RetryPolicy, is_blameless
from maitred.gateway.state import GatewayCounters
from maitred.wire.client import UpstreamClient
from maitred.wire.client_framing import NO_BLOCK
from maitred.wire.errors import ConnectError, PoolTimeout, UpstreamError
from maitred.wire.exchange import ResponseWriter
from maitred.wire.response import UpstreamResponse

_NOT_FOUND: Final = 404
_REFUSALS: Final = (400, 422)
"""How engines refuse a member of a body."""
_DRAINED: Final = ReleaseReason.DRAINED  # members of enums are slow to look up
_FAILED: Final = ReleaseReason.FAILED


class MemoryLost(MaitredError):  # noqa: N818  (a step of the way of a request, not a fault)
    """The program of a request has no memory any more, and the request must give its slot back while it waits."""


class Attempts:
    """Sends requests that may be sent: those that need no slot, or hold one."""

    def __init__(
        self,
        config: GatewayConfig,
        admission: RealTimeAdmission,
        fleet: BackendFleet,
        router: Router,
        client: UpstreamClient,
        counters: GatewayCounters,
        reads_usage: bool,
        memories: ProgramMemories | None,
        programs: RealTimePrograms | None,
    ) -> None:
        """`reads_usage` says that the usage of every generated answer is read. `programs` and `memories` are both None if
        requests are routed one by one."""
        self._config = config
        self._admission = admission
        self._fleet = fleet
        self._router = router
        self._client = client
        self._counters = counters
        self._reads_usage = reads_usage
        self._memories = memories
        self._programs = programs
        self._retries = RetryPolicy(config.retry, config.max_attempts, monotonic_now())

    async def send_routed(self, proxied: ProxyRequest, writer: ResponseWriter) -> ReleaseReason:
        """Send a request where the router wants it. Return DRAINED when the response has been sent whole, FAILED when it broke
        off. Raises ApiError if no backend answers; nothing has been sent then."""
        fleet, model = self._fleet, proxied.request.model
        untried: Sequence[Backend] = fleet.backends_serving(model)
        asks_each = proxied.route.asks_each
        if fleet.ejection.is_restricted and not asks_each:  # What one of them has stored is asked of each.
            untried = fleet.ejection.candidates(model, untried, may_probe=proxied.failed is None)
            untried = untried or fleet.ejection.last_resort(model, ())
        tried: list[Backend] = []
        while untried:
            now = monotonic_now()
            choice = self._router.choose(proxied.request, fleet.with_free_slots(untried), now)
            backend = fleet.backends[choice.instance]
            proxied.may_be_elsewhere = asks_each and bool(others_serving(fleet.backends, model, [*tried, backend]))
            try:
                return await self._try_backend(backend, proxied, writer, now)
            except UpstreamError as error:
                failed = note_failure(proxied, error)
            if not self._retries.allows_retry(failed):
                break
            # The polls of an abandoned backend say when it may have the request again.
            if not isinstance(failed.failure, BackendAbandoned | UsageRefused):
                tried.append(backend)
            # Without another backend there is nothing to wait for, and nothing that the budget should pay.
            if not self._untried(proxied, tried, failed) or not await self._may_retry(failed):
                break
            untried = self._untried(proxied, tried, failed)
            if untried and await self._admission.leave_backend(proxied.request.id):
                tried.clear()  # It has waited for a slot, and what has failed it may be well again.
                untried = self._untried(proxied, tried, failed)
            self._counters.retries += bool(untried)
        return await self._give_up(proxied)

    async def send_granted(self, step: ProgramStep, proxied: ProxyRequest, writer: ResponseWriter) -> ReleaseReason:
        """Do the same at the backend where the program of the request has memory. If that fails, the program moves.

        No program has memory at a half-open backend: single requests are sent there, and their programs stay where they are.
        Raises MemoryLost if it has to wait for memory elsewhere, or gets none: the slot must be free then.
        """
        assert self._memories is not None
        assert self._programs is not None
        tried: list[Backend] = []
        while step.memory is not None:
            memory, target = step.memory, self._memories.target(step.memory)
            probed = self._backend_to_probe(proxied, target.backend, tried)
            backend, rank = (target.backend, target.rank) if probed is None else (probed, None)
            is_willing = probed is not None or (backend.takes(proxied.request.model) and backend.circuit.rests_until is None)
            if is_willing:
                try:
                    return await self._try_backend(backend, proxied, writer, monotonic_now(), rank)
                except UpstreamError as error:
                    failed = note_failure(proxied, error)
                if isinstance(failed.failure, UsageRefused):
                    continue
                tried.append(backend)
                if not self._retries.allows_retry(failed) or (failed.is_busy and not self._others(proxied, tried)):
                    break
                if not await self._may_retry(failed):
                    break
                self._counters.retries += 1
                if probed is not None:
                    continue
                self._admission.set_stranded(proxied.request.id, stranded=False)  # It keeps its slot, since it has its memory.
                if failed.may_have_died:  # If so, all programs leave that backend, and this one need not wait for the others.
                    await self._fleet.poll_now(target.backend)
            # Not read from the step: compiled, its memory would still be taken for an int.
            moved_to = self._programs.move(step)
            # No other backend takes it either. All connections to this one carried requests for as long as may be waited.
            if moved_to == memory and (not is_willing or isinstance(failed.failure, PoolTimeout)):
                break
        else:
            raise MemoryLost
        return await self._give_up(proxied)

    def _backend_to_probe(self, proxied: ProxyRequest, target: Backend, tried: Sequence[Backend]) -> Backend | None:
        """Return the half-open backend that gets a request of a program, as a probe or because all others have failed it; None
        if its program's own backend, `target`, is to have it."""
        if proxied.failed is None:
            return self._fleet.ejection.backend_to_probe(proxied.request.model)
        others = self._others(proxied, tried) if target in tried else ()
        return others[0] if others and others[0].circuit.is_ejected else None

    def _untried(self, proxied: ProxyRequest, tried: Sequence[Backend], failed: FailedAttempts) -> Sequence[Backend]:
        """Return the backends that may have a request next. The fleet is asked anew, because backends may have come up or gone
        down meanwhile."""
        untried = self._others(proxied, tried)
        if not untried and tried and failed.may_be_sent_again and tried[-1] in self._willing(proxied.request.model):
            return tried[-1:]
        return untried

    def _others(self, proxied: ProxyRequest, tried: Sequence[Backend]) -> Sequence[Backend]:
        """Return the backends other than those of `tried`. If all others are ejected, one of them is tried early; what a
        backend has stored is asked of them without that."""
        model = proxied.request.model
        others = [backend for backend in self._willing(model) if backend not in tried]
        if others:
            return others
        if proxied.route.asks_each:
            return others_serving(self._fleet.backends, model, tried)
        return self._fleet.ejection.last_resort(model, tried)

    def _willing(self, model: str) -> Sequence[Backend]:
        ejection = self._fleet.ejection
        return ejection.candidates(model, self._fleet.backends_serving(model), may_probe=False)

    async def _may_retry(self, failed: FailedAttempts) -> bool:
        """Return whether the budget lets a request be sent once more, after the time that must pass before."""
        if not self._retries.is_within_budget(failed, self._fleet.ejection.num_answers, monotonic_now()):
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
            serving = self._fleet.backends_serving(proxied.request.model)
            rest = self._fleet.ejection.rest_time(serving)
            if rest is not None:
                raise error_responses.upstream_busy(rest)
            raise error_responses.upstream_failed(failed.failure if failed is not None and serving else None)
        forwarder, record = answer.forwarder, proxied.record
        record.on_passed_on(answer.sent.backend, forwarder.withheld, is_stream=forwarder.is_stream)
        self._confirm_first_byte(proxied, forwarder)
        further = forwarder.forward()
        return self._complete(answer.sent, record) if further is None else await self._await_rest(further, answer.sent, record)

    async def _try_backend(
        self, backend: Backend, proxied: ProxyRequest, writer: ResponseWriter, now: Micros, rank: int | None = None
    ) -> ReleaseReason:
        """Send the request to one backend and its response to the client. Raises UpstreamError while nothing has been sent,
        and ApiError if the request loses its slot before its first byte."""
        sent, record = self._fleet.add_request(backend, proxied.request, proxied.task, now), proxied.record
        sent.record = record
        if proxied.failed is not None:
            sent.may_be_abandoned = proxied.failed.num_abandoned < self._config.max_attempts
        record.on_sent(backend, now, None if sent.own is None else sent.note_events)
        response: UpstreamResponse | None = None
        try:
            response = await self._send(backend, proxied, rank)
            status = response.status
            if status == _NOT_FOUND and proxied.may_be_elsewhere:
                raise NotFoundThere(f"{backend.url} answers 404")
            forwarder = ResponseForwarder(proxied, response, writer, record)
            if proxied.step is not None or (proxied.route.generates and self._reads_usage):
                forwarder.reader = self._answer_reader(proxied, response, forwarder)
            if not forwarder.take_arrived():
                await forwarder.wait_for_data()
            if proxied.hides_usage and status in _REFUSALS and STREAM_OPTIONS in forwarder.withheld:
                proxied.body, proxied.hides_usage = withdraw_usage(proxied.body), False
                self._count_answer(sent, is_whole=True)
                raise UsageRefused(f"{backend.url} rejects stream_options")
            if status in RETRYABLE_STATUSES or (record.error is not None and forwarder.can_be_replaced):
                answer, response = HeldAnswer(sent, forwarder, response), None  # It stays open until it is closed.
                raise answer
            self._count_answer(sent, is_whole=not record.is_stream)
            sent.response_started = True  # From here on the backend is not abandoned for this request.
            self._confirm_first_byte(proxied, forwarder)
            rest = forwarder.forward()
            end = self._complete(sent, record) if rest is None else await self._await_rest(rest, sent, record)
            sent.has_failed = end is _FAILED
            sent.is_complete = status == 200 and not sent.has_failed
            return end
        except asyncio.CancelledError:
            if not sent.absorb_abandonment():
                raise
            raise self._count_abandonment(sent) from None
        except UpstreamError as error:
            sent.has_failed = True
            self._count_failure(sent, error)
            raise
        finally:
            if response is not None:  # If it is not complete, this closes the connection: the engine stops working on it.
                response.close()
            self._fleet.remove_request(sent)
            if proxied.step is None:  # The router has chosen the backend.
                self._router.on_request_end(proxied.request, backend.index, record.ended_at or monotonic_now())

    async def _await_rest(self, rest: Awaitable[None], sent: UpstreamRequest, record: RequestRecord) -> ReleaseReason:
        """Return what `_complete` returns when the rest of a response has been sent, FAILED when it broke off."""
        try:
            await rest
        except UpstreamError as error:
            self._count_failure(sent, error)
            return _FAILED
        return self._complete(sent, record)

    def _complete(self, sent: UpstreamRequest, record: RequestRecord) -> ReleaseReason:
        """Note that a response was sent whole. Return FAILED if it says itself that it has failed, else DRAINED."""
        record.on_complete()
        if record.error is not None:
            return self._count_error_in_answer(sent, record)
        if sent.backend.circuit.needs_attention and record.is_stream:
            self._fleet.ejection.on_success(sent)
        return _DRAINED

    def _confirm_first_byte(self, proxied: ProxyRequest, forwarder: ResponseForwarder) -> None:
        """Note that the first data has just come: from here on the request is no victim. Raises ApiError if it has lost its
        slot already."""
        if proxied.step is not None:
            proxied.step.is_stream = forwarder.is_stream
        now = proxied.record.last_data_at
        if proxied.route.needs_slot and not self._admission.confirm_first_byte(proxied.request.id, now):
            raise error_responses.preempted()

    def _send(self, backend: Backend, proxied: ProxyRequest, rank: int | None) -> Awaitable[UpstreamResponse]:
        headers, block = proxied.headers, proxied.block
        if rank is not None:
            headers, block = with_rank([*block.headers, *headers], rank), NO_BLOCK
        return self._client.request(backend.origin, proxied.method, proxied.path, headers, proxied.body, block=block)

    def _answer_reader(self, proxied: ProxyRequest, response: UpstreamResponse, forwarder: ResponseForwarder) -> AnswerReader:
        """Return what reads the usage of an answer, and tells the programs how far the answer to a step has come."""
        on_progress = (
            None if proxied.step is None or self._programs is None else partial(self._programs.add_progress, proxied.step)
        )
        return AnswerReader(
            response.headers, is_stream=forwarder.is_stream, hides_usage=proxied.hides_usage, on_progress=on_progress
        )

    def _count_answer(self, sent: UpstreamRequest, *, is_whole: bool) -> None:
        """Count an answer that has begun as no failure of its backend. That of a stream may still break off, so it is a success
        at its end."""
        circuit = sent.backend.circuit
        circuit.num_answers += 1
        if circuit.needs_attention:
            if is_whole:
                self._fleet.ejection.on_success(sent)
            else:
                self._fleet.ejection.on_answer_begins(sent)

    def _count_error_in_answer(self, sent: UpstreamRequest, record: RequestRecord) -> ReleaseReason:
        """Count an answer that was passed on whole and says that it has failed, if its status is 200."""
        if not record.has_failed:
            return _DRAINED
        self._counters.upstream_failures[ERROR_IN_ANSWER] += 1
        if record.error is not None and not record.error.is_fault_of_client and sent.response_started:
            self._fleet.ejection.on_failure(sent, record.error.message)
        return _FAILED

    def _count_abandonment(self, sent: UpstreamRequest) -> BackendAbandoned:
        """Return the failure of a request that was taken away from its backend, counted."""
        backend = sent.backend
        abandoned = BackendAbandoned(f"{backend.url} is down: {backend.problem or 'it says nothing'}")
        self._count_failure(sent, abandoned)
        return abandoned

    def _count_failure(self, sent: UpstreamRequest, error: UpstreamError) -> None:
        """Tell everything that counts failures of one."""
        ejection = self._fleet.ejection
        if not isinstance(error, NotFoundThere | UsageRefused):
            self._counters.upstream_failures[error.reason] += 1
        if isinstance(error, ConnectError):
            self._fleet.note_unreachable(sent, error)
        elif not is_blameless(error):
            ejection.on_failure(sent, str(error))
        if isinstance(error, AnsweredError):
            if error.is_busy:
                ejection.on_busy(sent)
            if rest := self._retries.rest(error.retry_after):
                ejection.rest(sent.backend, rest)


def note_failure(proxied: ProxyRequest, error: UpstreamError) -> FailedAttempts:
    """Count a failed attempt of a request, and return all of them."""
    proxied.record.num_failed += 1
    failed = proxied.failed
    if failed is None:
        failed = proxied.failed = FailedAttempts()
    failed.add(error)
    return failed
