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
from collections.abc import Mapping
from typing import Final

import msgspec

_MAX_TAKEN_APART: Final = 256 * 1024
"""Size of the largest body that is taken apart, in bytes: it has at most 50,000 members."""
_MAX_CUT_OUT: Final = 4_096
"""Size of the largest value that is looked for, in bytes."""
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


def change_members(body: bytes, changes: Mapping[str, object], present: Mapping[str, msgspec.Raw]) -> bytes:
    """Return the JSON object `body` with these members, without those that are None, and with everything else unchanged.

    `present` has the values of the members in `changes` that the body has, empty ones for others. Raises what msgspec raises
    for a name of a member that is not UTF-8.
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
    for key, value in changes.items():
        old = present.get(key)
        without = body if not old else _cut_out(body, key, bytes(old))
        if value is not None or without is None:
            added[key] = value
        body = without or body
    return body if not added else body.rstrip()[:-1] + b"," + _encode(added)[1:]


def _cut_out(body: bytes, key: str, value: bytes) -> bytes | None:
    """Return `body` without its member `key`, or None if its place is not the only one that reads so."""
    if len(value) > _MAX_CUT_OUT:
        return None
    member = re.escape(_encode(key)) + rb"\s*:\s*" + re.escape(value)
    found = re.finditer(rb",\s*" + member + rb"(?=\s*[,}])|" + member + rb"\s*,", body)
    places = [*itertools.islice(found, 2)]
    return body[: places[0].start()] + body[places[0].end() :] if len(places) == 1 else None
