"""Expectations of requests: to which backend they went, what the engines received, and what the clients got back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..smg_conformance.failures import Failure, differs, outside
from ..smg_conformance.scenario import CannotCheck
from .record import Record, Request

TICK_GRACE_SECS = 0.3
"""Beyond one interval of the scheduler: what the recorded times allow."""


def assignment(expected: Any, record: Record) -> Iterator[Failure]:
    """{program: backend} of the last request of each; or [{program, backend, status}] of the first requests, in order."""
    match expected:
        case {**by_program}:
            for program, backend in by_program.items():
                got = [record.backend_of(request) for request in record.requests_of(program)]
                yield from differs(f"assignment of {program}", backend, got[-1] if got else None)
        case [*rows]:
            for row, request in zip(rows, record.requests, strict=False):
                yield from _assigned(row, request, record)
            if len(rows) > len(record.requests):
                raise CannotCheck("assignment: more rows than requests")
        case _:
            raise CannotCheck(f"assignment: {expected!r}")


def _assigned(row: Mapping[str, Any], request: Request, record: Record) -> Iterator[Failure]:
    if not isinstance(row, Mapping) or not row.keys() <= {"program", "backend", "status"}:
        raise CannotCheck(f"assignment: {row!r}")
    got = {"program": request.send.program, "backend": record.backend_of(request), "status": request.exchange.status}
    yield from differs("assignment", row, {key: got[key] for key in row})


def backend(program: str, expected: Any, record: Record) -> Iterator[Failure]:
    """Of the last request of a program."""
    yield from differs(f"backend of {program}", expected, record.backend_of(record.requests_of(program)[-1]))


def answered(program: str, expected: Any, record: Record) -> Iterator[Failure]:
    """Whether the last request of a program was answered by the end of the timeline."""
    request = record.requests_of(program)[-1]
    if request.answered is not expected:
        yield Failure(f"{program}: expected {'an' if expected else 'no'} answer, got {request.exchange}")


def statuses(expected: Any, record: Record) -> Iterator[Failure]:
    """Of all requests."""
    for request in record.requests:
        yield from differs(f"status of {request.exchange.name}", expected, request.exchange.status)


def waits_at_most(expected: Any, record: Record) -> Iterator[Failure]:
    """All requests."""
    for request in record.requests:
        if request.exchange.ended_at is None:
            yield Failure(f"{request.exchange.name}: expected an answer, got none")
        else:
            yield from outside(f"wait of {request.exchange.name}", [0, expected], request.exchange.wall)


def wait_after_release(program: str, expected: Any, record: Record) -> Iterator[Failure]:
    """From the last release to the end of the last answer of a program."""
    if not record.released:
        raise CannotCheck("a wait after a release without a release")
    request = record.requests_of(program)[-1]
    if not request.answered or request.exchange.ended_at is None:
        yield Failure(f"{program}: expected an answer, got {request.exchange}")
        return
    yield from outside(f"{program}: wait after the release", [0, expected], request.exchange.ended_at - record.released[-1].at)


def admitted_after(program: str, expected: Any, record: Record) -> Iterator[Failure]:
    """From the last request of a program to its arrival at an engine; null: it did not arrive."""
    request = record.requests_of(program)[-1]
    visit = record.visit(request)
    if (visit is None) is not (expected is None):
        yield Failure(f"{program}: expected to be admitted after {expected} s, got {visit and visit.at}")
    elif visit is not None:
        most = expected + record.config.scheduler_interval_s + TICK_GRACE_SECS
        yield from outside(f"{program}: admitted after", [0, most], visit.at - request.exchange.sent_at)


def estimates(expected: Any, record: Record) -> Iterator[Failure]:
    """{program: [tokens when its request is at the engine, tokens after the answer]}. Raises CannotCheck."""
    for program, tokens in expected.items():
        requests = record.requests_of(program)
        if len(requests) != 1:
            raise CannotCheck(f"the estimate of {program}, which has {len(requests)} requests")
        after = record.end.programs.get(program, {}).get("total_tokens")
        yield from differs(f"{program}: tokens estimated, and after the answer", tokens, [requests[0].estimate, after])


def received(field: str, expected: Any, record: Record) -> Iterator[Failure]:
    """What the engine has got with the last request: `keys` of its body, `authorization`, or a field of the body."""
    if not record.visits:
        yield Failure("expected a request at an engine, got none")
        return
    visit = record.visits[-1]
    if field == "keys":
        yield from differs("keys that the engine got", sorted(expected), sorted(visit.body))
    elif field in ("authorization", "content_type"):
        yield from differs(f"header {field} that the engine got", expected, visit.headers.get(field.replace("_", "-")))
    else:
        yield from differs(f"{field} that the engine got", expected, visit.body.get(field))


def data_lines(expected: Any, record: Record) -> Iterator[Failure]:
    """Of the last answer."""
    yield from differs("data lines of the client", expected, len(record.requests[-1].exchange.data_lines))


def saw_usage(expected: Any, record: Record) -> Iterator[Failure]:
    """Whether the client of the last request got a chunk with usage."""
    got = any(re.search(rb'"usage"\s*:\s*\{', line) for line in record.requests[-1].exchange.data_lines)
    yield from differs("a chunk with usage for the client", expected, got)


def release_answer(expected: Any, record: Record) -> Iterator[Failure]:
    """[status, body] of the last release. Raises CannotCheck."""
    match expected:
        case [int(status), body] if record.released:
            exchange = record.released[-1].exchange
            yield from differs("answer to the release", [status, body], [exchange.status, exchange.json])
        case _:
            raise CannotCheck(f"release_answer: {expected!r}")
