"""A recorded case, and what it says in maitred's words."""

from __future__ import annotations

from typing import Any

import msgspec

from maitred import AdmissionConfig, ClusterConfig, InstanceConfig, RoutingConfig
from maitred.admission.terms.flow_config import FlowControlConfig
from maitred.core.units import Micros
from maitred.instance.latency import (
    Deployment,
    HardwareSpec,
    LatencyConfig,
    LinearLatency,
    ModelSpec,
    RooflineLatency,
    TrainedPhysicsLatency,
)


class UnknownError(Exception):
    """A case says what nothing here knows."""


class Request(msgspec.Struct, kw_only=True):
    """What came of one that was completed. Times in µs."""

    id: int
    ttft_us: int
    e2e_us: int
    input_tokens: int
    output_tokens: int
    instance: int | None = None
    scheduling_delay_us: int | None = None
    gateway_queue_delay_us: int | None = None


class Expected(msgspec.Struct, kw_only=True):
    completed: int
    requests: list[Request]
    routed_to: dict[int, int] = {}
    rejected: int | list[int] | None = None
    aggregates: dict[str, Any] | None = None


class Scorer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    weight: float


class Routing(msgspec.Struct, forbid_unknown_fields=True):
    policy: str
    scorers: list[Scorer] = []


class Latency(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    alpha: tuple[float, float, float] | None = None
    beta: tuple[float, ...] | None = None


class Model(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    bytes_per_param: float


class Hardware(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    tp: int
    peak_tflops: float
    bandwidth_tb_s: float
    mfu_prefill: float
    mfu_decode: float


class Tier(msgspec.Struct, forbid_unknown_fields=True):
    """Main memory below the GPU's."""

    cpu_blocks: int
    transfer_bandwidth: float = 100.0
    base_latency_us: Micros = 0


class Said(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a case, as it is recorded."""

    num_instances: int
    horizon_us: Micros
    latency_model: Latency
    model: Model
    hardware: Hardware
    scheduler: str
    priority_policy: str
    preemption_policy: str
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    total_kv_blocks: int
    block_size_tokens: int
    max_model_len: int
    admission: dict[str, Any]
    admission_latency_us: Micros
    routing_latency_us: Micros
    routing: Routing
    snapshot_refresh_interval_us: Micros
    cache_signal_delay_us: Micros
    flow_control: dict[str, Any] | None
    kv_cpu_tier: Tier | None
    rng_seed: int

    def cluster(self) -> ClusterConfig:
        return ClusterConfig(
            num_instances=self.num_instances,
            admission_latency_ms=self.admission_latency_us / 1000,
            routing_latency_ms=self.routing_latency_us / 1000,
            snapshot_refresh_interval_ms=self.snapshot_refresh_interval_us / 1000,
            cache_signal_delay_ms=self.cache_signal_delay_us / 1000,
        )

    def instance(self) -> InstanceConfig:
        tier = self.kv_cpu_tier
        return InstanceConfig(
            flavour="blis",
            scheduler=self.scheduler,
            priority_policy=self.priority_policy,
            preemption_policy=self.preemption_policy,  # type: ignore[arg-type]
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            total_kv_blocks=self.total_kv_blocks,
            block_size_in_tokens=self.block_size_tokens,
            max_model_len=self.max_model_len or None,
            latency=self.latency(),
            kv_cpu_blocks=0 if tier is None else tier.cpu_blocks,
            kv_transfer_bandwidth=100.0 if tier is None else tier.transfer_bandwidth,
            kv_transfer_base_latency=0 if tier is None else tier.base_latency_us,
        )

    def latency(self) -> LatencyConfig:
        said = self.latency_model
        if said.name == "blackbox":
            assert said.alpha is not None
            assert said.beta is not None
            return LinearLatency(said.beta, said.alpha)  # type: ignore[arg-type]
        if said.name == "roofline":
            return RooflineLatency(deployment=self._deployment())
        if said.name != "trained-physics":
            raise UnknownError(f"latency model {said.name}")
        assert said.alpha is not None
        assert said.beta is not None
        return TrainedPhysicsLatency(alpha=said.alpha, beta=said.beta, deployment=self._deployment())

    def _deployment(self) -> Deployment:
        model, hardware = self.model, self.hardware
        return Deployment(
            model=ModelSpec(
                name=model.name,
                num_layers=model.layers,
                hidden_size=model.hidden,
                num_heads=model.heads,
                num_kv_heads=model.kv_heads,
                intermediate_size=model.ffn,
                vocab_size=128_256,
                bytes_per_element=model.bytes_per_param,
            ),
            hardware=HardwareSpec(
                name=hardware.name,
                peak_tflops=hardware.peak_tflops,
                bandwidth_tb_s=hardware.bandwidth_tb_s,
                mfu_prefill=hardware.mfu_prefill,
                mfu_decode=hardware.mfu_decode,
            ),
            tensor_parallel_size=hardware.tp,
        )

    def admitting(self) -> AdmissionConfig:
        said = dict(self.admission)
        policy = said.pop("policy")
        if unknown := said.keys() - _ADMISSION_KEYS.keys():
            raise UnknownError(f"admission parameters {sorted(unknown)}")
        keys = {_ADMISSION_KEYS[key]: value for key, value in said.items()}
        if self.flow_control is None:
            return AdmissionConfig(mode="off", policy=policy, **keys)
        flow = {_FLOW_KEYS.get(key, key): value for key, value in self.flow_control.items()}
        return AdmissionConfig(
            mode="flow-control", flavour="blis", policy=policy, flow_control=FlowControlConfig(**flow), **keys
        )

    def router(self, policy: str) -> RoutingConfig:
        """`policy`: the recorded one, told how ties were broken."""
        blocks = {"prefix-affinity": f"(block={self.block_size_tokens})"}
        scorers = ", ".join(f"{scorer.name}{blocks.get(scorer.name, '')}:{scorer.weight}" for scorer in self.routing.scorers)
        return RoutingConfig(policy=policy, scorers=scorers)


_ADMISSION_KEYS = {
    "tier_shed_threshold": "tier_shed_threshold",
    "tier_shed_min_priority": "tier_shed_min_priority",
    "queue_depth_threshold": "gaie_qd_threshold",
    "kv_util_threshold": "gaie_kv_threshold",
    "capacity": "token_bucket_capacity",
    "refill_per_s": "token_bucket_refill_rate",
}
_FLOW_KEYS = {"dispatch_tick_us": "dispatch_tick_interval_us"}


class Named(msgspec.Struct):
    """As much of a case as says which it is."""

    name: str


class Case(msgspec.Struct, kw_only=True):
    name: str
    era: str
    trace: str
    config: Said
    expected: Expected
    zero_token_admissions: int | None = None
