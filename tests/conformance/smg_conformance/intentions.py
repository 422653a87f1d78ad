"""What is wanted of a defect, where it is said in words: each phrase with what it comes to when it is checked.

at least one slot reachable for every class    every request is answered 200, and a slot is unreserved
protect a promoted request                     somebody was promoted, nobody preempted, every request is answered 200
bound(ed) promotions, inverts priority         promotions are at most 2 + a quarter of those that queued
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from .failures import Failure
from .metrics import Selector
from .record import CLASSES, Record
from .scenario import CannotCheck

BURST, SHARE = 2, 0.25
"""Of promotions, where they are bounded."""


def check(words: Any, record: Record) -> Iterator[Failure]:
    """Raises CannotCheck."""
    for pattern, rule in _PHRASES:
        if isinstance(words, str) and re.search(pattern, words):
            yield from rule(record)
            return
    raise CannotCheck(f"wanted: {words!r}")


def _every_class_reachable(record: Record) -> Iterator[Failure]:
    yield from _all_served(record)
    reserved = sum(record.metrics.total(Selector("reserved_effective", (f"class={name}",))) for name in CLASSES)
    capacity = record.metrics.total(Selector("capacity"))
    if reserved >= capacity:
        yield Failure(f"expected an unreserved slot, got {reserved:g} of {capacity:g} reserved")


def _promoted_protected(record: Record) -> Iterator[Failure]:
    yield from _all_served(record)
    if not record.metrics.total(Selector("starvation_promotion_total")):
        yield Failure("expected that somebody is promoted, got nobody")
    preempted = record.metrics.total(Selector("preemption_total"))
    if preempted:
        yield Failure(f"expected no preemption, got {preempted:g}")


def _promotions_bounded(record: Record) -> Iterator[Failure]:
    promoted = record.metrics.total(Selector("starvation_promotion_total"))
    queued = record.metrics.total(Selector("queue_wait_seconds_count"))
    if promoted > BURST + SHARE * queued:
        yield Failure(f"expected at most {BURST} + {SHARE} x {queued:g} promotions, got {promoted:g}")


def _all_served(record: Record) -> Iterator[Failure]:
    for request in record.requests.values():
        if not request.exchange.left and (request.exchange.status != 200 or not request.exchange.complete):
            yield Failure(f"{request.name}: expected 200, got {request.exchange}")


_PHRASES: Final[tuple[tuple[str, Callable[[Record], Iterator[Failure]]], ...]] = (
    (r"at least one slot reachable for every class", _every_class_reachable),
    (r"protect a promoted request", _promoted_protected),
    (r"bound\w* (?:starvation )?promotion|promotions? (?:is |are )?bounded", _promotions_bounded),
)
