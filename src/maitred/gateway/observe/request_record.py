"""RequestRecord: what is known of one forwarded request, for metrics, the access log and the recording.

    arrival     the request was taken in, its body read                    of the request itself
    sent        it was sent to a backend (the last one, if several were tried)
    first data  the first data of the answer came
    last data   the last piece came
    ended       the answer was handed to the client, broke off, or was refused

What never happened is None. Instants are those of the monotonic clock, in µs. The record only observes: nothing is decided by
it, and the bytes pass as they came.

**Tokens.** The exact way is `AnswerReader`, which reads every answer of which the gateway must know the usage. It is there for
programs and for a recording. Otherwise the last two pieces of an answer are kept, and its `usage` is looked for at the end of
them when it has ended: behind the text, where engines put it. An answer to `include_usage`, say, ends with

    data: {"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":34}}     data: [DONE]

A stream may tell another part of its usage in an earlier event: that of `/v1/messages` tells its prompt in the first one,
`message_start`. So where the last usage lacks a number or has a 0, all usages in the first and in the last pieces are put
together (`usage_counts`).

**Errors in an answer.** An answer with status 200 may say that it has failed (`wire.answer_errors`), in an event or in its
body. Such a request has not completed: its outcome is `error_in_answer`, and of a stream only what came before the error counts
as tokens. Nearly every piece of a stream is one event that begins as the one before, and is not looked into: an error begins
otherwise, or stands at the end, where the last two pieces are looked into in any case.

**A stream that ends early.** An engine that gives up may end its stream as HTTP has it. So where the API of a route says how a
stream ends (`[DONE]`, a `finish_reason`, `message_stop`, `response.completed`), one without that has not completed: its outcome
is `broken_off`.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from maitred.core.request import Request
from maitred.core.units import MILLISECOND, Micros
from maitred.gateway.bodies.answer_usage import read_ends, read_last
from maitred.gateway.bodies.usage_counts import NO_COUNTS
from maitred.gateway.observe.request_ids import NOT_QUEUED, QUEUE_HEADER
from maitred.gateway.observe.request_metrics import RequestSeries
from maitred.gateway.observe.request_trace import RequestTrace
from maitred.gateway.routes import Route
from maitred.kv.block_hashes import BYTES_PER_TOKEN
from maitred.programs import Usage
from maitred.wire.answer_errors import AnswerError, error_in_body, error_in_stream
from maitred.wire.clock import Clock
from maitred.wire.sse import EVENT_END, unfinished_event
from maitred.workload.formats.maitred import COMPLETED

if TYPE_CHECKING:
    from maitred.scheduler.interface import Backend

CLIENT_GONE: Final = 499
"""The status of a request of which the client left before its answer began, as nginx has it. No such client sees it."""
ERROR_IN_ANSWER: Final = "error_in_answer"
"""The outcome and error code of an answer with status 200 that reports an error."""
ENDED_EARLY: Final = "ended_early"
"""Why a stream has failed that ends as HTTP has it, and not as its API has it."""
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})\b')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')
_INPUT: Final = b'"input'
"""How Anthropic's word for the tokens of a prompt begins. Those that were cached stand beside them."""
_MESSAGE_START: Final = b'"message_start"'
_EVENT: Final = b"\ndata:"
_DONE: Final = b"[DONE]\n\n"
_DATA: Final = b"data:"
_EVENT_STARTS: Final = (_DATA, b"event:")
_TAIL_BYTES: Final = 32_768
"""Bytes at the end of an answer in which its usage is looked for."""
_LEAST_TAIL_BYTES: Final = 128
"""Bytes at the end of a stream in which its end is seen. XXX: a guess: the events of an engine have 150 and more. To be
measured: the shortest last events of all engines."""
_USUAL_BYTES: Final = 12
"""Bytes at the beginning of an event in which an error differs from the others: `data: {"id":` and `data: {"erro`."""
_UNUSUAL: Final = b"\0"
"""How no piece begins."""
_MAX_EVENT_BYTES: Final = 65_536
"""Size of an unfinished event that is kept to see whether it is an error."""
_ONLY_ROLE: Final = re.compile(
    rb'\A[^\n]*"delta"\s*:\s*\{\s*"role"\s*:\s*"assistant"\s*(?:,\s*"content"\s*:\s*(?:""|null)\s*)?[,}]'
)
"""The first event of a chat that only says who speaks."""


