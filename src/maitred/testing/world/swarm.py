"""A swarm of scenarios: each follows from its seed.

A swarm finds more than a mixture: each seed turns some kinds of faults off, so that what is left can go on for longer.
"""

from __future__ import annotations

from random import Random
from typing import Final

from maitred.testing.world.behaviours import KINDS, ClientPlan
from maitred.testing.world.chaos import FAULTS
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.streams import LinkConfig

_PRIORITIES: Final = ("interactive", "interactive", "default", "bulk", "bulk", "system")
_MODES: Final = ("priority", "priority", "priority", "legacy", "flow-control", "off")
_POLICIES: Final = ("least-loaded", "power-of-two", "session-affinity(power-of-two)", "round-robin")


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random = Random(f"{seed}/scenario")
    num_engines = random.choice((1, 1, 2, 3))
    kinds = random.sample(sorted(KINDS), random.randint(1, len(KINDS)))
    return Scenario(
        seed=seed,
        clients=tuple(_draw_client(random, random.choice(kinds)) for _ in range(random.randint(3, 14))),
        num_engines=num_engines,
        engine_limits=tuple(random.choice((1, 2, 4, 16)) for _ in range(num_engines)),
        hides_slots=random.random() < 0.5,
        slots_per_backend=random.choice((None, 1, 1, 2, 4)),
        retries_per_sec=random.choice((10.0, 10.0, 0.1)),
        retry_share=random.choice((0.2, 0.0)),
        mode=random.choice(_MODES),
        reserved_floor=random.choice((None, None, 1)),
        queue_secs=random.choice((None, None, 3.0)),
        policy=random.choice(_POLICIES),
        has_programs=random.random() < 0.3,
        poll_secs=random.choice((1.0, 5.0, 5.0)),
        keepalive_secs=random.choice((0.0, 0.0, 1.0)),
        faults=tuple(name for name in sorted(FAULTS) if random.random() < 0.4),
        fault_secs=random.choice((10.0, 60.0)),
        link=LinkConfig(split_share=random.choice((0.0, 0.1, 0.5)), max_kernel_bytes=random.choice((4_096, 65_536, 262_144))),
    )


def _draw_client(random: Random, kind: str) -> ClientPlan:
    return ClientPlan(
        kind=kind,
        num_requests=random.randint(1, 6),
        priority=random.choice(_PRIORITIES),
        tenant=random.choice(("acme", "beta", "gamma")),
        max_tokens=random.choice((1, 20, 200, 400)),
        think_secs=random.choice((0.01, 0.5, 0.5, 5.0)),
    )
