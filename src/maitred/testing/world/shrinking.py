"""Shrinking: what a scenario that fails can do without and still fail.

Clients, faults and requests are left out one after the other, as long as something is violated without them. Each concern draws
from a generator of its own, so what is left behaves as before, as far as it does not depend on what was left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from maitred.testing.world.scenario import Scenario
from maitred.testing.world.streams import LinkConfig


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], most: int = 200) -> Scenario:
    """Return a smaller scenario for which `fails` still returns True, after `most` attempts at most."""
    attempts = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(scenario):
            attempts += 1
            if attempts > most:
                return scenario
            if fails(smaller):
                scenario, is_smaller = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios that lack something, those that lack most first."""
    clients, faults = scenario.clients, scenario.faults
    size = len(clients) // 2
    while size:
        for start in range(0, len(clients), size):
            yield msgspec.structs.replace(scenario, clients=clients[:start] + clients[start + size :])
        size //= 2
    for index in range(len(faults)):
        yield msgspec.structs.replace(scenario, faults=faults[:index] + faults[index + 1 :])
    for key in scenario.admission:
        left = {name: value for name, value in scenario.admission.items() if name != key}
        yield msgspec.structs.replace(scenario, admission=left)
    for index, plan in enumerate(clients):
        if plan.num_requests > 1:
            fewer = msgspec.structs.replace(plan, num_requests=plan.num_requests // 2)
            yield msgspec.structs.replace(scenario, clients=(*clients[:index], fewer, *clients[index + 1 :]))
    if scenario.num_engines > 1:
        yield msgspec.structs.replace(scenario, num_engines=scenario.num_engines - 1)
    if scenario.fault_secs > 1:
        yield msgspec.structs.replace(scenario, fault_secs=scenario.fault_secs / 2)
    if scenario.link.split_share:
        yield msgspec.structs.replace(scenario, link=LinkConfig(split_share=0.0))
