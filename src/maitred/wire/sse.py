"""Server-sent events, as far as OpenAI's streams use them: a `data:` line per event, comments to keep connections alive."""

from __future__ import annotations

EVENT_STREAM_TYPE = b"text/event-stream"
DONE = b"data: [DONE]\n\n"
"""How an OpenAI stream ends."""


def encode_event(data: bytes) -> bytes:
    """One event; `data` has no line end in it."""
    return b"data: " + data + b"\n\n"


def has_data(stream: bytes) -> bool:
    """Whether the beginning of a stream holds data yet, or only comments (lines that begin with a colon) and blank lines."""
    if stream.startswith(b"data:"):
        return True
    return any(line and not line.startswith(b":") for line in stream.splitlines())
