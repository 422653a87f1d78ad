"""SMG's start-up messages, and what of them ours must say: the culprit's name, in our own words.

unknown variant `x`, unknown field `x`   x is named
missing field `f`, missing field         a field (f) is said to be missing, and the class it is missing in
f must be > 0                            f, and "> 0"
k: invalid type                          k is named, or the line of the file where it stands
anything else                            the same words
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from .failures import Failure

Says = Callable[["re.Match[str]", str, str], bool]
"""The recorded words, the file, what was said: whether it names the culprit."""


def check(recorded: str, file: str, said: str) -> Iterator[Failure]:
    """Whether `said` says what was `recorded`; `file` is the text it is about."""
    for pattern, says in _PHRASES:
        found = re.search(pattern, recorded)
        if found is not None:
            if not says(found, file, said):
                yield Failure(f"expected a message as {recorded!r}, got {said!r}")
            return


def _names(found: re.Match[str], file: str, said: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(found[1])}(?!\w)", said) is not None


def _missing(found: re.Match[str], file: str, said: str) -> bool:
    named = [found[1]] if found[1] else re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", said)
    entry = re.search(r"^ +['\"]?([\w:]+)['\"]?:", file, re.MULTILINE)
    holder = entry[1] if entry else ""
    return (
        re.search(r"missing|lacks|required|must (?:say|have|be said)|needs", said) is not None
        and bool(named)
        and holder in said
    )


def _positive(found: re.Match[str], file: str, said: str) -> bool:
    return _names(found, file, said) and "> 0" in said


def _at(found: re.Match[str], file: str, said: str) -> bool:
    lines = [n for n, line in enumerate(file.splitlines(), 1) if re.match(rf"\s*{re.escape(found[1])}\s*:", line)]
    return _names(found, file, said) or any(re.search(rf"(?:line |:){n}\b", said) for n in lines)


def _same(found: re.Match[str], file: str, said: str) -> bool:
    return found[0] in said


_PHRASES: Final[tuple[tuple[str, Says], ...]] = (
    (r"unknown (?:variant|field) `([^`]+)`", _names),
    (r"missing field(?: `([^`]+)`)?", _missing),
    (r"(\w+) must be > 0", _positive),
    (r"(\w+): invalid type", _at),
    (r"(?s).+", _same),
)
