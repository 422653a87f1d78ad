"""The straight path of a request gives the rows of the path with all stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.workload import Job


class ToldOfEnds:
    """The same jobs as a workload that is told of the end of each request, and adds none: it takes the path with all stages."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = list(jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: int) -> Iterable[Job]:
        return ()


def jobs_of(seed: int, count: int = 60) -> list[Job]:
    """Return requests in bursts, some with a deadline, some that can never run."""
    found = []
    for number in range(count):
        mixed = (number * 7919 + seed * 104_729) % 997
        arrival = number // 3 * (100 + seed % 5 * 90)
        request = Request(
            id=number,
            arrival=arrival,
            prompt_tokens=mixed % 90,
            max_output_tokens=None if mixed % 4 else 1 + mixed % 400,
            deadline=None if mixed % 11 else arrival + 40 * (mixed % 50),
            tenant=("", "", "a", "b")[mixed % 4],
            priority=float(mixed % 3),
        )
        found.append(Job(request, 1 + mixed % 45))
    return found


def same(first: Results, second: Results) -> bool:
    for name in first.__struct_fields__:
        one, other = getattr(first, name), getattr(second, name)
        if not (np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other):
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.sampled_from([14, 40, 4000]),
    scheduler=st.sampled_from(["fcfs", "by-priority", "vtc"]),
    router=st.sampled_from(["least-loaded", "weighted", "round-robin"]),
    horizon=st.none() | st.integers(0, 6000),
    caching=st.booleans(),
    schedules_ahead=st.booleans(),
)
def test_the_straight_path_gives_the_same_rows(
    seed: int, blocks: int, scheduler: str, router: str, horizon: int | None, caching: bool, schedules_ahead: bool
) -> None:
    instance = InstanceConfig(
        max_model_len=128,
        total_kv_blocks=blocks,
        scheduler=scheduler,
        enable_prefix_caching=caching,
        async_scheduling=schedules_ahead,
        latency=LinearLatency((100, 1, 10)),
    )
    settings: dict[str, Any] = {"horizon": horizon, "routing": RoutingConfig(policy=router)}
    jobs, cluster = jobs_of(seed), ClusterConfig(num_instances=3)
    straight = simulate(iter(jobs), cluster, instance, **settings)
    assert same(straight, simulate(ToldOfEnds(jobs), cluster, instance, **settings))
    if horizon is None:
        assert {Outcome.COMPLETED, Outcome.REFUSED, Outcome.TIMED_OUT} <= set(straight.outcome.tolist())


def test_an_id_that_comes_twice_is_an_error() -> None:
    jobs = [Job(Request(id=7, arrival=at, prompt_tokens=5), 9) for at in (0, 1)]
    with pytest.raises(ConfigError, match="two requests of the workload have the id 7"):
        simulate(iter(jobs), ClusterConfig(num_instances=2))
