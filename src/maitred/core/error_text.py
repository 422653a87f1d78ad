"""What msgspec finds wrong, in plain words: people who write a file know numbers and lists, not `int` and `array`."""

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
    """msgspec's "`int | null`" or "`int` >= 1" as "a whole number, or nothing" and "a whole number >= 1"."""
    quoted = re.sub(r"`([^`]*)`", lambda m: " or ".join(_TYPE_NAMES.get(kind, kind) for kind in m[1].split(" | ")), expected)
    return quoted.replace(" or nothing", ", or nothing")


def describe_json_error(message: str) -> str:
    """A whole message about a piece of JSON: where it is, what was expected, what was found."""
    message, _, at = message.partition(" - at `$.")
    if message == "Input data was truncated":
        return "it ends in the middle of its JSON"
    if message.startswith("JSON is malformed"):
        return f"not JSON{message.removeprefix('JSON is malformed')}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", message):
        return f"it has no {missing[1]}"
    words = describe_expected(message[:1].lower() + message[1:]).replace(", got ", ", found ")
    return f"{at.rstrip('`')}: {words}" if at else words
