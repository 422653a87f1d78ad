"""GatewayEnd: a gateway at its end of the link. What it may do by itself, what it asks, and whom it obeys.

    state     what happens                                   then      does
    --------  ---------------------------------------------  --------  --------------------------------------------
    DOWN      `connect`                                      GREETING  greets
    GREETING  the scheduler has shown who it is              HELLO     says hello, with all requests that are there
    HELLO     Welcome, of the highest epoch seen or a later  OPEN      has a lease, counted from the hello
    OPEN      a BeatAnswer                                   OPEN      has a lease, counted from that beat
    OPEN      Grant, Queue, Reject, Preempt                  OPEN      obeys, if it is of this attempt and epoch
    OPEN      Mark                                           OPEN      answers a little later
    any       the lease is over, or there is none in time    DOWN      starts nothing; `Closed` asks for a new connection
    any       Welcome or Grant of an earlier epoch, a fault  DOWN      likewise
    any       `lost`                                         DOWN

**The lease.** A gateway starts a request only while its lease lasts (`lease`), and the scheduler gives its slots to others only
later. So a gateway that was stopped or cut off for longer than the lease starts nothing that a scheduler may have given to
another, whenever the answer, or a grant, comes in the end. Two durations are compared, and no two clocks.

**First bytes and streams** are the gateway's own: `confirm_first_byte` asks nobody, and a stream goes on without a scheduler.

**Requests** are kept here until they end, also while no scheduler is there. Each `Hello` tells of all of them, so what was said
before and was lost with a connection does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.errors import InvariantError
from maitred.core.units import SECOND, Micros
from maitred.scheduler.link.authentication import Side
from maitred.scheduler.link.channel import Channel, ChannelLimits, ChannelState
from maitred.scheduler.link.events import Abandoned, Closed, Granted, LinkEvent, Opened, Preempted, Queued, Rejected
from maitred.scheduler.link.failure_kinds import FailureKind
from maitred.scheduler.link.gateway_memories import GatewayMemories
from maitred.scheduler.link.gateway_request import GatewayRequest, GatewayRequestState, RequestEvent, hello_parts
from maitred.scheduler.link.lease import Lease
from maitred.scheduler.link.marks import Marks
from maitred.scheduler.link.messages import (
    Abandon,
    AnyMessage,
    AttemptOutcome,
    BeatAnswer,
    Declined,
    EndProgram,
    Failed,
    FirstByte,
    Fleet,
    Grant,
    Hello,
    Mark,
    Memory,
    Note,
    Preempt,
    ProgramTokens,
    Progress,
    Queue,
    Reject,
    Release,
    Submit,
    Welcome,
    Yielded,
)
from maitred.scheduler.link.terms import KeptLimits, ProgramTerms, RequestTerms

_WELCOME_TIMEOUT: Final[Micros] = 3 * SECOND
"""How long a connection may take until the first lease, µs. A beat that is unanswered is bounded by the lease."""


class EndState(IntEnum):
    DOWN = 0
    GREETING = 1
    HELLO = 2
    OPEN = 3


_DOWN, _GREETING, _HELLO, _OPEN = EndState  # members of enums are slow to look up
_CLOSED, _STREAMING = ChannelState.CLOSED, GatewayRequestState.STREAMING
_GRANT, _FIRST_BYTE = RequestEvent.GRANT, RequestEvent.FIRST_BYTE


class GatewayEnd:
    """The end of one gateway, over all its connections. Every input may be given in any state."""

    def __init__(self, name: str, boot: str, secret: bytes, limits: ChannelLimits | None = None) -> None:
        """`boot` is drawn at random when the process begins."""
        self.name, self.boot = name, boot
        self.state = _DOWN
        self.epoch = 0
        """The highest epoch that a scheduler has told."""
        self.lease = Lease()
        self.num_grants = self.num_declined = 0
        """Slots that were granted, and preemptions that came after the first byte."""
        self.has_several = False
        """Whether there are several addresses: then one that leads without an election is not obeyed, as all would lead."""
        self.backends: Sequence[str] = ()
        """The URLs of the backends by number: those of the configuration, which the first scheduler must have in the same
        order, and then what it has told; empty: the scheduler is not asked."""
        self.limits: KeptLimits | None = None
        """What a scheduler has told last of what it has learned, for the one that leads next."""
        self.notes_for_scheduler: Callable[[], Iterable[Note]] = tuple
        """Returns what each scheduler is told with a hello."""
        self.secret, self._limits = secret, limits
        """The secret that each further connection is proven by: another one may be set."""
        self._channel: Channel | None = None
        self._requests: dict[int, GatewayRequest] = {}
        self._memories = GatewayMemories()
        self._connected_at: Micros = 0
        self._marks = Marks()

    @property
    def requests(self) -> Collection[GatewayRequest]:
        """The requests that wait or hold a slot."""
        return self._requests.values()

    # The connection.

    def connect(self, nonce: bytes, now: Micros) -> None:
        """Begin on a new connection, in place of the one before. Raises ValueError for a nonce of a wrong length."""
        self._channel = Channel(Side.GATEWAY, self.secret, nonce, self._limits)
        self.state, self._connected_at = _GREETING, now
        self.lease.end()
        self._marks.clear()

    def lost(self) -> None:
        """Note that the connection is gone."""
        self.give_up("the connection is lost")

    def feed(self, data: bytes, now: Micros) -> Sequence[LinkEvent]:
        """Take bytes of the connection, and return what they mean."""
        # First, whether the lease is over: a process that was stopped finds old grants in its buffer.
        events = [*self.advance(now)]
        channel = self._channel
        if channel is None:
            return events
        messages = channel.feed(data)
        if self.state is _GREETING and channel.is_open:
            self._say_hello(channel, now)
        for message in messages:
            if self._channel is not channel:  # A message before this one has closed it.
                break
            events += self._take(message, now)
        if channel.state is _CLOSED and self._channel is channel:
            events.append(self.give_up(""))
        return events

    def take_bytes(self) -> bytes:
        """Return the bytes to write now. Called once per turn of the loop."""
        return b"" if self._channel is None else self._channel.take_bytes()

    def note_written(self, num_bytes: int) -> None:
        """Note that bytes have left the process."""
        if self._channel is not None:
            self._channel.note_written(num_bytes)

    def advance(self, now: Micros) -> Sequence[LinkEvent]:
        """Do what is due by `now`: beat, or give the connection up."""
        if self.state is _DOWN:
            return ()
        if self._channel is not None and self._channel.state is _CLOSED:
            return [self.give_up("")]
        if self.lease.until is None:
            if now >= self._connected_at + _WELCOME_TIMEOUT:
                return [self.give_up("no scheduler has answered in time")]
            return ()
        if now >= self.lease.until:
            return [self.give_up("the lease is over: no beat was answered in time")]
        if self._marks.next_due is not None:
            for marked in self._marks.take_due(now):
                self._say(marked)
        if now >= self.lease.next_beat_at:
            self._say(self.lease.beat(now))
        return ()

    def next_deadline(self) -> Micros | None:
        """Return when to call `advance` next, or None while time changes nothing."""
        if self.state is _DOWN:
            return None
        until, next_beat_at = self.lease.until, self.lease.next_beat_at
        if until is None:
            return self._connected_at + _WELCOME_TIMEOUT
        return min(until, next_beat_at, self._marks.next_due or next_beat_at)

    def may_start(self, now: Micros) -> bool:
        """Return whether a grant would be obeyed at `now`."""
        until = self.lease.until
        return self.state is _OPEN and until is not None and now < until

    def may_send(self, number: int, now: Micros) -> bool:
        """Return whether a request that was granted a slot may be sent to its backend: the lease has not been over since.

        A process may stand still after it has taken a grant, and wake up when its slot has been reclaimed, and when it has a
        lease again. Then the request must ask again (`leave_backend`). What has been sent before is seen by its engine.
        """
        request = self._requests.get(number)
        if request is None or request.lapse < 0:
            return True
        return request.lapse == self.lease.num_lapses and now < self.lease.send_until

    # Requests.

    def submit(self, number: int, terms: RequestTerms, now: Micros) -> None:
        """Ask for a slot for a request. Numbers grow from one request to the next. Raises ValueError for one that is there."""
        if number in self._requests:
            raise ValueError(f"request {number} is here already")
        self._requests[number] = GatewayRequest(number, terms, now)
        self._say(Submit(number, 1, terms))

    def confirm_first_byte(self, number: int) -> bool:
        """Ask whether the first byte of a response may be sent: True if so, and then the request is never stopped. False if it
        was preempted, holds no slot, or has ended."""
        request = self._requests.get(number)
        if request is None:
            return False
        was_streaming = request.state is _STREAMING
        if not request.take(_FIRST_BYTE):
            return False
        if not was_streaming:
            self._say(FirstByte(number, request.attempt))
        return True

    def yield_slot(self, number: int) -> None:
        """Give up the slot of a preempted request, after its work has stopped. It waits for another, or is rejected."""
        request = self._requests.get(number)
        if request is not None and request.state is GatewayRequestState.VICTIM and request.ask_again():
            self._say(Yielded(number, request.attempt - 1))

    def leave_backend(self, number: int, reason: str, kind: FailureKind = FailureKind.OTHER) -> None:
        """Ask for another place for a request that its backend has failed before its response began."""
        request = self._requests.get(number)
        if request is not None and request.ask_again():
            self._say(Failed(number, request.attempt - 1, reason, kind))

    def begin_program(self, number: int, terms: ProgramTerms, now: Micros) -> None:
        """Ask for memory for a request of a program, under a number that no other has had."""
        self._say(self._memories.begin(number, terms, now))

    def end_program(self, ended: EndProgram) -> None:
        """Give back the memory of a request of an agent program. Idempotent."""
        if self._memories.end(ended.number):
            self._say(ended)

    def report(self, message: AttemptOutcome | Progress | ProgramTokens | Note) -> None:
        """Tell of a backend, how far answers have come, or something else. It is lost without a connection."""
        self._say(message)

    def release(self, number: int, end: ReleaseReason, tokens: int | None = None) -> None:
        """End a request. Idempotent."""
        request = self._requests.pop(number, None)
        if request is not None:
            self._say(Release(number, request.attempt, end, tokens))

    @property
    def is_linked(self) -> bool:
        """Whether a scheduler knows the requests of this gateway, or is about to: they were named in a hello."""
        return self.state in (_HELLO, _OPEN)

    def grant_by_itself(self, number: int, backend: int, now: Micros) -> bool:
        """Give a request that waits a slot without a scheduler, which is told in the next hello. Return False if a scheduler
        may grant it one, or there is no such request."""
        request = self._requests.get(number)
        if self.is_linked or request is None or not request.take(_GRANT):
            return False
        request.backend, request.granted_at, request.lapse = backend, now, -1
        return True

    def check(self) -> None:
        """Raise InvariantError if the states contradict each other. For tests."""
        if (self.state is _DOWN) != (self._channel is None):
            raise InvariantError(f"the end is {self.state.name}, and has {'a' if self._channel else 'no'} connection")
        if (self.state is _OPEN) != (self.lease.until is not None):
            raise InvariantError(f"the end is {self.state.name}, with a lease until {self.lease.until}")
        for number, request in self._requests.items():
            if number != request.number or (request.state is not GatewayRequestState.WAITING and request.backend < 0):
                raise InvariantError(f"request {number} is {request.state.name} at backend {request.backend}")

    # What the scheduler says.

    def _take(self, message: AnyMessage, now: Micros) -> Sequence[LinkEvent]:
        if type(message) is Grant and self.state is _OPEN:
            return self._on_grant(message, now)
        if isinstance(message, Welcome):
            return self._on_welcome(message, now)
        if self.state is not _OPEN:
            return [self.give_up(f"{type(message).__name__} came before a welcome")]
        match message:
            case BeatAnswer():
                self.lease.on_answer(message, now)
            case Mark():
                self._marks.add(message, now)
            case Queue():
                return self._on_queue(message)
            case Reject():
                return self._on_reject(message)
            case Preempt():
                return self._on_preempt(message)
            case Abandon():
                return self._on_abandon(message)
            case Fleet() | Memory() | Note():
                return self._pass_on(message)
            case _:
                return [self.give_up(f"{type(message).__name__} is not for a gateway")]
        return ()

    def _pass_on(self, message: Fleet | Memory | Note) -> Sequence[LinkEvent]:
        """Return the events for the owner of this end that a message of the other end's owner makes."""
        return () if isinstance(message, Memory) and not self._memories.note(message) else [message]

    def _on_welcome(self, welcome: Welcome, now: Micros) -> Sequence[LinkEvent]:
        if welcome.is_sole and self.has_several and self._channel is not None:
            words = "this scheduler leads without an election (scheduler.election), and it is not the only address"
            self._channel.close(words, is_lasting=True)
            return [self.give_up("")]
        if self.state is not _HELLO or self._is_old(welcome.epoch):
            return [self.give_up(f"a welcome of epoch {welcome.epoch}, and {self.epoch} is the highest seen")]
        self.state, self.epoch = _OPEN, welcome.epoch
        self.lease.begin(welcome.lease, now)
        return [Opened(welcome.epoch, welcome.is_learning, welcome.keeps_notes)]

    def _on_grant(self, grant: Grant, now: Micros) -> Sequence[LinkEvent]:
        if self._is_old(grant.epoch):
            return [self.give_up(f"a grant of epoch {grant.epoch}, and {self.epoch} is the highest seen")]
        if self.backends and grant.backend >= len(self.backends):
            return [self.give_up(f"Grant makes no sense: there is no backend {grant.backend}", is_lasting=True)]
        request = self._requests.get(grant.request)
        # If the request has ended, its release is on the way.
        if request is None or request.attempt != grant.attempt or not self.may_start(now) or not request.take(_GRANT):
            return ()
        self.num_grants += 1
        request.backend, request.granted_at, request.lapse = grant.backend, now, self.lease.num_lapses
        return [Granted(grant.request, grant.backend, grant.rank, grant.limits)]

    def _on_queue(self, queue: Queue) -> Sequence[LinkEvent]:
        if not self._is_of_now(queue):
            return ()
        self._requests[queue.request].was_queued = True
        return [Queued(queue.request, queue.reason)]

    def _on_reject(self, reject: Reject) -> Sequence[LinkEvent]:
        if not self._is_of_now(reject) or self._requests[reject.request].state is not GatewayRequestState.WAITING:
            return ()
        del self._requests[reject.request]
        return [Rejected(reject.request, reject.reason, reject.retry_after, reject.refusal)]

    def _on_preempt(self, preempt: Preempt) -> Sequence[LinkEvent]:
        request = self._requests.get(preempt.request)
        if request is None or not self._is_of_now(preempt) or not request.take(RequestEvent.PREEMPT):
            return ()
        if request.state is _STREAMING:
            self.num_declined += 1
            self._say(Declined(request.number, request.attempt))
            return ()
        return [Preempted(request.number)]

    def _on_abandon(self, abandon: Abandon) -> Sequence[LinkEvent]:
        request = self._requests.get(abandon.request)
        is_held = request is not None and request.state is GatewayRequestState.HELD
        return [Abandoned(abandon.request)] if is_held and self._is_of_now(abandon) else ()

    def _is_of_now(self, message: Grant | Queue | Reject | Preempt | Abandon) -> bool:
        """Return whether a message is on a request that is here, and on its latest attempt."""
        request = self._requests.get(message.request)
        return request is not None and request.attempt == message.attempt

    def _is_old(self, epoch: int) -> bool:
        """Return whether a scheduler of a later epoch has been heard."""
        return epoch < self.epoch

    # What is said to the scheduler.

    def _say(self, message: AnyMessage) -> None:
        """Say something if `Hello` has been said, which otherwise will tell it."""
        if self._channel is not None:  # It is not open before that.
            self._channel.say(message)

    def _say_hello(self, channel: Channel, now: Micros) -> None:
        self.state = _HELLO
        self.lease.ask(now)
        requests = [request.introduce(now) for request in self._requests.values()]
        for part in hello_parts(requests, self._memories.introduce(now), self.notes_for_scheduler()):
            channel.say(part)
        channel.say(Hello(self.name, self.boot, self.epoch, [], [], [*self.backends], self.limits))

    def give_up(self, reason: str, *, is_lasting: bool = False) -> Closed:
        """Use the connection no more, because of `reason`, or of what has closed its channel."""
        channel, self._channel = self._channel, None
        self.state = _DOWN
        self.lease.end()
        if channel is None:
            return Closed(reason)
        channel.close(reason, is_lasting=is_lasting)
        return Closed(channel.fault or reason, channel.take_bytes(), channel.is_lasting)
