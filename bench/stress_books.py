"""Two sets of books, kept by two programs, and whether they tell the same story.

Where nobody leaves, each answer that clients saw is one that the gateway counted, and the other way round. A client that left
does not know what became of its request: the gateway may have counted it as whatever it was about to be, or may never have had
it. So per class and outcome the gateway counted at least what was seen, and all that it counted beyond, with those it never
had, are exactly the clients that left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from stress_crowd import ClassSeen

SEEN_AS = {
    "admitted": "whole",
    "preempted": "preempted",
    "rejected_queue_full": "queue_full",
    "rejected_tenant_queue_full": "queue_full",
    "rejected_queue_timeout": "queue_timeout",
    "client_cancelled": "",
}
"""What the gateway calls it, and what its client calls it; empty, if the client cannot see it."""


class GatewayBooks(msgspec.Struct):
    """What /metrics says."""

    outcomes: dict[str, dict[str, int]]
    """Of admission, by class."""
    in_flight: int
    waiting: int
    preemptions: int
    promotions: int
    refused: dict[str, int]
    """Before admission, by code."""
    queue_size_limit: int
    """Over all classes."""

    @classmethod
    def read(cls, metrics: str) -> GatewayBooks:
        found: dict[str, list[tuple[Mapping[str, str], int]]] = defaultdict(list)
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                found[sample.name.removeprefix("maitred_")].append((sample.labels, int(sample.value)))

        def total(name: str) -> int:
            return sum(value for _, value in found[name])

        outcomes: dict[str, dict[str, int]] = defaultdict(dict)
        for labels, value in found["scheduler_admit_total"]:
            outcomes[labels["class"]][labels["outcome"]] = value
        return cls(
            outcomes=outcomes,
            in_flight=total("scheduler_inflight"),
            waiting=total("scheduler_queue_depth"),
            preemptions=total("scheduler_preemption_total"),
            promotions=total("scheduler_starvation_promotion_total"),
            refused={labels["code"]: value for labels, value in found["refused_total"] if value},
            queue_size_limit=total("scheduler_queue_size_limit"),
        )

    @property
    def arrivals(self) -> int:
        """By the law that these sums are to keep: what has ended, waits and is in flight is what came."""
        return sum(sum(outcomes.values()) for outcomes in self.outcomes.values()) + self.waiting + self.in_flight


class Reconciled(msgspec.Struct):
    """One class in both books."""

    sent: int
    arrived: int
    seen: int
    """Answers that clients saw whole."""
    left: int
    left_before_arrival: int
    left_after: dict[str, int]
    """What the gateway counted those as that clients left; `whole`: it held a slot."""


def reconcile(seen: ClassSeen, outcomes: Mapping[str, int]) -> tuple[Reconciled, list[str]]:
    """One class, and every way in which its two accounts contradict each other."""
    beyond: dict[str, int] = defaultdict(int)
    for outcome, number in outcomes.items():
        beyond[SEEN_AS[outcome] or outcome] += number
    for name in filter(None, set(SEEN_AS.values())):
        beyond[name] -= getattr(seen, name)
    arrived = sum(outcomes.values())
    problems = [f"{-extra} more were seen as {name} than were counted" for name, extra in beyond.items() if extra < 0]
    if arrived > seen.sent:
        problems.append(f"{arrived} arrivals were counted, but {seen.sent} requests were sent")
    unknown = sum(beyond.values()) + seen.sent - arrived
    if unknown != seen.left + seen.strange:
        problems.append(f"{unknown} ended in a way that no client saw, but {seen.left} clients left")
    answers = seen.whole + seen.preempted + seen.queue_full + seen.queue_timeout
    gone = {name: extra for name, extra in beyond.items() if extra}
    return Reconciled(seen.sent, arrived, answers, seen.left, seen.sent - arrived, gone), problems


def contradictions(seen: Mapping[str, ClassSeen], books: GatewayBooks) -> Iterator[str]:
    """All of them; none if every request is accounted for."""
    for name, of_class in seen.items():
        for problem in reconcile(of_class, books.outcomes.get(name, {}))[1]:
            yield f"{name}: {problem}"
    if books.in_flight or books.waiting:
        yield f"leaked: {books.in_flight} still in flight and {books.waiting} waiting when everybody had gone"
    for code, number in books.refused.items():
        yield f"{number} refused before admission: {code}"
