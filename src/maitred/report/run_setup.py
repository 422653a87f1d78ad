"""What was simulated: everything that is needed to repeat a run, one line that says it, and the settings that were in force.

The line stands above every table and report, because figures mean nothing without it:

    llama-3.1-8b on 2 instances of 4 × H100 (TP 4); trained-physics latency model, published error 5.5 % of E2E; 137,302 KV
    blocks of 16 tokens each, what fits beside the model; order fcfs, router least-loaded, no admission; seed 42; maitred 0.1.0

A run without a model says "generic linear model, no particular GPU", whatever `hardware` has as its default. In the same way
`settings_in_force` leaves out keys that could not have changed this run: those of the GPU without a model, of a flavour,
admission mode or cache that was not on, and those that are null. A key that was given a value of its own is always in it,
because the warnings of a run say that it has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred import __version__
from maitred.admission import AdmissionConfig
from maitred.core.units import Micros
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import (
    SILICON_HINT,
    beyond_kernels,
    described_overheads,
    deviation_of,
    installed_version,
    nearest_deviation,
    nearest_error,
)
from maitred.instance.latency import AIConfiguratorLatency, LatencyConfig, LinearLatency, RooflineLatency, TrainedPhysicsLatency
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig

_KV_BLOCKS: Final = "total_kv_blocks"
S = TypeVar("S", bound=msgspec.Struct)
FlatSection: TypeAlias = dict[str, tuple[Any, bool]]
"""By key: its value as in a file, and whether it is the default. Nested keys are joined by dots."""


class RunSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to repeat a run, beside the workload itself."""

    workload: str = ""
    """The workload in words, such as the name of a trace; empty if it is not known."""
    command: str = ""
    """The command line, if there was one."""
    seed: int
    horizon: Micros | None = None
    sections: dict[str, msgspec.Struct]
    """The configuration by section (cluster, instance, routing, admission, programs), with what the catalogue derived."""
    derived: tuple[str, ...] = ()
    """The keys of the section `instance` that the catalogue derived (`derived_keys`)."""
    measured: str = ""
    """What was measured, of a run at a live endpoint, which has no sections; empty: the run was simulated."""

    def flat_sections(self) -> dict[str, FlatSection]:
        """Return every key of the sections."""
        return {name: _flat_section(section) for name, section in self.sections.items()}

    def settings_in_force(self) -> dict[str, FlatSection]:
        """Return the keys that could have changed this run, and those with a value that is not their default."""
        without_effect = {*_keys_without_effect(self)}
        return {
            name: {
                key: (value, is_default)
                for key, (value, is_default) in keys.items()
                if not is_default or not (value in (None, "", [], {}, ()) or _is_below(f"{name}.{key}", without_effect))
            }
            for name, keys in self.flat_sections().items()
        }

    def in_one_line(self, seeds: str = "") -> str:
        """Describe the setup of a simulated run, or of one measured at a live endpoint. `seeds` names several seeds."""
        if self.measured:
            return f"measured: {self.measured}; seed {self.seed}; maitred {__version__}"
        instance, cluster = section_of(self, InstanceConfig), section_of(self, ClusterConfig)
        parts = (
            _what_runs(instance, cluster),
            _latency_model(instance, self.derived),
            _kv_blocks(instance, self.derived),
            _policies(self, instance, cluster),
            seeds or f"seed {self.seed}",
            f"maitred {__version__}",
        )
        return "; ".join(filter(None, parts))

    def beyond_kernels(self, prompts: NDArray[np.int64], outputs: NDArray[np.int64]) -> str:
        """Return in words which of these requests (tokens of each) are outside the measured kernels, or nothing."""
        latency = section_of(self, InstanceConfig).latency
        if self.measured or not isinstance(latency, AIConfiguratorLatency):
            return ""
        return beyond_kernels(int(prompts.max()), int((prompts + outputs).max()))


def derived_keys(stated: InstanceConfig, resolved: InstanceConfig) -> tuple[str, ...]:
    """Return the keys that `stated` leaves open and that the catalogue filled in."""
    return tuple(
        key for key in InstanceConfig.__struct_fields__ if getattr(stated, key) is None and getattr(resolved, key) is not None
    )


def section_of(setup: RunSetup, kind: type[S]) -> S:
    """Return the section of this kind, or its defaults if the setup has none."""
    return next((section for section in setup.sections.values() if isinstance(section, kind)), None) or kind()


