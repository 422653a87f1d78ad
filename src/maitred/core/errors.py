"""Errors that say what is wrong, where, and what would be right.

All errors that maitred raises on purpose derive from `MaitredError`. The command line prints the message and exits with 2; the
gateway turns it into an OpenAI error object. A traceback is never the answer to a user's mistake: it shows a defect of maitred.

Messages of msgspec are put in plain words, because users know numbers and lists, not `int` and `array`. Only the types that it
quotes change:

    Expected `int | null`, got `str`    ->  expected a whole number, or nothing, found text
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec


class MaitredError(Exception):
    """The root of every error that maitred raises on purpose."""


class ConfigError(MaitredError):
    """Input that cannot be used: a file, key, flag, row or name.

    `problem` says what is wrong. `where` is the place in the user's terms (`maitred.yaml:12`, `--rate`), and `hint` says what
    would be right; both may be empty.
    """

    def __init__(self, problem: str, *, where: str = "", hint: str = "") -> None:
        self.problem, self.where, self.hint = problem, where, hint
        super().__init__(f"{where}: {problem}" if where else problem)

    def __str__(self) -> str:
        place = f"{shortened(self.where)}: " if self.where else ""
        advice = f" ({shortened(self.hint)})" if self.hint else ""
        return f"{place}{shortened(self.problem)}{advice}"

    def at(self, where: str) -> ConfigError:
        """Return the same error at another place."""
        return ConfigError(self.problem, where=where, hint=self.hint)


@contextmanager
def located(where: str | Callable[[str], str]) -> Iterator[None]:
    """Let a ConfigError of the block name the place `where`, or what `where` makes of the place that it names."""
    try:
        yield
    except ConfigError as error:
        raise error.at(where if isinstance(where, str) else where(error.where)) from error


class InvariantError(MaitredError):
    """The state of a core contradicts itself: always a defect of maitred. Raised by `check()` only."""


JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a piece of JSON from outside may raise. The last is for one that is nested a thousand deep."""
_MAX_QUOTED_CHARS: Final = 80
_MAX_PART_CHARS: Final = 2000
"""What a place, a problem and a hint may each have. Longer ones repeat a name, or the line of a file, that nobody can read."""


def shortened(text: str) -> str:
    """Return `text` as a line shows it: with dots in place of the middle if it has more than 2,000 characters."""
    half = _MAX_PART_CHARS // 2
    return text if len(text) <= _MAX_PART_CHARS else f"{text[: half - 5]} ... {text[-half:]}"


def quote(value: object) -> str:
    """Return `value` as an error message quotes it: as Python writes it, with dots for what is beyond 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write an integer of more than 4,300 digits.
        return "a number of thousands of digits"
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[: _MAX_QUOTED_CHARS - 3]}..."


def nearest_name_hint(name: str, valid: Iterable[str]) -> str:
    """Return the hint for an unknown name: the nearest valid name, or all valid names if none is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid: {', '.join(names)}" if names else "there is nothing to choose from"


_TYPE_NAMES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a section (keys with values)",
    "array": "a list",
    "null": "nothing",
}


def describe_expected(expected: str) -> str:
    """Return the types that msgspec quotes in plain words: "`int` >= 1" becomes "a whole number >= 1"."""
    quoted = re.sub(r"`([^`]*)`", lambda m: " or ".join(_TYPE_NAMES.get(kind, kind) for kind in m[1].split(" | ")), expected)
    return quoted.replace(" or nothing", ", or nothing")


def describe_os_error(error: OSError) -> str:
    """Return in plain words what the operating system has refused: "no such file or directory"."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def describe_read_error(error: Exception) -> str:
    """Return in plain words why a text file could not be read."""
    if isinstance(error, OSError) and error.strerror:
        return describe_os_error(error)
    if isinstance(error, EOFError):
        return "the gzip file ends in the middle"
    return "it is not text (UTF-8)" if isinstance(error, UnicodeDecodeError) else "it is damaged, or of another kind"


def missing_library(name: str, extra: str, where: str) -> ConfigError:
    """Return the error for a library that is not installed. `extra` is the extra of maitred that installs it."""
    return ConfigError(f"needs {name}, which is not installed", where=where, hint=f"pip install 'maitred[{extra}]'")


_JSON_PROBLEMS: Final = (
    (".*recursion depth.*", "it is nested too deeply"),
    ("Input data was truncated", "it ends in the middle of its JSON"),
    ("JSON is malformed(.*)", "not JSON{}"),
    ("Object missing required field `(.*)`", "it has no {}"),
    ("Object contains unknown field `(.*)`", "it has a key {!r}, which does not belong there"),
)
"""Messages of msgspec about a whole piece of JSON, and what they are in plain words."""


def describe_json_error(message: str) -> str:
    """Return msgspec's message about a piece of JSON in plain words: where, what was expected, what was found."""
    problem, _, at = message.partition(" - at `$.")
    for theirs, ours in _JSON_PROBLEMS:
        if found := re.fullmatch(theirs, problem, re.DOTALL):
            return ours.format(*found.groups())
    words = describe_expected(problem[:1].lower() + problem[1:]).replace(", got ", ", found ")
    return f"{at.rstrip('`')}: {words}" if at else words
