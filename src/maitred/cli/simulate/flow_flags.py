"""Flags of `maitred simulate`: flow control, under BLIS's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from maitred.cli.flags import NO_VALUE, flag
from maitred.core.errors import ConfigError

_FLOW = "Flow control: requests wait before the router while the instances are saturated"


@dataclass(frozen=True, kw_only=True)
class FlowFlags:
    """When do requests wait, and who goes in next?"""

    flow_control: Annotated[bool | None, flag(_FLOW, "--flow-control", "The same as --admission flow-control.", NO_VALUE)] = (
        None
    )
    saturation_detector: Annotated[
        str | None, flag(_FLOW, "--saturation-detector", "concurrency (default), utilization, never.", "NAME")
    ] = None
    max_concurrency: Annotated[
        int | None, flag(_FLOW, "--max-concurrency", "concurrency: in flight per instance. Default 100.", "N")
    ] = None
    queue_depth_threshold: Annotated[
        float | None, flag(_FLOW, "--queue-depth-threshold", "utilization: waiting per instance. Default 5.", "N")
    ] = None
    kv_cache_util_threshold: Annotated[
        float | None, flag(_FLOW, "--kv-cache-util-threshold", "utilization: used share of KV blocks. Default 0.8.", "SHARE")
    ] = None
    usage_limit_threshold: Annotated[
        float | None,
        flag(_FLOW, "--usage-limit-threshold", "Saturation from which the least urgent wait. Default 1.", "SHARE"),
    ] = None
    dispatch_order: Annotated[
        str | None, flag(_FLOW, "--dispatch-order", "priority (default), fifo, slo-deadline.", "ORDER")
    ] = None
    slo_targets: Annotated[
        str | None,
        flag(_FLOW, "--slo-targets", "First token within so many µs: critical=100000,standard=500000.", "CLASS=µs,..."),
    ] = None
    fairness_policy: Annotated[
        str | None, flag(_FLOW, "--fairness-policy", "Among tenants: global-strict (default), round-robin.", "NAME")
    ] = None
    dispatch: Annotated[
        str | None, flag(_FLOW, "--dispatch", "How many go in at a time: all that may (default), one.", "HOW")
    ] = None
    dispatch_tick_interval: Annotated[
        int | None, flag(_FLOW, "--dispatch-tick-interval", "Between two looks at the instances. Default 1000.", "µs")
    ] = None
    max_gateway_queue_depth: Annotated[
        int | None, flag(_FLOW, "--max-gateway-queue-depth", "How many may wait. Default 0: any number.", "N")
    ] = None
    per_band_capacity: Annotated[int | None, flag(_FLOW, "--per-band-capacity", "Likewise for each priority.", "N")] = None
    queue_shedding: Annotated[
        bool | None, flag(_FLOW, "--queue-shedding", "A full queue sheds the least urgent.", NO_VALUE)
    ] = None
    request_ttl: Annotated[int | None, flag(_FLOW, "--request-ttl", "How long one may wait. Default 0: for ever.", "µs")] = None
    in_flight_eviction: Annotated[
        bool | None, flag(_FLOW, "--in-flight-eviction", "Stop sheddable work for what is not sheddable.", NO_VALUE)
    ] = None


_SAME_NAME: Final = (
    *("saturation_detector", "max_concurrency", "queue_depth_threshold", "kv_cache_util_threshold", "usage_limit_threshold"),
    *("dispatch_order", "fairness_policy", "dispatch", "max_gateway_queue_depth", "per_band_capacity", "queue_shedding"),
    "in_flight_eviction",
)
KEYS: Final[Mapping[str, str]] = {
    **{name: f"admission.flow_control.{name}" for name in _SAME_NAME},
    "dispatch_tick_interval": "admission.flow_control.dispatch_tick_interval_us",
    "request_ttl": "admission.flow_control.request_ttl_us",
}
"""The keys of the configuration that flags stand for."""


def said(flags: FlowFlags, mode: str | None) -> dict[str, object]:
    """What these flags say beside `KEYS`, if `--admission` says `mode`. Raises ConfigError for what contradicts itself or is no
    CLASS=µs."""
    if flags.flow_control and mode not in (None, "flow-control"):
        raise ConfigError(f"contradicts --admission {mode}", where="--flow-control", hint="give one of them")
    targets = None if flags.slo_targets is None else _targets(flags.slo_targets)
    return {"admission.mode": "flow-control" if flags.flow_control else mode, "admission.slo_targets": targets}


def needs_flow_control(flags: FlowFlags) -> None:
    """Raises ConfigError for a flag that has no effect without it."""
    for name in (*KEYS, "slo_targets"):
        if getattr(flags, name) is not None:
            where = f"--{name.replace('_', '-')}"
            raise ConfigError("without flow control it has no effect", where=where, hint="turn it on with --flow-control")


def _targets(text: str) -> dict[str, int]:
    targets: dict[str, int] = {}
    for part in text.split(","):
        name, equals, micros = (word.strip() for word in part.partition("="))
        if not (name and equals and micros.isdecimal()):
            hint = "as critical=100000,standard=500000"
            raise ConfigError(f"{part!r} is no CLASS=µs", where="--slo-targets", hint=hint)
        targets[name] = int(micros)
    return targets
