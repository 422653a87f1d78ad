"""A candidate: one way to serve a workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.catalogue import resolved
from maitred.config import NOTHING, Config, Said
from maitred.config.simulated import simulated
from maitred.instance import InstanceConfig
from maitred.routing import RoutingConfig
from maitred.sim.config import ClusterConfig


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What a study compares: the sections of a configuration that count in a simulation."""

    cluster: ClusterConfig = ClusterConfig()
    instance: InstanceConfig = InstanceConfig()
    routing: RoutingConfig = RoutingConfig()
    admission: AdmissionConfig = AdmissionConfig(mode="off")

    @classmethod
    def from_yaml(cls, path: str | Path, *, env: Mapping[str, str] = NOTHING) -> Self:
        """What a configuration file says, and the environment over it. Raises ConfigError for what is wrong."""
        return cls.of(simulated(Said(file=Path(path), env=env).read()))

    @classmethod
    def of(cls, config: Config) -> Self:
        """Its part of a whole configuration."""
        return cls(
            cluster=config.cluster,
            instance=config.instance,
            routing=config.routing,
            admission=config.admission,
        )

    @property
    def gpus(self) -> int:
        """Of all its instances."""
        return self.cluster.num_instances * self.instance.tensor_parallel_size * self.instance.data_parallel_size

    def checked(self) -> Self:
        """The same with all that its instances derive from the catalogue, after a simulation of nothing.

        Raises ConfigError for what cannot be, such as a model that does not fit.
        """
        from maitred.sim import simulate

        whole = replace(self, instance=resolved(self.instance))
        simulate((), whole.cluster, whole.instance, whole.routing, whole.admission)
        return whole
