"""`maitred serve --workers N --scheduler ADDRESS`: processes of one gateway, each of them a gateway of a scheduler elsewhere.

A worker has two links: one to the scheduler, which decides, and one to its parent, which makes the pages and writes the files
of the whole (`gateway.workers`). The parent decides nothing. It has a link to the scheduler of its own, by which it knows the
rules and how the backends are, and tells it which worker has died, whose slots need not be held for its lease then.

                    scheduler
            decisions /  |  \\ rules, deaths
              worker 1   …   parent
                      \\____/  pages, counts, recording, reloads
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from prometheus_client.core import Metric

from maitred.admission import AdmissionConfig
from maitred.core.units import Micros, to_seconds
from maitred.gateway.access.page_access import Viewer
from maitred.gateway.cluster.cluster_views import GatewayView, link_families
from maitred.gateway.cluster.link_setup import link_name, link_secret, make_dialer, reloaded_secret
from maitred.gateway.cluster.linked_gateway import AwaitingGateway, ends_the_gateway, is_of_fleet
from maitred.gateway.observe.state import ClusterState, LinkedGatewayState
from maitred.gateway.workers.notes import AdmissionRules, NoteKind
from maitred.gateway.workers.parent import ParentGateway
from maitred.gateway.workers.process import ParentAccess
from maitred.gateway.workers.shares import Gauges, LinkShare, Share, Totals
from maitred.gateway.workers.worker import AskedPages, WorkerEndpoints, WorkerGateway
from maitred.programs import ProgramsConfig
from maitred.scheduler.interface import (
    Degrading,
    GatewayId,
    HostedScheduler,
    LinkClient,
    LinkNote,
    RemoteScheduler,
    Scheduler,
    SchedulerHost,
    SchedulerParts,
)
from maitred.scheduler.link_config import SchedulerConfig
from maitred.wire.clock import Clock
from maitred.wire.exchange import Exchange
from maitred.wire.machine import Machine
from maitred.wire.server_context import ServerContext

WORKER_PROCESS: Final = "maitred.gateway.cluster.linked_worker"
"""The module that the process of a worker runs."""
_MODES: Final = ("linked", "waiting", "share", "closed")
"""Modes of a link, the worst last."""


def name_at_scheduler(config: SchedulerConfig, worker: str) -> str:
    """Return the name of a worker at the scheduler."""
    return f"{link_name(config)}/{worker}"


def remote_scheduler(config: SchedulerConfig, machine: Machine, name: str) -> Callable[[SchedulerParts], RemoteScheduler]:
    """Return the maker of the link's end for a gateway of this name. Raises ConfigError."""
    dialer, secret = make_dialer(config, machine.random), link_secret(config)
    degrading = Degrading(config.degraded, config.degraded_after_secs)
    return partial(RemoteScheduler, dialer=dialer, name=name, secret=secret, degrading=degrading)


class LinkedWorkerEndpoints(WorkerEndpoints):
    """The pages, of which the scheduler makes those of the whole fleet, and the parent the others."""

    of_fleet: AskedPages

    async def ask(self, asked: AskedPages, exchange: Exchange, body: bytes, viewer: Viewer) -> str:
        if is_of_fleet(exchange.path) and not ends_the_gateway(exchange.path, body):
            asked = self.of_fleet
        return await super().ask(asked, exchange, body, viewer)


class LinkedWorker(AwaitingGateway, WorkerGateway):
    """A worker whose scheduler is not its parent."""

    endpoints_class = LinkedWorkerEndpoints

    def __init__(self, *args: Any, parent: ParentAccess, link: SchedulerConfig, **named: Any) -> None:
        """As `WorkerGateway`. `parent` says what its link to the parent is made of, and `link` where the scheduler is."""
        self._parent, machine = parent, Machine()
        make = remote_scheduler(link, machine, name_at_scheduler(link, parent.name))
        super().__init__(*args, link=link, machine=machine, make_scheduler=make, **named)
        of_fleet = AskedPages(self.scheduler.link.report)
        assert isinstance(self._endpoints, LinkedWorkerEndpoints)
        self._endpoints.of_fleet = self._of_fleet = of_fleet
        self.scheduler.on_note, self.scheduler.link.on_opened = self._on_scheduler_note, of_fleet.ask_again

    def make_parent_link(self) -> LinkClient:
        parent, machine = self._parent, self.machine
        link = LinkClient(parent.dialer(), parent.name, parent.secret, machine.clock, machine.random, self._on_parent_event)
        link.lost_for_good, link.peer = parent.on_lost, "its parent"
        return link

    async def start(self, server: ServerContext) -> None:
        self.parent_link.start()
        await super().start(server)

    async def stop(self) -> None:
        await super().stop()
        await self.parent_link.close()

    def share(self) -> Share:
        end, backends = self.scheduler.link.end, self.scheduler.fleet.backends
        link = LinkShare(end.num_grants, end.num_declined, end.lease.answer_times.share())
        first_data = {backend.url: backend.first_data_times.share() for backend in backends}
        return msgspec.structs.replace(super().share(), link=link, first_data=first_data)

    def gauges(self) -> Gauges:
        gauges, tenants = super().gauges(), dict[str, tuple[int, int]]()
        for lease in self.scheduler.admission.leases:
            label = self.counters.tenant_label(lease.request.tenant)
            in_flight, waiting = tenants.get(label, (0, 0))
            tenants[label] = in_flight + (not lease.is_waiting), waiting + lease.is_waiting
        gauges.tenants = tenants
        gauges.in_flight = {backend.url: len(backend.requests) for backend in self.scheduler.fleet.backends}
        gauges.mode, gauges.problem = self.scheduler.unlinked.mode, self.scheduler.link.problem
        return gauges

    def _on_parent_event(self, event: object) -> None:
        if isinstance(event, LinkNote):
            self._on_note(event)

    def _on_scheduler_note(self, note: LinkNote) -> None:
        match note.kind:
            case NoteKind.PAGE:
                self._of_fleet.on_answer(note)
            case NoteKind.RULES:
                rules = msgspec.msgpack.decode(note.payload, type=AdmissionRules)
                self.scheduler.follow(rules.admission, rules.fallback)


