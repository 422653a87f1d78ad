"""What clients saw and what the gateway counted, and whether both tell the same story.

Each response that a client saw is one that the gateway counted, and the other way round, where no client disconnects. A client
that disconnects does not know how its request has ended: the gateway may have counted it as any outcome, or may never have
received it. So the gateway must have counted, per class and outcome, at least what was seen; and what it counted beyond that,
together with the requests it never received, must be exactly the requests of the clients that disconnected.

Example: 8 requests are sent, 4 are seen whole, and 4 clients disconnect. The gateway counts 5 admitted, 1 rejected and 1
cancelled. Beyond what was seen that is 1 + 1 + 1, and 8 - 7 = 1 request never arrived: together the 4 that disconnected.
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
"""The outcome in the gateway's metrics, and the field of `ClassSeen`; "" if a client cannot see the outcome."""


class GatewayAccount(msgspec.Struct):
    """What the gateway has counted, from /metrics."""

    outcomes: dict[str, dict[str, int]]
    """Requests by class and by outcome of admission."""
    in_flight: int
    waiting: int
    preemptions: int
    promotions: int
    refused: dict[str, int]
    """Requests refused before admission, by error code."""
    queue_size_limit: int
    """Sum over all classes."""

    @classmethod
    def parse(cls, metrics: str) -> GatewayAccount:
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
        """Requests that have arrived: those that have ended, wait or are in flight."""
        return sum(sum(outcomes.values()) for outcomes in self.outcomes.values()) + self.waiting + self.in_flight


class ReconciledClass(msgspec.Struct):
    """One class in both accounts."""

    sent: int
    arrived: int
    seen: int
    """Responses that clients have received whole."""
    left: int
    left_before_arrival: int
    left_after: dict[str, int]
    """Outcomes that the gateway counted for clients that disconnected; `whole` means that the request held a slot."""


def reconcile(seen: ClassSeen, outcomes: Mapping[str, int]) -> tuple[ReconciledClass, list[str]]:
    """Return both accounts of one class, and every contradiction between them."""
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
    return ReconciledClass(seen.sent, arrived, answers, seen.left, seen.sent - arrived, gone), problems


def contradictions(seen: Mapping[str, ClassSeen], account: GatewayAccount) -> Iterator[str]:
    """Yield all contradictions; none if every request is accounted for."""
    for name, of_class in seen.items():
        for problem in reconcile(of_class, account.outcomes.get(name, {}))[1]:
            yield f"{name}: {problem}"
    if account.in_flight or account.waiting:
        yield f"leaked: {account.in_flight} still in flight and {account.waiting} waiting after the last client"
    for code, number in account.refused.items():
        yield f"{number} refused before admission: {code}"
