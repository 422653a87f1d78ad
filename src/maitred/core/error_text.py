"""Messages of msgspec in plain words: users know numbers and lists, not `int` and `array`.

    Expected `int | null`, got `str`    ->  expected a whole number, or nothing, found text

The types are those that msgspec quotes; everything else in a message stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

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


def describe_json_error(message: str) -> str:
    """Return msgspec's message about a piece of JSON in plain words: where, what was expected, what was found."""
    problem, _, at = message.partition(" - at `$.")
    if problem == "Input data was truncated":
        return "it ends in the middle of its JSON"
    if problem.startswith("JSON is malformed"):
        return f"not JSON{problem.removeprefix('JSON is malformed')}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
        return f"it has no {missing[1]}"
    words = describe_expected(problem[:1].lower() + problem[1:]).replace(", got ", ", found ")
    return f"{at.rstrip('`')}: {words}" if at else words
