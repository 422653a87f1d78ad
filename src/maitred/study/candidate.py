"""Candidate: one configuration that a study compares with others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.config import NO_VALUES, Config, ConfigSources
from maitred.config.sources import with_simulation_defaults
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import resolve_instance
from maitred.routing import RoutingConfig
from maitred.sim.config import ClusterConfig


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """The sections of a configuration that a simulation reads."""

    cluster: ClusterConfig = ClusterConfig()
    instance: InstanceConfig = InstanceConfig()
    routing: RoutingConfig = RoutingConfig()
    admission: AdmissionConfig = AdmissionConfig(mode="off")

    @classmethod
    def from_yaml(cls, path: str | Path, *, env: Mapping[str, str] = NO_VALUES) -> Self:
        """Read a configuration file, with the environment on top. Raises ConfigError for what is wrong in it."""
        return cls.from_config(with_simulation_defaults(ConfigSources(file=Path(path), env=env).merged()))

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the part of a whole configuration that a simulation reads."""
        return cls(
            cluster=config.cluster,
            instance=config.instance,
            routing=config.routing,
            admission=config.admission,
        )

    @property
    def num_gpus(self) -> int:
        """GPUs of all its instances."""
        return self.cluster.num_instances * self.instance.tensor_parallel_size * self.instance.data_parallel_size

    def resolved(self) -> Self:
        """Return the candidate with everything that its instances derive from the catalogue, and check it by an empty
        simulation.

        Raises ConfigError for an impossible candidate, such as a model that does not fit.
        """
        from maitred.sim import simulate

        resolved = replace(self, instance=resolve_instance(self.instance))
        simulate((), resolved.cluster, resolved.instance, resolved.routing, resolved.admission)
        return resolved
