"""Unequal instances behind one router: each is what it would be alone, and routers that know their speeds use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import maitred
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import resolve_instance
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Results, simulate
from maitred.sim.fleet_config import FailureConfig, InstanceGroup
from maitred.sim.instance_groups import resolve_fleet, weight_warnings, with_weights
from maitred.workload import Job


def on(hardware: str) -> InstanceConfig:
    return InstanceConfig(model="llama-3.1-8b", latency="roofline", hardware=hardware)


LLAMA = on("H100")
H100, L40S = InstanceGroup(hardware="H100"), InstanceGroup(hardware="L40S", num_instances=2)


def crowd(count: int, rate: float, seed: int = 7) -> Iterator[Job]:
    draw, at = Random(seed), 0.0
    for i in range(count):
        at += draw.expovariate(rate)
        yield Job(Request(id=i, arrival=round(at * 1e6), prompt_tokens=draw.randrange(1, 900)), draw.randrange(1, 300))


def test_each_instance_is_what_it_would_be_alone() -> None:
    """Requests in turn, far apart: a third goes to the H100, the others to each L40S."""
    jobs = [Job(Request(id=i, arrival=i * 60_000_000, prompt_tokens=700), 40) for i in range(3)]
    cluster, turn = ClusterConfig(groups=[H100, L40S]), RoutingConfig(policy="round-robin")
    results = simulate(jobs, cluster, LLAMA, turn)
    took = (results.finished - results.arrival).tolist()
    for index, hardware in enumerate(("H100", "L40S", "L40S")):
        alone = simulate(jobs[:1], None, on(hardware))
        assert took[index] == alone.finished[0] - alone.arrival[0]
    assert took[1] == took[2] > took[0]


def test_groups_have_their_own_memory_and_one_model_length() -> None:
    cluster, instance = resolve_fleet(ClusterConfig(groups=[H100, L40S]), LLAMA)
    assert cluster.num_instances == 3
    configs = cluster.instance_configs(instance)
    assert configs[1] is configs[2]
    alone = [
        resolve_instance(InstanceConfig(model="llama-3.1-8b", latency="roofline", hardware=gpu)) for gpu in ("H100", "L40S")
    ]
    assert [each.total_kv_blocks for each in configs[:2]] == [each.total_kv_blocks for each in alone]
    assert {each.model_len for each in configs} == {min(each.model_len for each in alone)}
    assert resolve_fleet(cluster, instance) == (cluster, instance)


def test_weights_are_the_rates_that_the_groups_could_take() -> None:
    engine = InstanceConfig(latency=LinearLatency((1000, 0, 0)), max_num_seqs=1)
    cluster, instance = resolve_fleet(ClusterConfig(groups=[InstanceGroup(latency_scale=0.25), InstanceGroup()]), engine)
    fast, slow = with_weights(RoutingConfig(), cluster, instance).weights
    assert fast / slow == pytest.approx(4, rel=1e-2)
    assert with_weights(RoutingConfig(weights=(2.0, 1.0)), cluster, instance).weights == (2.0, 1.0)


def test_the_least_expected_work_beats_chance_and_the_fewest_requests() -> None:
    """Of M/M/1 servers of speeds 4 and 1 the shortest expected delay uses the fast one first."""
    engine = InstanceConfig(latency=LinearLatency((1000, 0, 0)), max_num_seqs=1, max_num_batched_tokens=100_000)
    cluster = ClusterConfig(groups=[InstanceGroup(latency_scale=0.25), InstanceGroup()])
    draw = Random(3)
    at, jobs = 0.0, []
    for i in range(2_000):
        at += draw.expovariate(3.5)
        jobs.append(Job(Request(id=i, arrival=round(at * 1e6), prompt_tokens=1), max(round(draw.expovariate(1e-3)), 1)))

    def mean(policy: str) -> float:
        results = simulate(jobs, cluster, engine, RoutingConfig(policy=policy))
        return float((results.finished - results.arrival).mean()) / 1e6

    knowing, fewest, drawn = mean("weighted-least-loaded"), mean("least-loaded"), mean("weighted-random")
    assert knowing < fewest < drawn


@pytest.mark.parametrize("policy", ["weighted-least-loaded", "weighted-random", "power-of-two"])
def test_skipping_changes_nothing(policy: str) -> None:
    def run(**keys: Any) -> Results:
        engine = InstanceConfig(latency=LinearLatency((5000, 2, 50)), max_num_seqs=5, total_kv_blocks=100, **keys)
        groups = [InstanceGroup(latency_scale=0.4, max_num_seqs=9), InstanceGroup(num_instances=2, total_kv_blocks=80)]
        cluster = ClusterConfig(groups=groups, failures=FailureConfig(mtbf_secs=1, mttr_secs=0.3, slow_instances=1))
        return simulate(crowd(150, 30), cluster, engine, RoutingConfig(policy=policy))

    skipped, stepped = run(), run(step_by_step=True)
    for name in ("first_token", "finished", "outcome", "instance", "retries"):
        assert np.array_equal(getattr(skipped, name), getattr(stepped, name)), name


def test_the_first_line_and_the_limit_are_of_all_groups() -> None:
    result = maitred.simulate(crowd(100, 20), ClusterConfig(groups=[H100, L40S]), LLAMA)
    found = result.assess()
    assert found.simulated.startswith("llama-3.1-8b on 1 instance of 1 × H100 and llama-3.1-8b on 2 instances of 1 × L40S;")
    mixed = found.utilisation.limit
    assert mixed is not None
    only = maitred.simulate(crowd(100, 20), ClusterConfig(num_instances=3), LLAMA).assess().utilisation.limit
    assert only is not None
    assert 0.4 * only < mixed < 0.8 * only


def test_wrong_groups_are_named() -> None:
    with pytest.raises(ValueError, match="num_instances 5 and groups of 3 contradict"):
        ClusterConfig(num_instances=5, groups=[H100, L40S])
    with pytest.raises(ConfigError, match=r"cluster.groups\[1\]: hardware: unknown hardware 'H1000'"):
        simulate((), ClusterConfig(groups=[H100, InstanceGroup(hardware="H1000")]), LLAMA)
    with pytest.raises(ConfigError, match="without a model all GPUs are alike"):
        simulate((), ClusterConfig(groups=[H100, L40S]))
    groups = [InstanceGroup(latency=LinearLatency((1, 1, 1), (5, 0, 0))), InstanceGroup()]
    with pytest.raises(ConfigError, match="overheads of a request"):
        simulate((), ClusterConfig(groups=groups))


@pytest.mark.parametrize("written", ["H100", "H100:x", ":2", "H100:2,,L40S:1"])
def test_a_flag_that_cannot_be_read_is_named(maitred: Any, written: str) -> None:
    result = maitred("simulate", "--rate", "1", "--num-requests", "1", "--model", "llama-3.1-8b", "--instance-groups", written)
    assert result.code == 2
    assert "--instance-groups" in result.err
    assert "[TPx]GPU:N" in result.err


def test_a_group_without_instances_names_the_flag(maitred: Any) -> None:
    load = ("--rate", "1", "--num-requests", "1", "--model", "llama-3.1-8b")
    result = maitred("simulate", *load, "--instance-groups", "H100:0")
    assert (result.code, "error: --instance-groups: num_instances of a group must be from 1" in result.err) == (2, True)


def test_what_has_no_effect_on_a_fleet_is_said(maitred: Any, tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"
    config.write_text("routing: {policy: weighted-least-loaded, weights: [1, 2]}\ncluster: {num_instances: 3}\n")
    load = ("--rate", "9", "--num-requests", "9", "--config", str(config), "--grid-intensity", "400")
    err = " ".join(maitred("simulate", *load).err.split())
    assert "routing.weights has 2 weights for 3 instances" in err
    assert "costs.grid_gco2_per_kwh has no effect without a model" in err


def test_weights_that_nothing_reads_are_a_warning() -> None:
    assert RoutingConfig(weights=(1.0, 2.0)).warnings() == [
        "routing weights have no effect with least-loaded: they are those of weighted-least-loaded"
    ]
    with pytest.raises(ValueError, match="weights: a weight must be a number above 0, not 0"):
        RoutingConfig(weights=(0.0,))


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        ((), []),
        ((1.0, 2.0, 3.0), []),
        ((1.0, 2.0), ["routing.weights has 2 weights for 3 instances: those beyond weigh 1"]),
        ((1.0,) * 5, ["routing.weights has 5 weights for 3 instances: the last 2 have no effect"]),
    ],
)
def test_weights_for_other_instances_than_there_are_warn(weights: tuple[float, ...], what: list[str]) -> None:
    routing = RoutingConfig(policy="weighted-least-loaded", weights=weights)
    assert [*weight_warnings(routing, ClusterConfig(num_instances=3))] == what


def test_programs_do_not_go_with_groups() -> None:
    """Each program would be counted on a memory of the size of the first group's."""
    cluster = ClusterConfig(groups=[InstanceGroup(total_kv_blocks=1000), InstanceGroup(total_kv_blocks=100)])
    with pytest.raises(ConfigError, match="programs are not simulated with instance groups"):
        simulate((), cluster, programs=ProgramsConfig(mode="tr"))
