"""The configuration of what happens to the instances of a cluster: groups of unequal ones, failures, slow instances,
autoscaling, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.admission.terms.config import MAX_SECS
from maitred.instance import InstanceConfig
from maitred.instance.latency import AnyLatency

_MOST = 10_000
_MAX_ATTEMPTS = 100
_LEAST_SECS = 1e-3
"""More failures than a thousand in a second are a typing mistake, and simulate for hours."""
_MAX_FACTOR = 1_000_000
_MAX_COST = 1_000_000
_MAX_PUE = 10.0


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Instances that differ from the section `instance` in these keys. Null: as there."""

    num_instances: int = 1
    hardware: str | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    latency: AnyLatency | None = None
    latency_scale: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    total_kv_blocks: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_instances <= _MOST:
            raise ValueError(f"num_instances of a group must be from 1 to {_MOST:,}, not {self.num_instances}")

    def applied_to(self, instance: InstanceConfig) -> InstanceConfig:
        """Return the configuration of an instance of the group. Raises ValueError for keys that do not go together."""
        return replace(instance, **{name: getattr(self, name) for name in _DIFFERING if getattr(self, name) is not None})

    def stating(self, instance: InstanceConfig) -> InstanceGroup:
        """Return the group with all its keys as those of `instance`."""
        return replace(self, **{name: getattr(instance, name) for name in _DIFFERING})


_DIFFERING: Final = tuple(name for name in InstanceGroup.__struct_fields__ if name != "num_instances")


class CostConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What GPUs cost: power, carbon, money. Nothing of it changes what is simulated."""

    gpu_watts: float | None = None
    """Power of a GPU at work, in W. Null: its published power limit (`maitred models`, hardware.toml)."""
    idle_share: float = 0.2
    """Power of an idle GPU that has a model loaded, as a share of that at work. By default that of an H100: 139 of 700 W."""
    pue: float = 1.0
    """Power usage effectiveness: all energy of the data centre by that of the GPUs."""
    grid_gco2_per_kwh: float | None = None
    """Carbon intensity of the grid, in g CO2 per kWh. Null: not known, and no carbon is told."""
    price_per_gpu_hour: float | dict[str, float] | None = None
    """The price of a GPU for an hour, in dollars, or of each kind of GPU, `{H100: 2.5}`. Null: no price is told."""

    def __post_init__(self) -> None:
        if not 0 <= self.idle_share <= 1:
            raise ValueError(f"idle_share must be from 0 to 1, not {self.idle_share}")
        if not 1 <= self.pue <= _MAX_PUE:
            raise ValueError(f"pue must be from 1 to {_MAX_PUE:g}, not {self.pue}")
        prices = self.price_per_gpu_hour
        stated = {"gpu_watts": self.gpu_watts, "grid_gco2_per_kwh": self.grid_gco2_per_kwh}
        stated |= {"price_per_gpu_hour": None if isinstance(prices, dict) else prices}
        stated |= {f"price_per_gpu_hour of {name}": each for name, each in prices.items()} if isinstance(prices, dict) else {}
        for name, value in stated.items():
            if value is not None and not 0 < value <= _MAX_COST:
                raise ValueError(f"{name} must be above 0 and at most {_MAX_COST:,}, not {value}")


class AutoscalingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances that are started and drained as a policy wants."""

    policy: str = ""
    """How many instances there are: a policy of `maitred policies`, with parameters if need be (`in-flight(target=32)`), or
    `module:Class`. The run begins with `num_instances`; empty: they stay as many."""
    min_instances: int = 1
    """Fewest instances."""
    max_instances: int = 10
    """Most instances."""
    interval_secs: float = 15.0
    """Time between two looks of the policy, in seconds (that of Kubernetes' Horizontal Pod Autoscaler)."""
    cold_start_secs: float = 120.0
    """Time until an instance that is started serves, with an empty cache, in seconds."""
    scale_down_delay_secs: float = 300.0
    """For how long the policy must have wanted fewer instances until some drain, in seconds (likewise)."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_instances <= self.max_instances <= _MOST:
            bounds = f"{self.min_instances} and {self.max_instances}"
            raise ValueError(f"min_instances and max_instances must be in order and from 1 to {_MOST:,}, not {bounds}")
        for name, least in (("interval_secs", 1e-3), ("cold_start_secs", 0.0), ("scale_down_delay_secs", 0.0)):
            if not least <= getattr(self, name) <= MAX_SECS:
                raise ValueError(f"{name} must be from {least:g} to {MAX_SECS:g}, not {getattr(self, name)}")

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each key without effect."""
        plain = AutoscalingConfig()
        for name in self.__struct_fields__:
            if not self.policy and getattr(self, name) != getattr(plain, name):
                yield f"autoscaling.{name} has no effect without policy"


class FailureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances that fail and come back with empty caches, and instances that are slow."""

    mtbf_secs: float | None = None
    """Mean time for which an instance serves until it fails, in seconds, drawn from an exponential distribution. Null: no
    instance fails."""
    mttr_secs: float = 300.0
    """Mean time until a failed instance serves again, with an empty cache, in seconds, drawn likewise."""
    max_attempts: int = 3
    """Instances that are tried for a request at most, as `gateway.max_attempts`. A request whose client has seen a token is not
    tried again."""
    slow_instances: int = 0
    """Instances that are slow throughout: the last ones."""
    slow_factor: float = 2.0
    """Factor on the duration of every step of a slow instance."""

    def __post_init__(self) -> None:
        for name in ("mtbf_secs", "mttr_secs"):
            value = getattr(self, name)
            if value is not None and not _LEAST_SECS <= value <= MAX_SECS:
                raise ValueError(f"{name} must be from {_LEAST_SECS:g} to {MAX_SECS:g}, not {value}")
        if not 1 <= self.max_attempts <= _MAX_ATTEMPTS:
            raise ValueError(f"max_attempts must be from 1 to {_MAX_ATTEMPTS}, not {self.max_attempts}")
        if self.slow_instances < 0:
            raise ValueError(f"slow_instances must be at least 0, not {self.slow_instances}")
        if not 1 <= self.slow_factor <= _MAX_FACTOR:
            raise ValueError(f"slow_factor must be from 1 to {_MAX_FACTOR:,}, not {self.slow_factor}")

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each key without effect."""
        plain = FailureConfig()
        for name in ("mttr_secs", "max_attempts"):
            if self.mtbf_secs is None and getattr(self, name) != getattr(plain, name):
                yield f"failures.{name} has no effect without mtbf_secs"
        if not self.slow_instances and self.slow_factor != plain.slow_factor:
            yield "failures.slow_factor has no effect without slow_instances"
