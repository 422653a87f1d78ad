"""HostedScheduler: the scheduler of gateways in other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from maitred.admission import Admission
from maitred.core.units import Micros
from maitred.scheduler.link.scheduler_end import GATEWAY_LEASE
from maitred.scheduler.programs.parts import ProgramParts
from maitred.scheduler.scheduler import LocalScheduler
from maitred.scheduler.sharing.fleet_placer import FleetPlacer
from maitred.scheduler.sharing.host import SchedulerHost
from maitred.scheduler.sharing.hosted_admission import HostedAdmission
from maitred.scheduler.sharing.kept_limits import LimitNews


class HostedScheduler(LocalScheduler):
    """A scheduler that decides for the gateways that connect, and has no requests of its own."""

    admission: HostedAdmission

    def host(self, secret: bytes, lease: Micros = GATEWAY_LEASE) -> SchedulerHost:
        """Build the host for gateways that know the secret and may start requests for `lease` (µs) after a beat. Called once,
        inside the loop that it runs in."""

        def make_placer(host: SchedulerHost, task: asyncio.Task[None]) -> FleetPlacer:
            placed = self._routed, self.router, self._clock, task, host.abandon, host.news.note
            return FleetPlacer(self.fleet, *placed, granted=self._granted)

        host = SchedulerHost(
            secret,
            admission=self.admission,
            fleet=self.fleet,
            watch=self.watch,
            make_placer=make_placer,
            limits=LimitNews(self._slot_learning),
            random=self._random,
            programs=self.programs,
            lease=lease,
            notes=self._decisions,
            objectives=self.objectives,
        )
        if self.program_parts is not None:
            host.on_term = self.program_parts.begin_term
            self.program_parts.follow(lambda: host.leadership.epoch is not None)
        self.fleet.observe(host.news)
        self._discovery.on_other_objectives = host.news.note_objectives
        return host

    def checks(self) -> Mapping[str, Callable[[], None]]:
        return {**super().checks(), "link": self.admission.check_link}

    def _begin_programs(self, parts: ProgramParts) -> None:
        """Do nothing: each term begins when this scheduler leads."""

    def _make_admission(self, core: Admission) -> HostedAdmission:
        return HostedAdmission(core, self._clock, self.fleet.pool_load, self.fleet.pools.pool_of, self.fleet.pools.only_pools)