class RequestRecord:
    """One request. `Proxy` sets what it learns; `RequestObserver` reads it at the end."""

    # Slots: what is set for the first time after thirty others were begun would cost each of them a dictionary of its own.
    __slots__ = (
        *("_first_piece", "_last_piece", "_last_pieces", "_open_event", "_usual", "backend", "clock", "ended_at", "error"),
        *("error_code", "first_data_at", "is_complete", "is_stream", "is_unreadable", "last_data_at", "num_attempts"),
        *("num_bytes", "num_events", "num_failed", "num_preemptions", "on_events", "output_tokens", "prompt_tokens"),
        *("queue_header", "queue_wait", "reported", "request", "route", "sent_at", "series", "status", "trace"),
    )

    def __init__(self, request: Request, route: Route, series: RequestSeries, clock: Clock) -> None:
        self.request = request
        self.route = route
        self.clock = clock
        """What tells its instants."""
        self.series = series
        self.trace: RequestTrace | None = None
        """What is noted for its spans, or None if there are no traces."""
        self.backend: Backend | None = None
        """The last backend that it was sent to."""
        self.num_attempts = self.num_failed = self.num_preemptions = 0
        """How often it was sent to a backend; how many of these attempts a backend has failed (after the others it was
        preempted, or has its answer); how often it lost its slot to a more urgent request."""
        self.queue_wait: Micros = 0
        """For how long it has waited for memory of its program and for slots, µs."""
        self.queue_header = NOT_QUEUED
        """What its answer says of that."""
        self.sent_at: Micros | None = None
        self.first_data_at: Micros | None = None
        self.last_data_at: Micros = 0
        self.ended_at: Micros = 0
        self.status = CLIENT_GONE
        """The status of the answer that was begun, or `CLIENT_GONE` if none was."""
        self.error: AnswerError | None = None
        """The error that the answer of the backend reports, whatever its status."""
        self.error_code = ""
        """The code of the gateway's own refusal, `broken_off` or `client_gone` for an answer that was not sent whole,
        `error_in_answer`, or ""."""
        self.is_complete = self.is_stream = self.is_unreadable = False
        """Whether the whole answer was sent, with whatever status; whether it is a stream of events; whether it is compressed:
        neither errors nor tokens are seen in it."""
        self.num_bytes = self.num_events = 0
        """Of the body of the answer, as the backend sent it; of a stream, with data, up to an error."""
        self.on_events: Callable[[int, Micros], object] | None = None
        """Told of the events of each piece of a stream, and when it came, if that is of interest."""
        self.prompt_tokens: int | None = None
        """Of the prompt, as the backend has reported them; None before `end`, and if it has not."""
        self.output_tokens: int | None = None
        """Of the answer, likewise."""
        self.reported: Usage | None = None
        """The usage, if an `AnswerReader` has read the answer."""
        self._first_piece = self._last_piece = self._last_pieces = b""
        self._open_event = b""
        """The beginning of an event that may turn out to be an error."""
        self._usual = _UNUSUAL
        """How the last piece began that was whole events without an error."""

    def on_sent(self, backend: Backend, now: Micros, on_events: Callable[[int, Micros], object] | None) -> None:
        """Note that the request is about to be sent to `backend`. `on_events` is told of the events of its answer."""
        self.backend, self.sent_at, self.on_events = backend, now, on_events
        self.num_attempts += 1
        if self.trace is not None:
            self.trace.on_sent(backend.url, now)
        if self.num_attempts > 1:
            self.first_data_at, self.num_bytes, self.num_events = None, 0, 0
            self.error, self._open_event, self._usual = None, b"", _UNUSUAL

    def note_wait(self, micros: Micros) -> None:
        """Note that it has waited for memory or a slot."""
        self.queue_wait += micros
        self.queue_header = (QUEUE_HEADER, b"%d" % (self.queue_wait // MILLISECOND))

    def on_first_data(self, piece: bytes) -> None:
        """Take note of what has come of the answer up to its first data."""
        self.first_data_at = self.last_data_at = now = self.clock.now()
        self.num_bytes, self._last_piece, self._last_pieces = len(piece), piece, b""
        if not self.is_stream:
            self.error = error_in_body(piece) if not self.route.asks_each else None
            return
        self._first_piece = piece
        self._count_events((b"\n" + piece).count(_EVENT), now)  # The first event has no line end before it.
        self._look_for_error(piece, b"")

    def on_passed_on(self, backend: Backend, piece: bytes, *, is_stream: bool) -> None:
        """Take note that the answer of an earlier attempt, of which `piece` has been held, is sent to the client."""
        self.backend, self.is_stream = backend, is_stream
        self.num_events, self.error, self._open_event = 0, None, b""
        self.on_first_data(piece)

    def on_stream_piece(self, piece: bytes) -> None:
        """Take note of a further piece of a stream."""
        now, last = self.clock.now(), self._last_piece
        # `count`, because `in` first takes the bytes for a number, which costs as much again.
        if piece.startswith(self._usual) and not piece.count(_EVENT):
            self._count_events(1, now)
        elif not piece:  # The end of the stream has come by itself.
            return
        elif self.error is None:
            # A mark may begin in one piece and end in the next.
            count = piece.count(_EVENT) + 1 if piece.startswith(_DATA) else (last[1 - len(_EVENT) :] + piece).count(_EVENT)
            self._count_events(count, now)
            self._look_for_error(piece, last)
        self._last_pieces, self._last_piece = last, piece
        self.num_bytes += len(piece)
        if not piece.endswith(_DONE):
            self.series.itl.observe(now - self.last_data_at)
        self.last_data_at = now

    def on_body_piece(self, piece: bytes) -> None:
        """Take note of a further piece of an answer that is no stream."""
        self._last_pieces, self._last_piece = self._last_piece, piece
        self.num_bytes += len(piece)

    def _look_for_error(self, piece: bytes, last: bytes) -> None:
        """Look for an error in a piece of a stream that follows `last`. Neither an error nor what follows it is counted."""
        begun = self._open_event or unfinished_event(last)
        events = begun + piece
        if begun and begun == self._first_piece:
            self._first_piece = events  # so that it has the first event whole
        if self._find_error(events):
            return
        rest = unfinished_event(events)
        self._open_event = rest if len(rest) <= _MAX_EVENT_BYTES else b""
        self._usual = _UNUSUAL if begun or rest else piece[:_USUAL_BYTES]

    def _look_at_end(self) -> None:
        """Look for an error in the last two pieces of an answer that has ended. The first one was looked into when it came."""
        if self.error is not None or not self._last_pieces or self.route.asks_each:
            return
        tail = self._last_pieces + self._last_piece
        if not self.is_stream:
            self.error = error_in_body(tail) if len(tail) == self.num_bytes else None
        elif tail.startswith(_EVENT_STARTS):
            self._find_error(tail)
        else:
            first = EVENT_END.search(tail)
            self._find_error(b"" if first is None else tail[first.end() :])

    def _find_error(self, events: bytes) -> bool:
        """Return whether one of these events, which have all been counted, is an error."""
        found = error_in_stream(events)
        if found is None:
            return False
        self.error, at = found
        self.num_events -= (b"\n" + events[at:]).count(_EVENT)
        self._usual = _UNUSUAL
        return True

    def _count_events(self, num_events: int, now: Micros) -> None:
        self.num_events += num_events
        if self.on_events is not None:
            self.on_events(num_events, now)

    def on_first_data_sent(self) -> None:
        """Note that the first data of the answer goes out to the client."""
        assert self.backend is not None
        assert self.sent_at is not None
        assert self.first_data_at is not None
        self.backend.first_data_times.observe(self.first_data_at - self.sent_at)
        if self.is_stream and self.status == 200 and self.error is None:
            self.series.ttft.observe(self.first_data_at - self.request.arrival)

    def on_complete(self, now: Micros) -> None:
        """Note that the whole answer of the backend was sent to the client."""
        self.is_complete, self.ended_at = True, now
        if self._last_pieces:
            self._look_at_end()
        if self.is_stream and self.status == 200 and self.error is None and not self.is_unreadable:
            self.is_complete = not self._lacks_end()
        if self.is_complete and self.status == 200 and self.error is None:
            self.series.e2e.observe(self.ended_at - self.request.arrival)

    def _lacks_end(self) -> bool:
        """Return whether a stream has ended as HTTP has it, and not as its API has it: the engine has given it up."""
        tail = self._last_pieces + self._last_piece
        # Less may be a part of the last event.
        return bool(self.route.end_marks) and len(tail) >= _LEAST_TAIL_BYTES and not any(map(tail.count, self.route.end_marks))

    def on_refused(self, status: int, error_code: str | None) -> None:
        """Note that the gateway answers with an error of its own."""
        self.is_complete, self.status, self.error_code = True, status, error_code or ""

    @property
    def first_token_at(self) -> Micros | None:
        """When the first data of a stream came, or None; None too if that was an error."""
        return self.first_data_at if self.is_stream and (self.num_events or not self.has_failed) else None

    @property
    def has_failed(self) -> bool:
        """Whether the answer has begun as one with status 200, and reports an error."""
        return self.error is not None and self.status == 200

    @property
    def outcome(self) -> str:
        """`completed`, `status_NNN`, `error_in_answer`, or `broken_off` if the client left or the answer did not reach its end
        (`error_code` says which)."""
        if self.has_failed:
            return ERROR_IN_ANSWER
        if not self.is_complete:
            return "broken_off"
        return COMPLETED if self.status == 200 else f"status_{self.status}"

    def end(self) -> None:
        """Note that the request has ended, in whatever way, and read the tokens that the backend has reported."""
        self.ended_at = self.ended_at or self.clock.now()
        self.on_events = None  # It refers to what refers to this record.
        if self.first_data_at is None:
            return
        if not self.is_complete:
            self._look_at_end()
        usage = self.reported
        if usage is not None and 0 < usage.prompt_tokens <= usage.total_tokens:
            output_tokens = usage.total_tokens - usage.prompt_tokens
            # A stream that broke off may have told of its prompt only.
            self.output_tokens = output_tokens if output_tokens or not self.is_stream else None
            self.prompt_tokens = usage.prompt_tokens
            return
        tail = self._last_piece
        at = _find_usage(tail) if tail else -1
        if at < 0 and len(self._last_pieces) > 1 and len(tail) < _TAIL_BYTES:
            tail = self._last_pieces + tail
            at = _find_usage(tail)
        if at >= 0:
            self._read_tokens(tail, at)
        elif self.is_stream and self._first_piece.count(_MESSAGE_START):  # It broke off.
            self.prompt_tokens = read_ends(self._first_piece, b"").whole_prompt

    def _read_tokens(self, tail: bytes, at: int) -> None:
        """Read the tokens of an answer whose last usage begins in `tail` at `at`."""
        prompt, output = _PROMPT.search(tail, at), _OUTPUT.search(tail, at)
        self.prompt_tokens = (None if prompt is None else int(prompt[1])) or None  # 0 is not known.
        self.output_tokens = None if output is None else int(output[1])
        is_whole = self.prompt_tokens and (self.output_tokens or not self.is_stream)
        if not is_whole or (prompt is not None and prompt[0].startswith(_INPUT)):
            ends = self._first_piece, self._last_pieces + self._last_piece
            told = read_ends(*ends) if self.is_stream else read_last(tail[at:])
            if told != NO_COUNTS:
                self.prompt_tokens, self.output_tokens = told.whole_prompt, told.output
        if self.is_stream:
            self.output_tokens = self.output_tokens or None

    def known_tokens(self) -> int | None:
        """Return the tokens of prompt and answers, as the backend says or as a stream shows; None if nothing tells them. To be
        called when the answer has ended."""
        if self.sent_at is None or self.status != 200 or self.is_unreadable:
            return None
        self.end()
        if self.output_tokens is None and not self.is_stream:
            return self.prompt_tokens  # All that a usage has that tells of no answer, such as that of embeddings.
        prompt = self.request.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        return prompt + (self.estimated_output() if self.output_tokens is None else self.output_tokens)

    def estimated_output(self) -> int:
        """Return the tokens of the answer, estimated by what has come of it, at most the limit of the client."""
        if self.is_stream and not self.is_unreadable:
            # The last event says that it is the last, and so does none before an error.
            seen = self.num_events - (self.error is None) - (_ONLY_ROLE.match(self._first_piece) is not None)
        else:
            seen = self.num_bytes // BYTES_PER_TOKEN if self.error is None else 0
        limit = self.request.max_output_tokens
        return max(0, seen if limit is None else min(seen, limit * self.request.sequences))


def _find_usage(tail: bytes) -> int:
    """Return where the last usage begins, or a negative number. A text of the model cannot be taken for one: its quotes are
    escaped."""
    at = tail.rfind(b'"usage"', -_TAIL_BYTES)
    return at if at >= 0 else tail.rfind(b'"meta_info"', -_TAIL_BYTES)
