"""Channel: one end of one connection of a link, from its first byte until it is closed.

All messages of a turn of the loop go into one frame: four bytes of length, big-endian, and a msgpack array of messages. So a
burst costs one system call at each side. Each message of the handshake has a frame of its own, because before the peer has
shown who it is, its frames are small or refused.

    side        state       message     then     does
    ----------  ----------  ----------  -------  ------------------------------------------
    gateway     GREETING    Challenge   OPEN     checks the proof, and answers with its own
    scheduler   GREETING    Greeting    PROVING  answers with a challenge
    scheduler   PROVING     Proof       OPEN     checks the proof
    either      any         Farewell    CLOSED
    either      OPEN        any other   OPEN     hands it on

Everything else closes the channel, with words that say why (`fault`): a message out of place, a wrong proof, another version,
a frame that is too long, or no frame. So does a peer that reads too slowly: what is not written yet (`note_written`) is
bounded, and a peer that is cut says `Hello` again, which is shorter than all that has piled up. A closed channel takes nothing.
Its last frame is a `Farewell` with the fault, for the log of the peer, unless it was the peer that closed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from maitred.scheduler.link.authentication import NONCE_BYTES, Side, is_proof, make_proof
from maitred.scheduler.link.messages import VERSION, AnyMessage, Challenge, Farewell, Greeting, Proof

_LENGTH_BYTES: Final = 4
_OF_CHANNEL: Final = frozenset((Greeting, Challenge, Proof, Farewell))
"""The messages that are not for the owner of a channel."""
_TLS_HANDSHAKE: Final = b"\x16\x03"
_MOST_UNPROVEN: Final = 1024
"""Bytes of a frame from a peer that has not shown who it is."""


class ChannelState(IntEnum):
    GREETING = 0
    PROVING = 1
    OPEN = 2
    CLOSED = 3


_OPEN, _CLOSED = ChannelState.OPEN, ChannelState.CLOSED  # members of enums are slow to look up


class ChannelLimits(msgspec.Struct, frozen=True):
    """How much one connection may hold up."""

    frame_bytes: int = 16 << 20
    """The longest frame, in bytes."""
    unsent_bytes: int = 128 << 20
    """What may wait to be written, in bytes: a hello of about a million requests."""


class LinkFault(Exception):  # noqa: N818 - not raised beyond this module
    """The peer, or the connection, cannot be used any more."""

    def __init__(self, words: str, *, is_lasting: bool = False, is_told: bool = False) -> None:
        """`is_lasting`: another try comes to the same. `is_told`: the peer has said it."""
        super().__init__(words)
        self.is_lasting, self.is_told = is_lasting, is_told


class Channel:
    """One end of a connection."""

    def __init__(self, side: Side, secret: bytes, nonce: bytes, limits: ChannelLimits | None = None) -> None:
        """`nonce` is drawn at random for this connection. Raises ValueError for a short one, or an empty secret."""
        if len(nonce) != NONCE_BYTES or not secret:
            raise ValueError(f"a channel needs a secret and a nonce of {NONCE_BYTES} bytes")
        self.state = ChannelState.GREETING
        self.fault: str | None = None
        """Why the channel was closed, or None."""
        self.is_lasting = False
        """Whether another connection to the same peer comes to the same end, until a person has changed something."""
        self._side, self._secret, self._nonce = side, secret, nonce
        self._limits = limits or ChannelLimits()
        self._peer_nonce = b""
        self._received = bytearray()
        self._said: list[AnyMessage] = []
        """Messages of this turn."""
        self._unsent = 0
        """Bytes that were taken, and are not written yet."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[AnyMessage]).decode
        self._ready = b""
        """Frames of the handshake that are to be written."""
        if side is Side.GATEWAY:
            self._shake_hands(Greeting(VERSION, nonce))

    @property
    def is_open(self) -> bool:
        """Whether both ends have shown who they are, and nothing is wrong."""
        return self.state is _OPEN

    def say(self, message: AnyMessage) -> None:
        """Add a message to those of this turn. Dropped unless the channel is open."""
        if self.state is _OPEN:
            self._said.append(message)

    def feed(self, data: bytes) -> Sequence[AnyMessage]:
        """Take bytes from the peer, and return the messages in them that are for the owner of the channel. Look at `state`
        afterwards: the channel may have been opened, or closed."""
        messages: list[AnyMessage] = []
        try:
            if self.state is _OPEN and not self._received and _is_one_frame(data):  # As nearly always.
                said = self._messages_of(data[_LENGTH_BYTES:])
                if _OF_CHANNEL.isdisjoint(map(type, said)):
                    return said
                return [message for message in said if self._take(message)]
            for frame in self._frames(data):
                said = self._messages_of(frame)
                if self.state is _OPEN and _OF_CHANNEL.isdisjoint(map(type, said)):
                    messages += said
                else:
                    messages += [message for message in said if self._take(message)]
        except LinkFault as fault:
            self.close(str(fault), is_lasting=fault.is_lasting, is_told=fault.is_told)
        return messages

    def take_bytes(self) -> bytes:
        """Return the bytes to write: the messages of this turn, or nothing. Look at `state` afterwards."""
        if not (self._said or self._ready):
            return b""
        data, self._ready = self._ready, b""
        if self._said:
            data += self._frames_of(self._said)
            self._said.clear()
        self._unsent += len(data)
        if self._unsent > self._limits.unsent_bytes:
            self.close(f"the peer reads too slowly: {self._unsent} bytes are unsent")
            return b""
        return data

    def note_written(self, num_bytes: int) -> None:
        """Note that bytes that were taken have left the process."""
        self._unsent -= num_bytes

    def close(self, fault: str, *, is_lasting: bool = False, is_told: bool = False) -> None:
        """Use the channel no more; the peer is told why, unless it knows (`is_told`). The first fault is kept."""
        if self.state is not _CLOSED:
            self.state, self.fault, self.is_lasting = _CLOSED, fault, is_lasting
            self._received.clear()
            self._said.clear()
            self._ready = b"" if is_told else self._frame([Farewell(fault, is_lasting)])

    def _shake_hands(self, message: Greeting | Challenge | Proof) -> None:
        self._ready += self._frame([message])

    def _frames_of(self, messages: Sequence[AnyMessage]) -> bytes:
        """Return messages in one frame, or in as many as it takes. Closes the channel if one of them alone is too long."""
        frame, most = self._frame(messages), self._limits.frame_bytes
        if len(frame) <= most + _LENGTH_BYTES:
            return frame
        if len(messages) == 1:
            self.close(f"a frame of {len(frame)} bytes, where {most} are allowed, is to be sent", is_lasting=True)
            return b""
        half = len(messages) // 2
        return self._frames_of(messages[:half]) + self._frames_of(messages[half:])

    def _frame(self, messages: Sequence[AnyMessage]) -> bytes:
        payload = self._encode(messages)
        return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload

    def _frames(self, data: bytes) -> Iterator[bytes]:
        received = self._received
        received += data
        while self.state is not _CLOSED and len(received) >= _LENGTH_BYTES:
            length = int.from_bytes(received[:_LENGTH_BYTES], "big")
            most = self._limits.frame_bytes if self.is_open else _MOST_UNPROVEN
            if length > most:
                raise LinkFault(_not_a_frame(bytes(received[:_LENGTH_BYTES]), length, most), is_lasting=not self.is_open)
            end = _LENGTH_BYTES + length
            if len(received) < end:
                return
            frame = bytes(received[_LENGTH_BYTES:end])
            del received[:end]
            yield frame

    def _messages_of(self, frame: bytes) -> Sequence[AnyMessage]:
        try:
            return self._decode(frame)
        except msgspec.MsgspecError as error:
            raise LinkFault(f"a frame that is none of version {VERSION}: {error}", is_lasting=True) from error

    def _take(self, message: AnyMessage) -> bool:
        """Take a message, and return whether it is for the owner."""
        state = self.state
        if state is _OPEN and type(message) not in _OF_CHANNEL:
            return True
        if isinstance(message, Farewell):
            raise LinkFault(f"closed by the peer: {message.reason}", is_lasting=message.is_lasting, is_told=True)
        match self._side, state, message:
            case Side.GATEWAY, ChannelState.GREETING, Challenge():
                self._meet_challenge(message)
            case Side.SCHEDULER, ChannelState.GREETING, Greeting():
                self._challenge(message)
            case Side.SCHEDULER, ChannelState.PROVING, Proof():
                self._check(message.proof, Side.GATEWAY, self._peer_nonce, self._nonce)
                self.state = _OPEN
            case _:
                raise LinkFault(f"{type(message).__name__} is out of place: the channel is {state.name}")
        return False

    def _challenge(self, greeting: Greeting) -> None:
        _check_version(greeting.version)
        _check_nonce(greeting.nonce)
        self._peer_nonce = greeting.nonce
        proof = make_proof(self._secret, Side.SCHEDULER, greeting.nonce, self._nonce)
        self._shake_hands(Challenge(VERSION, self._nonce, proof))
        self.state = ChannelState.PROVING

    def _meet_challenge(self, challenge: Challenge) -> None:
        _check_version(challenge.version)
        _check_nonce(challenge.nonce)
        self._check(challenge.proof, Side.SCHEDULER, self._nonce, challenge.nonce)
        self._shake_hands(Proof(make_proof(self._secret, Side.GATEWAY, self._nonce, challenge.nonce)))
        self.state = _OPEN

    def _check(self, proof: bytes, side: Side, gateway_nonce: bytes, scheduler_nonce: bytes) -> None:
        if not is_proof(proof, self._secret, side, gateway_nonce, scheduler_nonce):
            words = f"the {side} does not know the secret of this {self._side}: both need the same"
            raise LinkFault(words, is_lasting=True)


def _is_one_frame(data: bytes) -> bool:
    return int.from_bytes(data[:_LENGTH_BYTES], "big") == len(data) - _LENGTH_BYTES


def _check_version(version: int) -> None:
    if version != VERSION:
        words = (
            f"the peer speaks version {version} of the link, and this end version {VERSION}: both need one release of maitred"
        )
        raise LinkFault(words, is_lasting=True)


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise LinkFault(f"a nonce of {len(nonce)} bytes, where {NONCE_BYTES} are due")


def _not_a_frame(begin: bytes, length: int, most: int) -> str:
    """Describe the fault of bytes that begin no frame."""
    if begin.startswith(_TLS_HANDSHAKE):
        return "the peer speaks TLS, and this end does not"
    return f"a frame of {length} bytes, where {most} are allowed: is the peer an end of a link?"