def _what_runs(instance: InstanceConfig, cluster: ClusterConfig) -> str:
    if cluster.groups:
        return _groups(instance, cluster)
    count, scaling = cluster.num_instances, cluster.autoscaling
    instances = "1 instance" if count == 1 else f"{count:,} instances"
    if scaling.policy:
        instances = f"{scaling.min_instances:,} to {scaling.max_instances:,} instances"
    tp, dp = instance.tensor_parallel_size, instance.data_parallel_size
    if not instance.has_model:
        generic = "generic linear model" if instance.latency in (None, LinearLatency()) else "no model"
        return f"{generic}, no particular GPU; {instances}"
    deployment = getattr(instance.latency, "deployment", None)
    name = deployment.model.name if deployment else instance.model or instance.model_config_folder
    gpu = deployment.hardware.name if deployment else instance.hardware
    parallel = ", ".join([f"TP {tp}"] * (tp > 1) + [f"DP {dp}"] * (dp > 1))
    return f"{name} on {instances} of {tp * dp} × {gpu}" + (f" ({parallel})" if parallel else "")


def _groups(instance: InstanceConfig, cluster: ClusterConfig) -> str:
    """Describe a fleet of unequal instances: the model's name, and each group."""
    parts = [
        _what_runs(group.applied_to(instance), msgspec.structs.replace(cluster, groups=[], num_instances=group.num_instances))
        for group in cluster.groups
    ]
    return " and ".join(parts)


def _latency_model(instance: InstanceConfig, derived: tuple[str, ...]) -> str:
    latency = LinearLatency() if instance.latency is None else instance.latency
    scaled = "" if instance.latency_scale == 1 else f", all steps × {instance.latency_scale:g}"
    if isinstance(latency, str):
        return f"latency model {latency}, {_latency_error(instance, 0.0, '')}{scaled}"
    name = str(latency.__struct_config__.tag)
    deployment = getattr(latency, "deployment", None)
    published, of = 0.0, ""
    if isinstance(latency, TrainedPhysicsLatency) and latency.shipped and deployment:
        published, of = deployment.hardware.trained_physics_error, f" for {deployment.hardware.name}"
    basis = _basis(latency) if "latency" in derived else ""
    return f"{_described(name, latency)}{basis}, {_latency_error(instance, published, of)}{scaled}"


def _basis(latency: LatencyConfig) -> str:
    """Return why a latency model that no one named is not that of measured kernels."""
    if not isinstance(latency, RooflineLatency):
        return ""
    return ", as AIConfigurator does not know this" if installed_version() else f" without measured kernels ({SILICON_HINT})"


def _described(name: str, latency: LatencyConfig) -> str:
    if isinstance(latency, LinearLatency):
        step, prefill, decode = latency.beta
        return f"a step takes {step:,g} µs + {prefill:,g} per prefill token + {decode:,g} per decode"
    if isinstance(latency, AIConfiguratorLatency) and latency.table is not None:
        return f"measured kernels ({latency.table.source}) {described_overheads(latency)}".rstrip()
    file = getattr(latency, "file", "")
    return f"{name} latency model" + (f" of {file}" if file else "")


def _latency_error(instance: InstanceConfig, published: float, of: str) -> str:
    error, latency = instance.latency_error, instance.latency
    measured = latency if isinstance(latency, AIConfiguratorLatency) and latency.table is not None else None
    if error is not None:  # `maitred compare` and `capacity` take it from where it is known
        drawn = f"error drawn with a standard deviation of {error:.1%}"
        if published and error == deviation_of(published):
            return f"{drawn}, for the {published:.1%} of E2E that BLIS published"
        if measured is not None and error == nearest_deviation(measured):
            return f"{drawn}, for a {nearest_error(measured)}"
        return f"error {error:.1%} as configured"
    if measured is not None:
        return nearest_error(measured)
    return f"published error {published:.1%} of E2E" if published else f"no error published{of}" if of else "error unknown"


def _kv_blocks(instance: InstanceConfig, derived: tuple[str, ...]) -> str:
    share = f" at {instance.gpu_memory_utilization:.0%} of the memory"
    fits = f"what fits beside the model{share}"
    whence = "the default" if instance.total_kv_blocks is None else fits if _KV_BLOCKS in derived else "as given"
    return f"{instance.kv_blocks:,} KV blocks of {instance.block_size_in_tokens} tokens each, {whence}"


def _instance_policies(instance: InstanceConfig) -> Iterator[str]:
    yield f"order {instance.scheduler}" + (f" by {instance.priority_policy}" if instance.priority_policy else "")
    if instance.flavour is not None:
        yield f"flavour {instance.flavour}"
    if instance.batching is not None:
        yield f"batching {instance.batching}"
    if instance.speculative:
        spec = instance.speculative
        yield f"{spec.num_speculative_tokens} speculative tokens, {spec.acceptance_rate:g} accepted"
    if instance.caches_prefixes:
        yield "prefix caching"
    if instance.kv_offload:
        yield f"{instance.kv_offload.host_gib:g} GiB of KV in the host"


