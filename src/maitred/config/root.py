"""The whole configuration: the structs of rooms and worlds, by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.admission import POLICIES, AdmissionConfig
from maitred.core.registry import Registry
from maitred.core.yaml_document import KeyPath
from maitred.emulator.config import EngineConfig
from maitred.gateway.config import GatewayConfig
from maitred.instance import InstanceConfig
from maitred.instance.latency import LATENCY_MODELS
from maitred.kv import EVICTIONS
from maitred.queueing import PRIORITIES, SCHEDULERS
from maitred.queueing.srpt import LENGTH_PREDICTORS
from maitred.routing import ROUTERS, SCORERS, RoutingConfig
from maitred.sim.config import ClusterConfig
from maitred.workload import ARRIVALS, FORMATS, LENGTHS, WRITERS

POLICY_KEYS: Final[Mapping[KeyPath, Registry[Any]]] = {
    ("admission", "policy"): POLICIES,
    ("routing", "policy"): ROUTERS,
    ("instance", "scheduler"): SCHEDULERS,
    ("instance", "priority_policy"): PRIORITIES,
    ("instance", "radix_eviction_policy"): EVICTIONS,
}
"""Keys whose value is the name of a policy."""
KINDS: Final[Sequence[Registry[Any]]] = (
    SCHEDULERS,
    PRIORITIES,
    LENGTH_PREDICTORS,
    POLICIES,
    ROUTERS,
    SCORERS,
    LATENCY_MODELS,
    EVICTIONS,
    FORMATS,
    WRITERS,
    ARRIVALS,
    LENGTHS,
)
"""Every kind of plug-in. A new kind is added here, and its plug-ins nowhere: they are found."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole. `admission`, `routing` and `instance` mean the same in every world."""

    gateway: GatewayConfig = GatewayConfig()
    admission: AdmissionConfig = AdmissionConfig()
    routing: RoutingConfig = RoutingConfig()
    instance: InstanceConfig = InstanceConfig()
    engine: EngineConfig = EngineConfig()
    cluster: ClusterConfig = ClusterConfig()
