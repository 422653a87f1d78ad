"""Members of a JSON body, changed without touching the others.

A body is forwarded as it came but for a few members at its top. The others stay raw, so that no number is written in another
way than the client's. A small body is taken apart and put together again. One of 30 MiB may have millions of members, each of
which would be an object then, so a larger body is changed as text, in linear time:

    {"model":"m","priority":9,...}           the old member is cut out,
    {"model":"m",...,"priority":-1}          and what is new comes at the end

A name in the text may be one of an object within, or be quoted in a message. So a place counts only if the text without it, or
the piece of a large body in which it is (`json_slices`), has no member of that name any more. If no such place is found, as
the name is written with escapes, or comes twice, the old member stays, and the last one counts, as it does for the engines'
parsers of JSON.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.core.errors import JSON_ERRORS
from maitred.gateway.bodies.json_slices import Piece
from maitred.gateway.bodies.large_body import LargeBody, Span

_MAX_TAKEN_APART: Final = 64 * 1024
"""Size of the largest body that is taken apart, in bytes: it has at most 13,000 members."""
_MAX_CUT_OUT: Final = 4_096
"""Size of the largest value that is looked for, in bytes."""
_MAX_PLACES: Final = 3
"""Places that are tried for a member: each costs reading the text once."""
_MARGIN: Final = 256
"""How far from a member its comma is looked for, in bytes: white space may be between."""
_COLON: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_COMMA_BEFORE: Final = re.compile(rb",[ \t\r\n]*\Z")
_COMMA_BEHIND: Final = re.compile(rb"[ \t\r\n]*,")
_WHITE_SPACE: Final = b" \t\r\n"
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


def change_members(
    body: bytes, changes: Mapping[str, object], present: Mapping[str, msgspec.Raw], large: LargeBody | None = None
) -> bytes:
    """Return the JSON object `body` with these members, without those that are None, and with everything else unchanged.

    `present` has the values of the members in `changes` that the body has, empty ones for others. Of a `large` body it is known
    where they are, and it is returned as it is: the changes are noted (`LargeBody.cut_out`, `.added`). Raises what msgspec
    raises for a name of a member that is not UTF-8.
    """
    if large is None and len(body) <= _MAX_TAKEN_APART:
        return _take_apart(body, changes)
    added: dict[str, object] = {}
    cut_out: list[Span] = [] if large is None else large.cut_out
    for key, value in changes.items():
        old = present.get(key)
        piece = Piece(0, len(body)) if large is None else large.piece(key)
        place = _find_place(body, key, bytes(old), piece, cut_out) if old and piece is not None else None
        if place is not None:
            cut_out.append(place)
        if value is not None or (old and place is None):
            added[key] = value
    if large is not None:
        large.added.update(added)
        return body
    is_empty = bool(added) and body[: body.rindex(b"}")].rstrip(_WHITE_SPACE).endswith(b"{")
    return b"".join(parts_of_changed(body, cut_out, added, is_empty=is_empty))


def _take_apart(body: bytes, changes: Mapping[str, object]) -> bytes:
    members: dict[str, object] = dict(_decode_object(body))
    for key, value in changes.items():
        members.pop(key, None)
        if value is not None:
            members[key] = value
    return _encode(members)


def parts_of_changed(
    body: bytes, cut_out: Sequence[Span], added: Mapping[str, object], *, is_empty: bool
) -> Iterator[memoryview | bytes]:
    """Yield the parts of the JSON object `body` without what is `cut_out`, and with the members `added` at its end. `is_empty`
    says that the object has no members."""
    view, begin = memoryview(body), 0
    for cut_begin, cut_end in sorted(cut_out):
        yield view[begin:cut_begin]
        begin = cut_end
    yield view[begin : body.rindex(b"}") if added else len(body)]
    if added:
        yield (b"" if is_empty else b",") + _encode(added)[1:]


def _find_place(body: bytes, key: str, value: bytes, piece: Piece, cut_out: Sequence[Span]) -> Span | None:
    """Return where in `piece` of `body` its member `key` is, with a comma that is not `cut_out` yet; None if it is not found,
    or is not the only one in the piece."""
    name, at = _encode(key), piece.begin
    if len(value) > _MAX_CUT_OUT:
        return None
    for _ in range(_MAX_PLACES):
        at = body.find(name, at, piece.end)
        if at < 0:
            return None
        colon = _COLON.match(body, at + len(name), piece.end)
        if colon is not None and body.startswith(value, colon.end(), piece.end):
            for place in _with_comma(body, at, colon.end() + len(value), piece):
                is_taken = any(place[0] < end and begin < place[1] for begin, end in cut_out)
                if not is_taken and not _has_member(piece.document(body, without=place), key):
                    return place
        at += len(name)
    return None


def _with_comma(body: bytes, begin: int, end: int, piece: Piece) -> Iterator[Span]:
    """Yield a place with the comma before it, and with the one behind it."""
    before = _COMMA_BEFORE.search(body[max(piece.begin, begin - _MARGIN) : begin])
    if before is not None:
        yield begin - len(before[0]), end
    behind = _COMMA_BEHIND.match(body, end, min(piece.end, end + _MARGIN))
    if behind is not None:
        yield begin, behind.end()


def _has_member(document: bytes, key: str) -> bool:
    """Return whether a document has a member `key` at its top, or is none."""
    try:
        return bool(_member_decoder(key).decode(document).value)
    except JSON_ERRORS:
        return True


@functools.cache
def _member_decoder(key: str) -> Any:
    return msgspec.json.Decoder(msgspec.defstruct("_Member", [("value", msgspec.Raw, msgspec.Raw())], rename={"value": key}))
