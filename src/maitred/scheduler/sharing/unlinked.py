"""Unlinked: what a gateway does while it has no scheduler (`scheduler.degraded`).

    mode      from when on                            its requests
    --------  --------------------------------------  -----------------------------------------------------------------
    linked    the scheduler has welcomed it           are granted slots there
    waiting   the link is lost                        wait, no longer than their class allows
    closed    after `degraded_after_secs`, `closed`   are answered with 503
    share     after `degraded_after_secs`, `share`    get its share of the slots, as it was last told: floor(slots / gateways)
                                                      of each pool, by class and age; those of agent programs that wait for
                                                      memory are answered with 503, because memory is shared out by nobody

Streams go on in any mode. What a gateway has granted by itself it names in its next hello, like all that it holds, so a
scheduler that has just begun to lead knows it before it grants anything. A scheduler that was there all the time may have given
away what a gateway that was cut off takes as its share: that is the price of `share`, and why it is not the default.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from maitred.admission import Refusal, ReleaseReason
from maitred.core.contracts import Router
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND, Micros, from_seconds, to_seconds
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.link.gateway_end import EndState
from maitred.scheduler.link.gateway_request import GatewayRequest, GatewayRequestState
from maitred.scheduler.placements import RoutedPlacement
from maitred.scheduler.sharing.hosted_attempts import HostedRequest
from maitred.scheduler.sharing.link_client import LinkClient
from maitred.scheduler.sharing.mode_times import ModeTimes
from maitred.scheduler.sharing.remote_admission import RemoteAdmission
from maitred.scheduler.sharing.remote_programs import RemotePrograms
from maitred.scheduler.sharing.shares import Shares
from maitred.wire.clock import Clock

log = logging.getLogger("maitred.gateway")
_PERIOD_SECS: Final = 0.02
_AFTER_FAILURE_SECS: Final = 1.0
_RETRY_AFTER: Final[Micros] = 5 * SECOND
NO_SCHEDULER: Final = Refusal("no_scheduler", 503, "this gateway has no scheduler at present", _RETRY_AFTER)
"""What a request is told where nobody decides about it."""
_WAITING: Final = GatewayRequestState.WAITING


class Degrading(msgspec.Struct, frozen=True):
    """What a gateway does that has had no scheduler for a time."""

    mode: Literal["wait", "closed", "share"] = "wait"
    after_secs: float = 10.0


class Unlinked:
    """Acts for one gateway, from `start` to `close`."""

    def __init__(
        self,
        link: LinkClient,
        admission: RemoteAdmission,
        fleet: FleetView,
        router: Router,
        clock: Clock,
        degrading: Degrading,
        programs: RemotePrograms | None = None,
    ) -> None:
        self.modes = ModeTimes("waiting", clock.now())
        """The time in each mode."""
        self._link, self._admission, self._fleet, self._clock = link, admission, fleet, clock
        self._programs = programs
        self._routed = RoutedPlacement(fleet, admission, router)
        self._degrading, self._after = degrading, from_seconds(degrading.after_secs)
        self._shares = Shares()
        self._unlinked_since: Micros = clock.now()
        self._is_unlinked = asyncio.Event()
        self._is_unlinked.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def mode(self) -> str:
        """`linked`, `waiting`, `closed` or `share`."""
        return self.modes.mode

    @property
    def patience_secs(self) -> float:
        """For how long a gateway that is linked to no scheduler lets all requests wait from now on."""
        return max(0.0, to_seconds(self._unlinked_since + self._after - self._clock.now()))

    def start(self) -> None:
        """Act, inside this event loop."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Act no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def take_shares(self, payload: bytes) -> None:
        """Note how much there is, as the scheduler tells."""
        self._shares = msgspec.msgpack.decode(payload, type=Shares)

    @property
    def slots(self) -> Mapping[str, int]:
        """The slots of each pool, as the scheduler has told them last."""
        return self._shares.slots

    def note_link(self) -> None:
        """Note that the link was opened or lost."""
        if self._link.end.state is EndState.OPEN:
            self._is_unlinked.clear()
            self._enter("linked")
        elif self.mode == "linked":
            self._unlinked_since = self._clock.now()
            self._enter("waiting")
            self._is_unlinked.set()

    def _enter(self, mode: str) -> None:
        if mode != self.mode and mode in ("closed", "share"):
            secs = self._degrading.after_secs
            log.error("no scheduler for %g s: this gateway is in mode %s (scheduler.degraded)", secs, mode)
        self.modes.enter(mode, self._clock.now())

    async def _watch(self) -> None:
        while True:
            await self._is_unlinked.wait()
            try:
                self._act(self._clock.now())
            except Exception:  # such as of a router that is a plug-in: without this task, requests would wait for ever
                log.exception("a gateway without a scheduler could not decide about its requests")
                await asyncio.sleep(_AFTER_FAILURE_SECS)
            await asyncio.sleep(_PERIOD_SECS)

    def _act(self, now: Micros) -> None:
        if self.mode == "waiting" and self._degrading.mode != "wait" and now >= self._unlinked_since + self._after:
            self._enter(self._degrading.mode)
        if self.mode in ("closed", "share") and self._programs is not None:
            self._programs.refuse_waiting(NO_SCHEDULER.reason, NO_SCHEDULER)
        waiting = [request for request in self._link.end.requests if request.state is _WAITING]
        if self.mode == "closed":
            for request in waiting:
                self._refuse(request, "no_scheduler", NO_SCHEDULER)
            return
        rules = self._admission.core.config
        for request in waiting:
            wait = rules.class_rules(PriorityClass(request.terms.priority_class)).queue_timeout_secs
            if now >= request.submitted_at + from_seconds(wait):
                self._refuse(request, "queue_timeout", None)
        if self.mode == "share":
            self._grant_share(now)

    def _refuse(self, request: GatewayRequest, reason: str, refusal: Refusal | None) -> None:
        self._link.release(request.number, ReleaseReason.CLIENT_GONE, None)  # A hello may have named it just now.
        self._admission.on_rejected(request.number, reason, _RETRY_AFTER, refusal)

    def _grant_share(self, now: Micros) -> None:
        held: dict[str, int] = {}
        for request in self._link.end.requests:
            if request.state is not _WAITING:
                pool = self._fleet.pools.pool_of(request.terms.model)
                held[pool] = held.get(pool, 0) + request.terms.sequences
        waiting = [request for request in self._link.end.requests if request.state is _WAITING]
        for request in sorted(waiting, key=_urgency):
            pool, sequences = self._fleet.pools.pool_of(request.terms.model), request.terms.sequences
            if held.get(pool, 0) + sequences <= self._shares.slots.get(pool, 0) // self._shares.gateways:
                held[pool] = held.get(pool, 0) + sequences
                self._grant(request, now)

    def _grant(self, request: GatewayRequest, now: Micros) -> None:
        served, asked = self._fleet.find_model(request.terms.model), self._admission.request_of(request.number)
        place = None if served is None or asked is None else self._routed.first(HostedRequest(asked, served), now)
        if place is None:
            self._link.release(request.number, ReleaseReason.FAILED, None)
            self._admission.on_no_backend(request.number)
        elif self._link.end.grant_by_itself(request.number, place[0].index, now):
            self._admission.on_granted(request.number, place[0].index, place[1])


def _urgency(request: GatewayRequest) -> tuple[int, Micros, int]:
    return -request.terms.priority_class, request.submitted_at, request.number
