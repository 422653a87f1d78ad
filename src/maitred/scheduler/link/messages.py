"""The messages of the link, as msgpack arrays: the number of the kind, and then the fields in order.

A peer of another version says another thing by the same number, so a change of a message, or of a part of one (`terms`), is a
change of `VERSION`, which the first message on a connection tells. Times are ages, µs: clocks of two machines have nothing to
do with each other.

A request is named by the number that its gateway gave it, and by its *attempt*: how often it has asked for a place. It asks
when it is submitted, when it has given up its slot or its backend, and once more in each `Hello` in which it waits. Whatever is
said of an earlier attempt comes late, and is ignored.

A number that makes no sense, such as a class that there is not, is told when the message is read, before anything has changed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from maitred.admission import Refusal, ReleaseReason
from maitred.admission.terms.limits import LimitStatus
from maitred.programs import Usage
from maitred.scheduler.link.failure_kinds import FailureKind, OutcomeKind
from maitred.scheduler.link.fields import Age, Count, Number
from maitred.scheduler.link.terms import BackendNews, KeptLimits, LiveMemory, LiveRequest, ProgramTerms, RequestTerms

VERSION: Final = 12


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Something that one end says to the other."""


# Who the peers are.


class Greeting(Message, frozen=True, tag=0):
    """The first message of a gateway."""

    version: int
    nonce: bytes


class Challenge(Message, frozen=True, tag=1):
    """The answer of the scheduler: it knows the secret, and asks the same of the gateway."""

    version: int
    nonce: bytes
    proof: bytes


class Proof(Message, frozen=True, tag=2):
    """The gateway knows the secret, too. Everything else comes after it."""

    proof: bytes


class Farewell(Message, frozen=True, tag=3):
    """Why the sender closes the connection, in words for the log of its peer. The same in every version."""

    reason: str
    is_lasting: bool = False
    """Whether another try comes to the same until a person has changed something."""


# From the gateway.


class Hello(Message, frozen=True, tag=10):
    """A gateway begins, or begins again: all its requests that hold or wait. What it does not name has ended."""

    name: str
    boot: str
    """Drawn at random when the process began: another process of the same name is another gateway."""
    epoch: Count
    """The highest that it has seen."""
    requests: list[LiveRequest]
    memories: list[LiveMemory] = []
    """The memories of all requests of agent programs."""
    backends: list[str] = []
    """The URLs of its backends by number, as its configuration has them, or as a scheduler has told it last."""
    limits: KeptLimits | None = None
    """What a scheduler has told it last of learned limits."""
    notes: list[Note] = []
    """What the scheduler is told before it looks at the requests."""


class HelloPart(Message, frozen=True, tag=33):
    """Requests and memories of the hello that comes after it: one message would be too long for many."""

    requests: list[LiveRequest]
    memories: list[LiveMemory]
    notes: list[Note] = []


class Submit(Message, frozen=True, tag=11):
    """A request asks for a slot."""

    request: Count
    attempt: Count
    terms: RequestTerms


class FirstByte(Message, frozen=True, tag=12):
    """The response of a request has begun: its slot cannot be taken back any more."""

    request: Count
    attempt: Count


class Yielded(Message, frozen=True, tag=13):
    """A preempted request has stopped, and asks again."""

    request: Count
    attempt: Count


class Declined(Message, frozen=True, tag=14):
    """A preemption came after the first byte."""

    request: Count
    attempt: Count


class Failed(Message, frozen=True, tag=15):
    """Its backend has failed a request, which asks for another."""

    request: Count
    attempt: Count
    reason: str
    kind: FailureKind = FailureKind.OTHER


class Release(Message, frozen=True, tag=16):
    """A request has ended."""

    request: Count
    attempt: Count
    end: ReleaseReason
    tokens: Count | None = None


class Beat(Message, frozen=True, tag=17):
    """The gateway lives."""

    number: Count


class Marked(Message, frozen=True, tag=44):
    """The answer to a mark. All that the gateway had to say of what had ended before the mark came was said before this."""

    instant: Age


class AttemptOutcome(Message, frozen=True, tag=18):
    """What an attempt has come to, where that says something of its backend."""

    backend: Count
    kind: OutcomeKind
    request: Number = -1
    """The request, or -1 for one that needed no slot."""
    words: str = ""
    rest: Age = 0
    is_refusal: bool = False
    """Whether the backend has refused a connection: nothing listens there."""


