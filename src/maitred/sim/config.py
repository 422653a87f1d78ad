"""The configuration of the simulated cluster, and the delays of a request that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Literal

import msgspec
from msgspec.structs import force_setattr, replace

from maitred.admission.terms.config import MAX_SECS, MAX_SLOTS
from maitred.compat.instance_rules import instance_rules
from maitred.core.contracts import Overheads
from maitred.core.field_types import check_field_types
from maitred.core.units import Micros, from_ms
from maitred.instance import InstanceConfig
from maitred.routing import RoutingConfig, Signals
from maitred.sim.fleet_config import AutoscalingConfig, CostConfig, FailureConfig, InstanceGroup

MAX_INSTANCES = 10_000
"""More instances than any router has; a larger number is a typing mistake."""
_HOUR_MS = 3_600_000
_MAX_GB_S = 1_000_000
_MAX_BYTES = 1 << 30
_DELAY_KEYS = ("admission_latency_ms", "routing_latency_ms", "snapshot_refresh_interval_ms", "cache_signal_delay_ms")


class DisaggregationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Separate instances for prefill and decode (P/D), and the network between them."""

    prefill_instances: int = 0
    """Instances that compute prompts: the first ones. 0 here and in `decode_instances`: every instance does both."""
    decode_instances: int = 0
    """Instances that decode: the others, so that both together are `num_instances`."""
    decider: Literal["never", "always", "prefix-threshold"] = "always"
    """Which prompts a prefill instance computes: `always`, `never`, or `prefix-threshold`."""
    prefix_threshold: int = 16
    """`prefix-threshold`: prompts with more than this many tokens that are not cached in their decode instance."""
    transfer_bandwidth_gb_s: float = 25.0
    """Bandwidth of the network, in GB/s (10⁹ bytes)."""
    transfer_base_ms: float = 0.05
    """Time that each transfer takes in addition, in ms."""
    transfer_contention: bool = False
    """Transfers share the bandwidth: each gets what the transfers under way leave when it begins."""
    kv_bytes_per_token: float | None = None
    """KV per token, in bytes. Null: as the instances' model has it."""
    prefill_scorers: str = ""
    """Scorers that choose the prefill instance (policy `weighted`); empty: as `routing` says."""
    decode_scorers: str = ""
    """Scorers that choose the decode instance (policy `weighted`); empty: as `routing` says."""

    def __post_init__(self) -> None:
        counts = (self.prefill_instances, self.decode_instances)
        if min(counts) < 0 or (max(counts) > 0 and min(counts) == 0):
            raise ValueError(f"prefill_instances and decode_instances are both at least 1, or both 0, not {counts}")
        if self.prefix_threshold < 0:
            raise ValueError(f"prefix_threshold must be at least 0, not {self.prefix_threshold}")
        if not 0 <= self.transfer_base_ms <= _HOUR_MS:
            raise ValueError(f"transfer_base_ms must be from 0 to {_HOUR_MS:,} (an hour), not {self.transfer_base_ms}")
        for name, most in (("transfer_bandwidth_gb_s", _MAX_GB_S), ("kv_bytes_per_token", _MAX_BYTES)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise ValueError(f"{name} must be above 0 and at most {most:,}, not {value}")
        for name in ("prefill_scorers", "decode_scorers"):
            try:
                RoutingConfig(policy="weighted", scorers=getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: {str(error).removeprefix('scorers: ')}") from error

    def __bool__(self) -> bool:
        return self.prefill_instances > 0


class LimitChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another limit of every instance from a time on, as after a restart with another `max_num_seqs`."""

    at_secs: float
    """When, in seconds from the beginning."""
    max_num_seqs: int
    """Sequences that run at most from then on. Those that run already go on."""

    def __post_init__(self) -> None:
        if not 0 <= self.at_secs <= MAX_SECS:
            raise ValueError(f"at_secs must be from 0 to {MAX_SECS:g}, not {self.at_secs}")
        if not 1 <= self.max_num_seqs <= MAX_SLOTS:
            raise ValueError(f"max_num_seqs must be from 1 to {MAX_SLOTS:,}, not {self.max_num_seqs}")


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances behind one router. The section `instance` configures each, except for what `groups` and `failures` say."""

    num_instances: int = 1
    """Instances behind one router, 10,000 at most: equal ones, unless `groups` says which, and then their number."""
    capacity: int | None = None
    """Slots per model of the admission in front of the router; without `admission.mode` it means `priority`. With neither,
    every request enters. Null: as many as the batches of all instances hold."""
    slots: Literal["reported", "learned"] = "reported"
    """Where the slots come from if `capacity` is null: `reported`, as many as the batches of all instances hold, or `learned`,
    as the gateway learns them of engines that report no number. `learned` without `admission.mode` means `priority`."""
    admission_latency_ms: float = 0.0
    """Time from the arrival of a request until admission decides, in ms."""
    routing_latency_ms: float = 0.0
    """Time from admission until an instance is chosen, in ms."""
    snapshot_refresh_interval_ms: float = 0.0
    """Greatest age of what routers and admission see of queues, batches and KV usage, in ms; 0: always live. Requests in flight
    are always counted live."""
    cache_signal_delay_ms: float = 0.0
    """Greatest age of what routers see of prefix caches, in ms; 0: always live."""
    limit_changes: list[LimitChange] = msgspec.field(default_factory=list)
    """Other limits of all instances at later times, `[{at_secs: 30, max_num_seqs: 8}]`, as after restarts; those that run
    go on. Learned slots follow, reported ones stay. Only with `flavour: vllm`."""
    groups: list[InstanceGroup] = msgspec.field(default_factory=list)
    """Unequal instances, in place of `num_instances` equal ones: `[{num_instances: 2, hardware: H100}, {num_instances: 4,
    hardware: L40S}]`. A group may have `hardware`, `tensor_parallel_size`, `data_parallel_size`, `latency`, `latency_scale`,
    `max_num_seqs`, `max_num_batched_tokens` and `total_kv_blocks`; all else is as in `instance`. Empty: all are equal."""
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    """Prefill in some instances, decode in others."""
    failures: FailureConfig = FailureConfig()
    """Instances that fail, and instances that are slow."""
    autoscaling: AutoscalingConfig = AutoscalingConfig()
    """Instances that are started and drained during the run."""
    costs: CostConfig = CostConfig()
    """Power, carbon and price of the GPUs, for the report."""

    def __post_init__(self) -> None:
        check_field_types(self)
        self._count_groups()
        for name in _DELAY_KEYS:
            if not 0 <= getattr(self, name) <= _HOUR_MS:
                raise ValueError(f"{name} must be from 0 to {_HOUR_MS:,} (an hour), not {getattr(self, name)}")
        if not 1 <= self.num_instances <= MAX_INSTANCES:
            raise ValueError(f"num_instances must be from 1 to {MAX_INSTANCES:,}, not {self.num_instances}")
        if self.capacity is not None and not 1 <= self.capacity <= MAX_SLOTS:
            raise ValueError(f"capacity must be from 1 to {MAX_SLOTS:,} slots, not {self.capacity}")
        if self.capacity is not None and self.slots == "learned":
            raise ValueError("capacity and slots: learned contradict each other (leave one of them out)")
        scaling = self.autoscaling
        if scaling.policy and not scaling.min_instances <= self.num_instances <= scaling.max_instances:
            bounds = f"from min_instances {scaling.min_instances} to max_instances {scaling.max_instances}"
            raise ValueError(f"num_instances, with which autoscaling begins, must be {bounds}, not {self.num_instances}")
        if self.failures.slow_instances > self.num_instances:
            raise ValueError(f"slow_instances {self.failures.slow_instances} are more than num_instances {self.num_instances}")

    def _count_groups(self) -> None:
        """Set `num_instances` to the sum of the groups, if there are any."""
        total = sum(group.num_instances for group in self.groups)
        if self.groups and self.num_instances not in (1, total):
            raise ValueError(f"num_instances {self.num_instances} and groups of {total} contradict each other: leave out one")
        if self.groups:
            force_setattr(self, "num_instances", total)

    def warnings(self, *, is_admission_off: bool, reads: Signals) -> Iterator[str]:
        """Yield a warning for each key without effect. `reads` is what the router looks at."""
        if is_admission_off and self.capacity is not None:
            yield "a capacity has no effect with admission off: every request enters"
        if self.snapshot_refresh_interval_ms and not reads & (Signals.LOAD | Signals.MEMORY):
            yield "snapshot_refresh_interval_ms has no effect with a router that reads no load: it knows what is in flight"
        if self.cache_signal_delay_ms and not reads & Signals.CACHES:
            yield "cache_signal_delay_ms has no effect with a router that does not look at prefix caches"
        yield from self.failures.warnings()
        yield from self.autoscaling.warnings()
        if not self.disaggregation:
            plain = DisaggregationConfig()
            for name in DisaggregationConfig.__struct_fields__:
                if getattr(self.disaggregation, name) != getattr(plain, name):
                    yield f"disaggregation.{name} has no effect without prefill_instances and decode_instances"

    @property
    def most_instances(self) -> int:
        """The most instances that there can be at a time."""
        return self.autoscaling.max_instances if self.autoscaling.policy else self.num_instances

    def instance_configs(self, instance: InstanceConfig) -> list[InstanceConfig]:
        """Return the configuration of each instance by its index; equal ones are one object."""
        found: list[InstanceConfig] = []
        for group in self.groups or [InstanceGroup(num_instances=self.most_instances)]:
            found += [group.applied_to(instance)] * group.num_instances
        first_slow = self.most_instances - self.failures.slow_instances
        slower = {id(each): self._slowed(each) for each in found[first_slow:]}
        return [*found[:first_slow], *(slower[id(each)] for each in found[first_slow:])]

    def _slowed(self, instance: InstanceConfig) -> InstanceConfig:
        return replace(instance, latency_scale=instance.latency_scale * self.failures.slow_factor)

    @property
    def limits_slots(self) -> bool:
        """Whether it says how many slots there are, which means classes where no admission mode is given."""
        return self.capacity is not None or self.slots == "learned"


class ServabilityCheck(Enum):
    """Where the simulation finds out that a request is too long or that its deadline has passed."""

    ON_ARRIVAL = "on arrival, and then wherever the request is"
    IN_INSTANCE = "only in its instance, as in BLIS"


class RequestDelays(msgspec.Struct, frozen=True):
    """The delays of a request before it is in a wait queue.

    None means that the next stage follows at once, within the same event. A delay of 0 is an event of its own at the same
    instant, so that other events of this instant come before it.
    """

    admission: Micros | None = None
    routing: Micros | None = None
    entry: Overheads | None = None
    check: ServabilityCheck = ServabilityCheck.ON_ARRIVAL


def request_delays(cluster: ClusterConfig, instance: InstanceConfig) -> RequestDelays:
    """Return the delays that `cluster` and the latency model of `instance` state.

    BLIS admits all requests that arrive at an instant before it routes any of them, and routes all before any enters a wait
    queue. So there even a delay of 0 is an event of its own.
    """
    entry = instance.latency_model().overheads
    before = from_ms(cluster.admission_latency_ms), from_ms(cluster.routing_latency_ms)
    if instance_rules(instance).every_delay_queues:
        return RequestDelays(*before, entry, ServabilityCheck.IN_INSTANCE)
    takes_time = entry.queueing or entry.queueing_per_token
    return RequestDelays(before[0] or None, before[1] or None, entry if takes_time else None)
