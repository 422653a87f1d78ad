"""ParentGateway: what the workers of a gateway have in common: the scheduler, the pages that show the whole, the configuration.

It serves no port. Before a page is made, each worker is asked what it has counted (`shares`), so a page is never older than the
request for it; pages that are asked for while that goes on share the next time, so that who asks for many does not hold up the
scheduler. A worker that does not answer within a second is there with what it has told last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.steps import Steps
from maitred.gateway.access.page_access import Viewer
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.app import FIRST_POLLS_SECS, Gateway
from maitred.gateway.observe.logs import LogOutput
from maitred.gateway.observe.record_file import RecordFile
from maitred.gateway.observe.state import BackendState, TenantRequests
from maitred.gateway.observe.state_snapshots import Snapshot, StateSnapshots
from maitred.gateway.workers.notes import AdmissionRules, NoteKind, PageAnswer, PageQuestion
from maitred.gateway.workers.recorded import RecordOfWorkers
from maitred.gateway.workers.shares import Gauges, LastShares, Share, Totals
from maitred.scheduler.interface import GatewayId, HostedScheduler, LinkNote, SchedulerHost
from maitred.wire.exchange import ApiError, Exchange, body_too_large, send_error
from maitred.wire.messages import Headers
from maitred.wire.refusals import internal_error
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
_COUNTS_SECS: Final = 1.0
"""How long a page waits for what a worker has counted."""
_RELOAD_SECS: Final = 5.0
"""How long a reload waits for workers to use what was read."""
_MOST_PAGE_BYTES: Final = 15 << 20
"""The largest page that the link takes: it is one frame there."""


class AskedExchange:
    """A request for a page that a worker has passed on, and what takes its answer."""

    def __init__(self, question: PageQuestion) -> None:
        self.method, self.path = question.method, question.path
        self._body, self._accept = question.body, question.accept
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.answer = b""

    def get_list(self, name: bytes) -> bytes | None:
        """Return the `Accept` header: what the others say was looked at by the worker."""
        return self._accept if name == b"accept" else None

    async def read_body(self, limit: int) -> bytes:
        """Return the body. Raises ApiError if it is larger than `limit`."""
        if len(self._body) > limit:
            raise body_too_large(limit)
        return self._body

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> None:
        """Take the head and the first piece of the answer."""
        self.status, self.headers, self.answer = status, [*headers], piece

    def send_piece(self, piece: bytes, more: bool) -> None:
        """Take a further piece of the answer."""
        self.answer += piece


class SharedSnapshots(StateSnapshots):
    """Snapshots of all workers together."""

    totals: Totals
    is_about_to_end = False
    """Whether all workers were told to end."""
    gauges: Sequence[Gauges] = ()
    """What each of them has."""

    @property
    def is_draining(self) -> bool:
        return self.is_about_to_end

    def take(self) -> Steps[Snapshot]:
        snapshot = yield from super().take()
        state, gauges = snapshot.state, self.gauges
        state.num_connections = sum(each.connections for each in gauges)
        state.is_out_of_descriptors = any(each.is_out_of_descriptors for each in gauges)
        state.num_evicted_connections = self.totals.evicted_connections
        state.dropped_lines["log"] += self.totals.dropped_log_lines
        for each in gauges:
            for label, (in_flight, waiting) in each.tenants.items():
                tenant = state.tenants.setdefault(label, TenantRequests())
                tenant.in_flight += in_flight
                tenant.waiting += waiting
        return snapshot

    def backends(self) -> Steps[list[BackendState]]:
        states = yield from super().backends()
        for index, state in enumerate(states):
            state.connections += sum(_at(each.upstream_connections, index) for each in self.gauges)
            state.in_flight += sum(each.in_flight.get(state.url, 0) for each in self.gauges)
        return states


class ParentGateway(Gateway):
    """A gateway whose scheduler is a `HostedScheduler`, and which has no port."""

    snapshots_class = SharedSnapshots
    scheduler: HostedScheduler

    def __init__(self, *args: Any, write_settings: Callable[[GatewaySettings], object], **named: Any) -> None:
        """As `Gateway`. `write_settings` writes settings to where workers read them."""
        super().__init__(*args, **{"make_scheduler": HostedScheduler, **named})
        self.host: SchedulerHost | None = None
        """What takes the links of workers, once it is open."""
        self.follow_scheduler()
        self.on_worker_ready: Callable[[str], object] = _ignore
        """Called with the name of each worker that serves."""
        self._write_settings = write_settings
        self._reloader.on_reloaded = self._on_reloaded
        self._totals = Totals(self.counters, self.request_metrics, self._loop_lag.lags)
        self._shares = LastShares(self._totals)
        assert isinstance(self._snapshots, SharedSnapshots)
        self._shared = self._snapshots
        self._shared.totals = self._totals
        self._dashboard.refresh = self._shares.add_up
        file = self._outputs.record_sink
        self._record = RecordOfWorkers(file, self._tell_worker) if isinstance(file, RecordFile) else None
        self._answered: dict[GatewayId, int] = {}
        """The last question for counts that each process has answered."""
        self._last_question = 0
        self._followed: dict[GatewayId, int] = {}
        """The last reload that each worker has followed."""
        self._last_reload = 0
        self._serving: set[GatewayId] = set()
        """The workers that accept connections."""
        self._has_answer = asyncio.Event()
        self._gathering = asyncio.Lock()
        self._next_gathering: asyncio.Task[None] | None = None
        """What will ask all workers, and has not begun to."""
        self._pages: set[asyncio.Task[None]] = set()
        """What makes pages: a loop keeps no task alive."""

    def follow_scheduler(self) -> None:
        """Have workers told what the scheduler of this process decides."""
        self.scheduler.admission.on_rules = self._tell_rules

    def make_host(self, secret: bytes) -> SchedulerHost:
        """Build the host for the links of workers that know the secret."""
        return self.scheduler.host(secret)

    def note_death(self, name: str) -> None:
        """Note that the process of a worker has ended: it starts nothing any more."""
        if self.host is not None:
            self.host.note_death(name)

    async def open(self, path: str, secret: bytes) -> None:
        """Begin to schedule for the workers that connect to the Unix socket `path`. Raises ConfigError if there can be none."""
        self._idle_checks.start()
        self._outputs.start()
        self._dashboard.start()
        if self.shadow is not None:
            self.shadow.start()
        if self._program_pages is not None:
            self._program_pages.start()
        self.host = host = self.make_host(secret)
        host.on_note, host.on_welcome, host.on_lost = self._on_note, self._on_welcome, self._tell_serving
        try:
            await host.start(path)
            host.leadership.lead_alone()
        except OSError as error:
            problem = f"the socket {path} for the workers cannot be made: {describe_os_error(error)}"
            raise ConfigError(
                problem, where="--workers", hint="TMPDIR says where it is; its path has about 100 characters"
            ) from error
        self.scheduler.start()
        await self.scheduler.wait_until_polled(FIRST_POLLS_SECS)

    async def close(self) -> None:
        """Release everything, after the last worker has ended."""
        await self._reloader.close()
        self._idle_checks.stop()
        if self.host is not None:
            await self._hear_the_last()
        await self._dashboard.close()
        if self.shadow is not None:
            await self.shadow.close()
        await self.close_host()
        await self.scheduler.close()
        if self._program_pages is not None:
            await self._program_pages.close()
        await self._client.close()
        if self._span_export is not None:
            await self._span_export.close()
        await self._outputs.close()

    async def close_host(self) -> None:
        """Schedule for nobody any more, and make no page."""
        if self.host is not None:
            await self.host.close()
        await end_tasks(*self._pages)

    async def _hear_the_last(self) -> None:
        """Wait until all is read that workers have said before they ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COUNTS_SECS):
                while self.host is not None and self.host.gateway_ids:
                    await asyncio.sleep(0.01)

    @property
    def log_output(self) -> LogOutput:
        """Where the lines of the log go."""
        return self._outputs.log

    # What workers say.

    def _on_note(self, gateway: GatewayId, note: LinkNote) -> None:
        match note.kind:
            case NoteKind.COUNTS:
                self._shares.note(gateway, msgspec.msgpack.decode(note.payload, type=Share))
                self._answered[gateway] = max(note.number, self._answered.get(gateway, 0))
                self._has_answer.set()
            case NoteKind.PAGE:
                question = msgspec.msgpack.decode(note.payload, type=PageQuestion)
                page = asyncio.get_running_loop().create_task(self._answer(gateway, note.number, question))
                self._pages.add(page)
                page.add_done_callback(self._pages.discard)
            case NoteKind.RELOAD:
                self._followed[gateway] = note.number
                self._has_answer.set()
            case NoteKind.READY:
                self.on_boot(gateway[0], note.payload.decode())
                self._serving.add(gateway)
                self._tell_serving()
                self.on_worker_ready(gateway[0])
            case NoteKind.CLOSED:
                self._serving.discard(gateway)
                self._tell_serving()
            case NoteKind.RECORD if self._record is not None and self.host is not None:
                self._record.on_note(gateway, note.number, note.payload, self.host.gateway_ids, self._clock.now())

    def on_boot(self, name: str, boot: str) -> None:
        """Note by which boot the scheduler knows a worker."""

    def tell_rules_to(self, gateway: GatewayId) -> None:
        """Tell a worker the rules that are in force here."""
        self._tell(NoteKind.RULES, 0, self._rules(), gateway)

    def _on_welcome(self, gateway: GatewayId) -> None:
        self.tell_rules_to(gateway)
        if self._last_reload:  # It may have read the settings before, and had no link when it was told of the others.
            self._tell(NoteKind.RELOAD, self._last_reload, b"", gateway)

    def _tell(self, kind: NoteKind, number: int, payload: bytes, gateway: GatewayId | None = None) -> None:
        if self.host is not None:
            self.host.tell(LinkNote(kind, number, payload), gateway)

    def _tell_serving(self) -> None:
        """Tell workers which of them serve, so that these accept connections for the others."""
        self._serving.intersection_update(self._present())
        self._tell(NoteKind.SERVING, 0, msgspec.msgpack.encode(sorted(name for name, _ in self._serving)))

    def _tell_worker(self, note: LinkNote, worker: GatewayId) -> None:
        if self.host is not None:
            self.host.tell(note, worker)

    def _rules(self) -> bytes:
        return msgspec.msgpack.encode(AdmissionRules(self.core.config, self.scheduler.fallback))

    def _tell_rules(self) -> None:
        # Afterwards: what is said of the rules changes with them.
        asyncio.get_running_loop().call_soon(lambda: self._tell(NoteKind.RULES, 0, self._rules()))

    def announce_end(self) -> None:
        """Say on the pages that this gateway is about to end."""
        self._shared.is_about_to_end = True

    async def _on_reloaded(self, settings: GatewaySettings) -> None:
        """Have all workers use `settings`, and return when they do."""
        self._write_settings(settings)
        self._last_reload += 1
        self._tell(NoteKind.RELOAD, self._last_reload, b"")
        if not await self._all_answer(self._followed, self._last_reload, _RELOAD_SECS):
            log.warning("a worker does not use the configuration yet that was reloaded")
        self._followed = {each: self._followed[each] for each in self._present() if each in self._followed}

    def _present(self) -> Sequence[GatewayId]:
        return [] if self.host is None else self.host.gateway_ids

    async def _all_answer(self, answered: Mapping[GatewayId, int], question: int, secs: float) -> bool:
        """Wait until all workers that are connected have answered a question. Return False if `secs` were not enough."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                while any(answered.get(each, 0) < question for each in self._present()):
                    self._has_answer.clear()
                    await self._has_answer.wait()
                return True
        return False

    # Pages.

    async def _answer(self, gateway: GatewayId, number: int, question: PageQuestion) -> None:
        asked = AskedExchange(question)
        viewer = Viewer(question.tenant, question.shown)
        try:
            await self._gather()
            code = await self._endpoints.answer_viewer(cast(Exchange, asked), viewer)
        except Exception:  # as a server answers it
            log.exception("the page %s could not be made", question.path)
            asked, code = AskedExchange(question), "internal_error"
            send_error(cast(Exchange, asked), internal_error("gateway"), question.path)
        if len(asked.answer) > _MOST_PAGE_BYTES:
            too_large = _too_large(len(asked.answer))
            log.error("%s: %s", question.path, too_large)
            asked, code = AskedExchange(question), "page_too_large"
            send_error(cast(Exchange, asked), too_large, question.path)
        answer = PageAnswer(asked.status, asked.headers, asked.answer, code)
        self._tell(NoteKind.PAGE, number, msgspec.msgpack.encode(answer), gateway)

    async def _gather(self) -> None:
        """Ask all workers what they have counted, once for all who want to know it meanwhile, and add it up."""
        if self._next_gathering is None:
            self._next_gathering = asyncio.create_task(self._ask_workers())
            self._pages.add(self._next_gathering)
            self._next_gathering.add_done_callback(self._pages.discard)
        await asyncio.shield(self._next_gathering)

    async def _ask_workers(self) -> None:
        async with self._gathering:
            self._next_gathering = None
            await self._add_up_counts()

    async def _add_up_counts(self) -> None:
        if self.host is None:
            return
        self._last_question += 1
        question = self._last_question
        self._tell(NoteKind.COUNTS, question, b"")
        await self._all_answer(self._answered, question, _COUNTS_SECS)
        present = self._present()
        self._answered = {each: self._answered[each] for each in present if each in self._answered}
        self._shares.add_up()
        self._shared.gauges = self._shares.gauges(present)
        self._budget.taken_bytes = sum(gauges.parked_body_bytes for gauges in self._shared.gauges)


def _at(counts: Sequence[int], index: int) -> int:
    return counts[index] if index < len(counts) else 0


def _too_large(num_bytes: int) -> ApiError:
    message = f"this page has {num_bytes} bytes, and a gateway of several processes shows {_MOST_PAGE_BYTES} at most"
    return ApiError(500, message, kind="server_error", code="page_too_large")


def _ignore(*said: object) -> None:
    """Do nothing."""
