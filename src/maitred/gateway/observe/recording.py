"""TrafficRecorder: the traffic of a gateway as a trace that `maitred simulate` replays, and `maitred validate` compares with.
There is one row for each request that generates:

    arrival, class, tenant, model, session, stream, output limit     from the request
    prompt, output and cached tokens                                 from the `usage` of the answer
    backend, when it was sent there, TTFT, the end                   as measured, in seconds from the arrival
    think time, whether the prompt continues the last one            from the last request of the same program
    request id                                                       as in the answer and in the other logs (`request_ids`)

The gateway asks the backend for the usage of a stream if the client has not, and keeps what answers that from the client. Where
a backend reports none, the tokens are estimated, and the row says so: those of the prompt as in admission, those of a streamed
answer as its number of events minus one (the last event says that it is the last), at most the client's limit, those of any
other body from its size. A stream of 21 events with `max_tokens: 16`, say, counts as 16 tokens.

What is not known is left empty: the length of an answer that broke off, failed or never was, or of which nothing was seen, the
TTFT of an answer that is no stream.
No text is recorded: a prompt counts as one that continues the last prompt of its program, and the response to it, if it has
at least as many tokens as both.

This module makes the rows of a gateway as its requests end; `record_file` puts them in order and writes them.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from maitred.core.request import Request, RequestId
from maitred.core.units import Micros
from maitred.gateway.observe.request_record import RequestRecord
from maitred.workload.formats.maitred import COMPLETED, Measured
from maitred.workload.lengths import MAX_TOKENS


class RecordingRow(msgspec.Struct, frozen=True):
    """What is recorded of one request by itself."""

    request: Request
    """The request without its prompt; its arrival is on the monotonic clock, as `ended_at` is."""
    ended_at: Micros
    prompt: int
    output: int | None
    outcome: str
    measured: Measured


class RecordSink:
    """Where rows go. As what writes files: from `start` to `close`."""

    def start(self) -> None:
        """Write from now on, inside this event loop."""
        raise NotImplementedError

    async def close(self) -> None:
        """Write what is left."""
        raise NotImplementedError

    def reopen(self) -> None:
        """Open the file anew: it may have been moved."""
        raise NotImplementedError

    @property
    def num_dropped(self) -> int:
        """Rows that were not written."""
        raise NotImplementedError

    def take(self, recorded: RecordingRow, oldest: Micros) -> None:
        """Take a row. `oldest` is when the oldest request arrived that has not ended, or any later instant if there is none."""
        raise NotImplementedError


class TrafficRecorder:
    """Makes a row of each request that has ended."""

    def __init__(self, sink: RecordSink) -> None:
        self.sink = sink
        self._open: dict[RequestId, Micros] = {}
        """When the requests arrived that have not ended, in this order."""

    def open_row(self, request: Request) -> None:
        """Take note of a request that has arrived, and of which a row will be written."""
        self._open[request.id] = request.arrival

    def write_row(self, record: RequestRecord) -> None:
        """Record a request that has ended, in whatever way."""
        del self._open[record.request.id]
        self.sink.take(_recorded(record), self.oldest(record.ended_at + 1))

    def oldest(self, now: Micros) -> Micros:
        """Return when the oldest request arrived that has not ended, or `now` if there is none."""
        return next(iter(self._open.values()), now)


def _recorded(record: RequestRecord) -> RecordingRow:
    request = record.request
    prompt, output, is_reported = record.prompt_tokens, record.output_tokens, True
    if prompt is None:
        prompt, is_reported = request.prompt_tokens, False
    # Where Envoy forwards, the body of an answer may pass this process by.
    is_seen = record.num_bytes > 0
    if output is None and record.outcome == COMPLETED and is_seen:
        output, is_reported = record.estimated_output(), False
    measured = Measured(
        tokens_from="usage" if is_reported else "estimate",
        cached_tokens=None if record.reported is None else record.reported.cached_tokens,
        backend="" if record.backend is None else record.backend.url,
        sent=None if record.sent_at is None else record.sent_at - request.arrival,
        ttft=None if record.first_token_at is None or not is_seen else record.first_token_at - request.arrival,
        e2e=record.ended_at - request.arrival,
        request_id=request.client_id,
    )
    return RecordingRow(
        request=_as_recorded(request, record.is_stream),
        ended_at=record.ended_at,
        prompt=_plausible(prompt),
        output=None if output is None else _plausible(output),
        outcome=record.outcome,
        measured=measured,
    )


def _as_recorded(request: Request, is_stream: bool) -> Request:
    # To the picker of an Envoy no request is a stream, whatever its answer is (`RequestIntake`).
    if request.prefix is None and request.stream >= is_stream:
        return request
    return replace(request, prefix=None, stream=request.stream or is_stream)


def _plausible(tokens: int) -> int:
    return min(max(1, tokens), MAX_TOKENS)
