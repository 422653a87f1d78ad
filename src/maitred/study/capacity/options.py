"""What is searched: the traffic as it is today, what all options have in common, and the options themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.units import SECOND
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import find_deployment, published_latency_error
from maitred.instance.throughput_limit import RequestMix
from maitred.sim.fleet_config import InstanceGroup
from maitred.study.candidate import Candidate
from maitred.study.metrics import Constraint
from maitred.study.runs import RunSettings
from maitred.workload import Job, ReactiveWorkload
from maitred.workload.load import Load

_FEWEST: Final = 2


class Traffic(msgspec.Struct, frozen=True):
    """The workload as it is today."""

    rate: float
    """Requests per second."""
    mix: RequestMix
    requests: int
    """Requests of a run."""


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What all options have in common."""

    load: Load
    """Self-contained."""
    traffic: Traffic
    settings: RunSettings
    constraints: tuple[Constraint, ...]
    tolerance: float
    max_instances: int
    num_instances: int | None
    rounds: tuple[int, ...]
    """How many seeds there are in each round; the next one comes if the interval of the rate is not narrow."""
    precision: float
    """The half width of the interval of a rate that is narrow, as a share of the rate."""


def measure_traffic(load: Load, seeds: Sequence[int]) -> Traffic:
    """Return the rate and the mean request of a workload. Raises ConfigError if its requests do not arrive at a rate.

    The requests of one seed come at a rate of their own. Of several seeds it is the mean of theirs, or the stated rate.
    """
    found = [_traffic_of(load, seed) for seed in seeds]
    count = len(found)
    rate = sum(each.rate for each in found) / count
    if load.rate is not None and count > 1:
        rate = load.rate * (load.rate_scale or 1.0)
    prompt, output = (sum(getattr(each.mix, name) for each in found) / count for name in ("prompt", "output"))
    return Traffic(rate, RequestMix(prompt=prompt, output=output), round(sum(each.requests for each in found) / count))


def _traffic_of(load: Load, seed: int) -> Traffic:
    with load.jobs(seed) as jobs:
        if isinstance(jobs, ReactiveWorkload):
            what = "its users wait for answers, so it has no rate of its own"
            raise ConfigError(what, where="workload", hint="a trace in open mode, a specification, or --rate")
        return _traffic(jobs)


def _traffic(jobs: Iterable[Job]) -> Traffic:
    count = prompts = outputs = last = 0
    for job in jobs:
        count += 1
        prompts += job.request.prompt_tokens
        outputs += job.output_tokens
        last = job.request.arrival
    if count < _FEWEST or not last:
        raise ConfigError(f"it has {count} requests", where="workload", hint="hundreds at least, at different times")
    return Traffic(count / last * SECOND, RequestMix(prompt=prompts / count, output=outputs / count), count)


def option_candidates(
    base: Candidate,
    model: str | None,
    hardware: Sequence[str],
    tensor_parallel_sizes: Sequence[int],
    groups: Sequence[Sequence[InstanceGroup]],
    *,
    with_disaggregation: bool,
) -> list[Candidate]:
    """Return a candidate for each kind of GPU and each tensor parallelism; `with_disaggregation` also one with prefill and
    decode instances for each. Then one for each fleet of `groups`, and of those alone if neither kinds nor sizes are said;
    with P/D these are two groups, the first prefills.

    Raises ConfigError for values that cannot be, and for a model or a kind of GPU that is not known."""
    mixes = [list(each) for each in groups] or [base.cluster.groups] * bool(base.cluster.groups)
    is_split = with_disaggregation or bool(base.cluster.disaggregation)
    for mix in mixes if is_split else ():
        if [each.num_instances for each in mix] != [1, 1]:
            what = "prefill and decode instances on unequal GPUs are two groups of one instance, whose numbers are searched"
            raise ConfigError(what, where="--instance-groups", hint="write H100:1,L40S:1: prefill on H100, decode on L40S")
    base = replace(base, cluster=replace(base.cluster, groups=[], num_instances=1)) if mixes else base
    instance = base.instance if model is None else replace(base.instance, model=model)
    named = [group.hardware for mix in mixes for group in mix if group.hardware is not None]
    if (hardware or tensor_parallel_sizes or named) and not instance.has_model:
        raise ConfigError("without a model all GPUs are alike", where="--model", hint="say which: --model llama-3.1-8b")
    kinds, sizes = hardware or [instance.hardware], tensor_parallel_sizes or [instance.tensor_parallel_size]
    try:
        if instance.has_model:
            for gpu in [
                *kinds,
                *named,
            ]:  # A name that is not known is a mistake, whereas an option that does not fit is left out.
                find_deployment(replace(instance, hardware=gpu, tensor_parallel_size=1))
        instances = [replace(instance, hardware=gpu, tensor_parallel_size=tp) for gpu, tp in product(kinds, sizes)]
        candidates = [replace(base, instance=each) for each in instances]
        if mixes:
            candidates = candidates if hardware or tensor_parallel_sizes else []
        fleets = [replace(base, cluster=replace(base.cluster, groups=each), instance=instance) for each in mixes]
        if not with_disaggregation:
            return [*candidates, *fleets]
        return [*candidates, *map(_disaggregated, [*candidates, *fleets])]
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _disaggregated(candidate: Candidate) -> Candidate:
    """Return the candidate with a prefill and a decode instance, the fewest that there can be."""
    cluster = candidate.cluster
    pools = replace(cluster.disaggregation, prefill_instances=1, decode_instances=1)
    return replace(candidate, cluster=replace(cluster, num_instances=2, disaggregation=pools))


def name_of(group: InstanceGroup, instance: InstanceConfig) -> str:
    """Name the instances of a group: `H100`, `2×H100`."""
    config = group.applied_to(instance)
    gpus = config.tensor_parallel_size * config.data_parallel_size
    return f"{f'{gpus}×' if gpus > 1 else ''}{config.hardware if config.has_model else 'instance'}"


def gpus_of(candidate: Candidate) -> dict[str, int]:
    """Return the GPUs of all instances by kind, in lower case."""
    counts: dict[str, int] = {}
    for group in candidate.cluster.groups or [InstanceGroup(num_instances=candidate.cluster.num_instances)]:
        config = group.applied_to(candidate.instance)
        gpus = config.tensor_parallel_size * config.data_parallel_size * group.num_instances
        counts[config.hardware.lower()] = counts.get(config.hardware.lower(), 0) + gpus
    return counts


def published_error(candidate: Candidate) -> float | None:
    """Return the largest published error of the latency models of all its groups, or None if one is not known."""
    groups = candidate.cluster.groups or [InstanceGroup()]
    errors = [published_latency_error(group.applied_to(candidate.instance)) for group in groups]
    known = [error for error in errors if error is not None]
    return max(known) if len(known) == len(errors) else None
