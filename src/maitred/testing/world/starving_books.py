"""Starving books: who gets a slot that was due to a request that starves.

A promotion is due when one is saved up and a request starves: the head of the queue of its class, if it has waited for longer
than its class may. Then it goes before others. If it needs more than is idle, it gets what becomes idle next, and no other
request a slot but one of a higher class, as long as all higher classes together stay within what they reserve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from maitred.admission import AdmissionConfig
from maitred.core.request import PriorityClass
from maitred.core.units import Micros, from_seconds
from maitred.testing.world.booked import Booked, Pool, least_units, most_reserved_above, most_units, promotions, units_per_slot


def spend_promotion(pool: Pool, reason: str, config: AdmissionConfig) -> None:
    """Count an admission from a queue, which earns a share of a promotion, and may have been one."""
    burst, share = promotions(config)
    pool.credit = min(burst, _credit(pool, config) - (reason == "starved") + share)


def _credit(pool: Pool, config: AdmissionConfig) -> float:
    return promotions(config)[0] if pool.credit is None else pool.credit


def check_starving(
    request: Booked,
    requests: Sequence[Booked],
    pool: Pool,
    decision: Mapping[str, Any],
    config: AdmissionConfig,
    is_excused: Callable[[Micros, Micros], bool],
) -> Iterator[str]:
    """Yield whether a request has got a slot that was due to another one, of `requests` in its pool. What is due follows from
    one configuration, so nothing can be said behind a reload."""
    if config.mode != "priority" or decision["reason"] != "slot_free" or _credit(pool, config) < 1:
        return
    idle = pool.capacity * units_per_slot(config) - sum(pool.in_flight.values())
    for priority_class in PriorityClass:
        head = _head([r for r in requests if r.waits and r.asked_class is priority_class])
        if head is None or priority_class is request.asked_class or head.tenant in config.tenant_policies:
            continue
        since = head.submitted_at + from_seconds(config.class_rules(priority_class).starvation_threshold_secs)
        is_due = decision["at"] > since and not is_excused(since, decision["at"])
        if is_due and (most_units(config, head) <= idle or not _may_pass(request, head, requests, pool, config)):
            yield f"{request.mark} is admitted, and {head.mark} has starved for {decision['at'] - since} us"


def _may_pass(request: Booked, head: Booked, requests: Sequence[Booked], pool: Pool, config: AdmissionConfig) -> bool:
    """Return whether what a request and those in flight of all classes above that of `head` take at least is reserved."""
    above = [r for r in requests if r.hold is not None and r.asked_class > head.asked_class]
    taken = sum(r.least_units for r in above) + least_units(config, request, pool)
    return request.asked_class > head.asked_class and taken <= most_reserved_above(config, head.asked_class, pool)


def _head(queue: Sequence[Booked]) -> Booked | None:
    """Return the request that has waited longest in a queue, or None if there is none, or another may go before it."""
    if any(request.awaits_victim or request.freed_at for request in queue):
        return None
    return min(queue, key=lambda request: request.submitted_at, default=None)
