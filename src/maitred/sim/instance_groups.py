"""Instance groups: a fleet of unequal instances, such as some H100 and some L40S, behind one router.

A group states what differs from the section `instance`; the rest is as there. Each group gets its own step times, KV blocks and
limits from the catalogue. Two things are the same for all, since a router may choose any instance: the model length, which is
that of the group with the shortest, and the overheads of a request, which the groups must agree on.

The weight of a group (`routing.weighted`) is the rate at which one of its instances serves requests with prompts and answers of
512 tokens, by its own latency model (`instance.throughput_limit`), unless `routing.weights` says otherwise.

    instance: {model: llama-3.1-8b}
    cluster: {groups: [{num_instances: 2, hardware: H100}, {num_instances: 4, hardware: L40S}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import (
    find_deployment,
    hardware_name,
    hardware_names,
    resolve_instance,
    without_request_overhead,
)
from maitred.instance.latency import AIConfiguratorLatency
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.routing import RoutingConfig
from maitred.sim.config import ClusterConfig
from maitred.sim.fleet_config import InstanceGroup

_TYPICAL: Final = RequestMix(prompt=512, output=512)


def resolve_fleet(cluster: ClusterConfig, instance: InstanceConfig) -> tuple[ClusterConfig, InstanceConfig]:
    """Return the configuration with all that follows from names, of the section `instance` and of every group. Resolving twice
    changes nothing. With groups, the second is that of the first group.

    Raises ConfigError as `resolve_instance` does, and for groups that cannot be one fleet.
    """
    if not cluster.groups:
        _check_prices(cluster, [instance])
        return _with_slow_ones(cluster, resolve_instance(instance))
    found = [_resolved(group, instance, place) for place, group in enumerate(cluster.groups)]
    found = found if _have_like_overheads(found) else [_without_fitted_alpha(config) for config in found]
    if not _have_like_overheads(found):
        what = "the overheads of a request (alpha) differ"
        raise ConfigError(what, where="cluster.groups", hint="give all groups the same latency model")
    _check_prices(cluster, found)
    longest = min(config.model_len for config in found)
    groups = [group.stating(config) for group, config in zip(cluster.groups, found, strict=True)]
    return _with_slow_ones(replace(cluster, groups=groups), replace(found[0], max_model_len=longest))


def name_problems(cluster: ClusterConfig, instance: InstanceConfig) -> Iterator[ConfigError]:
    """Yield what is wrong with the names of models and GPUs, and the files that they stand for. Unlike `resolve_fleet` it asks
    for no step times, which take seconds."""
    own = {"instance": instance} if not cluster.groups else {}
    groups = {f"cluster.groups[{place}]": group.applied_to(instance) for place, group in enumerate(cluster.groups)}
    for where, config in (own | groups).items():
        try:
            if config.has_model:
                find_deployment(config)
        except ConfigError as error:
            yield error.at(f"{where}: {error.where}" if groups else f"{where}.{error.where}")
    try:
        _check_prices(cluster, list((own | groups).values()))
    except ConfigError as error:
        yield error


def _have_like_overheads(configs: Sequence[InstanceConfig]) -> bool:
    return len({config.latency_model().overheads for config in configs}) == 1


def _without_fitted_alpha(config: InstanceConfig) -> InstanceConfig:
    """Return `config` without the overhead of a request that comes with measured kernels, where other instances of the fleet
    have another one or none. The line of the run says so."""
    latency = config.latency
    return replace(config, latency=without_request_overhead(latency)) if isinstance(latency, AIConfiguratorLatency) else config


def _with_slow_ones(cluster: ClusterConfig, instance: InstanceConfig) -> tuple[ClusterConfig, InstanceConfig]:
    """Return both. Raises ConfigError if the slow instances are too slow."""
    first = cluster.most_instances - cluster.failures.slow_instances
    try:
        for config in {id(each): each for each in cluster.instance_configs(instance)[first:]}.values():
            config.latency_model()
    except (ValueError, ConfigError) as error:
        hint = "a lower --slow-factor"
        raise ConfigError(f"slow instances: {error}", where="cluster.failures.slow_factor", hint=hint) from error
    return cluster, instance


def _check_prices(cluster: ClusterConfig, configs: Sequence[InstanceConfig]) -> None:
    """Raise ConfigError for the price of a GPU that there is not. Those of GPUs that the fleet has not are a price list."""
    prices = cluster.costs.price_per_gpu_hour
    known = {*hardware_names(), *(hardware_name(each.hardware) for each in configs)}
    for name in prices if isinstance(prices, dict) else ():
        if hardware_name(name) not in known:
            hint = nearest_name_hint(name, sorted(known))
            raise ConfigError(f"unknown hardware {name!r}", where="cluster.costs.price_per_gpu_hour", hint=hint)


def _resolved(group: InstanceGroup, instance: InstanceConfig, place: int) -> InstanceConfig:
    own = group.hardware is not None and group.hardware != instance.hardware
    if own and not instance.has_model:
        hint = "say which: --model llama-3.1-8b; or give groups a latency or a latency_scale"
        raise ConfigError("without a model all GPUs are alike", where=f"cluster.groups[{place}]", hint=hint)
    try:
        return resolve_instance(group.applied_to(instance))
    except ConfigError as error:
        raise error.at(f"cluster.groups[{place}]: {error.where}".removesuffix(": ")) from error
    except ValueError as error:
        raise ConfigError(str(error), where=f"cluster.groups[{place}]") from error


def with_weights(routing: RoutingConfig, cluster: ClusterConfig, instance: InstanceConfig) -> RoutingConfig:
    """Return `routing` with the weights that follow from the groups, where it has none. Both are resolved."""
    if not cluster.groups or routing.weights:
        return routing
    return replace(routing, weights=tuple(_rates(cluster.instance_configs(instance), _TYPICAL)))


def weight_warnings(routing: RoutingConfig, cluster: ClusterConfig) -> Iterator[str]:
    """Yield a warning where there are not as many weights as instances."""
    given, count = len(routing.weights), cluster.most_instances
    if 0 < given < count:
        yield f"routing.weights has {given:,} weights for {count:,} instances: those beyond weigh 1"
    elif given > count:
        yield f"routing.weights has {given:,} weights for {count:,} instances: the last {given - count:,} have no effect"


def fleet_limit(cluster: ClusterConfig, instance: InstanceConfig, mix: RequestMix) -> float:
    """Return the requests per second that all instances together could take. Both are resolved."""
    return sum(_rates(cluster.instance_configs(instance), mix))


def _rates(configs: Sequence[InstanceConfig], mix: RequestMix) -> list[float]:
    """Return the requests per second that each of them could take; equal instances are one object."""
    kinds = {id(config): config for config in configs}
    rates = {kind: find_throughput_limit(config, mix).rate for kind, config in kinds.items()}
    return [rates[id(config)] for config in configs]
