"""Clients of a gateway in a world: what they send, and what they saw.

A `Sent` is one request and its fate as its client saw it. Its mark goes out as `x-request-id`: the gateway must answer with it,
and the engine makes the id of its answer of it. The answer that is right is known beforehand, since every request asks for an
exact number of tokens. So a client notices an answer that is another's, is cut off and looks whole, or has two heads.

A `ClientConnection` may have several requests under way, whose answers come in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import msgspec

from maitred.core.units import Micros
from maitred.emulator.tokens import filler
from maitred.testing.world.answers import AnswerParser, ParsedResponse, Violation
from maitred.testing.world.loop import VirtualLoop
from maitred.testing.world.transport import MemoryTransport


class Fate(StrEnum):
    """How a request ended, as its client saw it."""

    ANSWERED = "answered"
    """With a whole answer, which may be an error."""
    CUT = "cut"
    """The connection ended within the answer."""
    UNANSWERED = "unanswered"
    """The connection ended before the answer."""
    ABANDONED = "abandoned"
    """The client left first."""


@dataclass(slots=True, eq=False)
class Sent:
    """A request that was sent."""

    mark: str
    tokens: int
    """Output tokens that it asks for."""
    streams: bool
    sent_at: Micros
    ended: asyncio.Future[Fate]
    priority: str = "default"
    """The class that it asks for."""
    model: str = ""
    unsent_bytes: int = 0
    """What of it the client has not sent yet."""
    begins_at: int = 0
    """Bytes that were sent before it over its connection."""
    answer: ParsedResponse | None = None
    """The answer, as far as it has come."""
    error_code: str = ""
    """The code of the error with which a stream has ended."""
    was_disturbed: bool = False
    """Whether its connection was cut or reset from outside."""
    has_tokens: bool = False
    """Whether a stream had tokens before its error."""
    ended_at: Micros | None = None

    @property
    def fate(self) -> Fate | None:
        """How it ended, or None while it has not."""
        return self.ended.result() if self.ended.done() else None

    @property
    def status(self) -> int | None:
        """The status of the answer, or None if it has not begun."""
        return None if self.answer is None else self.answer.status


def request_bytes(sent: Sent, prompt: str, model: str, headers: dict[str, str]) -> bytes:
    """Return a chat request for exactly `sent.tokens` tokens."""
    fields = {
        "model": model,
        "stream": sent.streams,
        "max_tokens": sent.tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    body = msgspec.json.encode(fields)
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: gateway",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {sent.mark}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class ClientConnection(asyncio.Protocol):
    """A connection of a client."""

    def __init__(self, loop: VirtualLoop, on_violation: Callable[[str], object]) -> None:
        """`on_violation` is told what the server may not do."""
        self._loop, self._on_violation = loop, on_violation
        self._parser = AnswerParser()
        self._under_way: deque[Sent] = deque()
        self.is_open = False
        self.is_writable = asyncio.Event()

    def send(self, sent: Sent, data: bytes) -> None:
        """Send a request."""
        stream = self.transport.connection.forth
        sent.begins_at = stream.num_read + stream.num_bytes
        self._under_way.append(sent)
        if data:
            self.transport.write(data)

    def leave(self, *, abruptly: bool) -> None:
        """Close the connection; what is under way is abandoned."""
        self._end_all(Fate.ABANDONED)
        if abruptly:
            self.transport.abort()
        else:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(MemoryTransport, transport)
        self.is_open = True
        self.is_writable.set()

    def pause_writing(self) -> None:
        self.is_writable.clear()

    def resume_writing(self) -> None:
        self.is_writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for answer in self._parser.feed(data):
                self._on_answer(answer)
            if self._parser.answer is not None:
                self._first_under_way(self._parser.answer).answer = self._parser.answer
        except Violation as violation:
            self._report(str(violation))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.is_writable.set()
        answer = self._parser.feed_end() if exc is None else None
        if answer is not None and self._under_way:
            self._on_answer(answer)
        if self._under_way and not self.transport.connection.is_disturbed:
            first = self._under_way[0]
            if first.answer is None and not self._was_idle_for_server(first):
                self._on_violation(f"request {first.mark} has no answer, and its connection was not disturbed ({exc!r})")
        self._end_all(Fate.UNANSWERED)

    def _was_idle_for_server(self, sent: Sent) -> bool:
        """Return whether the server has closed a kept connection of which it had not read the next request, as it may (RFC
        9112, 9.5)."""
        return sent.begins_at > 0 and self.transport.connection.forth.num_read <= sent.begins_at

    def _on_answer(self, answer: ParsedResponse) -> None:
        sent = self._first_under_way(answer)
        self._under_way.popleft()
        sent.answer = answer
        problem = problem_of(sent)
        if problem:
            self._on_violation(f"request {sent.mark}: {problem}")
        self._end(sent, Fate.ANSWERED)
        if answer.closes:
            self._end_all(Fate.UNANSWERED)
            self.transport.close()

    def _first_under_way(self, answer: ParsedResponse) -> Sent:
        if not self._under_way:
            raise Violation(f"an answer with status {answer.status} to no request")
        return self._under_way[0]

    def _end_all(self, fate: Fate) -> None:
        while self._under_way:
            sent = self._under_way.popleft()
            has_begun = sent.answer is not None and fate is Fate.UNANSWERED
            self._end(sent, Fate.CUT if has_begun else fate)

    def _end(self, sent: Sent, fate: Fate) -> None:
        sent.ended_at, sent.was_disturbed = self._loop.micros, self.transport.connection.is_disturbed
        if not sent.ended.done():
            sent.ended.set_result(fate)

    def _report(self, problem: str) -> None:
        mark = self._under_way[0].mark if self._under_way else "none"
        self._on_violation(f"connection with request {mark}: {problem}")
        self.leave(abruptly=True)


def is_late_head(sent: Sent) -> bool:
    """Return whether an answer is the one to a head that was not whole in time: it knows no id, and is no request's."""
    answer = sent.answer
    return answer is not None and answer.status == 408 and b"x-request-id" not in answer.headers


