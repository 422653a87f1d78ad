"""What a run takes beside time: GPU-hours, energy, carbon, and money.

    energy of an instance = PUE · GPUs · (idle power · time held + (peak power - idle power) · time with work)

This is the linear model of X. Fan, W.-D. Weber, L. A. Barroso, Power provisioning for a warehouse-sized computer (2007), with
the share of the time with work as the utilisation. The peak is the power limit of the GPU as it is published (`hardware.toml`
has the source, or says that it is unverified). Steps of an H100 reach it with any prompt, and from 64 sequences on; one
sequence alone takes 455 of 700 W (docs/accuracy.md). So the energy is an upper estimate where batches are small;
`cluster.costs.gpu_watts` takes a measured power. Hosts are not part of it, except as the PUE contains them. Carbon is the
energy by the stated intensity of the grid.

    one H100, idle 140 W, peak 700 W, an hour of which 40 % with work: 140 + 0.4 · 560 = 364 Wh, at 400 g/kWh 146 g CO2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import mul

import msgspec

from maitred.core.units import to_seconds
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import find_hardware, hardware_name
from maitred.report.run_setup import RunSetup, section_of
from maitred.report.summary import Summary
from maitred.report.table import format_number
from maitred.sim import ClusterConfig, Results
from maitred.sim.fleet_config import CostConfig

_HOUR = 3600.0


class RunCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a run; each figure is None where what it needs is not known."""

    is_asked_for: bool
    """Whether the configuration states anything about costs."""
    gpu_hours: float
    """Hours for which GPUs were held, whether or not they worked."""
    energy_wh: float | None = None
    wh_per_request: float | None = None
    """Energy by completed requests."""
    wh_per_1k_tokens: float | None = None
    """Energy by thousand output tokens."""
    gco2: float | None = None
    """Grams of CO2, by the stated intensity of the grid."""
    usd: float | None = None
    """GPU-hours by their stated price, in dollars."""
    usd_per_million_tokens: float | None = None
    """The same by million output tokens."""


def find_costs(results: Results, summary: Summary, setup: RunSetup) -> RunCosts | None:
    """Return the costs of a run, or None if no instance is known. Without a model an instance is one GPU of unknown power."""
    instance, cluster = section_of(setup, InstanceConfig), section_of(setup, ClusterConfig)
    if setup.measured or not results.instances:
        return None
    costs, configs = cluster.costs, cluster.instance_configs(instance)
    gpus = [each.tensor_parallel_size * each.data_parallel_size for each in configs]
    watts = [_watts(costs, each) for each in configs]
    times = [(each.busy, results.end if each.held is None else each.held) for each in results.instances]
    held = [count * to_seconds(time) / _HOUR for count, (_, time) in zip(gpus, times, strict=True)]
    busy = [count * to_seconds(min(work, time)) / _HOUR for count, (work, time) in zip(gpus, times, strict=True)]
    share = costs.idle_share
    watt_hours = _weighted([share * on + (1 - share) * at_work for on, at_work in zip(held, busy, strict=True)], watts)
    energy = None if watt_hours is None else costs.pue * watt_hours
    usd = _weighted(held, [_price(costs, each) for each in configs])
    tokens = summary.total.output_tokens
    return RunCosts(
        is_asked_for=costs != CostConfig() or bool(cluster.autoscaling.policy),
        gpu_hours=sum(held),
        energy_wh=energy,
        wh_per_request=_by(energy, summary.total.completed),
        wh_per_1k_tokens=_by(energy, tokens / 1e3),
        gco2=None if energy is None or costs.grid_gco2_per_kwh is None else energy / 1e3 * costs.grid_gco2_per_kwh,
        usd=usd,
        usd_per_million_tokens=_by(usd, tokens / 1e6),
    )


def cost_lines(costs: RunCosts | None) -> Iterator[str]:
    """Yield a sentence about the costs, if the configuration asks for one."""
    if costs is None or not costs.is_asked_for:
        return
    parts = [f"{format_number(costs.gpu_hours)} GPU-hours"]
    if costs.energy_wh is not None:
        tokens = f"{format_number(costs.wh_per_1k_tokens)} Wh per 1,000 output tokens"
        each = f"{format_number(costs.wh_per_request)} Wh per request, {tokens}"
        parts.append(f"{format_number(costs.energy_wh)} Wh ({each})")
    if costs.gco2 is not None:
        parts.append(f"{format_number(costs.gco2)} g CO2")
    if costs.usd is not None:
        parts.append(f"${format_number(costs.usd)} (${format_number(costs.usd_per_million_tokens)} per million output tokens)")
    yield f"Costs: {', '.join(parts)}."


def cost_metrics(costs: RunCosts | None) -> dict[str, float | None] | None:
    """Return the costs under the names of figures; None if no GPU is known."""
    if costs is None:
        return None
    return {name: getattr(costs, name) for name in RunCosts.__struct_fields__ if name != "is_asked_for"}


def cost_warnings(cluster: ClusterConfig, instance: InstanceConfig) -> Iterator[str]:
    """Yield a warning for each key about costs without effect. Both are resolved."""
    costs, plain, configs = cluster.costs, CostConfig(), cluster.instance_configs(instance)
    if any(_watts(costs, each) is None for each in configs):
        for name in ("idle_share", "pue", "grid_gco2_per_kwh"):
            if getattr(costs, name) != getattr(plain, name):
                yield f"costs.{name} has no effect without a model or costs.gpu_watts: the power of the GPUs is not known"
    if costs.price_per_gpu_hour is not None:
        for name in dict.fromkeys(each.hardware for each in configs if _price(costs, each) is None):
            yield f"costs.price_per_gpu_hour has no price of {name}, so no money is told"


def _price(costs: CostConfig, instance: InstanceConfig) -> float | None:
    """Return the price of a GPU of an instance for an hour, or None if it is not known."""
    prices = costs.price_per_gpu_hour
    if isinstance(prices, dict):
        return {hardware_name(name): price for name, price in prices.items()}.get(hardware_name(instance.hardware))
    return prices


def _watts(costs: CostConfig, instance: InstanceConfig) -> float | None:
    """Return the peak power of a GPU of an instance, or None if it is not known."""
    if costs.gpu_watts is not None:
        return costs.gpu_watts
    if instance.hardware_config is not None or not instance.has_model:
        return None
    return find_hardware(instance.hardware).tdp_watts or None


def _weighted(hours: Sequence[float], weights: Sequence[float | None]) -> float | None:
    """Return the sum of the products, or None if a weight is not known."""
    known = [weight for weight in weights if weight is not None]
    return sum(map(mul, hours, known)) if len(known) == len(hours) else None


def _by(total: float | None, count: float) -> float | None:
    return total / count if total is not None and count else None
