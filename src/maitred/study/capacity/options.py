"""What is searched: the traffic as it is today, what all options have in common, and the options themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.units import SECOND
from maitred.instance.catalogue import find_deployment
from maitred.instance.throughput_limit import RequestMix
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
    *,
    with_disaggregation: bool,
) -> list[Candidate]:
    """Return a candidate for each kind of GPU and each tensor parallelism; `with_disaggregation` also one with prefill and
    decode instances for each. Raises ConfigError for values that cannot be, and
    for a model or a kind of GPU that is not known."""
    instance = base.instance if model is None else replace(base.instance, model=model)
    if (hardware or tensor_parallel_sizes) and not instance.has_model:
        raise ConfigError("without a model all GPUs are alike", where="--model", hint="say which: --model llama-3.1-8b")
    kinds, sizes = hardware or [instance.hardware], tensor_parallel_sizes or [instance.tensor_parallel_size]
    try:
        if instance.has_model:
            for gpu in kinds:  # A name that is not known is a mistake, whereas an option that does not fit is left out.
                find_deployment(replace(instance, hardware=gpu, tensor_parallel_size=1))
        instances = [replace(instance, hardware=gpu, tensor_parallel_size=tp) for gpu, tp in product(kinds, sizes)]
        candidates = [replace(base, instance=each) for each in instances]
        return [*candidates, *map(_disaggregated, candidates)] if with_disaggregation else candidates
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _disaggregated(candidate: Candidate) -> Candidate:
    """Return the candidate with a prefill and a decode instance, the fewest that there can be."""
    cluster = candidate.cluster
    pools = replace(cluster.disaggregation, prefill_instances=1, decode_instances=1)
    return replace(candidate, cluster=replace(cluster, num_instances=2, disaggregation=pools))
