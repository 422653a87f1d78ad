"""The kit of autoscaling policies."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from maitred.autoscaling import AUTOSCALERS, Autoscaler, FleetState
from maitred.testing.samples import blaming, factory_of


def check_autoscaler(policy: str | Callable[[], Autoscaler], *, seeds: int = 20) -> None:
    """Raise AssertionError unless it wants a whole number of instances in every state, alike of equal policies, and no more
    instances for an idle fleet."""
    make = factory_of(policy, AUTOSCALERS)
    for seed in range(seeds):
        rng, made, again = Random(seed), make(), make()
        with blaming(policy, seed):
            for _ in range(20):
                state = sample_fleet(rng)
                wanted = made.desired(state)
                assert type(wanted) is int, f"it wants {wanted!r} instances, which is no whole number"
                assert again.desired(state) == wanted, "equal policies want different numbers of the same states"
            idle = sample_fleet(rng, load=0)
            assert made.desired(idle) <= idle.size, f"it wants more than the {idle.size} instances of an idle fleet"


def sample_fleet(rng: Random, *, load: int = 200) -> FleetState:
    """Return a fleet with up to `load` requests."""
    serving, waiting, running = rng.randint(1, 9), rng.randint(0, load), rng.randint(0, load)
    return FleetState(
        serving=serving,
        starting=rng.randint(0, 2),
        in_flight=waiting + running,
        waiting=waiting,
        running=running,
        slots=serving * 64,
        kv_usage=rng.random() if running else 0.0,
        ttfts=[rng.randrange(10_000_000) for _ in range(rng.randint(0, 9))] if load else [],
    )
