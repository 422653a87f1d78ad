"""Bodies above 1 MiB: read in slices, between which the event loop runs.

A body of usual size is read in one call, in less than the loop takes for anything else. What 31 MiB hold may keep a parser busy
for half a second, whatever the parser, so a large body is read once, before anything is decided, and only by steps:

    JSON            the members that decisions depend on (`json_slices`); what reads a body is given those in place of it
    forms           the field `model` (`form_fields`)
    compressed      decoded in pieces (`content_coding`)
    changes         noted while the request is read, and made at the end, all at once (`body_members`)

A step takes a millisecond or so, five at worst. Of all steps of all bodies one is done in a turn of the loop (`Turns`), and the
bodies take turns: a hundred large bodies at once make each other wait, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, TypeVar, cast

import msgspec

from maitred.core.steps import Steps
from maitred.gateway.bodies.json_slices import SLICE_BYTES, FoundMember, JsonSlices, Piece
from maitred.wire.exchange import ClientDisconnected, Exchange

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Span = tuple[int, int]
"""From and to which byte."""

LARGE_BYTES: Final = 1024 * 1024
"""Size above which a body is read in slices."""
_STRING_SLICES: Final = 4
"""Slices that are read as one while nothing ends the string that they are in: that costs a tenth of what others cost."""
_CONTINUATION_BYTES: Final = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that begin no character."""


class Turns:
    """Lets one step of all that is done in steps run in each turn of the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # First come, first served; so those that wait take turns.

    async def run(self, steps: Steps[T], exchange: Exchange) -> T:
        """Run the steps of a request, and return their result. Raises what they raise, and ClientDisconnected as soon as its
        client has left."""
        while not exchange.is_disconnected:
            async with self._lock:
                try:
                    next(steps)
                except StopIteration as end:
                    return cast(T, end.value)
                await asyncio.sleep(0)
        raise ClientDisconnected


class LargeBody:
    """What has been read of a large body."""

    def __init__(
        self,
        members: Mapping[str, msgspec.Raw],
        found: Mapping[str, FoundMember] = {},
        characters: int = 0,
        *,
        is_empty: bool = False,
    ) -> None:
        self._members = members
        self._found = found
        self.is_empty = is_empty
        """Whether the body is an object without members."""
        self.characters = characters
        """The characters of a body in UTF-8."""
        self.cut_out: list[Span] = []
        """The parts that the body for the backend does not have."""
        self.added: dict[str, object] = {}
        """The members that it has at its end."""

    @classmethod
    def of_values(cls, values: Mapping[str, str]) -> LargeBody:
        """Return a body that is no JSON, and of which these values have been read."""
        return cls({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()})

    def fill(self, kind: type[S], max_bytes: int | None = None) -> S:
        """Return a struct of raw JSON, with the members of the body; what the body has not is empty.

        With `max_bytes` longer values are cut, and are no JSON then; they are copies, which do not keep the body in memory.
        """
        values = {name: self._members[name] for name in kind.__struct_fields__ if name in self._members}
        if max_bytes is not None:
            values = {name: msgspec.Raw(bytes(memoryview(value)[:max_bytes])) for name, value in values.items()}
        return kind(**values)

    def piece(self, name: str) -> Piece | None:
        """Return the piece of the body in which a member is, with its name; None if that is not known."""
        return self._found[name].piece if name in self._found else None

    def num_items(self, name: str) -> int | None:
        """Return the items of a member that is a long list, or None if they have not been counted."""
        return (self._found[name].num_items or None) if name in self._found else None


def read_large_body(body: bytes, names: Collection[str], counted: Collection[str], max_items: int) -> Steps[LargeBody]:
    """Read the members `names` of a JSON object, in steps; of those in `counted` that are long lists also how many items they
    have, up to `max_items`. Raises what msgspec raises for a body that is no JSON object."""
    slices, at, characters = JsonSlices(names, counted, max_items), 0, 0
    while at < len(body):
        size = SLICE_BYTES
        if slices.in_string and body.find(b'"', at, at + _STRING_SLICES * size) < 0:
            size *= _STRING_SLICES
        text = body[at : at + size]
        slices.feed(text)
        characters += count_characters(text)
        at += size
        yield
    slices.close()
    view = memoryview(body)  # Long values are not copied.
    members = {
        name: msgspec.Raw(view[found.begin : found.end] if found.raw is None else found.raw)
        for name, found in slices.members.items()
    }
    return LargeBody(members, slices.members, characters, is_empty=slices.is_empty)


def count_characters(text: bytes) -> int:
    """Return the characters of a text in UTF-8, without decoding it."""
    return len(text) if text.isascii() else len(text.translate(None, _CONTINUATION_BYTES))
