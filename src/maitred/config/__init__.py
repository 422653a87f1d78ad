"""One configuration for everything: a YAML file, flags and the environment, composed from the structs of rooms and worlds.

Each section is a struct that lives beside the code it configures, with a default for every key. What is said in several
places is merged key by key: defaults < file < environment < flags. Nothing is ignored: an unknown key is an error.

Reading has no side effects and keeps nothing, so a configuration may be read again at any time; who serves traffic keeps
the one it has when the next one is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from maitred.admission import AdmissionConfig
from maitred.config.document import Document, KeyPath
from maitred.config.merged import Merged
from maitred.config.sources import from_environment, from_flags
from maitred.emulator.config import EngineConfig
from maitred.errors import ConfigError
from maitred.gateway.config import GatewayConfig
from maitred.instance import InstanceConfig
from maitred.queueing import SCHEDULERS
from maitred.registry import Registry
from maitred.routing import ROUTERS, RoutingConfig
from maitred.sim.config import ClusterConfig

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

REGISTERED: Final[Mapping[KeyPath, Registry[Any]]] = {
    ("routing", "policy"): ROUTERS,
    ("instance", "scheduler"): SCHEDULERS,
}
"""Keys whose value is the name of a policy."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole. `admission`, `routing` and `instance` mean the same in every world."""

    gateway: GatewayConfig = GatewayConfig()
    admission: AdmissionConfig = AdmissionConfig()
    routing: RoutingConfig = RoutingConfig()
    instance: InstanceConfig = InstanceConfig()
    engine: EngineConfig = EngineConfig()
    cluster: ClusterConfig = ClusterConfig()


def load(
    path: Path | None,
    *,
    flags: Mapping[str, object] = NOTHING,
    env: Mapping[str, str] = NOTHING,
    flag_names: Mapping[str, str] = NOTHING,
) -> Config:
    """What file, environment and flags say together.

    `flags` maps dotted keys to values (None: not given); `flag_names` tells what a flag is called where it is not called
    after its key. Raises ConfigError for the first thing that is wrong.
    """
    document = Document.read(path) if path else None
    settings = [*from_environment(Config, env), *from_flags(flags, flag_names)]
    return Merged(Config, document, settings, REGISTERED).value()


def problems(path: Path, *, env: Mapping[str, str] = NOTHING) -> Sequence[ConfigError]:
    """Everything that is wrong with a file and the environment. Raises ConfigError if the file cannot be read as YAML."""
    return Merged(Config, Document.read(path), [*from_environment(Config, env)], REGISTERED).problems()
