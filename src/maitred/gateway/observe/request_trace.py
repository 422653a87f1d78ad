"""RequestTrace: what is noted of one request while it is served, for the spans that are made of it (`tracing`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple, TypeAlias

from maitred.core.units import Micros
from maitred.wire.messages import Headers

Value: TypeAlias = str | int | float | bool
TRACE_HEADERS: Final = (b"traceparent", b"tracestate")
"""Those of W3C's Trace Context."""
_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_MAX_STATE_BYTES: Final = 512


class SpanEvent(NamedTuple):
    """Something that happened within a span."""

    name: str
    at: Micros
    attributes: Mapping[str, Value]


class AttemptSpan:
    """One attempt, as it goes on."""

    __slots__ = ("began_at", "ended_at", "error", "span_id", "status", "url")

    def __init__(self, span_id: int, url: str, began_at: Micros) -> None:
        self.span_id, self.url, self.began_at = span_id, url, began_at
        self.ended_at: Micros | None = None
        self.status: int | None = None
        """That of its answer, or None if none came."""
        self.error = ""


class RequestTrace:
    """What is noted of one request, for its spans."""

    def __init__(self, random: Random, traceparent: bytes | None, tracestate: bytes | None, ratio_bound: int) -> None:
        """`ratio_bound`: a new trace is sampled if the lower 64 bits of its id are below."""
        self._random = random
        parent = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent.strip())
        self.is_sampled = False
        """Whether spans are made of it."""
        self.trace_state = b""
        self.parent_id, self._received = 0, b""
        if parent is not None:
            self.trace_id, self.parent_id = int(parent[1], 16), int(parent[2], 16)
            self.is_sampled = bool(int(parent[3], 16) & 1)
            self._received = traceparent.strip() if traceparent is not None else b""
            self.trace_state = (tracestate or b"")[:_MAX_STATE_BYTES] if len(tracestate or b"") <= _MAX_STATE_BYTES else b""
        else:
            self.trace_id = random.getrandbits(128) or 1
            self.is_sampled = self.trace_id & ((1 << 64) - 1) < ratio_bound
        self.span_id = random.getrandbits(64) or 1
        self.attempts: list[AttemptSpan] = []
        self.events: list[SpanEvent] = []
        self.queue_reason = self.refusal_reason = ""

    def on_sent(self, url: str, now: Micros) -> None:
        """Note that the request is about to be sent to a backend."""
        if self.attempts:
            before = self.attempts[-1]
            why = before.error or ("preempted" if before.status is None else f"status {before.status}")
            self.note("retry", now, {"maitred.attempt": len(self.attempts) + 1, "maitred.retry.reason": why})
        self.attempts.append(AttemptSpan(self._random.getrandbits(64) or 1, url, now))

    def on_attempt_end(self, now: Micros, status: int | None, error: BaseException | None) -> None:
        """Note that a backend has no more to do with the request."""
        attempt = self.attempts[-1]
        attempt.ended_at = now
        if status is not None:
            attempt.status = status
        if error is not None:
            self.on_failure(error)

    def on_response(self, status: int) -> None:
        """Note the status of the answer to the present attempt."""
        self.attempts[-1].status = status

    def on_failure(self, error: BaseException) -> None:
        """Note why the present attempt has failed."""
        self.attempts[-1].error = str(error) or type(error).__name__

    def note(self, name: str, now: Micros, attributes: Mapping[str, Value] | None = None) -> None:
        """Note that something has happened."""
        self.events.append(SpanEvent(name, now, attributes or {}))

    def headers(self) -> Headers:
        """Return the headers for the backend of the present attempt: what it makes is a child of the attempt."""
        if not self.is_sampled and self._received:
            told: Headers = [(b"traceparent", self._received)]
        else:
            told = [(b"traceparent", b"00-%032x-%016x-%02x" % (self.trace_id, self.attempts[-1].span_id, self.is_sampled))]
        if self.trace_state:
            told.append((b"tracestate", self.trace_state))
        return told
