"""Sender: sends the requests of a schedule to an endpoint when they are due, and notes what came of each.

There is one timer, set to the next due request, and no task per request. Requests go out over idle connections, the most recent
first; where there is none, one is made, and its time is part of the latency, as it is for any client. A request on a kept
connection that the server had closed in the meantime is sent once more.

Latencies count from the instant for which a request was *planned*. How much later it was sent is its lateness: the sender's own
fault (a slow machine), or that of `max_concurrency`. A request that the schedule sends as soon as another one has ended
(`SendSchedule.is_closed`) is planned for that instant.

    planned <= sent < first token <= last token <= ended
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from maitred.core.errors import describe_os_error
from maitred.core.garbage import rare_collections
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros, to_seconds
from maitred.emulator.clients.answers import NO_USAGE, Answer, Usage
from maitred.emulator.clients.connection import LoadConnection
from maitred.emulator.clients.destinations import Destination, Destinations
from maitred.emulator.clients.prompts import PromptWriter
from maitred.emulator.clients.schedule import SendSchedule
from maitred.wire.messages import Headers
from maitred.wire.origin import Origin
from maitred.workload import Job

_TICK: Final[Micros] = 1_000
"""The resolution of the loop's timers, in µs. A shorter delay would be none: the sender would look again in every turn of the
loop until the request is due, which costs more than all else that it does."""
_GRAIN: Final[Micros] = _TICK // 2
"""A request that is due within this time is sent at once, so that requests are sent half a tick early or late, and not always
late."""

_COLLECTED_OBJECTS: Final = 50_000
"""New objects after which they are searched for garbage: a few ms, every some thousand requests."""


class SendTarget(msgspec.Struct, frozen=True):
    """Where requests go."""

    origin: Origin
    path: str
    """Path of the endpoint, such as `/v1/completions`."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers of every request."""
    tenant_header: bytes = b"x-smg-tenant-id"
    names_classes: bool = True
    """Whether requests carry their class, tenant and program as headers."""


class SentRequest:
    """What is known of one request. Instants are µs since the start of the run, or None if they never came."""

    __slots__ = ("_deadline", "answer", "ended", "headers", "is_open", "job", "planned", "problem", "sent", "status", "usage")

    def __init__(self, job: Job, answer: Answer, planned: Micros) -> None:
        self.job = job
        self.answer = answer
        self.planned = planned
        """From when its latency counts."""
        self.sent: Micros | None = None
        self.ended: Micros | None = None
        self.status = 0
        """Status of the response; 0 without one."""
        self.headers: Headers = []
        self.usage: Usage = NO_USAGE
        """The usage of a completed request."""
        self.problem = ""
        """Why the response is not whole, or empty."""
        self.is_open = True
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def completed(self) -> bool:
        """Whether the whole answer came."""
        return not self.is_open and self.status == 200 and not self.problem


NO_DESTINATION: Final = "no backend was there"
TIMED_OUT: Final = "its deadline has passed"
STOPPED: Final = "the run was stopped"


