"""Text from outside, as a line of a log and a terminal show it.

Names that clients and backends choose may hold characters that are not what they look like: a line separator (U+2028) forges a
line, a right-to-left override (U+202E) turns the rest of one around, and ESC or a C1 control is a command to a terminal. All
that has no glyph of its own is written as an escape: controls, formats (bidirectional marks and characters of no width),
separators other than the space, surrogates and what is not assigned.
"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """Return `text` with what cannot be printed as escapes of Python: U+202E as `\\u202e`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def printable_json(encoded: bytes) -> bytes:
    """Return JSON, encoded on one line, with what cannot be printed as escapes of JSON. It decodes to the same value."""
    if encoded.isascii() and b"\x7f" not in encoded:  # JSON itself escapes all other controls of ASCII.
        return encoded
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in encoded.decode()).encode()


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
