"""One connection of a link: who the peer is, frames, and what is bounded."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.scheduler.link.authentication import Side
from maitred.scheduler.link.channel import Channel, ChannelLimits, ChannelState
from maitred.scheduler.link.messages import (
    VERSION,
    Beat,
    BeatAnswer,
    Challenge,
    Farewell,
    Greeting,
    Message,
    Note,
    Proof,
    Release,
)

SECRET = b"a secret of a test"


def nonce(number: int) -> bytes:
    return number.to_bytes(32, "big")


def pair(gateway_secret: bytes = SECRET, limits: ChannelLimits | None = None) -> tuple[Channel, Channel]:
    return (
        Channel(Side.GATEWAY, gateway_secret, nonce(1), limits),
        Channel(Side.SCHEDULER, SECRET, nonce(2), limits),
    )


def shake(gateway: Channel, scheduler: Channel) -> list[bytes]:
    """Return what was said, in turn."""
    said = []
    for sender, receiver in ((gateway, scheduler), (scheduler, gateway), (gateway, scheduler)):
        said.append(sender.take_bytes())
        receiver.feed(said[-1])
    return said


def frame(*messages: Message) -> bytes:
    payload = msgspec.msgpack.encode(messages)
    return len(payload).to_bytes(4, "big") + payload


def test_two_ends_with_one_secret_open_the_channel_and_hand_on_what_is_said() -> None:
    gateway, scheduler = pair()
    shake(gateway, scheduler)
    assert gateway.is_open
    assert scheduler.is_open
    gateway.say(Beat(1))
    gateway.say(Release(4, 1, "drained"))  # type: ignore[arg-type]
    scheduler.say(BeatAnswer(1, 3))

    assert scheduler.feed(gateway.take_bytes()) == [Beat(1), Release(4, 1, "drained")]  # type: ignore[arg-type]
    assert gateway.feed(scheduler.take_bytes()) == [BeatAnswer(1, 3)]
    assert gateway.take_bytes() == b""


def test_the_secret_is_not_on_the_wire() -> None:
    gateway, scheduler = pair()

    assert all(SECRET not in said for said in shake(gateway, scheduler))


def test_a_gateway_without_the_secret_is_not_let_in_and_believes_nobody() -> None:
    gateway, scheduler = pair(b"another")
    shake(gateway, scheduler)

    assert gateway.fault == "the scheduler does not know the secret of this gateway: both need the same"
    assert not scheduler.is_open


def test_a_proof_of_another_connection_is_of_no_use() -> None:
    gateway, scheduler = pair()
    said = shake(gateway, scheduler)
    again = Channel(Side.SCHEDULER, SECRET, nonce(9))
    again.feed(said[0])
    again.feed(said[2])

    assert again.fault == "the gateway does not know the secret of this scheduler: both need the same"


def test_a_proof_that_the_scheduler_has_made_is_none_of_a_gateway() -> None:
    """Who does not know the secret could send the proof back that it has just got."""
    scheduler = Channel(Side.SCHEDULER, SECRET, nonce(2))
    scheduler.feed(frame(Greeting(VERSION, nonce(2))))
    (challenge,) = msgspec.msgpack.decode(scheduler.take_bytes()[4:], type=list[Challenge])
    scheduler.feed(frame(Proof(challenge.proof)))

    assert scheduler.fault == "the gateway does not know the secret of this scheduler: both need the same"


def test_another_version_is_told_before_anything_else() -> None:
    scheduler = Channel(Side.SCHEDULER, SECRET, nonce(2))
    scheduler.feed(frame(Greeting(VERSION + 1, nonce(1))))

    assert scheduler.fault is not None
    assert scheduler.fault.startswith(f"the peer speaks version {VERSION + 1} of the link, and this end version {VERSION}: ")
    assert scheduler.is_lasting
    gateway = Channel(Side.GATEWAY, SECRET, nonce(1))
    gateway.feed(scheduler.take_bytes())  # The peer is told, although it has not shown who it is.
    assert gateway.fault == f"closed by the peer: {scheduler.fault}"
    assert gateway.is_lasting
    assert gateway.take_bytes() == b""
    assert scheduler.take_bytes() == b""


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes, where 1024 are allowed: is the peer an end of a link?"),
        (frame(Beat(1)), "Beat is out of place: the channel is GREETING"),
        (frame(Proof(b"")), "Proof is out of place: the channel is GREETING"),
        (frame(Greeting(VERSION, b"short")), "a nonce of 5 bytes, where 32 are due"),
        (b"\0\0\0\1\xc1", f"a frame that is none of version {VERSION}: "),
        (frame(Farewell("it is late")), "closed by the peer: it is late"),
    ],
)
def test_what_is_out_of_place_closes_the_channel_for_good(said: bytes, fault: str) -> None:
    scheduler = Channel(Side.SCHEDULER, SECRET, nonce(2))

    assert scheduler.feed(said) == []
    assert scheduler.fault is not None
    assert scheduler.fault.startswith(fault)
    assert scheduler.feed(frame(Greeting(VERSION, nonce(1)))) == []
    assert scheduler.state is ChannelState.CLOSED


@pytest.mark.parametrize(
    "late", [lambda g, s: s.feed(frame(Greeting(VERSION, nonce(1)))), lambda g, s: g.feed(frame(Proof(b"")))]
)
def test_a_second_handshake_closes_the_channel(late: Callable[[Channel, Channel], object]) -> None:
    gateway, scheduler = pair()
    shake(gateway, scheduler)
    late(gateway, scheduler)

    assert ChannelState.CLOSED in (gateway.state, scheduler.state)


def test_a_peer_that_does_not_read_is_cut() -> None:
    gateway, scheduler = pair(limits=ChannelLimits(unsent_bytes=2_000))
    shake(gateway, scheduler)
    scheduler.note_written(1_000)
    while scheduler.is_open:
        scheduler.say(Farewell("x" * 200))
        scheduler.take_bytes()

    assert scheduler.fault is not None
    assert scheduler.fault.startswith("the peer reads too slowly: ")


def test_a_peer_that_reads_is_not_cut() -> None:
    gateway, scheduler = pair(limits=ChannelLimits(unsent_bytes=2_000))
    shake(gateway, scheduler)
    scheduler.note_written(1_000)
    for _ in range(100):
        scheduler.say(Farewell("x" * 200))
        scheduler.note_written(len(scheduler.take_bytes()))

    assert scheduler.is_open


def test_a_frame_that_is_too_long_is_neither_sent_nor_taken() -> None:
    gateway, scheduler = pair(limits=ChannelLimits(frame_bytes=500))
    shake(gateway, scheduler)
    for _ in range(5):
        gateway.say(Beat(1))
        gateway.say(Note("page", 1, b"x" * 200))
    assert len(scheduler.feed(gateway.take_bytes())) == 10  # in several frames
    gateway.say(Farewell("x" * 600))
    assert gateway.take_bytes() == b""
    assert gateway.fault == "a frame of 611 bytes, where 500 are allowed, is to be sent"
    scheduler.feed((501).to_bytes(4, "big"))
    assert scheduler.fault == "a frame of 501 bytes, where 500 are allowed: is the peer an end of a link?"


@pytest.mark.parametrize(("secret", "nonce"), [(b"", nonce(1)), (SECRET, b"short")])
def test_a_channel_needs_a_secret_and_a_nonce(secret: bytes, nonce: bytes) -> None:
    with pytest.raises(ValueError, match="needs a secret and a nonce of 32 bytes"):
        Channel(Side.GATEWAY, secret, nonce)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_it_does_not_matter_how_the_bytes_come(sizes: list[int]) -> None:
    gateway, scheduler = pair()
    shake(gateway, scheduler)
    data = b""
    for number in range(len(sizes)):
        gateway.say(Beat(number))
        data += gateway.take_bytes()
    heard = []
    for size in [*sizes, len(data)]:
        heard += scheduler.feed(data[:size])
        data = data[size:]

    assert heard == [Beat(number) for number in range(len(sizes))]


@given(data=st.binary(max_size=200), is_open=st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_bytes_leave_a_channel_that_is_whole_or_closed_with_a_reason(data: bytes, *, is_open: bool) -> None:
    gateway, scheduler = pair()
    if is_open:
        shake(gateway, scheduler)
    scheduler.feed(data)

    assert (scheduler.state is ChannelState.CLOSED) == (scheduler.fault is not None)
