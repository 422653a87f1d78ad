r"""A large JSON object, read in slices, each of which costs about a millisecond: the event loop may run between two.

A parser of JSON in C reads all of its input in one call, in which nothing else runs; 31 MiB of `{},` take half a second. So the
text is cut into pieces, and each piece is made a small document of its own, which that parser reads:

    {"model":"m","messages":[{"role":"user","content":"hel    is read as    {"model":"m","messages":[{..., "content":"hel*"}]}
    lo"},{"role":                                             is read as    {"*":[{"":"lo"},{"role":"*"}]}
    "user"}]}                                                 is read as    {"*":[{"":"user"}]}

The whole is valid if and only if all of the documents are. What stands before a piece (`_Place.opening`) is a short text that
brings a parser to where it is there, and what stands behind it (`_Place.closing`) one that ends whatever is open. For both it
is enough to know which brackets are open, and the last two characters of punctuation.

A cut is made behind punctuation, behind white space or within a string that is a value; never within a name, number, word or
escape. What follows the last such place goes into the next piece. Which brackets a piece leaves open is what remains when its
strings are taken out and pairs of brackets cancelled, in passes in C while a pass removes many of them; what is left stands in
long runs, of which each is one step. All of it is linear (`bench/body_shapes.py` prints the cost by shape).

**Members.** A document is decoded into a struct of the wanted members of the object, as raw JSON. The value that a cut goes
through has a mark at its end, which is random, so that no client can write it. Of equal names the last one counts, as it does
for parsers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import msgspec

SLICE_BYTES: Final = 64 * 1024
"""How much is read at a time."""
_MAX_WORD_BYTES: Final = SLICE_BYTES
"""Length of the longest name, number or word."""
_MARK: Final = b"\x7f" + secrets.token_hex(8).encode()
_MARKED: Final = b'"' + _MARK + b'"'
_CUT_NAME: Final = _MARK.decode()
"""The name that the member has in the second document which a cut has gone through."""
_BEHIND_NAME: Final = re.compile(rb"[ \t\r\n:]*")
_FIRST_HALF: Final = re.compile(rb"\\u[dD][89abAB]..\Z", re.DOTALL)
"""The first half of a surrogate pair, which is an escape only with the second one."""
_HALF_BYTES: Final = 6
_ERROR_PLACE: Final = re.compile(r"\(byte (\d+)\)")
_WHITE_SPACE: Final = b" \t\r\n"
_NO_PUNCTUATION: Final = bytes(set(range(256)) - set(b'[]{},:"'))
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_OPENING_BRACKETS: Final = frozenset(b"[{")
_LIST: Final = ord("[")
_RUNS: Final = re.compile(rb"[\[{]+|[\]}]+")
_WORTH_A_PASS: Final = 4 / 5
"""If a pass leaves more than this of the brackets, they stand in long runs, and a loop over those is cheaper."""
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Piece(NamedTuple):
    """A part of a JSON text, and what makes it a document of its own."""

    begin: int
    """From and to which byte of the text."""
    end: int
    opening: bytes = b""
    closing: bytes = b""

    def document(self, text: bytes, without: tuple[int, int]) -> bytes:
        """Return the piece of `text` as a document, without these bytes of the text."""
        return b"".join((self.opening, text[self.begin : without[0]], text[without[1] : self.end], self.closing))


class FoundMember:
    """A wanted member of an object. Places are counted in bytes from the beginning of the text."""

    __slots__ = ("begin", "end", "num_items", "piece", "raw")

    def __init__(self, raw: bytes | None, begin: int, piece: Piece | None) -> None:
        self.raw = raw
        """The value; None if a cut has gone through it, and it must be taken from the text."""
        self.begin, self.end = begin, 0
        """Where a value without `raw` is."""
        self.piece = piece
        """The piece in which name and value are; None if a cut has gone through them, or if the name has come before."""
        self.num_items = 0
        """The items of a value without `raw` that is a list; counted up to the limit."""


class _Place:
    """A place in JSON: what is open there, and what came last."""

    __slots__ = ("in_string", "last", "stack")

    def __init__(self, stack: bytes, last: bytes, in_string: bool) -> None:
        self.stack = stack
        """The brackets that are open."""
        self.last = last
        """The last two characters of punctuation. A string, number or word counts as a quote."""
        self.in_string = in_string

    @property
    def in_name(self) -> bool:
        """Whether a string that begins here is a name."""
        return self.stack[-1:] == b"{" and self.last[-1:] in (b"{", b",")

    def has_comma(self) -> bool:
        """Return whether a comma came last."""
        return self.last[-1:] == b","

    def _behind_name(self) -> bool:
        return self.last[-1:] == b'"' and self.last[-2:-1] != b":" and self.stack[-1:] == b"{"

    def behind_value(self) -> bool:
        """Return whether a whole value came last."""
        is_string = self.last[-1:] == b'"' and not self.in_string and not self._behind_name()
        return is_string or self.last[-1:] in (b"]", b"}")

    def opening(self) -> bytes:
        """Return a text behind which a parser is at this place."""
        if not self.stack:
            return b"{}" if self.last else b""
        cut_name = b'"' + _CUT_NAME.encode() + b'"'
        outer = [b"[" if bracket == _LIST else b'{"":' for bracket in self.stack[:-1]]
        if outer and self.stack[0] != _LIST:
            outer[0] = b"{" + cut_name + b":"
        name = b'""' if outer else cut_name
        if self.in_string:
            inner = b'["' if self.stack[-1] == _LIST else b"{" + name + b':"'
        elif self.stack[-1] == _LIST:
            inner = b'["",' if self.has_comma() else b'[""' if self.behind_value() else b"["
        elif self.last[-1:] == b":":
            inner = b"{" + name + b":"
        elif self._behind_name():
            inner = b"{" + name
        else:
            inner = b'{"":"",' if self.has_comma() else b'{"":""' if self.behind_value() else b"{"
        return b"".join((*outer, inner))

    def closing(self) -> bytes:
        """Return a text that ends what is open here. It has the mark within, or behind, the value that is not yet whole."""
        if not self.stack:
            return b""
        if self.in_string:
            inner = _MARK + b'"'
        elif self.stack[-1] == _LIST:
            inner = b"," + _MARKED if self.behind_value() else _MARKED
        elif self.last[-1:] == b":":
            inner = _MARKED
        elif self._behind_name():
            inner = b":" + _MARKED
        else:
            inner = (b',"":' if self.behind_value() else b'"":') + _MARKED
        return inner + bytes(bracket + 2 for bracket in reversed(self.stack))  # as ASCII has them


_START: Final = _Place(b"", b"", in_string=False)


class JsonSlices:
    """Reads one JSON object in slices. `feed` all of it, then `close`; both raise what msgspec raises for what is none."""

    def __init__(
        self, names: Collection[str], counted: Collection[str] = (), max_items: int = 0, max_kept_bytes: int = 0
    ) -> None:
        """`names` are those of the wanted members. Of those in `counted` that are long lists, items are counted, up to
        `max_items` or a slice more. A value that a cut goes through is kept as well if it has at most about `max_kept_bytes`:
        where the text is not kept elsewhere."""
        self.members: dict[str, FoundMember] = {}
        """The wanted members that are whole."""
        self.open_member: str | None = None
        """The wanted member that has begun and is not yet whole."""
        self._open = FoundMember(None, 0, None)
        self._names, self._counted, self._max_items = tuple(names), frozenset(counted), max_items
        fields = [*((name, msgspec.Raw, msgspec.Raw()) for name in names), ("cut_", msgspec.Raw, msgspec.Raw())]
        self._decode: Any = msgspec.json.Decoder(msgspec.defstruct("_Piece", fields, rename={"cut_": _CUT_NAME})).decode
        self._place = _START
        self._at = 0
        """Where the next piece begins."""
        self._carried = b""
        self._max_kept_bytes = max_kept_bytes
        self._kept = b""
        """The pieces in which the open member is, if they are kept."""
        self._kept_from = 0

    @property
    def is_empty(self) -> bool:
        """Whether the object has no members, once all has been read."""
        return self._place.last == b"{}"

    @property
    def in_string(self) -> bool:
        """Whether what has been read ends within a string."""
        return self._place.in_string

    def feed(self, text: bytes) -> None:
        """Read what comes next."""
        text = self._carried + text
        place, end = self._find_cut(text)
        self._carried = text[end:]
        if len(self._carried) > _MAX_WORD_BYTES:
            raise msgspec.DecodeError(f"a name, a number or a word has more than {_MAX_WORD_BYTES} bytes")
        if self._place.stack or text[:end].strip(_WHITE_SPACE):
            self._read_piece(text[:end], place)
        self._at += end
        self._place = place

    def close(self) -> None:
        """Take note that all has been fed."""
        self._decode(self._place.opening() + self._carried)
        if self._place.stack or not self._place.last:
            raise msgspec.DecodeError("Input data was truncated")

    def _find_cut(self, text: bytes) -> tuple[_Place, int]:
        """Return the last place of `text` at which it may be cut, and where that is."""
        # Without the escapes that matter for where strings end, and as long as before.
        masked = text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text
        before = self._place
        parts = masked.split(b'"')
        outside = parts[1::2] if before.in_string else parts[::2]
        in_string = (len(parts) % 2 == 0) != before.in_string
        last = (before.last + b'"'.join(outside).translate(None, _NO_PUNCTUATION))[-2:]
        stack = _stack_behind(before.stack, b"".join(outside).translate(None, _NO_BRACKETS))
        place = _Place(stack, last, in_string=False)
        if not in_string:
            return _cut_outside(place, len(text), parts[-1])
        if len(parts) > 1:
            if place.in_name:
                return place, len(text) - len(parts[-1]) - 1
            place.last = (last + b'"')[-2:]
        place.in_string = True
        return place, len(text) - len(parts[-1]) + _cut_in_string(parts[-1])

    def _read_piece(self, text: bytes, behind: _Place) -> None:
        """Read a piece up to the place `behind` it."""
        opening = self._place.opening()
        document = b"".join((opening, text, behind.closing()))
        try:
            found = self._decode(document)
        except msgspec.DecodeError as error:
            raise _moved(error, self._at - len(opening)) from None
        if self.open_member is not None:
            self._go_on(found.cut_, document, len(opening), text, behind)
        for name in self._names:
            raw: msgspec.Raw = getattr(found, name)
            if raw:
                self._take(name, bytes(raw), len(document) - len(opening), text, behind)

    def _take(self, name: str, raw: bytes, length: int, text: bytes, behind: _Place) -> None:
        """Take a wanted member that begins in the piece `text`. Without its opening, the document has `length` bytes."""
        end = self._at + len(text)
        has_come = self.members.pop(name, None) is not None
        if not _is_open(raw, behind):
            piece = None if has_come else Piece(self._at, end, self._place.opening(), behind.closing())
            self.members[name] = FoundMember(raw, 0, piece)
            return
        begin = min(end, self._at + length - 1 - len(raw))  # It is the last one, with a bracket behind it.
        self.open_member, self._open = name, FoundMember(None, begin, None)
        self._count_items(raw, None, behind)
        self._kept, self._kept_from = text if self._max_kept_bytes else b"", self._at

    def _go_on(self, value: msgspec.Raw, document: bytes, opening_bytes: int, text: bytes, behind: _Place) -> None:
        """Take a further part of the open member."""
        raw, member = bytes(value), self._open
        self._count_items(raw, self._place, behind)
        self._kept = self._kept + text if 0 < len(self._kept) <= self._max_kept_bytes else b""
        behind_name = _BEHIND_NAME.match(document, len(_CUT_NAME) + 3)
        assert behind_name is not None
        begin = behind_name.end()
        if begin >= opening_bytes:  # The piece before has ended behind the name or the colon.
            member.begin = self._at + begin - opening_bytes
        if self.open_member is not None and not _is_open(raw, behind):
            member.end = self._at + begin + len(raw) - opening_bytes
            if self._kept:
                member.raw = self._kept[member.begin - self._kept_from : member.end - self._kept_from]
            self.members[self.open_member], self.open_member = member, None

    def _count_items(self, raw: bytes, before: _Place | None, behind: _Place) -> None:
        """Count the items of the open member that this part of it has: one for each comma, and one for the list."""
        if self.open_member not in self._counted or raw[:1] != b"[" or self._open.num_items >= self._max_items:
            return
        # Without the commas of opening and closing.
        added = before is not None and len(before.stack) == 2 and before.has_comma()
        added_behind = _is_open(raw, behind) and len(behind.stack) == 2 and behind.behind_value()
        commas = len(_decode_list(raw)) - 1 - added - added_behind
        self._open.num_items += max(0, commas) + (self._open.num_items == 0)


def _moved(error: msgspec.DecodeError, distance: int) -> msgspec.DecodeError:
    """Return `error` with the place that it names moved by `distance` bytes, out of a document to the text."""
    message = _ERROR_PLACE.sub(lambda found: f"(byte {max(0, int(found[1]) + distance)})", str(error))
    return type(error)(message)


def _is_open(raw: bytes, behind: _Place) -> bool:
    """Return whether the value `raw` goes on behind the piece that ends there."""
    return _MARK in raw[-len(_MARKED) - 4 - len(behind.stack) :]


def _cut_outside(place: _Place, size: int, tail: bytes) -> tuple[_Place, int]:
    """Return where to cut a text of `size` bytes that ends with `tail` outside of strings, and the place there."""
    rest = tail[len(tail.rstrip(_NO_PUNCTUATION)) :]
    word = rest.lstrip(_WHITE_SPACE)
    if word and word[-1] in _WHITE_SPACE:
        return _Place(place.stack, (place.last + b'"')[-2:], in_string=False), size
    return place, size - len(word)


def _cut_in_string(text: bytes) -> int:
    """Return where to cut the part of a string that is known: at its end, but not within an escape."""
    tail = text[-2 * _HALF_BYTES :]
    escape = tail.find(b"\\")
    if escape < 0:
        return len(text)
    cut = len(text) - len(tail) + escape
    return cut - _HALF_BYTES if _FIRST_HALF.match(text, max(0, cut - _HALF_BYTES), cut) else cut


def _stack_behind(stack: bytes, brackets: bytes) -> bytes:
    """Return the brackets that are open behind `brackets`. Whether they match is not looked at."""
    while brackets:
        rest = brackets.replace(b"{}", b"").replace(b"[]", b"")
        is_worth_it = len(rest) < _WORTH_A_PASS * len(brackets)
        brackets = rest
        if not is_worth_it:
            break
    found = bytearray(stack)
    for run in _RUNS.findall(brackets):
        if run[0] in _OPENING_BRACKETS:
            found += run
        else:
            del found[max(0, len(found) - len(run)) :]
    return bytes(found)
