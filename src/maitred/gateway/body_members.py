"""Members of a JSON body, changed without touching the others.

A body is forwarded as it came but for a few members at its top. The others stay raw, so that no number is written in another
way than the client's. A body of usual size is taken apart and put together again. One of 30 MiB may have millions of members,
each of which would be an object then, so a large body is changed as text, in linear time:

    {"model":"m","priority":9,...}    the only place with this name and value: it is cut out
                                      and what is new comes at the end: {"model":"m",...,"priority":-1}

If the place is not the only one (a message quotes it) or is written with escapes, the old member stays, and the last one
counts, as it does for the engines' parsers of JSON.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from maitred.gateway.large_body import LargeBody, Span

_MAX_TAKEN_APART: Final = 256 * 1024
"""Size of the largest body that is taken apart, in bytes: it has at most 50,000 members."""
_MAX_CUT_OUT: Final = 4_096
"""Size of the largest value that is looked for, in bytes."""
_MARGIN: Final = 256
"""How far around its window a member is looked for, in bytes: white space and a comma may be outside."""
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
    if len(body) <= _MAX_TAKEN_APART:
        members: dict[str, object] = dict(_decode_object(body))
        for key, value in changes.items():
            if value is None:
                members.pop(key, None)
            else:
                members[key] = value
        return _encode(members)
    added: dict[str, object] = {}
    cut_out: list[Span] = [] if large is None else large.cut_out
    for key, value in changes.items():
        old = present.get(key)
        place = _find_place(body, key, old, None if large is None else large.window(key)) if old else None
        if place is not None and any(place[0] < end and begin < place[1] for begin, end in cut_out):
            place = None  # Neighbours: both would take the comma between them.
        if place is not None:
            cut_out.append(place)
        if value is not None or (old and place is None):
            added[key] = value
    if large is not None:
        large.added.update(added)
        return body
    return b"".join(parts_of_changed(body, cut_out, added))


def parts_of_changed(body: bytes, cut_out: Sequence[Span], added: Mapping[str, object]) -> Iterator[memoryview | bytes]:
    """Yield the parts of the JSON object `body` without what is `cut_out`, and with the members `added` at its end."""
    view, begin = memoryview(body), 0
    for cut_begin, cut_end in sorted(cut_out):
        yield view[begin:cut_begin]
        begin = cut_end
    yield view[begin : body.rindex(b"}") if added else len(body)]
    if added:
        yield b"," + _encode(added)[1:]


def _find_place(body: bytes, key: str, value: msgspec.Raw, window: tuple[int, int] | None) -> Span | None:
    """Return where in `body` its member `key` is, with a comma; None if that is not the only place, in `window`, that reads
    so."""
    begin, end = (0, len(body)) if window is None else (max(0, window[0] - _MARGIN), window[1] + _MARGIN)
    if len(memoryview(value)) > _MAX_CUT_OUT or (window is not None and end - begin > _MAX_TAKEN_APART):
        return None
    member = re.escape(_encode(key)) + rb"\s*:\s*" + re.escape(bytes(value))
    found = re.compile(rb",\s*" + member + rb"(?=\s*[,}])|" + member + rb"\s*,").finditer(body, begin, end)
    places = [*itertools.islice(found, 2)]
    return places[0].span() if len(places) == 1 else None
