"""LinkedGateway: `maitred serve --scheduler`. It serves clients, and asks a scheduler in another process for decisions.

Its pages show this gateway: what it has counted, and how its link is. What changes the whole fleet (`/admin/drain`,
`/admin/backends`) is asked of the scheduler. Each gateway reads its own configuration again; the rules of admission are the
scheduler's.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from maitred.gateway.access.page_access import Viewer
from maitred.gateway.app import Gateway
from maitred.gateway.cluster.cluster_views import GatewayView
from maitred.gateway.cluster.link_setup import reloaded_secret
from maitred.gateway.routes import ROUTES
from maitred.gateway.workers.notes import AdmissionRules, NoteKind
from maitred.gateway.workers.worker import AskedPages, WorkerEndpoints
from maitred.scheduler.interface import LinkNote, RemoteScheduler
from maitred.wire.exchange import Exchange

_DRAIN: Final = "/admin/drain"
_ASKED_PAGES: Final = (_DRAIN, "/admin/undrain", "/admin/backends")
_PROGRAM_PAGES: Final = ("/programs", "/profiles")


def is_of_fleet(path: str) -> bool:
    """Return whether a page is of all gateways, so that their scheduler makes it."""
    return path in _ASKED_PAGES or path.startswith(_PROGRAM_PAGES)


def ends_the_gateway(path: str, body: bytes) -> bool:
    """Return whether a request is for the end of the gateway that it came to, and for no backend."""
    return path == _DRAIN and not body


class LinkedEndpoints(WorkerEndpoints):
    """The pages, of which the scheduler makes those that are of the whole fleet."""

    def is_asked(self, path: str) -> bool:
        return is_of_fleet(path)

    async def ask(self, asked: AskedPages, exchange: Exchange, body: bytes, viewer: Viewer) -> str:
        if ends_the_gateway(exchange.path, body):
            self.drain_itself(exchange)
            return ""
        return await super().ask(asked, exchange, body, viewer)


class AwaitingGateway(Gateway):
    """A gateway that lets requests wait which come before its scheduler has told of the backends, as it does when the scheduler
    is lost later."""

    scheduler: RemoteScheduler

    def __init__(self, *args: Any, **named: Any) -> None:
        """As `Gateway`."""
        super().__init__(*args, **named)
        link = self.scheduler.link
        self.certificates.add_link(link.dialer.tls)
        self.certificates.add_link(reloaded_secret(self.settings().scheduler, link.use_secret))

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        if not self.scheduler.fleet.is_told and exchange.path in ROUTES:
            return self._answer_when_told(exchange)
        return super().__call__(exchange)

    async def _answer_when_told(self, exchange: Exchange) -> None:
        await self.scheduler.wait_until_polled(self.scheduler.unlinked.patience_secs)
        await super().__call__(exchange)


class LinkedGateway(AwaitingGateway):
    """A gateway whose scheduler is a `RemoteScheduler`."""

    endpoints_class = LinkedEndpoints

    def __init__(self, *args: Any, **named: Any) -> None:
        """As `Gateway`."""
        super().__init__(*args, **named)
        self._asked = AskedPages(self.scheduler.link.report)
        assert isinstance(self._endpoints, LinkedEndpoints)
        self._endpoints.asked = self._asked
        if self.programs is not None:
            self._endpoints.ask_for_programs()
        self.scheduler.on_note, self.scheduler.link.on_opened = self._on_note, self._asked.ask_again
        view = GatewayView(self.scheduler, self._clock)
        self._snapshots.cluster = view.state
        self._collector.add(view.families)

    def _on_note(self, note: LinkNote) -> None:
        match note.kind:
            case NoteKind.PAGE:
                self._asked.on_answer(note)
            case NoteKind.RULES:
                rules = msgspec.msgpack.decode(note.payload, type=AdmissionRules)
                self.scheduler.follow(rules.admission, rules.fallback)
