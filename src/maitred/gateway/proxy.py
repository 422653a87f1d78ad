"""The life of a proxied request, from its head to the release of its slot.

    proxy_request()   take the request in (`request_intake`); stop it when its client disconnects; answer every failure
    _hold_memory()    ask for KV memory for its program (`RealTimePrograms`), wait for it, and end its lease exactly once
    _hold_slot()      ask admission for a slot (`RealTimeAdmission`), wait for it, and release it, which takes effect once
    Attempts          send it to a backend, and to another one if that fails (`attempts`)

**Slots and places in a queue** are freed in `_hold_slot` alone: by its `finally`, and by `yield_slot` for a request that is
preempted. When a client disconnects, the exchange cancels the task of its request, wherever that task waits: in the
queue (`slot.wait`) or for a backend. The cancellation passes through this `finally`, which tells the core that the request
has ended with CLIENT_GONE; so it does at a shutdown, for every cancellation that gets so far counts as that. The core
(`Admission.release`) hands it to the pool, which frees what the request has: its place in the queue, or its slot
(`ClassPool.release`, or `FlowPool.release` under flow control; the slot in `SlotPool._free_slot`). A victim that is not retried
has left with `yield_slot`, and the core ignores the release by `finally`.

**Memory** comes before the slot, so a paused program holds none; `_hold_memory` alone ends the lease of memory, in its
`finally`, as `_hold_slot` does for slots. If a program has to wait for memory elsewhere because its backend has failed, its
request leaves admission (`MemoryLost`) and asks for a slot anew when it has memory again.

**A preempted request** is stopped in the same way, which closes its connection to the backend. Its slot is free before anything
is said to its client, which may be slow to read. Then the request is refused with a 503; or, with `on_preempt: retry`, it waits
for a slot once more, and its client notices nothing. Which of the two, the pool decides (`SlotPool._end_or_retry`).

This module must never decide which request is served, or where: programs, admission and the router do.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.units import Micros, to_seconds
from maitred.gateway import error_responses
from maitred.gateway.access.page_access import Viewer
from maitred.gateway.bodies.request_fields import DECISION_HEADER
from maitred.gateway.config import GatewayConfig
from maitred.gateway.forwarding.attempts import Attempts
from maitred.gateway.forwarding.proxy_request import ProxyRequest
from maitred.gateway.forwarding.request_sender import RequestSender
from maitred.gateway.forwarding.stream_dialects import dialect_of
from maitred.gateway.forwarding.waiting_stream import WaitingStream
from maitred.gateway.intake.request_intake import RequestIntake
from maitred.gateway.limit_headers import limit_headers
from maitred.gateway.observe.request_ids import id_headers
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.gateway.observe.state import GatewayCounters
from maitred.gateway.refusal_pace import RefusalPace
from maitred.programs import ProgramRequest
from maitred.scheduler.interface import (
    AdmissionRejected,
    MemoryLost,
    ProgramRejected,
    RealTimePrograms,
    Scheduler,
    SlotLease,
)
from maitred.wire.client import UpstreamClient
from maitred.wire.exchange import ApiError, Exchange, ResponseWriter, send_error
from maitred.wire.machine import Machine
from maitred.wire.refusals import internal_error

log = logging.getLogger("maitred.gateway")
_TOO_MANY_REQUESTS: Final = 429
_FAILED: Final = ReleaseReason.FAILED


class Proxy:
    """Serves every route that is forwarded to a backend."""

    def __init__(
        self,
        config: GatewayConfig,
        intake: RequestIntake,
        scheduler: Scheduler,
        client: UpstreamClient,
        counters: GatewayCounters,
        observer: RequestObserver,
        machine: Machine,
        attempts: RequestSender | None = None,
    ) -> None:
        """`attempts` send requests that may be sent; None: to the backends, by `client`."""
        self._config, self._clock = config, machine.clock
        self._intake = intake
        self._admission = scheduler.admission
        self._fleet = scheduler.fleet
        self._observer = observer
        self._programs = scheduler.programs
        self._attempts: RequestSender = attempts or Attempts(
            config=config,
            scheduler=scheduler,
            client=client,
            counters=counters,
            reads_usage=observer.reads_usage,
            machine=machine,
        )
        self._pace = RefusalPace(config.refusals_per_sec)
        self._rejections = error_responses.RejectionAnswers(config.queue_timeout_status)

    async def proxy_request(self, exchange: Exchange, operator: Viewer | None = None) -> None:
        """Answer one request. An answer that breaks off is left without an end, and the server cuts the connection. `operator`
        is the sender if that is known to be the operator."""
        proxied = await self._intake.take_in(exchange, operator)
        if proxied is None:
            return
        writer = self._stream_writer(proxied, exchange) if proxied.request.stream else exchange
        record = proxied.record = self._observer.begin(proxied.request, proxied.route, exchange)
        exchange.watch_disconnect(proxied.cancel)
        try:
            if proxied.program is not None and self._programs is not None:
                await self._hold_memory(self._programs, proxied.program, proxied, writer)
            elif proxied.route.needs_slot:
                await self._hold_slot(proxied, writer, proxied.ready_at)
            else:
                await self._attempts.send(proxied, writer, proxied.ready_at)
        except (ApiError, AdmissionRejected) as refused:
            exchange.stop_watching()
            await self._refuse(proxied, writer, refused)
        except asyncio.CancelledError:
            if not proxied.catch():
                _send_error_or_cut(proxied, writer, error_responses.shutting_down())
                raise
            # Its client has left: it ends here, without an answer.
        except Exception:
            log.exception("request %s failed", proxied.request_id.decode("latin-1"))
            _send_error_or_cut(proxied, writer, internal_error("gateway"))
        finally:
            exchange.stop_watching()
            if proxied.waiting_stream is not None:
                proxied.waiting_stream.stop()
            if proxied.body_lease.held_bytes:
                proxied.body_lease.release()
            if proxied.failed is not None:
                proxied.forget_failures()
            self._observer.end(record, exchange)

    async def _refuse(self, proxied: ProxyRequest, writer: ResponseWriter, refused: ApiError | AdmissionRejected) -> None:
        """Send an error; if its status is 429, when the tenant has its turn (`RefusalPace`)."""
        error = refused if isinstance(refused, ApiError) else self._words_of(proxied, refused)
        if proxied.explanation is not None and isinstance(refused, AdmissionRejected):
            proxied.explanation.rejected = refused.reason
        if error.status == _TOO_MANY_REQUESTS:
            proxied.drop_body()
            delay = self._pace.next_delay(proxied.request.tenant, self._clock.now())
            if delay:
                await asyncio.sleep(to_seconds(delay))
        _send_error(proxied, writer, error)

    def _words_of(self, proxied: ProxyRequest, rejected: AdmissionRejected) -> ApiError:
        """Return the error for a request that admission rejects."""
        if proxied.record.trace is not None:
            proxied.record.trace.refusal_reason = rejected.reason
        return self._rejections.of(rejected, self._admission.core.config)

    def _stream_writer(self, proxied: ProxyRequest, writer: ResponseWriter) -> ResponseWriter:
        """Return the writer of a stream; it fills silences where the configuration says so."""
        has_memory = self._programs is not None and proxied.program is not None
        memory_secs = self._programs.core.config.wait_keepalive_secs if self._programs is not None and has_memory else 0.0
        stream_secs = self._config.sse_keepalive_secs
        if not (memory_secs or stream_secs):
            return writer
        dialect = dialect_of(proxied.route.path)
        told = id_headers(proxied.path, proxied.request_id)
        proxied.waiting_stream = WaitingStream(writer, dialect, told, memory_secs, stream_secs)
        return proxied.waiting_stream

    async def _hold_memory(
        self,
        programs: RealTimePrograms,
        program: ProgramRequest,
        proxied: ProxyRequest,
        writer: ResponseWriter,
    ) -> None:
        """Serve a request while its program has a place in KV memory. Raises ApiError if it gets none, or cannot be served.

        Memory comes first, and then the slot: a paused program holds no slot. No other function ends a lease.
        """
        now = proxied.ready_at
        if not programs.restored.is_set():
            await programs.restored.wait()
            now = self._clock.now()
        proxied.memory_lease = lease = programs.begin(
            program, now, asks_for_stream=proxied.request.stream, ends_program=proxied.ends_program
        )
        try:
            while True:
                if lease.memory is None:
                    since = now
                    await (lease.wait() if proxied.waiting_stream is None else proxied.waiting_stream.wait(lease))
                    now = self._clock.now()
                    proxied.record.note_wait(now - since)
                if not self._fleet.is_known(program.model):  # It has vanished meanwhile.
                    raise error_responses.model_unavailable(self._fleet, program.model)
                with contextlib.suppress(MemoryLost):
                    return await self._hold_slot(proxied, writer, now)
                now = self._clock.now()
        except ProgramRejected as rejected:
            raise error_responses.program_rejected(rejected, programs.core.config.interval) from rejected
        finally:
            programs.end(lease, proxied.record.ended_at)

    async def _hold_slot(self, proxied: ProxyRequest, writer: ResponseWriter, now: Micros) -> None:
        """Serve one request while it holds a slot, for which it asks at `now`. Raises AdmissionRejected if it gets none, and
        ApiError if it loses it, or no backend answers.

        No other function of the gateway frees a slot or a place in a queue.
        """
        request, end = proxied.request, _FAILED
        slot = self._admission.submit(request, proxied.token_cost, proxied.task, now)
        if proxied.explanation is not None:
            proxied.explanation.slot = slot
        try:
            while True:
                try:
                    if slot.granted is not None:
                        now = await self._wait_for(slot, proxied, now)
                    if slot.limits is not None:
                        proxied.told_headers = limit_headers(slot.limits)
                    end = await self._attempts.send(proxied, writer, now)
                    return
                except asyncio.CancelledError:
                    if not slot.catch():
                        raise
                proxied.record.num_preemptions += 1
                if proxied.record.trace is not None:
                    proxied.record.trace.note("preempted", self._clock.now())
                # The work has stopped, and the connection to the backend is closed. The preemptor gets the slot now, before
                # anything is sent to the client of the victim, which may be slow to read.
                now = self._clock.now()
                waits_again = self._admission.yield_slot(request.id)
                if not (waits_again and proxied.can_restart):
                    raise error_responses.preempted()
        except asyncio.CancelledError:
            end = ReleaseReason.CLIENT_GONE  # or the server shuts down: not told apart here
            raise
        finally:
            tokens = self._settled_cost(proxied) if self._admission.core.uses_costs else None
            self._admission.release(request.id, end, tokens, proxied.record.ended_at)

    async def _wait_for(self, slot: SlotLease, proxied: ProxyRequest, since: Micros) -> Micros:
        """Return when a request has its slot, with the time. Raises AdmissionRejected if it gets none."""
        try:
            await slot.wait()
        finally:
            now = self._clock.now()
            proxied.record.note_wait(now - since)
            if proxied.record.trace is not None:  # Another process says the reason while the request waits.
                proxied.record.trace.queue_reason = slot.queue_reason or proxied.record.trace.queue_reason
        return now

    def _settled_cost(self, proxied: ProxyRequest) -> int | None:
        """Return the tokens that a request has had in the end, or None if they are not known. An answer that had no limit
        counts for what those without one are expected to have."""
        request, tokens = proxied.request, proxied.record.known_tokens()
        if tokens is not None and request.max_output_tokens is None and proxied.route.has_output:
            output = tokens - (proxied.record.prompt_tokens or request.prompt_tokens)
            self._intake.usual_outputs.note(request.model, output / request.sequences)
        return tokens


def _send_error(proxied: ProxyRequest, writer: ResponseWriter, error: ApiError) -> None:
    proxied.record.on_refused(error.status, error.code)
    told = [*id_headers(proxied.path, proxied.request_id), proxied.record.queue_header]
    if proxied.explanation is not None:
        told.append((DECISION_HEADER, proxied.explanation.in_words(proxied)))
    send_error(writer, error, proxied.path, told)


def _send_error_or_cut(proxied: ProxyRequest, writer: ResponseWriter, error: ApiError) -> None:
    """Send an error if no response has started; otherwise return without an end, and the server cuts the connection."""
    if not proxied.is_committed:
        _send_error(proxied, writer, error)
