"""Answer: what one response says of its tokens, its usage and its end, and when. It has no clock and no sockets.

**Tokens.** An event of a stream has tokens if its delta has anything that a model writes: text, reasoning, the name or the
arguments of a tool, a refusal, audio. A role, an id, a type, a reason or a usage is none, and neither is an empty text. How
many tokens there were is what the endpoint's `usage` says; without one, each such event counts as one. Tokens that come
together have one instant, so that the gaps between them are 0, as in vLLM's own benchmark.

**The end.** A stream is whole if a `finish_reason` or `[DONE]` has come; without either it broke off, however cleanly its
connection was closed. `[DONE]` with nothing before it, no token, reason or usage, ends no answer. An answer that reports an
error (`wire.answer_errors`) has failed, and so has one that is no answer: a body that is no JSON, or has no choices. What was
asked for says nothing of what comes: the head of the response does (`begin`).

**Two ways to count.** Each event is decoded, wherever the pieces of the body end. But nearly every event is a line of its own
that begins its text in the same way as the last one (`"content":"`); many of them at once are counted by a search for that
(`count_plain`).

Example: at 5 ms a role, at 20 ms `{"delta":{"content":"the"}}`, at 31 ms two more such events in one piece. Tokens came at 20,
31 and 31 ms.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec

from maitred.core.errors import JSON_ERRORS
from maitred.core.units import Micros
from maitred.wire import sse
from maitred.wire.answer_errors import HINT, AnswerError, error_in_body, error_in_event
from maitred.wire.messages import Headers

_MARK: Final = re.compile(rb'("(?:content|text|reasoning_content|reasoning|refusal|arguments)"\s*:\s*")[^"]')
"""How a text begins that is not empty."""
_TEXTS: Final = re.compile(rb'"(?:content|text)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_ERROR: Final = re.compile(rb'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
_DONE: Final = b"[DONE]"
_OK: Final = 200
_ODD_READS: Final = 4
"""Reads at the end of many whose events are decoded: the reason, the usage and the end are usually there."""
_CHUNK_END: Final = b"\n\n\r\n"
"""The end of an event that ends a chunk."""
_NOT_PLAIN: Final = (b'"error"', b'"finish_reason":"', b'"finish_reason": "')
"""What no event has that is counted without being decoded."""
_WRITTEN: Final[Sequence[str]] = ("delta", "text", "content")
"""Members of an event without choices that may have tokens. Its `message` would be that of an error."""
_WRITTEN_IN_CHOICE: Final[Sequence[str]] = (*_WRITTEN, "message")
_NOT_WRITTEN: Final = frozenset(("role", "id", "type", "index", "object", "format", "expires_at"))
"""Members of a delta that no model writes."""
_MAX_ERROR_BYTES: Final = 4_096

Usage = tuple[int | None, int | None, int | None]
"""Prompt, output and cached tokens as the endpoint reports them; None for what it does not."""
NO_USAGE: Final[Usage] = (None, None, None)


class Answer:
    """The response to one request. Instants are µs since the start of the run."""

    __slots__ = (
        *("_body", "_empty", "_event", "_is_ok", "_is_over", "_mark"),
        *("error", "finish_reason", "instants", "is_stream", "keeps_text", "on_first", "usage"),
    )

    def __init__(self, *, is_stream: bool, keeps_text: bool = False) -> None:
        """`is_stream` says whether a stream was asked for. `keeps_text` keeps the whole body, for `text`."""
        self.instants = array("q")
        """When each token came, in µs: one for each event with tokens."""
        self.on_first: Callable[[], object] | None = None
        """Called when the first token has come, if it is set."""
        self.is_stream = is_stream
        """Whether the response is a stream of events; before its head, whether one was asked for."""
        self.usage: Usage = NO_USAGE
        self.finish_reason = ""
        """Why the answer ended, as the endpoint says, or empty."""
        self.error: AnswerError | None = None
        """The error that an answer with status 200 reports."""
        self.keeps_text = keeps_text
        self._body: list[bytes] = []
        """The body of a response that is no stream, or whose text is kept."""
        self._event = b""
        """The beginning of an event."""
        self._is_ok = True
        """Whether the status is 200."""
        self._is_over = False
        """Whether a stream has said that it is complete, or a JSON body is an answer."""
        self._mark = self._empty = b""
        """How the endpoint begins a text, and how it writes an empty one; empty before the first text."""

    def begin(self, status: int, headers: Headers) -> None:
        """Take note of the head of the response."""
        kind = next((value.lower() for name, value in headers if name == b"content-type"), b"")
        self._is_ok = status == _OK
        if not self._is_ok or kind.startswith(b"application/json"):
            self.is_stream = False
        elif kind.startswith(sse.EVENT_STREAM_TYPE):
            self.is_stream = True

    def on_piece(self, piece: bytes, now: Micros) -> None:
        """Take a piece of the body, without the framing of chunks."""
        if self.keeps_text or not self.is_stream:
            self._body.append(piece)
        if not self.is_stream:
            return
        stream = self._event + piece
        start = 0
        for blank in sse.EVENT_END.finditer(stream):
            if blank.end() == len(stream) and stream.endswith(b"\r"):
                break  # A line feed may follow that belongs to this blank line.
            self._on_event(stream[start : blank.start()], now)
            start = blank.end()
        self._event = stream[start:]

    def on_end(self, now: Micros) -> None:
        """Note the end of the response. All tokens of one that is no stream came with it."""
        if self.is_stream:
            event, self._event = self._event, b""
            self._on_event(event, now)
        elif self._is_ok:
            has_tokens = self._on_json(b"".join(self._body))
            if not self.problem and (has_tokens if self.usage[1] is None else self.usage[1]):
                self.instants.append(now)

    def count_plain(self, reads: Sequence[bytes], instants: Sequence[Micros]) -> int:
        """Count the tokens of reads that came one after another, framing of chunks included, each at its instant. Return how
        many of the first of them are counted: they are whole chunks of whole events with one text each. `on_piece` must be
        told of the others."""
        calm = len(reads) - _ODD_READS
        if calm < 1 or self._event or not self._mark:
            return 0
        counts = list(map(bytes.count, reads[:calm], repeat(self._mark)))
        are_whole = all(map(bytes.endswith, reads[:calm], repeat(_CHUNK_END)))
        if 0 in counts or not (are_whole and self._is_plain(b"".join(reads[:calm]), sum(counts))):
            return 0
        if counts.count(1) == calm:
            self.instants.extend(instants[:calm])
        else:
            self.instants.extend([now for now, count in zip(instants, counts, strict=False) for _ in range(count)])
        return calm

    def _is_plain(self, stream: bytes, num_texts: int) -> bool:
        """Return whether a stream with its framing is `num_texts` events of one line in whole chunks, none of which says more
        than a text that is not empty."""
        # A chunk is a line with its size, its events, and a line end; an event is a line and a blank one. If each chunk begins
        # and ends as an event does, and there are no other line ends, nothing is cut.
        num_chunks = stream.count(_CHUNK_END)
        return (
            stream.count(b"\n\n") == num_texts
            and stream.count(b"\n") == 2 * (num_texts + num_chunks)
            and stream.count(b"\r\n") == 2 * num_chunks
            and stream.count(b"\r\ndata:") == num_chunks
            and stream.count(b"\n\ndata:") == num_texts - num_chunks
            and stream.find(self._empty) < 0
            and all(stream.find(each) < 0 for each in _NOT_PLAIN)
        )

    def _on_event(self, event: bytes, now: Micros) -> None:
        data = sse.event_data(event)
        if data == _DONE:
            self._is_over = True
            return
        if self.error is None and event.find(HINT) >= 0:
            self.error = error_in_event(event)
        fields = _decoded(data) if data else None
        if fields is None:
            return
        self._read_usage(fields.get("usage"))
        if self._read_choices(fields):
            self._on_token(event, now)

    def _on_token(self, event: bytes, now: Micros) -> None:
        if not self._mark or self._mark not in event or self._empty in event:  # The first, or a model that now speaks.
            found = _MARK.search(event)
            if found is not None:
                self._mark, self._empty = found[1], found[1] + b'"'
        if not self.instants and self.on_first is not None:
            self.on_first()
        self.instants.append(now)

    def _on_json(self, body: bytes) -> bool:
        """Take the body of an answer that is no stream. Return whether it has tokens."""
        self.error = error_in_body(body)
        fields = _decoded(body)
        self._is_over = fields is not None and isinstance(fields.get("choices"), list)
        if fields is None:
            return False
        self._read_usage(fields.get("usage"))
        return self._read_choices(fields)

    def _read_choices(self, fields: dict[str, Any]) -> bool:
        """Read the reason for which an answer ends. Return whether its choices have tokens."""
        choices = fields.get("choices")
        found, names = [fields], _WRITTEN
        if isinstance(choices, list):
            found, names = [choice for choice in choices if isinstance(choice, dict)], _WRITTEN_IN_CHOICE
        for choice in found:
            reason = choice.get("finish_reason")
            if reason:
                self._is_over, self.finish_reason = True, str(reason.get("type") if isinstance(reason, dict) else reason)
        return any(_is_written(choice.get(name)) for choice in found for name in names)

    def _read_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cached_tokens")
            read = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))
            # Of several usages in a stream, one that has a 0 or lacks a number may only not know it: none ever falls.
            prompt, output, cached = (new if new or old is None else old for new, old in zip(read, self.usage, strict=True))
            self.usage = prompt, output, cached

    @property
    def first(self) -> Micros | None:
        """When the first token came, or None."""
        return self.instants[0] if self.instants else None

    @property
    def num_events(self) -> int:
        """Events with tokens; 0 for a response that is no stream."""
        return len(self.instants) if self.is_stream else 0

    @property
    def problem(self) -> str:
        """Why a response with status 200 that has ended is no whole answer, or empty."""
        if self.error is not None:
            return f"error in the answer: {self.error.message}"
        if not self._is_over:
            return "the stream broke off" if self.is_stream else "the answer is no JSON object with choices"
        is_empty = not (self.instants or self.finish_reason) and self.usage == NO_USAGE
        return "the stream has no answer" if is_empty and self.is_stream else ""

    @property
    def text(self) -> bytes | None:
        """The whole text as JSON without its quotes, or None if it was not kept."""
        return b"".join(_TEXTS.findall(b"".join(self._body))) if self.keeps_text or not self.is_stream else None

    @property
    def error_message(self) -> str:
        """What the body of an error says, in one line."""
        body = b"".join(self._body)[:_MAX_ERROR_BYTES]
        found = _ERROR.search(body)
        return (found[1] if found else body[:200]).decode("utf-8", "replace")


def _decoded(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object, or None for anything else."""
    try:
        fields = msgspec.json.decode(data)
    except JSON_ERRORS:
        return None
    return fields if isinstance(fields, dict) else None


def _is_written(value: object) -> bool:
    """Return whether a delta, or a part of it, has anything that a model has written."""
    if isinstance(value, str):
        return value != ""
    if isinstance(value, dict):
        return any(_is_written(part) for name, part in value.items() if name not in _NOT_WRITTEN)
    return isinstance(value, list) and any(map(_is_written, value))


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
