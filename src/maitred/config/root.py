"""The whole configuration: its sections, and the keys of each as users see them.

A section is a struct that lives beside the code it configures. The text of a key is the docstring below its field, so each key
is described once; help texts of flags and the tables of docs/config.md are made of it. It begins with a sentence that says what
the key is, with its unit. More sentences may follow for the documentation. If the default is null, the last one says what holds
then: "Null: the port that the engine reports."

Whether the reservations of a gateway fit its slots is said here as well, as far as that is known before any backend has been
asked. Engines usually report how many requests they run, or it is learned; then nothing is known. With `slots_per_backend` no
model has more slots than all backends together. Under `flavour: smg` the question is asked of the capacity that SMG assumes.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import FieldInfo, fields

import maitred.compat  # noqa: F401 - sections may have the flavours of other systems
from maitred.admission import POLICIES, AdmissionConfig, bootstrap_problem, overcommit_problem
from maitred.autoscaling import AUTOSCALERS
from maitred.batching import BATCH_SCHEDULERS
from maitred.core.errors import ConfigError
from maitred.core.registry import Registry
from maitred.core.yaml_document import KeyPath
from maitred.core.yaml_schema import struct_types
from maitred.emulator.config import EngineConfig
from maitred.gateway.config import GatewayConfig
from maitred.instance import InstanceConfig
from maitred.instance.latency import LATENCY_MODELS
from maitred.kv import EVICTIONS
from maitred.programs import ACTING_ESTIMATORS, ProgramsConfig
from maitred.queueing import PRIORITIES, SCHEDULERS
from maitred.queueing.srpt import LENGTH_PREDICTORS
from maitred.routing import ROUTERS, SCORERS, RoutingConfig
from maitred.scheduler.interface import SOURCES
from maitred.scheduler.link_config import SchedulerConfig
from maitred.sim.config import ClusterConfig
from maitred.workload import ARRIVALS, FORMATS, LENGTHS, WRITERS

POLICY_KEYS: Final[Mapping[KeyPath, Registry[Any]]] = {
    ("admission", "policy"): POLICIES,
    ("programs", "acting_estimator"): ACTING_ESTIMATORS,
    ("routing", "policy"): ROUTERS,
    ("gateway", "discover"): SOURCES,
    ("instance", "scheduler"): SCHEDULERS,
    ("instance", "batching"): BATCH_SCHEDULERS,
    ("instance", "priority_policy"): PRIORITIES,
    ("instance", "radix_eviction_policy"): EVICTIONS,
    ("cluster", "autoscaling", "policy"): AUTOSCALERS,
}
"""Keys that take the name of a policy."""
KINDS: Final[Sequence[Registry[Any]]] = (
    SCHEDULERS,
    BATCH_SCHEDULERS,
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
    ACTING_ESTIMATORS,
    AUTOSCALERS,
    SOURCES,
)
"""Every kind of plug-in. A new kind is added here; the plug-ins of a kind are found by themselves."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration. `admission`, `programs`, `routing` and `instance` mean the same for every command."""

    gateway: GatewayConfig = GatewayConfig()
    admission: AdmissionConfig = AdmissionConfig()
    programs: ProgramsConfig = ProgramsConfig()
    routing: RoutingConfig = RoutingConfig()
    instance: InstanceConfig = InstanceConfig()
    engine: EngineConfig = EngineConfig()
    cluster: ClusterConfig = ClusterConfig()
    scheduler: SchedulerConfig = SchedulerConfig()


def known_capacity(config: Config) -> int | None:
    """Return the most slots that a model can have, or None if that is not known."""
    gateway = config.gateway
    if gateway.slots_per_backend is None or not gateway.backends:
        return None
    return gateway.slots_per_backend * len(gateway.backends)


def overcommit_error(config: Config, capacity: int | None) -> ConfigError | None:
    """Return the error of a gateway that could not use its classes, because they reserve more than `capacity` slots, or None
    where that is not known, or the reservations would be scaled down."""
    admission = config.admission
    if admission.mode != "priority" or not admission.falls_back_on_overcommit:
        return None
    if admission.preset.bootstrap_capacity is not None:
        problem = bootstrap_problem(admission)
    else:
        problem = None if capacity is None else overcommit_problem(admission, capacity)
    if problem is None:
        return None
    problem = f"{problem}: maitred serve would use legacy admission"
    return ConfigError(problem, where="admission.classes", hint=admission.overcommit_cure)


class ConfigKey(NamedTuple):
    """One key of a section."""

    type: Any
    default: Any
    text: str
    """Empty if the field has no docstring, or the source is not there."""


def config_key(root: Any, path: str) -> ConfigKey:
    """Return the key at the dotted `path` below `root`, the type of a section. Raises KeyError if there is none."""
    first, _, below = path.partition(".")
    key = {name: key for kind in struct_types(root) for name, key in _keys(kind).items()}[first]
    return config_key(key.type, below) if below else key


@lru_cache
def _keys(section: type[msgspec.Struct]) -> Mapping[str, ConfigKey]:
    """Return the keys of one struct by name."""
    docs = field_docs(section)
    return {field.encode_name: ConfigKey(field.type, default_of(field), docs.get(field.name, "")) for field in fields(section)}


def default_of(field: FieldInfo) -> Any:
    """Return the default of a struct's field."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def field_docs(struct: type) -> Mapping[str, str]:
    """Return the docstrings of the fields of `struct`, inherited ones included, each in one line."""
    docs = (_docs_by_class(kind.__module__).get(kind.__name__, {}) for kind in reversed(struct.__mro__))
    return {name: text for of_class in docs for name, text in of_class.items()}


@lru_cache
def _docs_by_class(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the field docstrings of each class of a module, parsed from its source: Python does not keep them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # built in, or installed without its source
        return {}
    return {node.name: dict(_documented(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _documented(body: list[ast.stmt]) -> list[tuple[str, str]]:
    return [
        (field.target.id, " ".join(doc.value.value.split()))
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
    ]
