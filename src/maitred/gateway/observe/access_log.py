"""The access log: one line for each request, on standard error, in the format of the other lines (`logs`).

    2026-11-22T20:01:02.345Z access client=127.0.0.1:4711 method=POST path=/v1/chat/completions status=200 secs=0.412
        class=interactive model=llama tenant=ip:127.0.0.1 backend=http://10.0.0.1:8000 attempts=1 sent_secs=0.0001
        ttft_secs=0.021 prompt_tokens=21 output_tokens=34 bytes=5120 outcome=completed id=maitred-3f2a-17      (one line)

A request that was refused before it was taken in, or that the gateway answers itself, has of these what is known by then:

    2026-11-22T20:01:02.345Z access client=127.0.0.1:4711 method=POST path=/v1/chat/completions status=404 secs=0.0002
        model=lama tenant=auth:acme error=model_not_found id=maitred-3f2a-18                                   (one line)

Names and values are the same in JSON. What is not known is left out: a request that was never sent has no `backend`, an answer
that is no stream no `ttft_secs`, one without a usage no tokens. A line has the path and not the query, and no header but the
request id: queries and headers may hold keys, and no key is ever logged.

Lines go to the output of the log (`logs`), where nothing that reads them slowly holds up a request.
"""

from __future__ import annotations

import json
import re
import time
from typing import Final

import msgspec

from maitred.core.printing import printable_json
from maitred.core.units import Micros, to_seconds
from maitred.gateway.error_responses import abbreviate
from maitred.gateway.observe.logs import LogOutput
from maitred.gateway.observe.request_record import RequestRecord
from maitred.wire.clock import Clock
from maitred.wire.exchange import Exchange

_PLAIN: Final = re.compile(r"[!#-<>-~]+")
"""A value that needs no quotes: visible ASCII without `"` and `=`."""
_encode: Final = msgspec.json.Encoder().encode


class AccessLog:
    """Writes a line for each request of a gateway."""

    def __init__(self, output: LogOutput, clock: Clock) -> None:
        self._output, self._clock = output, clock
        self._second, self._second_text = -1, ""

    def write_record(self, exchange: Exchange, record: RequestRecord) -> None:
        """Write the line of a request that was taken in and has ended."""
        request, sent_at, first_token_at = record.request, record.sent_at, record.first_token_at
        fields = _head(exchange, record.status, record.ended_at - request.arrival)
        fields["class"] = request.priority_class.label
        fields["model"] = request.model
        fields["tenant"] = request.tenant
        if request.program:
            fields["program"] = request.program
        if record.backend is not None and sent_at is not None:
            fields["backend"] = record.backend.url
            fields["attempts"] = record.num_attempts
            if record.num_failed:
                fields["failed_attempts"] = record.num_failed
            fields["sent_secs"] = to_seconds(sent_at - request.arrival)
        if record.num_preemptions:
            fields["preemptions"] = record.num_preemptions
        if first_token_at is not None:
            fields["ttft_secs"] = to_seconds(first_token_at - request.arrival)
        if record.prompt_tokens is not None:
            fields["prompt_tokens"] = record.prompt_tokens
        if record.output_tokens is not None:
            fields["output_tokens"] = record.output_tokens
        fields["bytes"] = record.num_bytes
        fields["outcome"] = record.outcome
        if record.error_code:
            fields["error"] = record.error_code
        fields["id"] = request.client_id
        self._write(fields)

    def write_answer(
        self, exchange: Exchange, status: int, error_code: str, span: Micros, request_id: bytes, tenant: str, model: str = ""
    ) -> None:
        """Write the line of a request that the gateway has answered itself, or refused, `span` after it came. Tenant and model
        are empty if they are not known."""
        fields = _head(exchange, status, span)
        if model:
            fields["model"] = abbreviate(model)
        if tenant:
            fields["tenant"] = tenant
        if error_code:
            fields["error"] = error_code
        fields["id"] = request_id.decode("latin-1")
        self._write(fields)

    def _write(self, fields: dict[str, object]) -> None:
        if self._output.is_json:
            line = printable_json(_encode({"time": self._time(), "level": "info", "logger": "maitred.access", **fields}))
        else:
            line = f"{self._time()} access {_named(fields)}".encode()
        self._output.write(line + b"\n")

    def _time(self) -> str:
        """Return the time of day in UTC, to the millisecond, as the other lines of the log have it: the clock may be set while
        the gateway serves. The text of each second is made once."""
        second, micros = divmod(self._clock.wall(), 1_000_000)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{micros // 1000:03d}Z"


def _head(exchange: Exchange, status: int, span: Micros) -> dict[str, object]:
    client = exchange.client
    fields: dict[str, object] = {} if client is None else {"client": f"{client[0]}:{client[1]}"}
    fields["method"] = exchange.method
    fields["path"] = exchange.path
    fields["status"] = status
    fields["secs"] = to_seconds(span)
    return fields


def _named(fields: dict[str, object]) -> str:
    """Return the fields as text, each with its name."""
    texts = [f"{name}={value:.6f}" if type(value) is float else f"{name}={value}" for name, value in fields.items()]
    line = " ".join(texts)
    # Nearly every line is plain. To look at each value costs as much as all the rest.
    is_plain = line.isascii() and line.isprintable() and '"' not in line
    if is_plain and line.count(" ") == len(texts) - 1 and line.count("=") == len(texts):
        return line
    return " ".join(f"{text.partition('=')[0]}={_quoted(text.partition('=')[2])}" for text in texts)


def _quoted(text: str) -> str:
    """Return a value as it stands behind `=`: with anything but visible ASCII in it, as a JSON string in ASCII, so that no
    control character reaches a terminal, and no line is broken."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