def problem_of(sent: Sent) -> str:
    """Describe the fault of an answer that should be whole, or return an empty string."""
    answer = sent.answer
    if answer is None or not answer.is_whole:
        return "its answer is not whole"
    told = answer.headers.get(b"x-request-id", b"").decode("latin-1")
    if told != sent.mark and not is_late_head(sent):
        return f"its answer has the id {told!r}"
    if answer.status != 200:
        return _problem_of_error(answer)
    return _problem_of_stream(sent, bytes(answer.body)) if sent.streams else _problem_of_completion(sent, bytes(answer.body))


def _problem_of_error(answer: ParsedResponse) -> str:
    if answer.status not in (400, 404, 408, 413, 429, 500, 502, 503, 504):
        return f"its answer has the status {answer.status}"
    try:
        error = msgspec.json.decode(answer.body, type=dict[str, object])
    except msgspec.MsgspecError:
        return f"its error is no JSON: {bytes(answer.body[:80])!r}"
    return "" if "error" in error else f"its error says nothing: {error}"


def _problem_of_completion(sent: Sent, body: bytes) -> str:
    try:
        completion = msgspec.json.decode(body)
        text, told = completion["choices"][0]["message"]["content"], completion["id"]
    except (msgspec.MsgspecError, LookupError, TypeError):
        return f"its answer is no completion: {body[:80]!r}"
    if told != f"chatcmpl-{sent.mark}":
        return f"its answer is that of {told}"
    return "" if text == filler(sent.tokens) else f"its answer has {len(text.split())} tokens in place of {sent.tokens}"


def _problem_of_stream(sent: Sent, body: bytes) -> str:
    """Describe the fault of a stream, which must have all tokens and the end, or its error at its end."""
    text: list[str] = []
    is_done = False
    *events, rest = body.split(b"\n\n")
    if rest:
        return f"its stream ends within an event: {rest[:80]!r}"
    for number, event in enumerate(events, 1):
        data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if not data:
            continue
        if is_done:
            return "its stream goes on behind its end"
        if data == b"[DONE]":
            is_done = True
            continue
        try:
            fields = msgspec.json.decode(data)
            if "error" in fields:
                sent.error_code, sent.has_tokens = str(fields["error"].get("code")), any(text)
                return "" if number == len(events) else "its stream goes on behind its error"
            told, delta = fields["id"], fields["choices"][0]["delta"] if fields["choices"] else {}
        except (msgspec.MsgspecError, LookupError, TypeError):
            return f"its stream has an event that is none: {data[:80]!r}"
        if told != f"chatcmpl-{sent.mark}":
            return f"its stream has an event of {told}"
        text.append(delta.get("content") or "")
    if not is_done:
        return f"its stream ends without an end, after {len(text)} events"
    whole = "".join(text)
    return "" if whole == filler(sent.tokens) else f"its stream has {len(whole.split())} tokens in place of {sent.tokens}"
