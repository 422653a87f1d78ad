"""The shadow's core of admission, and what both cores have come to about each request that is here.

After each input the states of the requests that either core has decided on are compared: running (it holds a slot), waiting or
refused. What is different and was not told of this request yet is a disagreement of the kind of the shadow's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from maitred.admission import Action, Admission, AdmissionConfig, ReleaseReason, Ticket, TicketState
from maitred.admission.inputs import (
    EMPTY_LOAD,
    AdmissionInput,
    Adopt,
    AdoptedRequest,
    Advance,
    Decline,
    FirstByte,
    Forget,
    LeaveBackend,
    Look,
    Open,
    Reconfigure,
    Release,
    Resize,
    Strand,
    Submit,
)
from maitred.core.contracts import FleetLoad
from maitred.core.copying import CannotCopyError
from maitred.core.decisions import Decision
from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.shadow.disagreements import Disagreement, ShadowKind


class RequestFate(Enum):
    """What has come of a request."""

    RUNNING = "holds a slot"
    WAITING = "waits"
    REFUSED = "refused"


_KINDS = {RequestFate.RUNNING: ShadowKind.ADMIT, RequestFate.WAITING: ShadowKind.QUEUE, RequestFate.REFUSED: ShadowKind.REFUSE}
_OF_TICKET = {
    TicketState.QUEUED: RequestFate.WAITING,
    TicketState.AWAITING: RequestFate.WAITING,
    TicketState.ADMITTED: RequestFate.RUNNING,
    TicketState.STREAMING: RequestFate.RUNNING,
    TicketState.VICTIM: RequestFate.RUNNING,
}


class _Request:
    """A request that is here, in force and in the shadow."""

    __slots__ = ("is_victim", "real", "ticket", "told")

    def __init__(self, ticket: Ticket, real: RequestFate) -> None:
        self.ticket, self.real = ticket, real
        self.is_victim = ticket.state is TicketState.VICTIM
        """In force."""
        self.told: set[ShadowKind] = set()

    @property
    def shadow(self) -> RequestFate:
        return _OF_TICKET.get(self.ticket.state, RequestFate.REFUSED)


class AdmissionShadow:
    """One core of admission beside another."""

    def __init__(self, config: AdmissionConfig) -> None:
        """Raises ConfigError for a configuration of which no core can be made."""
        self.config = config
        """What the shadow goes by, from its next `Open` or `Reconfigure` on."""
        self._core = Admission(config, {}, self._load)
        self._requests: dict[RequestId, _Request] = {}
        self._looks: dict[str, list[FleetLoad]] = {}
        self._knows_loads, self._forgets = True, ""
        self.num_compared = 0
        """Decisions in force that were compared."""

    @property
    def lacks(self) -> str:
        """What the shadow would read and the core in force does not, so that its decisions mean less; empty: nothing."""
        load = "" if self._knows_loads or not self._core.reads_load else "the load of backends"
        return ", ".join(filter(None, (load, self._forgets)))

    def take(self, given: AdmissionInput, decisions: Sequence[Decision]) -> list[Disagreement]:
        """Tell the shadow an input that the core in force has taken with these decisions."""
        if isinstance(given, Look):
            self._looks.setdefault(given.pool, []).append(given.load)
            return []
        if isinstance(given, Open):
            self._open(given)
            return []
        self.num_compared += len(decisions)
        victims = self._note_real(given, decisions)
        took = list(self._apply(given, decisions))
        took += self._yield_victims(took, given.at)
        self._looks.clear()
        if isinstance(given, Release) and self._has_left(given, decisions):
            self._requests.pop(given.id, None)
        found = list(self._compare(given.at, decisions, took, victims))
        followed: list[Decision] = []
        for decision in decisions:
            request = self._requests.get(decision.subject)
            if request is not None and request.real is RequestFate.REFUSED:
                followed += self._drop(decision.subject, given.at)
        followed += self._yield_victims(followed, given.at)
        found += self._compare(given.at, (), followed, set())
        return found

    def begin_from(self, real: Admission, at: Micros) -> None:
        """Go on from the state of the core in force, after inputs that the shadow was not told of. Where the rules differ,
        those of the shadow hold from now on. Raises what a plug-in raises."""
        self._looks.clear()
        try:
            self._core, self._forgets = real.copy(self._load), ""
        except CannotCopyError as error:
            self._core, self._forgets = real.copy_requests(self._load, at), f"what was counted earlier ({error})"
        tickets = self._core.tickets.values()
        self._requests = {ticket.id: _Request(ticket, _OF_TICKET[ticket.state]) for ticket in tickets}
        if self._core.config != self.config:
            self._yield_victims(self._core.reconfigure(self.config, at), at)

    def _open(self, given: Open) -> None:
        self._core = Admission(self.config, given.pools, self._load, None, given.at)
        self._requests.clear()

    def _load(self, pool: str, now: Micros) -> FleetLoad:
        """Return the load of a pool that the core in force has read within this input, or nothing if it has not."""
        seen = self._looks.get(pool)
        if seen:
            return seen.pop(0) if len(seen) > 1 else seen[0]
        self._knows_loads = False
        return EMPTY_LOAD

    def _note_real(self, given: AdmissionInput, decisions: Sequence[Decision]) -> set[RequestId]:
        """Take note of what holds in force. Return the requests that it has preempted."""
        match given:
            case Submit():
                self._requests[given.id] = _Request(given.ticket(), RequestFate.WAITING)
            case Decline() if given.id in self._requests:
                self._requests[given.id].is_victim = False
            case Adopt():
                for adopted in given.requests:
                    self._note_adopted(adopted)
            case _:
                pass
        return self._note_decisions(decisions)

    def _note_decisions(self, decisions: Sequence[Decision]) -> set[RequestId]:
        victims = set()
        for decision in decisions:
            request = self._requests.get(decision.subject)
            if request is None:
                continue
            match decision.action:
                case Action.ADMIT:
                    request.real = RequestFate.RUNNING
                case Action.QUEUE:
                    request.real, request.is_victim = RequestFate.WAITING, False
                case Action.REJECT:
                    request.real = RequestFate.REFUSED
                case Action.PREEMPT_SLOT:
                    request.is_victim = True
                    victims.add(decision.subject)
                case _:
                    pass
        return victims

    def _note_adopted(self, adopted: AdoptedRequest) -> None:
        ticket = adopted.submit.ticket()
        ticket.state, ticket.submitted_at = TicketState[adopted.state.upper()], adopted.submit.at
        ticket.admitted_at = adopted.admitted_at
        self._requests[adopted.submit.id] = _Request(ticket, _OF_TICKET[ticket.state])

    def _apply(self, given: AdmissionInput, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Tell the shadow's core what it can be told, and return its decisions."""
        core, at = self._core, given.at
        match given:
            case Submit():
                return core.submit(self._requests[given.id].ticket, at, given.load)
            case Release():
                return self._release(given, decisions)
            case FirstByte():
                if self._state_of(given.id) in (TicketState.ADMITTED, TicketState.STREAMING):
                    core.confirm_first_byte(given.id, at)
                return ()
            case Decline():
                return core.decline(given.id, at) if self._state_of(given.id) is TicketState.VICTIM else core.advance(at)
            case Adopt():
                return core.adopt([self._requests[each.submit.id].ticket for each in given.requests], at)
            case Forget():
                return core.forget(given.pool, at) if core.is_unused(given.pool) else core.advance(at)
            case Reconfigure():
                return core.reconfigure(self.config, at)
            case Strand() | LeaveBackend() | Resize() | Advance():
                return given.apply_to(core)
        raise AssertionError(given)

    def _release(self, given: Release, decisions: Sequence[Decision]) -> Sequence[Decision]:
        core, is_victim = self._core, self._state_of(given.id) is TicketState.VICTIM
        if given.end is not ReleaseReason.SLOT_PREEMPTED:
            return core.release(given.id, given.end, given.at, given.tokens)
        took = list(core.release(given.id, given.end, given.at)) if is_victim else []
        if self._has_left(given, decisions) and self._state_of(given.id) is not TicketState.LEFT:
            # It has ended in force; the shadow would have kept it.
            took += core.release(given.id, ReleaseReason.CLIENT_GONE, given.at)
        return took or core.advance(given.at)

    def _has_left(self, given: Release, decisions: Iterable[Decision]) -> bool:
        """Return whether a request is not here any more after its release: not so for a victim that waits again."""
        if given.end is not ReleaseReason.SLOT_PREEMPTED:
            return True
        return not any(each.subject == given.id and each.action in (Action.QUEUE, Action.ADMIT) for each in decisions)

    def _state_of(self, request: RequestId) -> TicketState:
        known = self._requests.get(request)
        return TicketState.LEFT if known is None else known.ticket.state

    def _yield_victims(self, took: Sequence[Decision], at: Micros) -> list[Decision]:
        """Let the victims of the shadow alone give up their slots, and those of what follows from that."""
        further: list[Decision] = []
        news = list(took)
        while news:
            decision = news.pop(0)
            request = self._requests.get(decision.subject)
            if decision.action is not Action.PREEMPT_SLOT or request is None:
                continue
            if not request.is_victim and request.ticket.state is TicketState.VICTIM:
                followed = self._core.release(decision.subject, ReleaseReason.SLOT_PREEMPTED, at)
                further += followed
                news += followed
        return further

    def _drop(self, request: RequestId, at: Micros) -> Sequence[Decision]:
        """Take out a request that was refused in force."""
        known = self._requests.pop(request)
        return () if known.shadow is RequestFate.REFUSED else self._core.release(request, ReleaseReason.CLIENT_GONE, at)

    def _compare(
        self, at: Micros, decisions: Sequence[Decision], took: Sequence[Decision], victims: set[RequestId]
    ) -> Iterator[Disagreement]:
        own = {each.subject for each in took if each.action is Action.PREEMPT_SLOT}
        for subject in own ^ victims:
            request = self._requests.get(subject)
            if request is not None:
                yield from self._tell(request, ShadowKind.VICTIM, at, decisions, took)
                request.told.update(_KINDS.values())  # What follows from it is no other disagreement.
        for subject in {each.subject: None for each in (*decisions, *took)}:
            request = self._requests.get(subject)
            if request is not None and request.real is not request.shadow:
                yield from self._tell(request, _KINDS[request.shadow], at, decisions, took)

    def _tell(
        self, request: _Request, kind: ShadowKind, at: Micros, decisions: Iterable[Decision], took: Iterable[Decision]
    ) -> Iterator[Disagreement]:
        if kind in request.told:
            return
        request.told.add(kind)
        ticket = request.ticket
        real, shadow = _said(ticket.id, decisions, request.real), _said(ticket.id, took, request.shadow)
        yield Disagreement(kind, at, ticket.id, ticket.client_id, ticket.tenant, ticket.pool, real, shadow)


def _said(request: RequestId, decisions: Iterable[Decision], state: RequestFate) -> str:
    """Describe the state of a request, with the rule of the last decision on it."""
    last = next((each for each in reversed([*decisions]) if each.subject == request), None)
    return state.value if last is None else f"{state.value} ({last.action}: {last.reason})"
