"""Candidate: one configuration that a study compares with others, and the error of its latency model, drawn for each seed.

    latency_scale = configured scale · max(0.05, 1 + latency_error · z)          z ~ N(0, 1), by Box and Muller

`latency_error` is the relative standard deviation that `maitred calibrate` found. z comes from a random stream named after the
seed, the latency model, the model and the hardware. So candidates that share these also share the error, and their differences
do not drown in it; other candidates have independent errors. How instances are run (parallelism, batches) does not change the
stream, because the same latency model errs.

    latency_error 0.04, z = 0.5 for seed 42: all step times of this run are multiplied by 1.02
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Self

import msgspec
from msgspec.structs import asdict, replace

from maitred.admission import AdmissionConfig
from maitred.config import NO_VALUES, Config, ConfigSources
from maitred.config.sources import with_simulation_defaults
from maitred.instance import InstanceConfig
from maitred.programs import ProgramsConfig
from maitred.report import RunSetup, derived_keys
from maitred.routing import RoutingConfig
from maitred.sim.config import ClusterConfig
from maitred.sim.instance_groups import resolve_fleet
from maitred.workload.lengths import standard_normal

if TYPE_CHECKING:
    from maitred.core.units import Micros
    from maitred.sim import Results
    from maitred.workload import Job

_MIN_FACTOR: Final = 0.05
_IDENTITY_KEYS: Final = ("model", "model_config_folder", "hardware", "hardware_config", "latency")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """The sections of a configuration that a simulation reads."""

    cluster: ClusterConfig = ClusterConfig()
    instance: InstanceConfig = InstanceConfig()
    routing: RoutingConfig = RoutingConfig()
    admission: AdmissionConfig = AdmissionConfig(mode="off")
    programs: ProgramsConfig = ProgramsConfig()

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
            programs=config.programs,
        )

    @property
    def num_gpus(self) -> int:
        """GPUs of all its instances."""
        configs = self.cluster.instance_configs(self.instance)
        return sum(each.tensor_parallel_size * each.data_parallel_size for each in configs)

    def resolved(self) -> Self:
        """Return the candidate with everything that its instances derive from the catalogue, and check it by an empty
        simulation.

        Raises ConfigError for an impossible candidate, such as a model that does not fit.
        """
        cluster, instance = resolve_fleet(self.cluster, self.instance)
        resolved = replace(self, cluster=cluster, instance=instance)
        resolved.simulate(())
        return resolved

    def simulate(
        self,
        jobs: Iterable[Job],
        *,
        seed: int = 42,
        horizon: Micros | None = None,
        log_itl: bool = False,
        sample_every: Micros | None = None,
    ) -> Results:
        """Return the results of a run of `jobs`. Raises ConfigError as `maitred.simulate` does."""
        from maitred.sim import simulate

        sections = (self.cluster, self.instance, self.routing, self.admission, self.programs)
        return simulate(jobs, *sections, seed=seed, horizon=horizon, log_itl=log_itl, sample_every=sample_every)

    def in_one_line(self, seeds: Sequence[int]) -> str:
        """Describe in one line the runs with these seeds: model, GPUs, latency model and its error, KV blocks, policies."""
        cluster, instance = resolve_fleet(self.cluster, self.instance)
        sections: dict[str, msgspec.Struct] = {**asdict(self), "cluster": cluster, "instance": instance}
        setup = RunSetup(seed=seeds[0], sections=sections, derived=derived_keys(self.instance, instance))
        return setup.in_one_line("" if len(seeds) == 1 else f"{len(seeds)} seeds from {seeds[0]} on")


def draw_latency_scale(instance: InstanceConfig, seed: int) -> float:
    """Return the `latency_scale` of one run. `instance` is as configured, before the catalogue has filled it."""
    if not instance.latency_error:
        return instance.latency_scale
    z = standard_normal(Random(f"{seed}/latency_error/{latency_identity(instance)}").random)
    return instance.latency_scale * max(_MIN_FACTOR, 1.0 + instance.latency_error * z)


def latency_identity(instance: InstanceConfig) -> str:
    """Return a key that is equal for instances with the same latency model of the same model on the same hardware."""
    identity = {name: getattr(instance, name) for name in _IDENTITY_KEYS}
    for name in ("model", "hardware"):
        identity[name] = identity[name].lower()
    return msgspec.json.encode(identity).decode()
