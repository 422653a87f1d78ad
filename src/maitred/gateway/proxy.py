"""The life of a proxied request, from its head to the release of its slot.

    proxy_request()   take the request in (`request_intake`); stop it when its client disconnects; answer every failure
    _hold_memory()    ask for KV memory for its program (`program_driver`), wait for it, and end its step exactly once
    _hold_slot()      ask admission for a slot (`driver`), wait for it, and release it, which takes effect once
    _try_backends()   let the router choose a backend (`fleet`); try another one while no part of a response has been sent
    _try_granted()    the same for a request of a program: at the backend where that has memory, or where it moves
    _try_backend()    send the request to one backend, and its response to the client (`response_forwarder`)

**Slots and places in a queue** are freed in `_hold_slot` alone: by its `finally`, and by `yield_slot` for a request that is
preempted. When a client disconnects, the exchange cancels the task of its request, wherever that task waits: in the
queue (`slot.granted`) or for a backend. The cancellation passes through this `finally`, which tells the core that the request
has ended with CLIENT_GONE; so it does at a shutdown, for every cancellation that gets so far counts as that. The core
(`Admission.release`) hands it to the pool, which frees what the request has: its place in the queue, or its slot
(`ClassPool.release`, or `FlowPool.release` under flow control; the slot in `SlotPool._free_slot`). A victim that is not retried
has left with `yield_slot`, and the core ignores the release by `finally`.

**Memory** comes before the slot, so a paused program holds none; `_hold_memory` alone ends the step of a program, in its
`finally`, as `_hold_slot` does for slots. If a program has to wait for memory elsewhere because its backend has failed, its
request leaves admission (`MemoryLost`) and asks for a slot anew when it has memory again.

**A preempted request** is stopped in the same way, which closes its connection to the backend. Its slot is free before anything
is said to its client, which may be slow to read. Then the request is refused with a 503; or, with `on_preempt: retry`, it waits
for a slot once more, and its client notices nothing. Which of the two, the pool decides (`SlotPool._end_or_retry`).

**A backend that fails** is replaced by another one while no part of a response has been sent. Any number of backends to which
no connection can be made may be tried, but a request is sent at most `max_attempts` times, since it may be what brings them
down. For example, with `max_attempts: 2` and four backends of which two refuse connections and the third disconnects, the
fourth is still tried. A timeout or a malformed response is not retried: the request would only keep the next backend busy as
well. If a kept connection turns out to be closed, its age may be the reason. That counts as an attempt like any other, because
the backend may have seen the request; but where no other backend is left, or another one has not the memory of the program, the
same one is tried again.
Once a part has been sent, the rest must come from the same backend; if it breaks off, the connection to
the client is cut as well, because a truncated response must not look whole.

This module must never decide which request is served, or where: programs, admission and the router do.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, cast

from maitred.admission import ReleaseReason
from maitred.core.contracts import Router
from maitred.core.errors import MaitredError
from maitred.gateway import error_responses
from maitred.gateway.answer_usage import AnswerReader
from maitred.gateway.backend import Backend
from maitred.gateway.config import GatewayConfig
from maitred.gateway.deadline_timer import monotonic_now
from maitred.gateway.driver import AdmissionRejected, RealTimeAdmission
from maitred.gateway.error_responses import BackendAbandoned, NotFoundThere
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.program_driver import ProgramRejected, ProgramStep, RealTimePrograms
from maitred.gateway.program_memories import ProgramMemories, with_rank
from maitred.gateway.request_fields import REQUEST_ID_HEADER
from maitred.gateway.request_intake import ProxyRequest, RequestIntake
from maitred.gateway.request_observer import RequestObserver
from maitred.gateway.request_record import ERROR_IN_ANSWER
from maitred.gateway.response_forwarder import ResponseForwarder
from maitred.gateway.state import GatewayCounters
from maitred.gateway.waiting_stream import WaitingStream
from maitred.programs import ProgramRequest
from maitred.wire.client import UpstreamClient
from maitred.wire.client_framing import NO_BLOCK
from maitred.wire.errors import ConnectError, Disconnected, Truncated, UpstreamError
from maitred.wire.exchange import ApiError, Exchange, ResponseWriter, send_error
from maitred.wire.refusals import internal_error
from maitred.wire.response import UpstreamResponse

log = logging.getLogger("maitred.gateway")
_NOT_FOUND: Final = 404
_DRAINED: Final = ReleaseReason.DRAINED  # members of enums are slow to look up
_FAILED: Final = ReleaseReason.FAILED


class MemoryLost(MaitredError):  # noqa: N818  (a step of the way of a request, not a fault)
    """The program of a request has no memory any more, and the request must give its slot back while it waits."""


RETRYABLE_ERRORS = (ConnectError, Disconnected, Truncated, BackendAbandoned, NotFoundThere)
"""The failures after which another backend is tried. A ConnectError does not count as an attempt. A truncated response can be
retried because its head is withheld until the first data of its body; a later failure never gets here (`_try_backend`). A
timeout is not one of them: the same request would keep the next backend busy for as long. An answer with an error status (a
503, say) is no failure but an answer: it is passed on. Only a 404 may be tried elsewhere (`NotFoundThere`)."""


class Proxy:
    """Serves every route that is forwarded to a backend."""

    def __init__(
        self,
        config: GatewayConfig,
        intake: RequestIntake,
        admission: RealTimeAdmission,
        fleet: BackendFleet,
        router: Router,
        client: UpstreamClient,
        counters: GatewayCounters,
        observer: RequestObserver,
        memories: ProgramMemories | None = None,
        programs: RealTimePrograms | None = None,
    ) -> None:
        """`programs` and `memories` are both None if requests are routed one by one."""
        self._config = config
        self._intake = intake
        self._admission = admission
        self._fleet = fleet
        self._router = router
        self._client = client
        self._counters = counters
        self._observer = observer
        self._memories = memories
        self._programs = programs

    async def proxy_request(self, exchange: Exchange) -> None:
        """Answer one request. An answer that breaks off is left without an end, and the server cuts the connection."""
        proxied = await self._intake.take_in(exchange)
        if proxied is None:
            return
        writer = self._waiting_writer(proxied, exchange)
        record = proxied.record = self._observer.begin(proxied.request, generates=proxied.route.generates)
        task = proxied.task = exchange.task or cast("asyncio.Task[None]", asyncio.current_task())
        exchange.watch_disconnect(task.cancel)
        try:
            if proxied.program is not None and self._programs is not None:
                await self._hold_memory(self._programs, proxied.program, proxied, writer)
            elif proxied.route.needs_slot:
                await self._hold_slot(proxied, writer)
            else:
                await self._try_backends(proxied, writer)
        except ApiError as error:
            exchange.stop_watching()
            _send_error(proxied, writer, error)
        except asyncio.CancelledError:
            if not exchange.is_disconnected:
                _send_error_or_cut(proxied, writer, error_responses.shutting_down())
                raise
            task.uncancel()  # The disconnect cancelled the task: it ends here, without an answer.
        except Exception:
            log.exception("request %s failed", proxied.request_id.decode("latin-1"))
            _send_error_or_cut(proxied, writer, internal_error("gateway"))
        finally:
            exchange.stop_watching()
            if proxied.waiting_stream is not None:
                proxied.waiting_stream.stop()
            proxied.body_lease.release()
            self._observer.end(record, exchange)

    def _waiting_writer(self, proxied: ProxyRequest, writer: ResponseWriter) -> ResponseWriter:
        """Return the writer of a response, with comments before it if the request may wait for memory and wants them."""
        config = None if self._programs is None or proxied.program is None else self._programs.core.config
        if config is None or not (proxied.request.stream and config.wait_keepalive_secs):
            return writer
        proxied.waiting_stream = WaitingStream(writer, config.wait_keepalive_secs, proxied.request_id)
        return proxied.waiting_stream

    async def _hold_memory(
        self,
        programs: RealTimePrograms,
        program: ProgramRequest,
        proxied: ProxyRequest,
        writer: ResponseWriter,
    ) -> None:
        """Serve a request while its program has a place in KV memory. Raises ApiError if it gets none, or cannot be served.

        Memory comes first, and then the slot: a paused program holds no slot. No other function ends a step.
        """
        await programs.restored.wait()
        proxied.step = step = programs.begin(program, asks_for_stream=proxied.request.stream)
        try:
            while True:
                await (step.wait() if proxied.waiting_stream is None else proxied.waiting_stream.wait(step))
                with contextlib.suppress(MemoryLost):
                    return await self._hold_slot(proxied, writer)
        except ProgramRejected as rejected:
            raise error_responses.program_rejected(rejected, programs.core.config.interval) from rejected
        finally:
            programs.end(step)

    async def _hold_slot(self, proxied: ProxyRequest, writer: ResponseWriter) -> None:
        """Serve one request while it holds a slot. Raises ApiError if it gets none, loses it, or no backend answers.

        No other function of the gateway frees a slot or a place in a queue.
        """
        request, end = proxied.request, _FAILED
        if not self._fleet.is_known(request.model):  # It has vanished while the request waited for memory.
            raise error_responses.model_unavailable(self._fleet, request.model)
        try:
            slot = self._admission.submit(request, proxied.token_cost, proxied.task)
            while True:
                try:
                    if slot.granted is not None:
                        await slot.granted
                    if proxied.step is None:
                        end = await self._try_backends(proxied, writer)
                    else:
                        end = await self._try_granted(proxied.step, proxied, writer)
                    return
                except asyncio.CancelledError:
                    if not slot.absorb_preemption():
                        raise
                # The work has stopped, and the connection to the backend is closed. The preemptor gets the slot now, before
                # anything is sent to the client of the victim, which may be slow to read.
                waits_again = self._admission.yield_slot(request.id)
                if not waits_again:
                    raise error_responses.preempted()
        except AdmissionRejected as rejected:
            config = self._admission.core.config
            raise error_responses.admission_rejected(rejected, config, self._config.queue_timeout_status) from rejected
        except asyncio.CancelledError:
            end = ReleaseReason.CLIENT_GONE  # or the server shuts down: not told apart here
            raise
        finally:
            self._admission.release(request.id, end)

    async def _try_backends(self, proxied: ProxyRequest, writer: ResponseWriter) -> ReleaseReason:
        """Return DRAINED when the response has been sent whole, FAILED when it broke off. Raises ApiError if no backend
        answers; nothing has been sent then."""
        model = proxied.request.model
        untried: Sequence[Backend] = self._fleet.backends_serving(model)
        tried: list[Backend] = []
        failure: UpstreamError | None = None
        attempts = 0
        while untried:
            if failure is not None:
                self._counters.retries += 1
            proxied.may_be_elsewhere = proxied.route.asks_each and len(untried) > 1
            choice = self._router.choose(proxied.request, self._fleet.with_free_slots(untried), monotonic_now())
            backend = self._fleet.backends[choice.instance]
            try:
                return await self._try_backend(backend, proxied, writer)
            except UpstreamError as error:
                failure = error
                self._count_failure(backend, error)
            attempts += not isinstance(failure, ConnectError | NotFoundThere)  # A backend not reached has not had it.
            if attempts == self._config.max_attempts or not isinstance(failure, RETRYABLE_ERRORS):
                break
            tried.append(backend)
            # The fleet is asked again, because backends may have come up or gone down meanwhile.
            serving = self._fleet.backends_serving(model)
            untried = [other for other in serving if other not in tried]
            if not untried and _was_kept(failure) and backend in serving:
                untried = [backend]
            if untried and await self._admission.leave_backend(proxied.request.id):
                tried.clear()  # It has waited for a slot, and what has failed it may be well again.
                untried = self._fleet.backends_serving(model)
        raise error_responses.upstream_failed(failure)

    async def _try_granted(self, step: ProgramStep, proxied: ProxyRequest, writer: ResponseWriter) -> ReleaseReason:
        """Do the same at the backend where the program of the request has memory. If that fails, the program moves.

        Raises MemoryLost if it has to wait for memory elsewhere, or gets none: the slot must be free then.
        """
        assert self._memories is not None
        assert self._programs is not None
        failure: UpstreamError | None = None
        while step.memory is not None:
            memory, target = step.memory, self._memories.target(step.memory)
            is_up = target.backend in self._fleet.backends_serving(proxied.request.model)
            if is_up:
                try:
                    return await self._try_backend(target.backend, proxied, writer, target.rank)
                except UpstreamError as error:
                    failure = error
                    self._count_failure(target.backend, error)
                step.num_attempts += not isinstance(failure, ConnectError)
                if step.num_attempts == self._config.max_attempts or not isinstance(failure, RETRYABLE_ERRORS):
                    break
                self._counters.retries += 1
                self._admission.set_stranded(proxied.request.id, stranded=False)  # It keeps its slot, since it has its memory.
                if _was_kept(failure):
                    continue
            # Not read from the step: compiled, its memory would still be taken for an int.
            moved_to = self._programs.move(step)
            if moved_to == memory and not is_up:  # mode `default`, and no other backend is up either
                failure = None if _was_kept(failure) else failure  # It may not have seen the request.
                break
        else:
            raise MemoryLost
        raise error_responses.upstream_failed(failure)

    async def _try_backend(
        self, backend: Backend, proxied: ProxyRequest, writer: ResponseWriter, rank: int | None = None
    ) -> ReleaseReason:
        """Send the request to one backend and its response to the client. Raises UpstreamError while nothing has been sent,
        and ApiError if the request loses its slot before its first byte."""
        sent, record = self._fleet.add_request(backend, proxied.request, proxied.task), proxied.record
        record.on_sent(backend, sent.on_events)
        response: UpstreamResponse | None = None
        try:
            response = await self._send(backend, proxied, rank)
            if response.status == _NOT_FOUND and proxied.may_be_elsewhere:
                raise NotFoundThere(f"{backend.url} answers 404")
            forwarder = ResponseForwarder(proxied, response, writer, self._config.sse_keepalive_secs, record)
            if proxied.step is not None or (proxied.route.generates and self._observer.reads_usage):
                forwarder.reader = self._answer_reader(proxied, response, forwarder)
            if not forwarder.take_arrived():
                await forwarder.wait_for_data()
            sent.response_started = True  # From here on the backend is not abandoned for this request.
            self._confirm_first_byte(proxied, forwarder)
            record.status = response.status
            try:
                rest = forwarder.forward()
                if rest is not None:
                    await rest
            except UpstreamError as error:
                sent.has_failed = True
                self._count_failure(backend, error)
                return _FAILED
            finally:
                self._note_usage(proxied, forwarder.reader)
            record.on_complete()
            sent.has_failed = record.has_failed
            sent.is_complete = response.status == 200 and not sent.has_failed
            return self._count_error_in_answer() if sent.has_failed else _DRAINED
        except asyncio.CancelledError:
            if not sent.absorb_abandonment():
                raise
            raise BackendAbandoned(f"{backend.url} is down: {backend.problem}") from None
        except UpstreamError:
            sent.has_failed = True
            raise
        finally:
            if response is not None:  # If it is not complete, this closes the connection: the engine stops working on it.
                response.close()
            self._fleet.remove_request(sent)
            if proxied.step is None:  # The router has chosen the backend.
                self._router.on_request_end(proxied.request, backend.index, record.ended_at or monotonic_now())

    def _confirm_first_byte(self, proxied: ProxyRequest, forwarder: ResponseForwarder) -> None:
        """From here on the request is no victim. Raises ApiError if it has lost its slot already."""
        if proxied.step is not None:
            proxied.step.is_stream = forwarder.is_stream
        if proxied.route.needs_slot and not self._admission.confirm_first_byte(proxied.request.id):
            raise error_responses.preempted()

    def _send(self, backend: Backend, proxied: ProxyRequest, rank: int | None) -> Awaitable[UpstreamResponse]:
        headers, block = proxied.headers, proxied.block
        if rank is not None:
            headers, block = with_rank([*block.headers, *headers], rank), NO_BLOCK
        return self._client.request(
            *(backend.origin, proxied.method, proxied.path, headers, proxied.body), block=block, resends=False
        )

    def _answer_reader(self, proxied: ProxyRequest, response: UpstreamResponse, forwarder: ResponseForwarder) -> AnswerReader:
        """Return what reads the usage of an answer, and tells the programs how far the answer to a step has come."""
        on_progress = (
            None if proxied.step is None or self._programs is None else partial(self._programs.add_progress, proxied.step)
        )
        return AnswerReader(
            response.headers, is_stream=forwarder.is_stream, hides_usage=proxied.hides_usage, on_progress=on_progress
        )

    def _note_usage(self, proxied: ProxyRequest, reader: AnswerReader | None) -> None:
        if reader is not None:
            proxied.record.reported = reader.usage
            if proxied.step is not None:
                proxied.step.usage = proxied.record.reported

    def _count_error_in_answer(self) -> ReleaseReason:
        """Count an answer with status 200 that was passed on whole, and says that it has failed."""
        self._counters.upstream_failures[ERROR_IN_ANSWER] += 1
        return _FAILED

    def _count_failure(self, backend: Backend, error: UpstreamError) -> None:
        if not isinstance(error, NotFoundThere):
            self._counters.upstream_failures[error.reason] += 1
        if isinstance(error, ConnectError):
            self._fleet.mark_down(backend, str(error))


def _was_kept(failure: UpstreamError | None) -> bool:
    return isinstance(failure, Disconnected) and failure.was_kept


def _send_error(proxied: ProxyRequest, writer: ResponseWriter, error: ApiError) -> None:
    proxied.record.on_refused(error.status, error.code)
    send_error(writer, error, [(REQUEST_ID_HEADER, proxied.request_id)])


def _send_error_or_cut(proxied: ProxyRequest, writer: ResponseWriter, error: ApiError) -> None:
    """Send an error if no response has started; otherwise return without an end, and the server cuts the connection."""
    if not proxied.response_started:
        _send_error(proxied, writer, error)
