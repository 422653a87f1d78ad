"""Elector: takes part in an election for one scheduler.

    standing by    campaigns four times in a lease, and as soon as that of the leader is over, if it is not renewed
    leading        renews as often; the scheduler's own lease counts from the sending of each renewal that was answered
    not answered   goes on until that lease is over, and then grants nothing (`SchedulerEnd.is_leading`)
    lost           steps down at once, and stands by

A gateway that has not been named in the election yet is named before it is welcomed (`SchedulerEnd.name_gateways`): the leader
after this one waits for the hello of each that is named, and of no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from typing import Final, Protocol

from maitred.core.printing import printable
from maitred.core.units import MILLISECOND, SECOND, Micros, to_seconds
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.sharing.elections.election import Election, ElectionCandidate, ElectionError, Term
from maitred.wire.clock import Clock
from maitred.wire.tasks import end_asking

log = logging.getLogger("maitred.gateway")
_PERIOD: Final[Micros] = SECOND
"""The time between two looks at an election without a lease."""
_MARGIN: Final[Micros] = 5 * MILLISECOND
"""How long after the end of a lease a store certainly has no leader any more, µs: it counts in milliseconds."""
_FOREVER: Final[Micros] = 1 << 62
_DEFECT: Final = "the election could not be asked"


class Elected(Protocol):
    """The scheduler that takes part."""

    @property
    def epoch(self) -> int | None:
        """The epoch under which it leads, or None."""
        ...

    @property
    def highest_epoch(self) -> int:
        """The highest epoch that its gateways have told of."""
        ...

    @property
    def named_gateways(self) -> Collection[GatewayId]:
        """The gateways that may hold slots now, or are to be welcomed."""
        ...

    def lead(self, epoch: int, until: Micros, gateways: Collection[GatewayId], alone_from: Micros = 0) -> None:
        """Begin to lead. Another one may do so too before `alone_from`, µs."""
        ...

    def renew(self, until: Micros, gateways: Collection[GatewayId]) -> None:
        """Lead for longer; these gateways are named in the election."""
        ...

    def step_down(self, reason: str) -> None:
        """Lead no more."""
        ...


class Elector:
    """Takes part, from `start` to `close`."""

    def __init__(self, election: Election, candidate: ElectionCandidate, elected: Elected, clock: Clock) -> None:
        self.candidate = candidate
        """This scheduler."""
        self.problem: str | None = None
        """Why the election cannot be asked, or None."""
        self._told: tuple[str | None, bool] = None, False
        """The problem that the log has, and whether this scheduler led still."""
        self.leader: ElectionCandidate | None = None
        """The scheduler that leads, as was found out last."""
        self._election, self._elected, self._clock = election, elected, clock
        self._term: Term | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = asyncio.Event()
        """Set when the election is to be asked now."""
        self._period = _PERIOD if election.lease is None else election.lease // 4

    async def start(self) -> None:
        """Campaign once, and take part from now on."""
        await self._take_part()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Resign, if this scheduler leads."""
        await end_asking(self._task)
        if self._term is not None:
            self._elected.step_down("this scheduler ends")
            with contextlib.suppress(ElectionError):
                await self._election.resign()
        await self._election.close()

    def hurry(self) -> None:
        """Ask the election at once."""
        self._is_wanted.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(to_seconds(self._next_in())):
                    await self._is_wanted.wait()
            self._is_wanted.clear()
            await self._take_part()

    def _next_in(self) -> Micros:
        """Return when to ask the election next, µs from now."""
        vacant_in = self._election.vacant_in
        if self._term is not None or vacant_in is None:
            return self._period
        return min(self._period, vacant_in + _MARGIN)

    async def _take_part(self) -> None:
        try:
            async with asyncio.timeout(to_seconds(self._election.lease or 10 * SECOND)):
                await (self._campaign() if self._term is None else self._renew())
        except (ElectionError, TimeoutError) as error:
            self._tell(str(error) or f"{self._election.where} does not answer")
        except Exception:  # A store's client has a defect: a scheduler that asks no more would never lead again.
            if self.problem != _DEFECT:
                log.exception(_DEFECT)
            self._tell(_DEFECT)
        else:
            if self.problem is not None:
                log.info("the election answers again")
            self.problem, self._told = None, (None, False)

    async def _campaign(self) -> None:
        sent_at = self._clock.now()
        term = await self._election.campaign(self.candidate, self._elected.highest_epoch)
        if term is None:
            before, self.leader = self.leader, await self._election.leader()
            if self.leader is not None and self.leader != before:
                log.info(
                    "this scheduler stands by: %s at %s leads", printable(self.leader.name), printable(self.leader.address)
                )
            return
        self._term, self.leader = term, self.candidate
        log.info("this scheduler leads: epoch %d", term.epoch)
        alone_from = self._clock.now() + (self._election.lease or 0) if term.is_first else 0
        self._elected.lead(term.epoch, self._until(sent_at), term.gateways, alone_from)

    async def _renew(self) -> None:
        if self._elected.epoch is None:  # Its lease is over, or a gateway has seen a later leader.
            self._term = self.leader = None
            await self._election.resign()
            await self._campaign()
            return
        sent_at, named = self._clock.now(), [*self._elected.named_gateways]
        if await self._election.renew(named):
            self._elected.renew(self._until(sent_at), named)
        else:
            self._term = self.leader = None
            log.warning("another scheduler leads now, or the election has lost its record: this one stands by")
            self._elected.step_down("another scheduler leads")

    def _until(self, sent_at: Micros) -> Micros:
        return _FOREVER if self._election.lease is None else sent_at + self._election.lease

    def _tell(self, problem: str) -> None:
        leads = self._term is not None
        if (problem, leads) != self._told:
            log.warning("%s: this scheduler %s", problem, "is the leader until its lease is over" if leads else "stands by")
        self.problem, self._told = problem, (problem, leads)