class Progress(Message, frozen=True, tag=19):
    """How many pieces the streams of a gateway have had so far: requests, and as many numbers."""

    requests: list[Number]
    pieces: list[Count]


class BeginProgram(Message, frozen=True, tag=40):
    """A request of an agent program asks for memory."""

    number: Count
    terms: ProgramTerms


class ProgramTokens(Message, frozen=True, tag=41):
    """So many more tokens of the response to a request of an agent program have come."""

    number: Count
    tokens: Count


class EndProgram(Message, frozen=True, tag=42):
    """A request of an agent program has ended, however."""

    number: Count
    usage: Usage | None = None
    """What its backend has reported."""
    is_stream: bool = False
    """Whether its response was a stream."""
    since_first_data: Age | None = None
    """The age of the first data of its response, or None if there was none."""


# From the scheduler.


class Welcome(Message, frozen=True, tag=20):
    """The answer to `Hello`."""

    epoch: Count
    lease: Age
    """For how long after the sending of a beat that was answered the gateway may start requests."""
    is_learning: bool
    is_sole: bool = False
    """Whether the scheduler leads without an election: then there must be no other one."""
    keeps_notes: bool = False
    """Whether the scheduler has a log, for which it wants a `ClassNote` of each request."""


class Grant(Message, frozen=True, tag=21):
    """A request holds a slot, and goes to `backend`."""

    request: Count
    attempt: Count
    epoch: Count
    backend: Count
    rank: Count | None = None
    limits: LimitStatus | None = None
    """The limits of requests and tokens that hold for it, or None if none holds."""


class Queue(Message, frozen=True, tag=22):
    """A request waits."""

    request: Count
    attempt: Count
    reason: str


class Reject(Message, frozen=True, tag=23):
    """A request gets no slot, and has left."""

    request: Count
    attempt: Count
    reason: str
    retry_after: Age | None = None
    refusal: Refusal | None = None
    """Status and words of the admission policy that refuses it, or None if none does."""


class Preempt(Message, frozen=True, tag=24):
    """The slot of a request is wanted by another: stop it, and yield, or decline."""

    request: Count
    attempt: Count


class BeatAnswer(Message, frozen=True, tag=25):
    """The answer to a beat, which prolongs the lease from when that was sent."""

    number: Count
    epoch: Count


class Mark(Message, frozen=True, tag=28):
    """Say `Marked` when what your backends had sent before this has been read."""

    instant: Age
    """On the scheduler's clock; it means nothing to the gateway."""


class Abandon(Message, frozen=True, tag=26):
    """The backend of a request is given up. If its response has not begun, the gateway stops it there and asks again."""

    request: Count
    attempt: Count


class Memory(Message, frozen=True, tag=43):
    """What has become of the memory of a request of an agent program."""

    number: Count
    memory: Count | None
    """Where it is granted, or None: the request waits, or is refused."""
    refusal: str = ""
    """Why it gets none (`ProgramReason`); empty: it waits."""


class Fleet(Message, frozen=True, tag=27):
    """The backends that have changed; all of them for a gateway that has come, in several messages if they are many."""

    backends: list[BackendNews]
    is_anew: bool = False
    """Whether nothing counts that was told before."""
    has_more: bool = False
    """Whether the rest comes in the next message."""


class Note(Message, frozen=True, tag=30):
    """What the owners of both ends have to say to each other; the link hands it on. From either end."""

    kind: str
    number: Count
    """By which an answer is told to a question."""
    payload: bytes


ProgramMessage: TypeAlias = BeginProgram | ProgramTokens | EndProgram
GatewayMessage: TypeAlias = (
    Hello | HelloPart | Submit | FirstByte | Yielded | Declined | Failed | Release | Beat | Marked | AttemptOutcome | Progress
)
SchedulerMessage: TypeAlias = Welcome | Grant | Queue | Reject | Preempt | BeatAnswer | Mark | Abandon | Fleet | Memory
AnyMessage: TypeAlias = Greeting | Challenge | Proof | Farewell | GatewayMessage | ProgramMessage | SchedulerMessage | Note
