"""What a peer says that knows the secret, and makes no sense: the link is closed with one line, and the others go on."""

from __future__ import annotations

import math

import pytest
from link_pair import DEFAULT, Pair

from maitred.scheduler.link.channel import ChannelLimits
from maitred.scheduler.link.messages import (
    AnyMessage,
    EndProgram,
    FirstByte,
    Grant,
    Hello,
    HelloPart,
    LiveRequest,
    Marked,
    Note,
    Outcome,
    OutcomeKind,
    Progress,
    Release,
    RequestTerms,
    Standing,
    Submit,
)

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
        odd_terms(slo_target=-1),
        Submit(-4, 1, TERMS),
        Submit(5, HUGE, TERMS),
        FirstByte(-2, 0),
        Marked(-1),
        Release(0, 1, "drained", -7),  # type: ignore[arg-type]
        Outcome(-3, OutcomeKind.BUSY),
        Outcome(0, OutcomeKind.REST, rest=-1),
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


@pytest.mark.parametrize(
    "message", [odd_terms(priority=math.nan), odd_terms(model=""), odd_terms(program="\x00"), Marked(2**60)]
)
def test_what_is_odd_and_harmless_is_taken(message: AnyMessage) -> None:
    p = Pair(2, gateways=("a", "b"))
    p.gateways["a"].report(message)  # type: ignore[arg-type]
    p.exchange()

    assert p.submit("b", 1) == ["b 1 granted 0"]


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
    p = Pair(1)
    live = LiveRequest(7, 1, Standing.HELD, 0, TERMS, 0, 0)
    p.lose("a")
    p.connect("a")
    p.gateways["a"].report(HelloPart([live], []))  # type: ignore[arg-type]
    p.gateways["a"].report(Hello("a", "1", 1, []))  # type: ignore[arg-type]

    assert p.exchange() == ["a closed: closed by the peer: HelloPart is out of place"]
