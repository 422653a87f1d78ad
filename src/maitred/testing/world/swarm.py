"""A swarm of scenarios: each follows from its seed.

A swarm finds more than a mixture: each seed turns some kinds of faults off, so that what is left can go on for longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from maitred.core.units import Micros
from maitred.testing.world.behaviours import KINDS, MODEL, OTHER_MODEL, ClientPlan
from maitred.testing.world.chaos import FAULTS
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.streams import LinkConfig
from maitred.testing.world.strict_rules import PLUG_IN, draw_crowd, draw_shares, draw_strict_rules

_MIXTURES: Final = (
    ("interactive", "bulk", "bulk"),
    ("interactive", "bulk", "bulk"),
    ("interactive", "default", "bulk"),
    ("interactive", "interactive", "default", "bulk", "bulk", "system"),
)
"""Classes of clients. The more of them wait behind bulk, the more requests are victims."""
_MODES: Final = ("priority", "priority", "priority", "priority", "legacy", "flow-control", "off")
_POLICIES: Final = ("least-loaded", "power-of-two", "session-affinity(power-of-two)", "round-robin")
_COMMON: Final = frozenset(("reload", "fail"))
"""Faults that nearly half of the seeds have: configurations that change, and engines that answer 500, reach most of the rules
that time and retries keep to."""
_MOST_OTHER_FAULTS: Final = 6
_STRICT: Final = 5
"""Each seed that this divides has further rules of admission (`draw_strict_rules`)."""
_SHARED: Final = 6
"""Each seed that leaves 1 when it is divided by this has weights of tenants, or slots by tokens (`draw_shares`)."""
_CROWDED: Final = 100
"""Each seed that this divides has a crowd instead (`draw_crowd`), which takes ten times as many events."""

_PLUGGED_IN: Final = 55
"""Each seed that leaves this when it is divided by `_CROWDED` has a policy of admission that is a plug-in."""


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    scenario = _draw_common(seed)
    if seed % _STRICT:
        shares = draw_shares(Random(f"{seed}/shares")) if seed % _SHARED == 1 else {}
        return msgspec.structs.replace(scenario, **shares)
    if seed % _CROWDED == 0:
        return msgspec.structs.replace(scenario, **draw_crowd(Random(f"{seed}/crowd")))
    if seed % _CROWDED == _PLUGGED_IN:
        return msgspec.structs.replace(scenario, **PLUG_IN)
    return msgspec.structs.replace(scenario, **draw_strict_rules(Random(f"{seed}/strict rules")))


def _draw_common(seed: int) -> Scenario:
    random = Random(f"{seed}/scenario")
    num_engines = random.choice((1, 1, 1, 2, 3))
    kinds = random.sample(sorted(KINDS), random.randint(1, len(KINDS)))
    has_programs = random.random() < 0.3
    if has_programs:
        kinds += ["program"] * len(kinds)
    mixture = random.choice(_MIXTURES)
    faults = _draw_faults(random)
    models = (MODEL, MODEL, MODEL, OTHER_MODEL) if "other model" in faults else (MODEL,)
    return Scenario(
        seed=seed,
        clients=tuple(_draw_client(random, random.choice(kinds), mixture, models) for _ in range(random.randint(6, 16))),
        num_engines=num_engines,
        engine_limits=tuple(random.choice((1, 2, 4, 16)) for _ in range(num_engines)),
        step_ms=random.choice((8.0, 100.0, 100.0)),
        hides_slots=random.random() < 0.5,
        slots_per_backend=random.choice((None, 1, 1, 2, 2, 4)),
        retries_per_sec=random.choice((10.0, 0.1, 0.1)),
        retry_share=random.choice((0.2, 0.0, 0.0)),
        mode=random.choice(_MODES),
        reserved_floor=random.choice((None, None, 1)),
        tenant_slots=random.choice((None, None, 1, 2)),
        tenant_class=random.choice((None, None, "default")),
        queue_secs=random.choice((None, None, 3.0)),
        policy=random.choice(_POLICIES),
        has_programs=has_programs,
        poll_secs=random.choice((1.0, 5.0, 5.0)),
        keepalive_secs=random.choice((0.0, 0.0, 1.0)),
        faults=faults,
        fault_secs=random.choice((20.0, 60.0)),
        fault_pace=random.choice((1.0, 3.0)),
        link=draw_link(random, LinkConfig().delay),
        starve_secs=random.choice((None, 0.5, 2.0)),
        program_tokens=random.choice((None, 1_000, 1_500, 2_500)),
        program_wait_secs=random.choice((60.0, 30.0, 5.0)),
        patience_secs=random.choice((10.0, 2.0)),
        displace_secs=random.choice((300.0, 12.0)),
    )


def draw_link(random: Random, delay: Micros) -> LinkConfig:
    """Return a network with this mean delay, µs."""
    return LinkConfig(
        delay=delay, split_share=random.choice((0.0, 0.1, 0.5)), max_kernel_bytes=random.choice((4_096, 65_536, 262_144))
    )


def _draw_faults(random: Random) -> tuple[str, ...]:
    """Return none to many kinds of faults. Where few occur, little excuses what goes wrong."""
    common = {name for name in sorted(_COMMON) if random.random() < 0.45}
    others = sorted(FAULTS.keys() - _COMMON)
    return tuple(sorted(common | set(random.sample(others, random.randint(0, _MOST_OTHER_FAULTS)))))


def _draw_client(random: Random, kind: str, mixture: Sequence[str], models: Sequence[str]) -> ClientPlan:
    return ClientPlan(
        kind=kind,
        num_requests=random.choice((1, 2, 4, 8)),
        priority=random.choice(mixture),
        tenant=random.choice(("acme", "beta", "gamma")),
        max_tokens=random.choice((1, 10, 30, 60)),
        think_secs=random.choice((0.01, 0.1, 0.1, 1.0)),
        model=random.choice(models),
    )
