"""Names that users chose, as a terminal may be given them."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with what does not print (control characters, bytes that are no text) written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
