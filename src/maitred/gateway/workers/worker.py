"""WorkerGateway: one of the processes of a gateway. It serves clients, and asks its parent for decisions and pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from maitred.gateway.access.page_access import Shown, Viewer
from maitred.gateway.admin.endpoints import AdminEndpoints, Endpoint
from maitred.gateway.admin.page_bodies import read_page_body
from maitred.gateway.admin.program_endpoints import paths_answered_by
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.app import Gateway
from maitred.gateway.dashboard.pages import DASHBOARD_PATH, EVENTS_PATH, LIVE_PATH
from maitred.gateway.observe.outputs import GatewayOutputs
from maitred.gateway.observe.recording import RecordSink
from maitred.gateway.workers.notes import AdmissionRules, NoteKind, PageAnswer, PageQuestion
from maitred.gateway.workers.recorded import RecordRelay
from maitred.gateway.workers.shares import Gauges, Share, take_share
from maitred.gateway.workers.stand_in import StandIn
from maitred.scheduler.interface import LinkClient, LinkNote, RemoteScheduler
from maitred.wire.clock import Clock
from maitred.wire.exchange import ApiError, Exchange
from maitred.wire.server_context import ServerContext
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
_COUNTS_SECS: Final = 1.0
_ANSWER_SECS: Final = 10.0
"""How long a page may take to be made."""
_OWN_PAGES: Final = ("/liveness", DASHBOARD_PATH, EVENTS_PATH)
"""Pages that say something of this process alone, or that it makes of what its parent tells."""


class AskedPages:
    """Asks the parent for pages."""

    def __init__(self, send: Callable[[LinkNote], object]) -> None:
        self._send = send
        self._answers: dict[int, asyncio.Future[PageAnswer]] = {}
        self._asked: dict[int, LinkNote] = {}
        """The questions that are not answered yet."""
        self._last = 0

    async def ask(self, question: PageQuestion) -> PageAnswer:
        """Return the answer. Raises ApiError if none comes in time."""
        self._last += 1
        number = self._last
        answer: asyncio.Future[PageAnswer] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            note = self._asked[number] = LinkNote(NoteKind.PAGE, number, msgspec.msgpack.encode(question))
            self._send(note)
            async with asyncio.timeout(_ANSWER_SECS):
                return await answer
        except TimeoutError:
            message = "the scheduler of this gateway does not answer"
            raise ApiError(503, message, kind="server_error", code="no_scheduler") from None
        finally:
            del self._answers[number], self._asked[number]

    def ask_again(self) -> None:
        """Ask what is not answered yet: on a link that has broken it was lost, or its answer. What changes something does no
        more when it is asked twice."""
        for note in self._asked.values():
            self._send(note)

    def on_answer(self, note: LinkNote) -> None:
        """Take an answer; one that is waited for no more is dropped."""
        answer = self._answers.get(note.number)
        if answer is not None and not answer.done():
            answer.set_result(msgspec.msgpack.decode(note.payload, type=PageAnswer))


class WorkerEndpoints(AdminEndpoints):
    """The pages, of which the parent makes all that show more than this process."""

    asked: AskedPages

    def ask_for_programs(self) -> None:
        """Have the paths of programs, which another process answers."""
        self.add(*paths_answered_by(_answered_elsewhere))

    def is_asked(self, path: str) -> bool:
        """Return whether the scheduler makes the page at `path`."""
        return path not in _OWN_PAGES

    async def answer_as(self, exchange: Exchange, endpoint: Endpoint, viewer: Viewer) -> str:
        if not self.is_asked(exchange.path):
            return await super().answer_as(exchange, endpoint, viewer)
        body = await read_page_body(exchange) if exchange.method in ("POST", "DELETE") else b""
        return await self.ask(self.asked, exchange, body, viewer)

    async def ask(self, asked: AskedPages, exchange: Exchange, body: bytes, viewer: Viewer) -> str:
        """Answer with the page that another process makes, and return the code of its error, or ""."""
        question = PageQuestion(exchange.method, exchange.path, body, viewer.tenant, viewer.shown, exchange.get_list(b"accept"))
        answer = await asked.ask(question)
        exchange.start_response(answer.status, answer.headers, answer.body, False)
        return answer.code


class WorkerOutputs(GatewayOutputs):
    """The files of a worker: a recording is written by its parent."""

    def open_record(self, path: str, clock: Clock, file_mode: int) -> RecordSink:
        return RecordRelay()


class WorkerGateway(Gateway):
    """A gateway whose scheduler is a `RemoteScheduler`."""

    endpoints_class = WorkerEndpoints
    outputs_class = WorkerOutputs
    scheduler: RemoteScheduler

    def __init__(self, *args: Any, read_settings: Callable[[], GatewaySettings], **named: Any) -> None:
        """As `Gateway`. `read_settings` reads the settings that the parent has written."""
        super().__init__(*args, **named)
        self.parent_link = self.make_parent_link()
        """The link to the parent."""
        self._read_settings = read_settings
        self.stand_in = StandIn({})
        """What accepts the connections of other workers."""
        self.on_started: Callable[[ServerContext], object] = lambda server: None
        """Called with what serves."""
        self._asked = AskedPages(self.parent_link.report)
        assert isinstance(self._endpoints, WorkerEndpoints)
        self._endpoints.asked = self._asked
        self._dashboard.feed.look = self._look
        if self.programs is not None:
            self._endpoints.ask_for_programs()
        self.scheduler.on_note, self.parent_link.on_opened = self._on_note, self._on_opened
        sink = self._outputs.record_sink
        self._relay = sink if isinstance(sink, RecordRelay) else None
        if self._relay is not None:
            self._relay.send = self.parent_link.report
        self._is_ready = False
        self._tasks: set[asyncio.Task[None]] = set()
        """What tells the counts, and what follows reloads: a loop keeps no task alive."""

    def make_parent_link(self) -> LinkClient:
        """Return the link to the parent, which schedules."""
        return self.scheduler.link

    async def start(self, server: ServerContext) -> None:
        await super().start(server)
        self.stand_in.start(server, self._say_closed)
        self.on_started(server)
        self._begin(self._tell_counts())

    async def stop(self) -> None:
        await end_tasks(*self._tasks)
        self._tell(0)
        await super().stop()

    def say_ready(self) -> None:
        """Tell the parent that connections are accepted, now or as soon as there is a link."""
        self._is_ready = True
        self.parent_link.report(LinkNote(NoteKind.READY, 0, self.scheduler.link.end.boot.encode()))

    def _say_closed(self) -> None:
        """Tell the parent that no more connections are accepted; without a link it knows."""
        self._is_ready = False
        self.parent_link.report(LinkNote(NoteKind.CLOSED, 0, b""))

    def _on_opened(self) -> None:
        self._asked.ask_again()
        if self._relay is not None:
            self._relay.send_again()
        if self._is_ready:
            self.say_ready()

    def _on_note(self, note: LinkNote) -> None:
        match note.kind:
            case NoteKind.PAGE:
                self._asked.on_answer(note)
            case NoteKind.COUNTS:
                self._tell(note.number)
            case NoteKind.RECORD if self._relay is not None:
                self._relay.on_taken(note.number)
            case NoteKind.SERVING if self._is_ready:  # It is told again when it serves.
                self.stand_in.follow(msgspec.msgpack.decode(note.payload, type=list[str]))
            case NoteKind.RULES:
                rules = msgspec.msgpack.decode(note.payload, type=AdmissionRules)
                self.scheduler.follow(rules.admission, rules.fallback)
            case NoteKind.RELOAD:
                self._begin(self._take_settings(note.number))

    async def _look(self) -> bytes:
        """Return the data of the dashboard, as the parent sees it. Raises ApiError."""
        answer = await self._asked.ask(PageQuestion("GET", LIVE_PATH, b"", "", Shown.ALL))
        if answer.status != 200:
            raise ApiError(
                answer.status, "the scheduler cannot say what there is to show", kind="server_error", code=answer.code
            )
        return answer.body

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside requests, until this worker ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_settings(self, number: int) -> None:
        """Use what the parent has read and found to be right."""
        try:
            await self._reloader.follow(self._read_settings)
        except Exception:  # such as a certificate that has gone since
            log.exception("this worker goes on with the configuration that it has")
        self.parent_link.report(LinkNote(NoteKind.RELOAD, number, b""))

    async def _tell_counts(self) -> None:
        while True:
            await asyncio.sleep(_COUNTS_SECS)
            self._tell(0)

    def _tell(self, number: int) -> None:
        recorder = self._outputs.recorder
        if self._relay is not None and recorder is not None:
            self._relay.tell_oldest(recorder.oldest(self._clock.now()))
        self.parent_link.report(LinkNote(NoteKind.COUNTS, number, msgspec.msgpack.encode(self.share())))

    def share(self) -> Share:
        """Return the counters of this worker."""
        server = self._snapshots.server
        return take_share(
            self.counters,
            self.request_metrics,
            self._loop_lag.lags,
            0 if server is None else server.num_evicted,
            self._outputs.log.num_dropped,
            self.gauges(),
        )

    def gauges(self) -> Gauges:
        """Return the gauges of this worker."""
        server, backends = self._snapshots.server, self.scheduler.fleet.backends
        return Gauges(
            connections=0 if server is None else len(server.connections),
            parked_body_bytes=self._budget.parked_bytes,
            is_out_of_descriptors=self._descriptors.is_exhausted,
            upstream_connections=[self._client.num_connections(backend.origin) for backend in backends],
        )


async def _answered_elsewhere(exchange: Exchange, viewer: Viewer) -> None:
    """Do nothing: see `WorkerEndpoints.answer_as`."""
    raise AssertionError(f"{exchange.path} is a page of another process")
