"""GPU-hours, energy, carbon and money of a run, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

import maitred
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import find_hardware, hardware_names
from maitred.report.costs import cost_lines, cost_warnings, find_costs
from maitred.sim import ClusterConfig
from maitred.sim.fleet_config import CostConfig, InstanceGroup
from maitred.sim.instance_groups import resolve_fleet
from maitred.workload import Job

ENGINE = InstanceConfig(model="llama-3.1-8b", latency=LinearLatency((10_000, 0, 0)))


def run(engine: InstanceConfig = ENGINE, **cluster: Any) -> maitred.Result:
    """Return a run of an hour: a request of 100,000 tokens, and at the end one of a token."""
    jobs = [
        Job(Request(id=0, arrival=0, prompt_tokens=1), 100_000),
        Job(Request(id=1, arrival=3_599_990_000, prompt_tokens=1), 1),
    ]
    return maitred.simulate(jobs, ClusterConfig(**cluster), engine, sample_every_ms=None)


def test_the_energy_of_an_hour_by_hand() -> None:
    """A step takes 10 ms, so 100,000 tokens are 1,000 s of work: with 700 W and 140 W idle, 140 + 560 · 1,000.01 / 3,600 Wh."""
    result = run(costs=CostConfig(pue=1.2, grid_gco2_per_kwh=400.0, price_per_gpu_hour={"h100": 2.5}))
    found = find_costs(result.rows, result.summary(by=()), result.setup)
    assert found is not None
    energy = 1.2 * (140 + 560 * 1_000.01 / 3_600)
    assert found.gpu_hours == pytest.approx(1)
    assert found.energy_wh == pytest.approx(energy)
    assert found.wh_per_request == pytest.approx(energy / 2)
    assert found.wh_per_1k_tokens == pytest.approx(energy / 100.001)
    assert found.gco2 == pytest.approx(energy * 0.4)
    assert (found.usd, found.usd_per_million_tokens) == (pytest.approx(2.5), pytest.approx(2.5 / 0.100001))
    (line,) = cost_lines(found)
    assert line.startswith(
        "Costs: 1.00 GPU-hours, 354.7 Wh (177.3 Wh per request, 3.55 Wh per 1,000 output tokens), 141.9 g CO2, $2.50"
    )


def test_each_group_has_its_own_power_and_price() -> None:
    """Of an H100 and two L40S with two GPUs the first does all the work."""
    groups = [InstanceGroup(), InstanceGroup(num_instances=2, hardware="L40S", tensor_parallel_size=2)]
    result = run(groups=groups, costs=CostConfig(price_per_gpu_hour={"H100": 2.0, "L40S": 1.0}))
    found = find_costs(result.rows, result.summary(by=()), result.setup)
    assert found is not None
    assert found.gpu_hours == pytest.approx(5)
    assert found.usd == pytest.approx(2 + 4)
    busy = sum(each.busy for each in result.rows.instances[1:])
    assert found.energy_wh == pytest.approx(140 + 560 * 1_000 / 3_600 + 0.2 * 4 * 350, abs=0.01 + busy / 1e6)


def test_what_is_not_known_is_not_told() -> None:
    result = run(costs=CostConfig(price_per_gpu_hour={"A100": 1.0}))
    found = find_costs(result.rows, result.summary(by=()), result.setup)
    assert found is not None
    assert (found.usd, found.gco2) == (None, None)
    assert found.energy_wh is not None
    generic = run(InstanceConfig(latency=LinearLatency((10_000, 0, 0))))
    unknown = generic.assess().costs
    assert unknown is not None
    assert (unknown.gpu_hours, unknown.energy_wh) == (pytest.approx(1), None)
    assert [*cost_lines(run().assess().costs)] == []


def test_every_kind_of_gpu_has_a_published_power_limit() -> None:
    for name in hardware_names():
        kind = find_hardware(name)
        assert 50 <= kind.tdp_watts <= 2000
        assert kind.power_source


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"pue": 0.9}, "pue must be from 1"),
        ({"idle_share": 1.1}, "idle_share must be from 0 to 1"),
        ({"gpu_watts": 0.0}, "gpu_watts must be above 0"),
        ({"price_per_gpu_hour": {"H100": -1.0}}, "price_per_gpu_hour of H100 must be above 0"),
    ],
)
def test_a_wrong_value_is_named(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        CostConfig(**keys)


@pytest.mark.parametrize(
    ("costs", "model", "what"),
    [
        ({"grid_gco2_per_kwh": 400.0}, None, "costs.grid_gco2_per_kwh has no effect without a model or costs.gpu_watts"),
        ({"pue": 1.2}, None, "costs.pue has no effect without a model or costs.gpu_watts"),
        ({"price_per_gpu_hour": {"L40S": 1.0}}, "llama-3.1-8b", "costs.price_per_gpu_hour has no price of H100"),
        ({"grid_gco2_per_kwh": 400.0, "gpu_watts": 300.0}, None, ""),
        ({"price_per_gpu_hour": {"nvidia h100": 1.0, "L40S": 1.0}, "pue": 1.2}, "llama-3.1-8b", ""),
    ],
)
def test_keys_without_effect_warn(costs: dict[str, Any], model: str | None, what: str) -> None:
    cluster, instance = resolve_fleet(ClusterConfig(costs=CostConfig(**costs)), InstanceConfig(model=model))
    found = [*cost_warnings(cluster, instance)]
    assert [each[: len(what)] for each in found] == ([what] if what else [])


@pytest.mark.parametrize("groups", [[], [InstanceGroup()]])
def test_a_price_of_a_gpu_that_there_is_not_is_an_error(groups: list[InstanceGroup]) -> None:
    with pytest.raises(ConfigError, match=r"cluster.costs.price_per_gpu_hour: unknown hardware 'H10O'.*H100"):
        resolve_fleet(ClusterConfig(groups=groups, costs=CostConfig(price_per_gpu_hour={"H10O": 1.0})), ENGINE)
