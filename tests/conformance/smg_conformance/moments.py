"""When something happens: seconds from the start, or a condition in words.

0.5                      half a second after the start
after x                  x has ended: answered whole, cut off, or left by its client
after x and y            both; also `after r0..r3`, `after all` (that were sent by name before)
2.5 s after x            so long after x has ended
when x runs              an engine has it; also `starts`, `is running`
when x is queued         the gateway says that it waits; also `waits`
after x leaves           its client has gone
after the first chunk of x    its client has data; also `byte`, `data`
end of x, after the end of x  as `after x`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from .scenario import At, CannotCheck


class Event(StrEnum):
    """What can happen to a request."""

    RUNS = "runs"
    QUEUED = "is queued"
    FIRST_DATA = "has its first data"
    ENDED = "has ended"


class Moment(msgspec.Struct, frozen=True):
    """`delay` seconds after `event` has happened to all of `names`; with no names: after the start."""

    delay: float
    event: Event = Event.ENDED
    names: tuple[str, ...] = ()


_CONDITION = re.compile(r"(?:(?P<delay>\d+(?:\.\d+)?) ?s )?(?:(?:after|when) )?(?:the )?(?P<rest>.+)")
_WORDS = (
    (re.compile(r"(.+?) (?:runs?|starts?|is running|are running)"), Event.RUNS),
    (re.compile(r"(.+?) (?:is|are) queued|(.+?) (?:queues?|waits?)"), Event.QUEUED),
    (re.compile(r"first (?:chunk|byte|data) of (.+)"), Event.FIRST_DATA),
    (re.compile(r"end of (.+)|(.+?) (?:ends?|ended|has ended|is done|is answered|leaves|left|has left)"), Event.ENDED),
    (re.compile(r"(.+)"), Event.ENDED),
)


def read_moment(at: At, requests: Sequence[str]) -> Moment:
    """Raises CannotCheck. `requests`: the names there are."""
    if not isinstance(at, str):
        return Moment(at)
    found = _CONDITION.fullmatch(at.strip())
    if found is not None:
        for pattern, event in _WORDS:
            said = pattern.fullmatch(found["rest"])
            names = said and read_names(next(filter(None, said.groups())), requests)
            if names:
                return Moment(float(found["delay"] or 0), event, names)
    raise CannotCheck(f"the time {at!r}")


def read_names(text: str, requests: Sequence[str]) -> tuple[str, ...]:
    """`a`, `a, b and c`, `r0..r3`, `all`, and `r` for r0, r1, ...: the requests meant; none if any of them does not exist."""
    if text in requests:
        return (text,)
    if text == "all":
        return tuple(requests)
    numbered = tuple(name for name in requests if re.fullmatch(rf"{re.escape(text)}_?\d+", name))
    if numbered:
        return numbered
    names: list[str] = []
    for part in re.split(r"\s*,\s*|\s+and\s+|\s*\+\s*", text):
        span = re.fullmatch(r"(\w*?)(\d+)\.\.(\w*?)(\d+)", part)
        if span is not None and span[1] == span[3]:
            names += [f"{span[1]}{n}" for n in range(int(span[2]), int(span[4]) + 1)]
        else:
            names.append(part)
    return tuple(names) if all(name in requests for name in names) else ()