class LinkedParent(ParentGateway):
    """A parent that schedules for nobody."""

    scheduler: RemoteScheduler  # type: ignore[assignment]  # which has no links of its own to take

    def __init__(self, *args: Any, link: SchedulerConfig, machine: Machine, **named: Any) -> None:
        """As `ParentGateway`. `link` says where the scheduler is."""
        self._boots = dict[str, str]()
        """By which boot the scheduler knows each worker."""
        make = remote_scheduler(link, machine, link_name(link))

        def make_both(parts: SchedulerParts) -> Scheduler:
            self._hub = HostedScheduler(_without_decisions(parts))
            return make(parts)

        super().__init__(*args, link=link, machine=machine, make_scheduler=make_both, **named)
        self.certificates.add_link(self.scheduler.link.dialer.tls)
        self.certificates.add_link(reloaded_secret(link, self.scheduler.link.use_secret))
        self._name_of = partial(name_at_scheduler, link)
        self._totals.first_data = lambda: {each.url: each.first_data_times for each in self.scheduler.fleet.backends}
        view = WorkersView(self.scheduler, self._clock, self._totals, self._workers)
        self._snapshots.cluster = view.state
        self._collector.add(view.families)

    def follow_scheduler(self) -> None:
        """Follow the rules of the scheduler elsewhere, of which workers hear themselves."""
        self.scheduler.on_note = self._on_scheduler_note

    def tell_rules_to(self, gateway: GatewayId) -> None:
        """Do nothing: the rules are the scheduler's."""

    def make_host(self, secret: bytes) -> SchedulerHost:
        """Build the host for the links of workers. No request comes over these links."""
        return self._hub.host(secret)

    async def close(self) -> None:
        await super().close()
        await self._hub.close()

    def on_boot(self, name: str, boot: str) -> None:
        self._boots[name] = boot

    def note_death(self, name: str) -> None:
        """Tell the scheduler that a worker has ended: it starts nothing that it was granted, and need not be waited for."""
        super().note_death(name)
        boot = self._boots.pop(name, None)
        if boot is not None:
            died = msgspec.msgpack.encode((self._name_of(name), boot))
            self.scheduler.link.report(LinkNote(NoteKind.DIED, 0, died))

    def _workers(self) -> Iterator[tuple[str, Gauges, Micros]]:
        """Yield each worker that is here with its name, what it has, and when it was heard last."""
        connected = [] if self.host is None else self.host.end.books.connected
        for gateway in sorted(connected, key=lambda one: (len(one.id[0]), one.id[0])):  # 2 before 10
            for gauges in self._shares.gauges([gateway.id]):
                yield gateway.id[0], gauges, gateway.heard_at

    def _on_scheduler_note(self, note: LinkNote) -> None:
        if note.kind == NoteKind.RULES:
            rules = msgspec.msgpack.decode(note.payload, type=AdmissionRules)
            self.scheduler.follow(rules.admission, rules.fallback)


def _without_decisions(parts: SchedulerParts) -> SchedulerParts:
    """Return the parts of a scheduler that is never asked for a decision, and writes nothing."""
    return replace(parts, admission=AdmissionConfig(), programs=ProgramsConfig(), decisions=None, default_state=None)


class WorkersView(GatewayView):
    """Looks at the links of all workers."""

    def __init__(
        self,
        scheduler: RemoteScheduler,
        clock: Clock,
        totals: Totals,
        workers: Callable[[], Iterable[tuple[str, Gauges, Micros]]],
    ) -> None:
        """`workers` returns each worker that is there with its name, what it has, and when it was heard last, µs."""
        super().__init__(scheduler, clock)
        self._totals, self._workers = totals, workers

    def state(self) -> ClusterState:
        """Return how the links are: that of the parent, or of a worker that is worse off; and what each worker has."""
        state, now = super().state(), self._clock.now()
        for name, gauges, heard_at in self._workers():
            if _MODES.index(gauges.mode) > _MODES.index(state.mode):
                state.mode, state.problem = gauges.mode, gauges.problem and f"{name}: {gauges.problem}"
            in_flight = sum(each for each, _ in gauges.tenants.values())
            waiting = sum(each for _, each in gauges.tenants.values())
            ago = round(to_seconds(now - heard_at), 3)
            state.gateways.append(LinkedGatewayState(name, gauges.mode == "linked", in_flight, waiting, ago))
        return state

    def families(self) -> Iterator[Metric]:
        totals = self._totals
        yield from self.mode_families()
        yield from link_families(totals.answer_times, totals.num_grants, totals.num_declined)
