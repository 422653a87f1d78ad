"""Server-sent events, as far as OpenAI's streams use them: a `data:` line per event, comments to keep connections alive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from maitred.wire.messages import Headers

EVENT_STREAM_TYPE = b"text/event-stream"
DONE = b"data: [DONE]\n\n"
"""The end of an OpenAI stream."""
KEEPALIVE_COMMENT = b": keepalive\n\n"
"""A comment, which clients skip."""

EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The blank lines that end an event."""

EVENT_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
"""The blank line at the end of an event, and the line end before it, whatever the line ends are."""
LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_DATA: Final = b"data:"
_WITHOUT_DATA: Final = (b":", b"event:", b"id:", b"retry:")
"""How a line begins that has no data."""


def is_event_stream(headers: Headers) -> bool:
    """Return whether a body with these headers consists of server-sent events."""
    return any(name == b"content-type" and value.lower().startswith(EVENT_STREAM_TYPE) for name, value in headers)


def encode_event(data: bytes, name: bytes = b"") -> bytes:
    """Return one event, with a name if it is to have one; neither may contain a line end."""
    event = b"data: " + data + b"\n\n"
    return b"event: " + name + b"\n" + event if name else event


def has_data(stream: bytes) -> bool:
    """Return whether the beginning of a stream contains a whole line of data, and not only comments (lines after a colon),
    blank lines, the names of events, or a part of a line."""
    if stream.startswith(_DATA) and stream.find(b"\n") > 0:  # the usual case
        return True
    lines = (line for line in stream.splitlines(keepends=True) if line.endswith((b"\n", b"\r")))
    return any(line.strip() and not line.startswith(_WITHOUT_DATA) for line in lines)


def unfinished_event(stream: bytes) -> bytes:
    """Return what follows the last blank line of a stream: nothing, or the beginning of an event."""
    if not stream or stream.endswith(b"\n\n"):  # the usual case
        return b""
    return stream[max(at + len(end) if (at := stream.rfind(end)) >= 0 else 0 for end in EVENT_ENDS) :]


def event_data(event: bytes) -> bytes:
    """Return the data of an event, its lines joined; b"" if it has none."""
    event = event.lstrip(b"\r\n")
    if event.startswith(_DATA) and b"\n" not in event and b"\r" not in event:  # one line, the usual case
        return event[len(_DATA) :].strip()
    lines: Sequence[bytes] = LINE_END.split(event)
    return b"\n".join(line[len(_DATA) :].strip() for line in lines if line.startswith(_DATA))