def _policies(setup: RunSetup, instance: InstanceConfig, cluster: ClusterConfig) -> str:
    admission, programs = section_of(setup, AdmissionConfig), section_of(setup, ProgramsConfig)
    parts = [*_instance_policies(instance)]
    if programs.mode != "off":
        parts.append(f"programs {programs.mode}")
    elif cluster.most_instances > 1:
        parts.append(f"router {section_of(setup, RoutingConfig).policy}")
    if cluster.autoscaling.policy:
        parts.append(f"autoscaling {cluster.autoscaling.policy}")
    if cluster.disaggregation:
        pools = cluster.disaggregation
        instances = "1 instance" if pools.prefill_instances == 1 else f"{pools.prefill_instances:,} instances"
        parts.append(f"prefill in {instances}, decode in {pools.decode_instances:,}")
    named = "admission" not in setup.sections and not cluster.limits_slots
    return ", ".join([*parts, "no admission" if named or admission.admits_all else _admission(admission, cluster)])


def _admission(admission: AdmissionConfig, cluster: ClusterConfig) -> str:
    mode = "" if admission.mode == "off" else f" {admission.mode}"
    of_legacy = admission.legacy.max_concurrent_requests if admission.mode == "legacy" else 0
    count = cluster.capacity or max(of_legacy, 0)
    slots = f" of {count:,} slots" if count else ""
    policy = "" if admission.never_refuses else f" by {admission.policy}"
    return f"admission{mode}{slots}{policy}"


def _keys_without_effect(setup: RunSetup) -> Iterator[str]:
    """Yield keys, or sections of keys, that had no effect in this run, with their section."""
    yield from _of_instance(section_of(setup, InstanceConfig))
    cluster = section_of(setup, ClusterConfig)
    if not cluster.disaggregation:
        yield "cluster.disaggregation"
    admission, programs = section_of(setup, AdmissionConfig), section_of(setup, ProgramsConfig)
    if admission.mode != "priority":
        yield "cluster.slots"
    if cluster.most_instances == 1 or programs.mode != "off":
        yield "routing"
    if programs.mode == "off":
        yield "programs"
    yield from _of_admission(admission)


_UNLESS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("model", "hardware", "tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization"),
    "caching": ("prefix_cache", "radix_eviction_policy"),
    "radix": ("radix_eviction_policy",),
    "speculation": ("speculative",),
    "offload": ("kv_offload",),
    "batching": ("context_chunking_policy",),
    "sglang": ("sglang",),
    "priorities": ("schedule_low_priority_values_first",),
    "host memory": ("kv_cpu_blocks", "kv_transfer_bandwidth", "kv_transfer_base_latency"),
}
"""Keys of the section `instance` that have no effect unless something is on."""


def _of_instance(instance: InstanceConfig) -> Iterator[str]:
    is_on = {
        "model": instance.has_model,
        "caching": instance.enable_prefix_caching,
        "radix": instance.prefix_cache == "radix",
        "speculation": bool(instance.speculative),
        "offload": bool(instance.kv_offload),
        "batching": instance.batching is not None,
        "sglang": instance.flavour_rules.takes_sglang_keys,
        "priorities": instance.enable_priority_scheduling,
        "host memory": instance.kv_cpu_blocks > 0,
    }
    for condition, keys in _UNLESS.items():
        if not is_on[condition]:
            yield from (f"instance.{key}" for key in keys)


_OF_MODES: Final = {
    "legacy": ("legacy",),
    "priority": (
        *("classes", "default_max_class", "tenant_policies", "service_tiers", "on_overcommit", "promotion_share"),
        *("objectives", "objective_priorities"),
        *("promotion_burst", "preemption_budget_ms", "on_preempt", "reserve", "slot_cost", "slot_tokens"),
    ),
    "flow-control": ("flow_control",),
}
"""Keys of the section `admission` by the mode in which they have an effect."""
_OF_POLICIES: Final = (
    *("token_bucket_capacity", "token_bucket_refill_rate", "tier_shed_threshold", "tier_shed_min_priority"),
    *("gaie_qd_threshold", "gaie_kv_threshold", "tenant_budgets", "slo_priorities"),
)


def _of_admission(admission: AdmissionConfig) -> Iterator[str]:
    for mode, keys in _OF_MODES.items():
        if admission.mode != mode:
            yield from (f"admission.{key}" for key in keys)
    if admission.mode not in ("priority", "flow-control"):
        yield "admission.flavour"
    if admission.never_refuses:
        yield from (f"admission.{key}" for key in _OF_POLICIES)


def _is_below(key: str, sections: set[str]) -> bool:
    """Return whether the dotted key, or a section that it is in, is one of these."""
    parts = key.split(".")
    return any(".".join(parts[:length]) in sections for length in range(1, len(parts) + 1))


def _flat_section(section: msgspec.Struct) -> FlatSection:
    defaults = dict(_flat(msgspec.to_builtins(type(section)(), str_keys=True)))
    values = _flat(msgspec.to_builtins(section, str_keys=True))
    return {name: (value, name in defaults and value == defaults[name]) for name, value in values}


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        if name == "table" and isinstance(value, dict):  # step times: thousands of numbers, which their source stands for
            flat.append((f"{prefix}{name}", value["source"]))
            continue
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [(f"{prefix}{name}", value)]
    return flat
