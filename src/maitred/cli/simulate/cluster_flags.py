"""Flags of `maitred simulate`: the cluster, and which of its instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maitred.cli.flags import flag

_CLUSTER = "Cluster"


@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """How many instances, how requests reach them."""

    config: Annotated[
        Path | None,
        flag(_CLUSTER, "--config", "A file with the sections cluster, instance, routing, admission; flags win.", "FILE"),
    ] = None
    num_instances: Annotated[int | None, flag(_CLUSTER, "--num-instances", "Instances in the cluster.", "N")] = None
    routing_policy: Annotated[
        str | None,
        flag(_CLUSTER, "--routing-policy", "Which instance, such as power-of-two or weighted: see maitred policies.", "POLICY"),
    ] = None
    routing_scorers: Annotated[
        str | None,
        flag(_CLUSTER, "--routing-scorers", "What weighted adds up, as queue-depth:2,load-balance:1.", "NAME:WEIGHT,..."),
    ] = None
    admission_latency: Annotated[
        int | None, flag(_CLUSTER, "--admission-latency", "From arrival until admission decides, in µs.", "µs")
    ] = None
    routing_latency: Annotated[
        int | None, flag(_CLUSTER, "--routing-latency", "From admission until an instance is chosen, in µs.", "µs")
    ] = None
    snapshot_refresh_interval: Annotated[
        int | None,
        flag(
            _CLUSTER, "--snapshot-refresh-interval", "How old what routers see of queues and KV may be, in µs; 0: live.", "µs"
        ),
    ] = None
    cache_signal_delay: Annotated[
        int | None, flag(_CLUSTER, "--cache-signal-delay", "Likewise what they see of prefix caches.", "µs")
    ] = None


KEYS: Final[Mapping[str, str]] = {
    "num_instances": "cluster.num_instances",
    "routing_policy": "routing.policy",
    "routing_scorers": "routing.scorers",
}
"""The keys of the configuration that flags stand for."""
IN_MICROS: Final[Mapping[str, str]] = {
    "admission_latency": "cluster.admission_latency_ms",
    "routing_latency": "cluster.routing_latency_ms",
    "snapshot_refresh_interval": "cluster.snapshot_refresh_interval_ms",
    "cache_signal_delay": "cluster.cache_signal_delay_ms",
}
"""Of flags in µs, as BLIS has them, for keys in ms."""
