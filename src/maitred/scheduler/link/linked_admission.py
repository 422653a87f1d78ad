"""LinkedAdmission: admission for the requests of many gateways, each at the other end of a link.

It is to `Admission` what `scheduler.drivers.admission` is in one process: every input of the core passes through it, and every
decision is carried out here, by a message to the gateway of the request. A decision on a request that has ended is dropped.

    Submit               submit                     ─▶ Grant, Queue or Reject
    FirstByte            confirm_first_byte; of a victim: decline, because the first byte has been sent
    Yielded              release as preempted       ─▶ Queue (it is tried again) or Reject
    Declined             decline
    Failed               leave_backend              ─▶ Grant of another place, Queue or Reject; a request of an agent program
                                                       keeps its slot, and its program may move (`Placer.move`)
    Release              release
    Hello                adopt, for what is not known here; what is known and not named has ended

The same message may come twice, and late: the attempt tells.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final

from maitred.admission import EMPTY_LOAD, Action, Admission, LoadProbe, ReleaseReason, TicketState, no_load
from maitred.core.decisions import NOTES_ROOM, Decision, DecisionLog
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros
from maitred.scheduler.link.failure_kinds import FailureKind
from maitred.scheduler.link.gateway_books import BookedGateway, BookedRequest, GatewayBooks
from maitred.scheduler.link.linked_programs import LinkedPrograms
from maitred.scheduler.link.messages import (
    Abandon,
    AnyMessage,
    AttemptOutcome,
    Declined,
    Failed,
    FirstByte,
    Grant,
    Preempt,
    Progress,
    Queue,
    Reject,
    Release,
    Submit,
    Yielded,
)
from maitred.scheduler.link.placer import LinkPlace, NoPlace, Placer
from maitred.scheduler.link.prompt_hashes import ReceivedPrompt
from maitred.scheduler.link.terms import LiveRequest, RequestTerms, Standing

_ADMIT, _QUEUE, _PREEMPT_SLOT, _REJECT = Action.ADMIT, Action.QUEUE, Action.PREEMPT_SLOT, Action.REJECT
_FAILED: Final = ReleaseReason.FAILED
_ADMITTED, _LEFT, _VICTIM = TicketState.ADMITTED, TicketState.LEFT, TicketState.VICTIM
_CLASSES: Final = tuple(PriorityClass)  # To call an enum is slow.
UNKNOWN_MODEL: Final = "unknown_model"
PREEMPTED: Final = "preempted"
_SAME_BACKEND_MAY: Final = (FailureKind.ABANDONED, FailureKind.USAGE_REFUSED, FailureKind.WITHHELD)
"""The failures after which the same backend may have a request again."""
_SAME_PLACE_MAY: Final = (FailureKind.USAGE_REFUSED, FailureKind.WITHHELD)
"""Those after which the memory of its program is still there."""


class LinkedAdmission:
    """The requests of all gateways."""

    def __init__(
        self,
        core: Admission,
        books: GatewayBooks,
        placer: Placer,
        models: Container[str],
        epoch: int,
        say: Callable[[BookedGateway, AnyMessage], None],
        pool_of: Callable[[str], str] = str,
        load_probe: LoadProbe = no_load,
        programs: LinkedPrograms = LinkedPrograms(None),
        notes: DecisionLog | None = None,
    ) -> None:
        """`models` are the pools that the core has slots for. `say` sends a message to a gateway that is connected. `pool_of`
        returns the pool of a model, and `load_probe` the load of its backends. `notes` has what gateways say of classes."""
        self.core = core
        self._books, self._placer, self._models, self._say = books, placer, models, say
        self.epoch = epoch
        """That of all grants."""
        self._pool_of, self._load_probe = pool_of, load_probe
        self._programs, self._notes = programs, notes
        self.expect_model: Callable[[str, Micros], object] | None = None
        """Makes the pool of a model, without slots, of which a gateway has requests, and no backend has told yet."""
        self.handlers: Mapping[type, Callable[[BookedGateway, Any, Micros], None]] = {
            Submit: self.submit,
            FirstByte: self.first_byte,
            Release: self.release,
            Yielded: self.yielded,
            Declined: self.first_byte,
            Failed: self.failed,
            AttemptOutcome: self.outcome,
            Progress: self.progress,
        }
        """What takes a message of each kind that gateways say of their requests."""

    # What gateways say.

    def submit(self, gateway: BookedGateway, message: Submit, now: Micros) -> None:
        """Take a request that asks for a slot for the first time."""
        if message.request <= gateway.last_number:
            return
        gateway.last_number = message.request
        pool = self._pool_of(message.terms.model)
        if pool not in self._models:
            self._say(gateway, Reject(message.request, message.attempt, UNKNOWN_MODEL))
            return
        request = self._book(gateway, message.request, message.attempt, message.terms, pool, now)
        load = self._load_probe(pool, now) if self.core.reads_load else EMPTY_LOAD
        decisions = self.core.submit(request.ticket, now, load)
        if request.ticket.state is _ADMITTED and len(decisions) == 1:  # Nearly always.
            self._grant(request, now)
        else:
            self.apply(decisions, now)

    def first_byte(self, gateway: BookedGateway, message: FirstByte | Declined, now: Micros) -> None:
        """Note that a response has begun."""
        request = self._find(gateway, message)
        if request is None or not request.holds_slot:
            return
        if request.streaming_since is None:
            request.streaming_since = now
            self._placer.first_byte(request, now)
        if request.ticket.state is _VICTIM:
            self.apply(self.core.decline(request.ticket.id, now), now)
        else:
            self.core.confirm_first_byte(request.ticket.id, now)

    def yielded(self, gateway: BookedGateway, message: Yielded | Failed, now: Micros) -> None:
        """Take back the slot of a victim that has stopped."""
        request = self._find(gateway, message)
        if request is None:
            return
        if request.ticket.state is _VICTIM:
            request.attempt += 1
            self._yield(request, now)
        elif request.ticket.state is _ADMITTED:  # A scheduler before this one has preempted it.
            self._ask_anew(request, request.attempt + 1, now)

    def _yield(self, request: BookedRequest, now: Micros) -> None:
        """Take back the slot of a victim of which nothing is at a backend any more."""
        request.tried.clear()  # It waits, and what has failed it may be well again.
        self._leave(request, ReleaseReason.SLOT_PREEMPTED, now)
        decisions = self.core.release(request.ticket.id, ReleaseReason.SLOT_PREEMPTED, now)
        if request.ticket.state is _LEFT:
            self._say(request.gateway, Reject(request.number, request.attempt, PREEMPTED))
            self._books.remove(request)
        self.apply(decisions, now)

    def failed(self, gateway: BookedGateway, message: Failed, now: Micros) -> None:
        """Find another place for a request that its backend has failed."""
        request = self._find(gateway, message)
        if request is None or request.ticket.state is not _ADMITTED:
            self.yielded(gateway, message, now)
            return
        request.attempt += 1
        request.failure = message
        if request.memory is not None:
            self._move(request, now)
            return
        if message.kind not in _SAME_BACKEND_MAY:
            request.tried.append(request.backend)
        self._leave(request, _FAILED, now)
        decisions = self.core.leave_backend(request.ticket.id, now)
        keeps_slot = all(decision.subject != request.ticket.id for decision in decisions)
        if not keeps_slot:
            request.tried.clear()  # It waits for a slot, and what has failed it may be well again.
        self.apply(decisions, now)
        if request.ticket.state is _VICTIM:  # Its gateway has nothing to stop.
            self._yield(request, now)
        elif keeps_slot:
            self._grant(request, now)

    def _move(self, request: BookedRequest, now: Micros) -> None:
        """Let a request of an agent program go where its program moves. It keeps its slot meanwhile."""
        attempt = request.attempt
        if request.failure is not None and request.failure.kind not in _SAME_PLACE_MAY:
            request.tried.append(request.backend)
        self._leave(request, _FAILED, now)

        def go_on(place: Callable[[Micros], LinkPlace | NoPlace], at: Micros) -> None:
            if self._books.by_ticket.get(request.ticket.id) is not request or request.attempt != attempt:
                return
            if request.ticket.state is _VICTIM:  # Its gateway had nothing to stop.
                self._yield(request, at)
            else:
                self._grant_at(request, place(at), at)

        self._placer.move(request, go_on)

    def release(self, gateway: BookedGateway, message: Release, now: Micros) -> None:
        """End a request."""
        request = gateway.requests.get(message.request)
        if request is not None:
            self.end(request, message.end, now, message.tokens)

    # What gateways say that begin again, or do not come back.

    def reconcile(self, gateway: BookedGateway, named: Sequence[LiveRequest], now: Micros) -> list[BookedRequest]:
        """Take what a gateway has at this moment in place of what is known of it. Return the holders that were not known."""
        former, adopted, holders = {**gateway.requests}, list[BookedRequest](), list[BookedRequest]()
        kept: list[tuple[BookedRequest, LiveRequest]] = []
        newcomers = set[int]()
        for live in named:
            known, pool = former.get(live.request), self._pool_of(live.terms.model)
            if pool not in self._models and self.expect_model is not None:
                self.expect_model(pool, now)  # The scheduler before this one knew it: what is held must count.
            if known is not None and live.standing is not Standing.WAITING:
                kept.append((former.pop(live.request), live))
            else:  # It is not known here; or it has not obeyed its grant, and asks once more.
                adopted.append(self._adopt(gateway, live, now))
                holders += adopted[-1:] if live.standing is not Standing.WAITING else []
                if live.is_new and known is None:
                    newcomers.add(adopted[-1].ticket.id)
        # First, or the slots that become free would be granted to others before all that is held is known.
        if adopted:
            self.apply(self.core.adopt([request.ticket for request in adopted], now, newcomers), now)
        for request, live in kept:
            self._restore(request, live, now)
        for request in former.values():
            self.end(request, ReleaseReason.GATEWAY_GONE, now)
        return holders

    def abandon(self, gateway: BookedGateway, now: Micros) -> None:
        """Let the waiting requests of a gateway leave that is gone, and keep the slots of the others: none of these is a
        victim, because nobody would stop it."""
        for request in [*gateway.requests.values()]:
            if not request.holds_slot or request.backend < 0:  # It is at no engine.
                self.end(request, ReleaseReason.GATEWAY_GONE, now)
        for request in [*gateway.requests.values()]:
            self.apply(self.core.set_stranded(request.ticket.id, stranded=True, now=now), now)

    def end(self, request: BookedRequest, end: ReleaseReason, now: Micros, tokens: int | None = None) -> None:
        """Free the slot of a request, or its place in the queue."""
        self._leave(request, end, now)
        if request.memory is not None:
            self._programs.on_slot_freed(request, now)
        self._books.remove(request)
        if decisions := self.core.release(request.ticket.id, end, now, tokens):
            self.apply(decisions, now)

    def outcome(self, gateway: BookedGateway, message: AttemptOutcome, now: Micros) -> None:
        """Note what an attempt says of its backend."""
        self._placer.on_outcome(gateway.requests.get(message.request), message, now)

    def progress(self, gateway: BookedGateway, message: Progress, now: Micros) -> None:
        """Note how far the answers of a gateway have come."""
        for number, pieces in zip(message.requests, message.pieces, strict=False):
            request = gateway.requests.get(number)
            if request is not None and request.holds_slot:
                self._placer.progress(request, pieces, now)

    def abandon_attempt(self, request: BookedRequest) -> None:
        """Have a request stopped at its backend, which is given up, if its response has not begun."""
        self._say(request.gateway, Abandon(request.number, request.attempt))

    def apply(self, decisions: Iterable[Decision], now: Micros) -> None:
        """Carry out decisions of the core."""
        never_started: list[BookedRequest] = []
        for decision in decisions:
            request = self._books.by_ticket.get(decision.subject)
            if request is None:
                continue
            if decision.action is _ADMIT:
                if request.ticket.state is _VICTIM:  # by a later one of these decisions, or of those that followed from them
                    never_started.append(request)
                else:
                    self._grant(request, now)
            elif decision.action is _QUEUE:
                self._say(request.gateway, Queue(request.number, request.attempt, decision.reason))
            elif decision.action is _PREEMPT_SLOT:
                self._say(request.gateway, Preempt(request.number, request.attempt))
            else:  # It is refused; or it has left, which its gateway has said.
                if decision.action is _REJECT:
                    why = (decision.reason, decision.retry_after, self.core.refusal(decision))
                    self._say(request.gateway, Reject(request.number, request.attempt, *why))
                self._books.remove(request)
        for request in never_started:
            if request.ticket.state is _VICTIM:  # Its gateway was told of no slot, and has nothing to stop.
                self._yield(request, now)

    def _grant(self, request: BookedRequest, now: Micros) -> None:
        if request.ticket.state is not _ADMITTED:  # Something later in these decisions has changed that already.
            return
        if request.gateway.connection is None:
            self.end(request, ReleaseReason.GATEWAY_GONE, now)
            return
        if request.backend >= 0:
            self._leave(request, _FAILED, now)
        self._grant_at(request, self._placer.place(request, now), now)

    def _grant_at(self, request: BookedRequest, place: LinkPlace | NoPlace, now: Micros) -> None:
        if isinstance(place, NoPlace):
            self._say(request.gateway, Reject(request.number, request.attempt, place))
            self.end(request, _FAILED, now)
            return
        request.backend, rank = place
        limits = self.core.limits.status(request.ticket.id) if self.core.limits.is_on else None
        self._say(request.gateway, Grant(request.number, request.attempt, self.epoch, request.backend, rank, limits))

    def _leave(self, request: BookedRequest, end: ReleaseReason, now: Micros) -> None:
        """Note that a request is at its backend no more, if it is at one."""
        if request.backend >= 0:
            self._placer.leave(request, end, now)
            request.backend = -1

    def _restore(self, request: BookedRequest, live: LiveRequest, now: Micros) -> None:
        """Go on with a request that holds a slot here and at its gateway, which is back."""
        request.attempt = live.attempt
        if request.backend != live.backend:
            self._leave(request, _FAILED, now)
            request.backend = live.backend
            self._placer.arrive(request, now)
        self.apply(self.core.set_stranded(request.ticket.id, stranded=False, now=now), now)
        if live.standing is Standing.STREAMING:
            self.first_byte(request.gateway, FirstByte(request.number, request.attempt), now)
        elif request.ticket.state is _VICTIM:
            self._say(request.gateway, Preempt(request.number, request.attempt))

    def _adopt(self, gateway: BookedGateway, live: LiveRequest, now: Micros) -> BookedRequest:
        pool = self._pool_of(live.terms.model)
        request = self._book(gateway, live.request, live.attempt, live.terms, pool, now - live.age)
        ticket = request.ticket
        ticket.submitted_at = now - live.age
        if live.standing is not Standing.WAITING:
            ticket.state = TicketState.STREAMING if live.standing is Standing.STREAMING else _ADMITTED
            ticket.admitted_at = now - live.held
        else:
            ticket.state = TicketState.QUEUED
        if live.standing is not Standing.WAITING:
            request.backend = live.backend
            self._placer.arrive(request, now)
        request.streaming_since = now if live.standing is Standing.STREAMING else None
        return request

    def _ask_anew(self, request: BookedRequest, attempt: int, now: Micros) -> None:
        """Let a request give up its slot and wait by its age."""
        waiting = LiveRequest(request.number, attempt, Standing.WAITING, now - request.ticket.submitted_at, request.terms)
        self.end(request, _FAILED, now)
        adopted = self._adopt(request.gateway, waiting, now)
        self.apply(self.core.adopt([adopted.ticket], now), now)

    def _book(
        self, gateway: BookedGateway, number: int, attempt: int, terms: RequestTerms, pool: str, arrival: Micros
    ) -> BookedRequest:
        """Return a request that is here from now on, with the ticket that it has."""
        request = Request(
            id=self._books.next_ticket(),
            arrival=arrival,
            prompt_tokens=terms.prompt_tokens,
            max_output_tokens=terms.max_output_tokens,
            sequences=terms.sequences,
            client_id=terms.client_id,
            model=terms.model,
            priority_class=_CLASSES[terms.priority_class],
            tenant=terms.tenant,
            stream=terms.stream,
            priority=terms.priority,
            routing_key=terms.routing_key,
            program=terms.program,
            cache_namespace=terms.cache_namespace,
            slo_class=terms.slo_class,
            slo_target=terms.slo_target,
            instances=terms.instances,
            prefix=None if terms.prompt is None else ReceivedPrompt(terms.prompt),
        )
        ticket = self.core.make_ticket(request, terms.cost, pool)
        booked = BookedRequest(gateway, number, attempt, terms, request, ticket)
        self._books.add(booked)
        if self._notes is not None and (said := terms.class_note) is not None:
            note = {"id": request.id, "asked": _CLASSES[said.asked].label}
            self._notes.log_note(NOTES_ROOM, {**note, "rule": said.rule} if said.rule else note)
        return booked

    def _find(self, gateway: BookedGateway, message: FirstByte | Declined | Yielded | Failed) -> BookedRequest | None:
        """Return the request that a message is on, or None if the message is late."""
        request = gateway.requests.get(message.request)
        return request if request is not None and request.attempt == message.attempt else None
