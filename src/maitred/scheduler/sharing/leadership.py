"""Leadership: whether the scheduler at this end of the links leads, and until when, as an election has it (`Elector`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from maitred.core.units import Micros
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.link.scheduler_end import SchedulerEnd, SchedulerMode
from maitred.scheduler.sharing.elections.election import Election, ElectionCandidate
from maitred.scheduler.sharing.elections.elector import Elected, Elector
from maitred.scheduler.sharing.mode_times import ModeTimes
from maitred.wire.clock import Clock

_FOREVER: Final[Micros] = 1 << 62
"""The end of the term of a scheduler that no other one stands by for."""


class Leadership(Elected):
    """The terms of one scheduler."""

    def __init__(
        self,
        end: SchedulerEnd,
        only_pools: Callable[[], Mapping[int, str]],
        clock: Clock,
        on_term: Callable[[], object],
        flush_soon: Callable[[], object],
    ) -> None:
        """`only_pools` returns the pool of each backend that has only one. `on_term` is called at the begin of a term, and
        `flush_soon` has written what was said."""
        self._end, self._only_pools, self._clock = end, only_pools, clock
        self._on_term, self._flush_soon = on_term, flush_soon
        self.elector: Elector | None = None
        """What takes part in the election, or None: this scheduler leads as long as it is there."""
        self._mode = SchedulerMode.STANDBY
        self.modes = ModeTimes("standby", clock.now())
        """The time in each mode."""

    @property
    def epoch(self) -> int | None:
        return self._end.epoch if self._end.is_leading(self._clock.now()) else None

    @property
    def highest_epoch(self) -> int:
        return self._end.highest_epoch

    @property
    def named_gateways(self) -> Collection[GatewayId]:
        return {*self._end.books.gateways, *self._end.waiting_gateways, *self._end.settling.unheard}

    @property
    def mode(self) -> str:
        """`standby`, `learning` or `leading`."""
        self._end.is_leading(self._clock.now())
        return self._end.mode.name.lower()

    def note_mode(self, now: Micros) -> None:
        """Count the time in the mode that it is in from now on."""
        self._end.is_leading(now)
        mode = self._end.mode
        if mode is not self._mode:
            self._mode = mode
            self.modes.enter(mode.name.lower(), now)

    def lead_alone(self) -> None:
        """Lead for as long as this process is there, which is the first that does."""
        self.lead(1, _FOREVER, ())

    async def take_part(self, election: Election, candidate: ElectionCandidate) -> None:
        """Take part in an election, from now on."""
        door = self._end.door
        door.is_sole = not election.names_gateways
        if election.names_gateways:
            door.named = set()
        self.elector = Elector(election, candidate, self, self._clock)
        door.on_unnamed = self.elector.hurry
        await self.elector.start()

    async def close(self) -> None:
        """Take part no more, and lead no more."""
        if self.elector is not None:
            await self.elector.close()

    def lead(self, epoch: int, until: Micros, gateways: Collection[GatewayId], alone_from: Micros = 0) -> None:
        if self._end.door.named is not None:
            self._end.door.named = set(gateways)
        self._end.lead(epoch, until, gateways, None, self._only_pools(), self._clock.now(), alone_from)
        self._on_term()
        self._flush_soon()

    def renew(self, until: Micros, gateways: Collection[GatewayId]) -> None:
        self._end.renew(until)
        if self._end.door.named is not None:
            self._end.name_gateways(gateways, self._clock.now())
        self._flush_soon()

    def step_down(self, reason: str) -> None:
        self._end.step_down(reason)
        self._end.advance(self._clock.now())
        self._flush_soon()