class LoadSender:
    """One run. Used inside one event loop."""

    def __init__(
        self,
        endpoint: SendTarget,
        prompts: PromptWriter,
        on_end: Callable[[SentRequest], object],
        on_send: Callable[[SentRequest], object] | None = None,
        destinations: Destinations | None = None,
    ) -> None:
        """`on_send` is called when a request is about to be sent, `on_end` when it has ended, in whatever way. `destinations`:
        the servers to spread requests over, instead of the one of `endpoint`."""
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._prompts = prompts
        self._on_end = on_end
        self._on_send = on_send
        self._destinations = Destinations([endpoint.origin]) if destinations is None else destinations
        self._connections: set[LoadConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._open: dict[int, tuple[SentRequest, LoadConnection | None]] = {}
        self._headers: dict[tuple[PriorityClass, str, str, str, str], Sequence[tuple[bytes, bytes]]] = {}
        self._schedule = SendSchedule(())
        self._timer: asyncio.TimerHandle | None = None
        self._start = time.monotonic_ns()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self.num_sent = 0
        self.ended_at: Micros = 0
        """When the last run ended, in µs since its start."""

    def clock(self) -> Micros:
        """Return the µs since the start of the run."""
        return (time.monotonic_ns() - self._start) // 1000

    def _instants_of(self, nanoseconds: Sequence[int]) -> list[Micros]:
        """Return the µs since the start of the run of these values of `time.monotonic_ns`."""
        start = self._start
        return [(at - start) // 1000 for at in nanoseconds]

    async def run(self, schedule: SendSchedule) -> None:
        """Send the requests of `schedule`, the first at its arrival counted from now, and return when all have ended."""
        self._schedule = schedule
        self._over = self._loop.create_future()
        with rare_collections(_COLLECTED_OBJECTS):
            self._start = time.monotonic_ns()
            self._send_due()
            await self._over
        self.ended_at = self.clock()

    def stop_sending(self) -> None:
        """Send nothing more; what is in flight goes on."""
        self._schedule.stop()
        self._send_soon()

    def stop(self) -> None:
        """Send nothing more, and end what is in flight."""
        self._schedule.stop()
        for sent, connection in list(self._open.values()):
            self._finish(sent, connection, STOPPED)
            if connection is not None:
                connection.close()
        self._send_soon()

    async def close(self) -> None:
        """Close all connections."""
        for task in tuple(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.close()

    def _send_due(self) -> None:
        self._timer = None
        for job in self._schedule.take_due(self.clock() + _GRAIN):
            self._send(job)
        due = self._schedule.next_due()
        if due is not None:
            # A request that is due now is sent at the next turn of the loop, so that answers are read in between.
            early = due - self.clock() - _GRAIN
            self._timer = self._loop.call_later(to_seconds(max(early, _TICK)) if early > 0 else 0.0, self._send_due)
        elif self._schedule.is_over and not self._over.done():
            self._over.set_result(None)

    def _send_soon(self) -> None:
        """Look at the schedule again in the next turn of the loop."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(0.0, self._send_due)

    def _send(self, job: Job) -> None:
        request = job.request
        body = self._prompts.body(job)
        keeps_text = self._prompts.keeps_answer(request.id)
        planned = self.clock() if self._schedule.is_closed else request.arrival
        sent = SentRequest(job, Answer(is_stream=request.stream, keeps_text=keeps_text), planned)
        self.num_sent += 1
        if self._on_send is not None:
            self._on_send(sent)
        if request.deadline is not None:
            delay = to_seconds(request.deadline - self.clock())
            sent._deadline = self._loop.call_later(max(0.0, delay), partial(self._on_deadline, sent))
        self._dispatch(sent, body, keeps_text)

    def _dispatch(self, sent: SentRequest, body: bytes, keeps_text: bool) -> None:
        destination = self._destinations.next()
        if destination is None:
            self._open[sent.job.request.id] = sent, None
            # Later, since the schedule is being read, and the end of a request changes it.
            self._loop.call_soon(self._finish_unsent, sent, NO_DESTINATION)
            return
        connection = destination.take_connection()
        if connection is not None:
            self._send_over(connection, destination, sent, body, keeps_text)
            return
        self._open[sent.job.request.id] = sent, None
        task = self._loop.create_task(self._connect_and_send(destination, sent, body, keeps_text))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect_and_send(self, destination: Destination, sent: SentRequest, body: bytes, keeps_text: bool) -> None:
        origin = destination.origin
        try:
            _, connection = await self._loop.create_connection(
                lambda: LoadConnection(self._instants_of, self._connections.discard),
                origin.host,
                origin.port,
                ssl=destination.tls,
            )
        except OSError as error:
            self._finish_unsent(sent, f"no connection: {describe_os_error(error)}")
            return
        self._connections.add(connection)
        if sent.is_open and connection.is_usable:
            self._send_over(connection, destination, sent, body, keeps_text)
        elif sent.is_open:
            self._finish(sent, None, "no connection: closed as soon as it was made")
        else:
            destination.give_back(connection)

    def _finish_unsent(self, sent: SentRequest, problem: str) -> None:
        if sent.is_open:
            self._finish(sent, None, problem)

    def _send_over(
        self, connection: LoadConnection, destination: Destination, sent: SentRequest, body: bytes, keeps_text: bool
    ) -> None:
        request = sent.job.request
        self._open[request.id] = sent, connection
        sent.sent = self.clock()

        def on_response(problem: str) -> None:
            if not sent.is_open:
                return
            # A server may close a kept connection just as a request is sent over it. Nothing of a response has come then, so
            # sending it again does no harm.
            if problem and not connection.status and connection.num_responses:
                self._dispatch(sent, body, keeps_text)  # The server had closed a kept connection.
                return
            self._finish(sent, connection, problem)
            if connection.is_usable:
                destination.give_back(connection)

        connection.send(
            self._endpoint.path,
            destination.authority,
            self._headers_of(request),
            body,
            sent.answer,
            on_response,
        )

    def _headers_of(self, request: Request) -> Sequence[tuple[bytes, bytes]]:
        key = (request.priority_class, request.tenant, request.program, request.parent_program, request.routing_key)
        found = self._headers.get(key)
        if found is None:
            found = _headers(self._endpoint, request)
            if not request.program:  # There may be millions of programs.
                self._headers[key] = found
        return found

    def _finish(self, sent: SentRequest, connection: LoadConnection | None, problem: str) -> None:
        request, answer = sent.job.request, sent.answer
        sent.ended, sent.is_open, sent.problem = self.clock(), False, problem
        if sent._deadline is not None:
            sent._deadline.cancel()
        if connection is not None:
            connection.count_gathered()
            sent.status, sent.headers = connection.status, connection.headers
        self._open.pop(request.id, None)
        if sent.status == 200 and (answer.error is not None or not problem):
            sent.problem = problem if problem in (TIMED_OUT, STOPPED) else answer.problem
        completed = sent.completed
        if completed:
            sent.usage = answer.usage
            if not answer.is_stream and answer.first is not None:
                sent.ended = answer.first  # All of it came at once.
        prompt, output, _ = sent.usage
        tokens = answer.num_events if output is None else output
        text = answer.text if completed else None
        self._prompts.on_end(sent.job, text, (request.prompt_tokens if prompt is None else prompt) + tokens)
        self._on_end(sent)
        if self._schedule.on_end(request, completed, tokens, sent.ended):
            self._send_soon()

    def _on_deadline(self, sent: SentRequest) -> None:
        if sent.is_open:
            _, connection = self._open[sent.job.request.id]
            self._finish(sent, connection, TIMED_OUT)
            if connection is not None:
                connection.close()


def _headers(endpoint: SendTarget, request: Request) -> Sequence[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json"), *endpoint.headers]
    if endpoint.names_classes:
        headers.append((b"x-smg-priority", request.priority_class.label.encode()))
        named = (
            (endpoint.tenant_header, request.tenant.removeprefix("header:").removeprefix("auth:")),
            (b"x-maitred-program-id", request.program),
            (b"x-maitred-parent-program-id", request.parent_program),
            (b"x-smg-routing-key", request.routing_key),
        )
        headers += [(name, value.encode("utf-8", "replace")) for name, value in named if value]
    return headers
