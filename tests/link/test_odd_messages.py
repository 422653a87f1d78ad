"""What a peer says that knows the secret, and makes no sense: the link is closed with one line, and the others go on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from link_pair import DEFAULT, SECRET, Pair, nonce

from maitred.scheduler.link.authentication import Side
from maitred.scheduler.link.channel import Channel, ChannelLimits
from maitred.scheduler.link.messages import (
    AnyMessage,
    AttemptOutcome,
    EndProgram,
    FirstByte,
    Grant,
    Hello,
    HelloPart,
    Marked,
    Note,
    OutcomeKind,
    Progress,
    Release,
    Submit,
)
from maitred.scheduler.link.terms import LiveMemory, LiveRequest, ProgramTerms, RequestTerms, Standing

TERMS = RequestTerms("m", DEFAULT, "", 1, 1)
HUGE = 2**63 - 1


def odd_terms(**said: object) -> Submit:
    usual = {"model": "m", "priority_class": DEFAULT, "tenant": "", "cost": 1, "prompt_tokens": 1}
    return Submit(5, 1, RequestTerms(**{**usual, **said}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        odd_terms(priority_class=9),
        odd_terms(priority_class=-1),
        odd_terms(cost=-1),
        odd_terms(prompt_tokens=-5),
        odd_terms(sequences=0),
        odd_terms(sequences=HUGE),
        odd_terms(priority=math.inf),
        odd_terms(priority=math.nan),
        odd_terms(slo_target=-1),
        Submit(-4, 1, TERMS),
        Submit(5, HUGE, TERMS),
        FirstByte(-2, 0),
        Marked(-1),
        Release(0, 1, "drained", -7),  # type: ignore[arg-type]
        AttemptOutcome(-3, OutcomeKind.BUSY),
        AttemptOutcome(0, OutcomeKind.REST, rest=-1),
        Progress([0], [-9]),
        EndProgram(-1),
    ],
)
def test_a_number_that_makes_no_sense_closes_the_link_and_nothing_has_changed(message: AnyMessage) -> None:
    p = Pair(2, gateways=("a", "b"))
    p.submit("b", 0)
    p.gateways["a"].report(message)  # type: ignore[arg-type]
    (said,) = p.exchange()

    assert said.startswith("a closed: closed by the peer: a frame that is none of version")
    assert p.held() == {"b": 1}
    assert p.submit("b", 1) == ["b 1 granted 0"]


@pytest.mark.parametrize("message", [odd_terms(program="\x00"), odd_terms(tenant="\n"), Marked(2**60)])
def test_what_is_odd_and_harmless_is_taken(message: AnyMessage) -> None:
    p = Pair(2, gateways=("a",))
    p.gateways["a"].report(message)  # type: ignore[arg-type]
    p.exchange()

    assert p.held() == {"a": int(isinstance(message, Submit))}
    assert p.submit("a", 6) == ["a 6 granted 0"]


def test_a_model_without_a_name_is_refused_and_the_link_stays() -> None:
    p = Pair(2, gateways=("a",))
    p.gateways["a"].report(odd_terms(model=""))  # type: ignore[arg-type]
    p.exchange()

    assert p.held() == {"a": 0}
    assert p.submit("a", 6) == ["a 6 granted 0"]


class Peer:
    """A peer that knows the secret, and says whatever a test wants, at a connection of its own."""

    def __init__(self, p: Pair, connection: int = 99) -> None:
        self._end, self._connection = p.end, connection
        self._channel = Channel(Side.GATEWAY, SECRET, nonce(connection))
        p.end.accept(connection, nonce(connection + 10**6), p.now)
        self.say(p)

    def say(self, p: Pair, *messages: AnyMessage) -> str | None:
        """Say messages, and return why the link was closed, or None if it was not."""
        for message in messages:
            self._channel.say(message)
        while up := self._channel.take_bytes():
            p.end.feed(self._connection, up, p.now)
            down = p.end.take_bytes(self._connection, p.now)
            self._channel.feed(down + b"".join(cut.last_bytes for cut in p.end.connections.take_cuts()))
        p.end.check()
        return self._channel.fault


HELLO = Hello("a", "1", 1, [])
HELD, STREAMING, WAITING = (LiveRequest(7, 1, s, 0, TERMS, 0) for s in (Standing.HELD, Standing.STREAMING, Standing.WAITING))


@pytest.mark.parametrize(
    "parts",
    [[[HELD, HELD]], [[HELD], [HELD]], [[WAITING, WAITING]], [[HELD], [WAITING]], [[WAITING, STREAMING]]],
)
def test_a_hello_that_names_a_request_twice_books_nothing(parts: Sequence[list[LiveRequest]]) -> None:
    p = Pair(1, gateways=("b",))
    told = Peer(p).say(p, *(HelloPart(requests, []) for requests in parts), HELLO)

    assert told == "closed by the peer: Hello makes no sense: it names a request twice"
    assert p.held() == {"b": 0}
    assert p.submit("b", 0) == ["b 0 granted 0"]


def test_a_hello_that_names_a_memory_twice_books_nothing() -> None:
    p = Pair(1, gateways=("b",))
    memory = LiveMemory(3, 0, ProgramTerms("m", "t", "p", "", DEFAULT, 1))
    told = Peer(p).say(p, HelloPart([], [memory]), HelloPart([], [memory]), HELLO)

    assert told == "closed by the peer: Hello makes no sense: it names a memory twice"
    assert p.held() == {"b": 0}


@pytest.mark.parametrize("standing", [Standing.HELD, Standing.STREAMING])
def test_a_hello_with_a_slot_at_no_backend_books_nothing(standing: Standing) -> None:
    p = Pair(1, gateways=("b",))
    told = Peer(p).say(p, HelloPart([LiveRequest(7, 1, standing, 0, TERMS)], []), HELLO)

    assert told == "closed by the peer: Hello makes no sense: a request holds a slot at no backend"
    assert p.submit("b", 0) == ["b 0 granted 0"]


def test_a_hello_with_a_backend_that_there_is_not_is_turned_away() -> None:
    p = Pair(2, gateways=())
    p.end.door.backends = ["http://a:1", "http://b:1"]
    gateway = p.boot("a")
    gateway.submit(0, TERMS, 0)
    gateway.grant_by_itself(0, 2, 0)

    assert p.connect("a") == ["a closed: closed by the peer: Hello makes no sense: a request is at a backend that there is not"]


def test_a_grant_of_a_backend_that_there_is_not_closes_the_link() -> None:
    p = Pair(2)
    p.gateways["a"].backends = ["http://a:1", "http://b:1"]
    p.end.tell(Grant(0, 1, 1, 7))

    assert p.exchange() == ["a closed: Grant makes no sense: there is no backend 7"]


def test_a_note_that_cannot_be_read_closes_the_link() -> None:
    p = Pair(2, gateways=("a", "b"))

    def read(gateway: object, note: Note) -> None:
        raise ValueError("it is torn")

    p.end.on_note = read
    p.gateways["a"].report(Note("page", 1, b"\xff"))

    assert p.exchange() == ["a closed: closed by the peer: Note makes no sense: it is torn"]
    assert p.submit("b", 0) == ["b 0 granted 0"]


def test_a_hello_of_more_than_a_frame_comes_in_parts() -> None:
    """One message of all 2,000 requests would be longer than a frame may be, and the link would be cut for ever."""
    p = Pair(2, gateways=())
    gateway = p.boot("a", limits=ChannelLimits(frame_bytes=1 << 16))
    for number in range(2_000):
        gateway.submit(number, TERMS, 0)

    told = p.connect("a")
    assert told[0] == "a opened 1"
    assert [line for line in told if "granted" in line] == ["a 0 granted 0", "a 1 granted 0"]


def test_parts_of_a_hello_that_breaks_off_are_forgotten() -> None:
    p = Pair(1, gateways=("b",))
    Peer(p, 98).say(p, HelloPart([HELD], []))
    p.end.lost(98, p.now)

    assert Peer(p).say(p, HELLO) is None
    assert p.held() == {"a": 0, "b": 0}
    assert p.submit("b", 0) == ["b 0 granted 0"]


@pytest.mark.parametrize("late", [HelloPart([HELD], []), HELLO])
def test_a_hello_after_the_welcome_is_out_of_place(late: AnyMessage) -> None:
    p = Pair(1, gateways=("b",))
    told = Peer(p).say(p, HelloPart([HELD], []), HELLO, late)

    assert told == f"closed by the peer: {type(late).__name__} is out of place"
    assert p.held() == {"a": 1, "b": 0}
