"""What is wanted of a defect, where it is said in words: each phrase with what it comes to when it is checked.

at least one slot reachable for every class   every request is answered 200, and a slot is unreserved
protect a promoted request                    a request was promoted, none preempted, every request is answered 200
bound promotions                              promotions are at most 2 + a quarter of those that queued
count (once, every outcome)                   as many outcomes are counted as requests were sent
never (silent, empty, zero bytes)             a request that is not served gets a whole answer that says so
per model                                     no engine has more than it reported, no idle one's model waits
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from .failures import Failure
from .metrics import Selector
from .record import Record
from .scenario import CannotCheck

BURST, SHARE = 2, 0.25
"""Of promotions, where they are bounded."""
PROMPTLY_SECS = 0.3


def check(words: Any, record: Record) -> Iterator[Failure]:
    """Raises CannotCheck."""
    for pattern, rule in _PHRASES:
        if isinstance(words, str) and re.search(pattern, words):
            yield from rule(record)
            return
    raise CannotCheck(f"wanted: {words!r}")


def _every_class_reachable(record: Record) -> Iterator[Failure]:
    yield from _all_served(record)
    reserved = sum(record.reserved.values())
    if reserved >= record.capacity:
        yield Failure(f"expected an unreserved slot, got {reserved} of {record.capacity} reserved")


def _promoted_protected(record: Record) -> Iterator[Failure]:
    yield from _all_served(record)
    if not record.metrics.total(Selector("starvation_promotion_total")):
        yield Failure("expected that a request is promoted, got none")
    preempted = record.metrics.total(Selector("preemption_total"))
    if preempted:
        yield Failure(f"expected no preemption, got {preempted:g}")


def _promotions_bounded(record: Record) -> Iterator[Failure]:
    promoted = record.metrics.total(Selector("starvation_promotion_total"))
    queued = record.metrics.total(Selector("queue_wait_seconds_count"))
    if promoted > BURST + SHARE * queued:
        yield Failure(f"expected at most {BURST} + {SHARE} x {queued:g} promotions, got {promoted:g}")


def _all_counted(record: Record) -> Iterator[Failure]:
    counted = record.metrics.total(Selector("admit_total"))
    if counted != len(record.requests):
        yield Failure(f"expected {len(record.requests)} outcomes of admission, got {counted:g}")


def _nobody_left_silently(record: Record) -> Iterator[Failure]:
    for request in record.requests.values():
        exchange = request.exchange
        if not exchange.left and not (exchange.complete and exchange.body):
            yield Failure(f"{request.name}: expected a whole answer that says something, got {exchange}")


def _pool_for_each_model(record: Record) -> Iterator[Failure]:
    for index, engine in enumerate(record.engines):
        most = max((record.at_engine(index, visit.at) for visit in record.visits if visit.engine == index), default=0)
        if engine.max_running_requests is not None and most > engine.max_running_requests:
            yield Failure(f"engine {index}: expected at most {engine.max_running_requests} at once, got {most}")
    for request in record.requests.values():
        soon, visit = request.exchange.sent_at + PROMPTLY_SECS, record.visit(request.name)
        own = [index for index, engine in enumerate(record.engines) if engine.model == request.send.model]
        waits_still = visit is not None and visit.at > soon
        if waits_still and not any(record.at_engine(index, soon) for index in own):
            yield Failure(f"{request.name}: waited more than {PROMPTLY_SECS:g} s for an idle engine", late=True)


def _all_served(record: Record) -> Iterator[Failure]:
    for request in record.requests.values():
        if not request.exchange.left and (request.exchange.status != 200 or not request.exchange.complete):
            yield Failure(f"{request.name}: expected 200, got {request.exchange}")


_PHRASES: Final[tuple[tuple[str, Callable[[Record], Iterator[Failure]]], ...]] = (
    (r"at least one slot reachable for every class", _every_class_reachable),
    (r"protect a promoted request", _promoted_protected),
    (r"\bbound\w* .*promotion|promotion.* bound", _promotions_bounded),
    (r"\bcount", _all_counted),
    (r"\bnever .*(?:silent|empty|zero bytes)", _nobody_left_silently),
    (r"per[- ]model|(?:each|every) model", _pool_for_each_model),
)
