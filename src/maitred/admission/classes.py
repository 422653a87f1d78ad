"""The class that a request asks for, as text in a header."""

from __future__ import annotations

from maitred.request import PriorityClass


def parse_class(text: str | None) -> PriorityClass | None:
    """The class named by `text`: any case, surrounding white space ignored. Never raises.

    None: the text names no class. The caller takes `default`, and counts it. A missing header (None), an empty one and one
    with anything but visible ASCII ask for nothing: `default`, and nothing to count (SMG's contract).
    """
    label = (text or "").strip()
    if not label or not label.isascii() or not label.isprintable():
        return PriorityClass.DEFAULT
    return PriorityClass.of(label)
