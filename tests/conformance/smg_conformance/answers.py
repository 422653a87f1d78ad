"""What is expected of one request. A list of statuses: one of them.

status                 headers {name: value; null: absent}       body (JSON)       body_from: engine
wall_s: [least, most]  within_s: most                            complete: the answer ended as its kind ends
data_lines             starts_after: end of x                    not_rejected_early: no refusal, but a late answer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from .engines import Orders, answer_of
from .failures import Failure, differs, outside
from .moments import Event, read_moment
from .record import Record, Request
from .scenario import CannotCheck


def check(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    """Raises CannotCheck."""
    if not isinstance(expected, dict):
        raise CannotCheck(f"{request.name}: {expected!r}")
    for key, value in expected.items():
        if key not in _RULES:
            raise CannotCheck(f"{request.name}: the key {key!r}")
        yield from _RULES[key](value, request, record)


def _status(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    any_of = expected if isinstance(expected, list) else [expected]
    if not all(isinstance(status, int) for status in any_of):
        raise CannotCheck(f"{request.name}: the status {expected!r}")
    exchange = request.exchange
    if exchange.status not in any_of or not exchange.complete:
        yield Failure(f"{request.name}: expected {' or '.join(map(str, any_of))}, got {exchange}{_said(request)}")


def _said(request: Request) -> str:
    return f" {request.exchange.body[:200].decode(errors='replace')}" if request.exchange.status != 200 else ""


def _headers(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    for name, value in expected.items():
        got = request.exchange.header(name)
        if got is not None and name.lower() == "content-type":
            got = got.partition(";")[0]
        yield from differs(f"{request.name}: header {name}", value, got)


def _body(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    got = request.exchange.json if expected else request.exchange.body
    yield from differs(f"{request.name}: body", expected or b"", got)


def _body_from(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    if expected != "engine":
        raise CannotCheck(f"{request.name}: body_from {expected!r}")
    orders = Orders(name=request.name, status=request.send.engine_status)
    yield from differs(f"{request.name}: the engine's body", answer_of(orders), request.exchange.json)


def _wall(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    yield from outside(f"{request.name}: wall time", expected, request.exchange.wall)


def _within(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    yield from outside(f"{request.name}: wall time", [0, expected], request.exchange.wall)


def _complete(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    exchange = request.exchange
    whole = exchange.complete and (not request.send.stream or exchange.data_lines[-1:] == [b"data: [DONE]"])
    if whole is not expected:
        wanted = "a whole" if expected else "no whole"
        yield Failure(f"{request.name}: expected {wanted} answer, got {exchange}, {exchange.body!r}")


def _data_lines(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    yield from differs(f"{request.name}: data lines", expected, len(request.exchange.data_lines))


UNDER_WAY_SECS = 0.01
"""By how much the begin of one connection may be seen before the end of another one that came first: each has its own way."""


def _starts_after(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    """Compared where both are seen, at the engines: the one must have been given back before the other is sent."""
    moment = read_moment(str(expected), list(record.requests))
    if moment.event is not Event.ENDED or moment.delay:
        raise CannotCheck(f"{request.name}: starts_after {expected!r}")
    visit = record.visit(request.name)
    for name in moment.names:
        before = record.visit(name)
        ended_at = None if before is None else before.ended_at
        if visit is None or ended_at is None:
            yield Failure(f"{request.name}: expected to start after the end of {name}, but one of them never reached an engine")
        elif visit.at < ended_at - UNDER_WAY_SECS:
            yield Failure(f"{request.name}: started {ended_at - visit.at:.2f} s before the end of {name}")


def _not_rejected_early(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    status = request.exchange.status
    refused = status in (408, 429, 503) or status is None
    if refused is expected:
        yield Failure(f"{request.name}: expected {'no refusal' if expected else 'a refusal'}, got {request.exchange}")


def _note(expected: Any, request: Request, record: Record) -> Iterator[Failure]:
    return iter(())


_RULES: Final[Mapping[str, Callable[[Any, Request, Record], Iterator[Failure]]]] = {
    "status": _status,
    "headers": _headers,
    "body": _body,
    "body_from": _body_from,
    "wall_s": _wall,
    "within_s": _within,
    "complete": _complete,
    "data_lines": _data_lines,
    "starts_after": _starts_after,
    "not_rejected_early": _not_rejected_early,
    "note": _note,
}
