"""RemoteScheduler: the seam of a scheduler, at a gateway whose scheduler is another process.

What a gateway asks of `Scheduler` is answered by the parts of this package that ask over the link. Every gateway and the
scheduler have the same configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from maitred.admission import Admission, AdmissionConfig
from maitred.core.request import RequestId
from maitred.programs import Programs, ProgramsConfig
from maitred.routing import RoutingConfig, Signals, asked_block_sizes, check_policy, open_router, signals_read
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.link import linked_admission
from maitred.scheduler.link.events import Abandoned, Granted, LinkEvent, Opened, Preempted, Queued, Rejected
from maitred.scheduler.link.messages import Fleet, Memory, Note, Progress
from maitred.scheduler.link.placer import NoPlace
from maitred.scheduler.link.terms import KeptLimits
from maitred.scheduler.placements import Placement
from maitred.scheduler.requests import ScheduledRequest
from maitred.scheduler.scheduler import Scheduler, SchedulerParts
from maitred.scheduler.sharing import kept_limits, kept_usage, shares
from maitred.scheduler.sharing.dialer import Dialer
from maitred.scheduler.sharing.fleet_mirror import FleetMirror, ReportedEjection
from maitred.scheduler.sharing.link_client import LinkClient
from maitred.scheduler.sharing.remote_admission import RemoteAdmission
from maitred.scheduler.sharing.remote_placement import RemotePlacement, RemoteProgramPlacement
from maitred.scheduler.sharing.remote_programs import RemotePrograms
from maitred.scheduler.sharing.unlinked import Degrading, Unlinked

_PROGRESS_SECS: Final = 0.1
"""How often the scheduler is told how far streams have come where it learns slots: as often as it looks at them."""
_LONGEST_PROGRESS_SECS: Final = 1.0


class RemoteScheduler(Scheduler):
    """Asks a scheduler in another process. See `Scheduler` for what its parts are."""

    def __init__(
        self,
        parts: SchedulerParts,
        *,
        dialer: Dialer,
        name: str,
        secret: bytes,
        on_parent_lost: Callable[[str], object] | None = None,
        degrading: Degrading | None = None,
    ) -> None:
        """`dialer` connects to the scheduler, and `name` is that of this gateway. `on_parent_lost` is called, with the
        reason, when the scheduler is there no more. `degrading` says what is done without one for long; None: nothing."""
        config, routing, programs, clock = parts.config, parts.routing, parts.programs, parts.clock
        # Requests without a slot are few and short, and each gateway spreads its own.
        self.router = open_router(RoutingConfig(), parts.seed)
        self.signals = signals_read(open_router(routing, parts.seed))
        self.fleet = fleet = FleetView(config, clock)
        self.link = LinkClient(dialer, name, secret, clock, parts.client.machine.random, self._on_event)
        """The link to the scheduler."""
        self.notes = self.link.notes
        self.link.end.has_several = dialer.has_several
        self.link.end.backends = () if fleet.may_change else [backend.url for backend in fleet.backends]
        self.link.lost_for_good = on_parent_lost
        if Signals.PROMPT in self.signals:
            self.link.block_sizes = asked_block_sizes(routing)
        self._remote_programs: RemotePrograms | None = None
        memory_number: Callable[[RequestId], int] | None = None
        if programs.mode != "off":
            self._remote_programs = RemotePrograms(Programs(programs, clock.now()), clock, self.link)
            memory_number = self._remote_programs.memory_number
        core = Admission(parts.admission, {}, now=clock.now())
        self.admission = remote = RemoteAdmission(core, clock, self.link, memory_number)
        self.may_send = remote.may_send
        ejection = ReportedEjection(config.ejection, fleet.backends, clock, self.link.report, remote.number_of)
        fleet.on_removed.append(lambda backend: parts.client.forget(backend.origin))
        self.mirror = FleetMirror(fleet, ejection, clock)
        """What tells the fleet how backends are."""
        self._remote = remote
        self.unlinked = Unlinked(
            *(self.link, remote, fleet, self.router, clock, degrading or Degrading()), programs=self._remote_programs
        )
        """What acts while there is no scheduler."""
        self.link.on_changed = self.unlinked.note_link
        self._routed = RemotePlacement(fleet, remote, self.router)
        self._of_program = RemoteProgramPlacement(fleet, remote)
        self._usage = kept_usage.KeptUsage(clock)
        self.link.end.notes_for_scheduler = self._usage.answers
        self.objectives = self._objectives = dict[str, int]()
        self.on_note: Callable[[Note], object] | None = None
        """Called with the notes of the scheduler."""
        self._fallback: str | None = None
        self._progress_secs = _progress_secs(config)
        self._progress: asyncio.Task[None] | None = None
        self._told_pieces: dict[RequestId, int] = {}

    def placement(self, scheduled: ScheduledRequest) -> Placement:
        return self._routed if scheduled.memory_lease is None else self._of_program

    @property
    def told_slots(self) -> Mapping[str, int]:
        return self.unlinked.slots

    @property
    def programs(self) -> RealTimePrograms | None:
        return self._remote_programs

    def start(self) -> None:
        self.link.start()
        self.unlinked.start()
        self._progress = asyncio.create_task(self._tell_progress())

    async def wait_until_polled(self, secs: float) -> None:
        await self.mirror.wait_until_polled(secs)

    async def close(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
            await asyncio.wait({self._progress})
        await self.unlinked.close()
        await self.link.close()
        self.admission.close()
        if self._remote_programs is not None:
            self._remote_programs.close()

    def checks(self) -> Mapping[str, Callable[[], None]]:
        return {
            "admission": self.admission.core.check,
            "fleet": self.fleet.check,
            "link": self.link.end.check,
            "routing": partial(check_policy, self.router),
        }

    @property
    def fallback(self) -> str | None:
        return self._fallback

    def follow(self, admission: AdmissionConfig, fallback: str | None) -> None:
        """Go by the rules that are in force at the scheduler, and by what that says of them."""
        self._fallback = fallback
        self.admission.reconfigure(admission)

    def reconfigure(self, config: FleetConfig, admission: AdmissionConfig, programs: ProgramsConfig) -> None:
        """Use what programs are shown to wait by. All other rules are those that the scheduler says are in force (`follow`)."""
        if self._remote_programs is not None:
            self._remote_programs.reconfigure(programs)

    def _on_event(self, event: LinkEvent) -> None:
        remote = self._remote
        match event:
            case Granted():
                remote.on_granted(event.request, event.backend, event.rank, event.limits)
            case Queued():
                remote.on_queued(event.request, event.reason)
            case Rejected(reason=NoPlace.NO_BACKEND | linked_admission.UNKNOWN_MODEL):
                remote.on_no_backend(event.request)
            case Rejected(reason=NoPlace.MEMORY_LOST):
                remote.on_memory_lost(event.request)
            case Rejected():
                remote.on_rejected(event.request, event.reason, event.retry_after, event.refusal)
            case Preempted():
                remote.on_preempted(event.request)
            case Memory() if self._remote_programs is not None:
                self._remote_programs.on_memory(event)
            case Abandoned():
                self._abandon(event.request)
            case Note():
                self._take_note(event)
            case Opened():
                self.mirror.on_opened()
            case Fleet():
                self.mirror.take_over(event)
                self.link.end.backends = self.mirror.urls

    def _take_note(self, note: Note) -> None:
        if note.kind == shares.SHARES:
            self.unlinked.take_shares(note.payload)
        elif note.kind == shares.OBJECTIVES:
            told = msgspec.msgpack.decode(note.payload, type=dict[str, int])
            self._objectives.clear()
            self._objectives.update(told)
        elif note.kind == kept_usage.USAGE:
            self._usage.take(note.payload)
        elif note.kind == kept_limits.LIMITS:
            self.link.end.limits = msgspec.msgpack.decode(note.payload, type=KeptLimits)
        elif self.on_note is not None:
            self.on_note(note)

    def _abandon(self, number: int) -> None:
        """Take a request away from its backend, if nothing of its answer has gone to the client."""
        request_id = self._remote.request_id(number)
        for backend in self.fleet.backends:
            for sent in backend.requests:
                if sent.request.id == request_id and not sent.is_committed and sent.may_be_abandoned:
                    sent.cancel()

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(self._progress_secs)
            numbers, pieces = list[int](), list[int]()
            told, self._told_pieces = self._told_pieces, {}
            for sent in (sent for backend in self.fleet.backends for sent in backend.requests if sent.is_committed):
                request_id, record = sent.request.id, sent.record
                count = self._told_pieces[request_id] = 0 if record is None else record.num_events
                if count != told.get(request_id, 1):
                    numbers.append(self._remote.number_of(request_id))
                    pieces.append(count)
            if numbers:
                self.link.report(Progress(numbers, pieces))


def _progress_secs(config: FleetConfig) -> float:
    """Return how often the scheduler is told how far streams have come. A backend of which it hears nothing is silent."""
    if config.learns_slots:
        return _PROGRESS_SECS
    return max(_PROGRESS_SECS, min(_LONGEST_PROGRESS_SECS, config.ejection.silence_secs / 4))
