"""A candidate: one way to serve a workload."""

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
    """What a study compares: the sections of a configuration that count in a simulation."""

    cluster: ClusterConfig = ClusterConfig()
    instance: InstanceConfig = InstanceConfig()
    routing: RoutingConfig = RoutingConfig()
    admission: AdmissionConfig = AdmissionConfig(mode="off")

    @classmethod
    def from_yaml(cls, path: str | Path, *, env: Mapping[str, str] = NO_VALUES) -> Self:
        """What a configuration file says, and the environment over it. Raises ConfigError for what is wrong."""
        return cls.from_config(with_simulation_defaults(ConfigSources(file=Path(path), env=env).merged()))

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Its part of a whole configuration."""
        return cls(
            cluster=config.cluster,
            instance=config.instance,
            routing=config.routing,
            admission=config.admission,
        )

    @property
    def num_gpus(self) -> int:
        """Of all its instances."""
        return self.cluster.num_instances * self.instance.tensor_parallel_size * self.instance.data_parallel_size

    def resolved(self) -> Self:
        """The same with all that its instances derive from the catalogue, after a simulation of nothing.

        Raises ConfigError for what cannot be, such as a model that does not fit.
        """
        from maitred.sim import simulate

        whole = replace(self, instance=resolve_instance(self.instance))
        simulate((), whole.cluster, whole.instance, whole.routing, whole.admission)
        return whole
