"""The keys of the `admission` section that admission policies read: which policy, and its parameters under BLIS's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Final

import msgspec

from maitred.core.slo_classes import FORMER_SLO_NAMES, MAX_SLO_PRIORITY, SLO_PRIORITIES


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which policy stands before the pools, and its parameters. Raises ValueError for a value that is out of range."""

    policy: str = "always-admit"
    """Policy that may refuse a request before anything else, in every mode: `always-admit`, `reject-all`, `token-bucket`,
    `tier-shed`, `gaie-legacy`, with parameters if need be, or `module:Class`."""
    token_bucket_capacity: float = 10_000.0
    """`token-bucket`: prompt tokens that may enter at once. The bucket is full at first."""
    token_bucket_refill_rate: float = 1_000.0
    """`token-bucket`: prompt tokens that may enter per second."""
    tier_shed_threshold: int = 0
    """`tier-shed`: load of the most loaded instance (waiting + running + in flight) up to which no request is shed."""
    tier_shed_min_priority: int = 3
    """`tier-shed`: SLO priority from which on no request is shed."""
    gaie_qd_threshold: float = 5.0
    """`gaie-legacy`: waiting requests at which an instance counts as saturated."""
    gaie_kv_threshold: float = 0.8
    """`gaie-legacy`: used share of its KV blocks at which an instance counts as saturated, above 0 and at most 1."""
    tenant_budgets: dict[str, float] = {}
    """By tenant, the share of all slots (0 to 1) beyond which its sheddable requests are refused; with any policy."""
    slo_priorities: dict[str, int] = {}
    """By SLO class, its priority from -100 to 100; less than 0 is sheddable. Classes that are not named here keep theirs:
    critical 4, standard 3, batch -1, sheddable -2, background -3."""
    slo_targets: dict[str, int] = {}
    """By SLO class, the target for the time to first token in µs, for requests that state none."""

    def __post_init__(self) -> None:
        for name in ("token_bucket_capacity", "token_bucket_refill_rate"):
            if not (getattr(self, name) >= 0 and isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be at least 0")
        if self.tier_shed_threshold < 0:
            raise ValueError("tier_shed_threshold must be at least 0")
        if not (self.gaie_qd_threshold > 0 and isfinite(self.gaie_qd_threshold)):
            raise ValueError("gaie_qd_threshold must be more than 0")
        if not 0 < self.gaie_kv_threshold <= 1:
            raise ValueError("gaie_kv_threshold must be above 0 and at most 1")
        for tenant, share in self.tenant_budgets.items():
            if not 0 <= share <= 1:
                raise ValueError(f"tenant_budgets: {tenant} must be from 0 to 1, a share of all slots")
        self._check_classes()

    def _check_classes(self) -> None:
        for key, names in (("slo_priorities", self.slo_priorities), ("slo_targets", self.slo_targets)):
            for former, today in FORMER_SLO_NAMES.items():  # a request that names the former class is of the present one
                if former in names:
                    raise ValueError(f"{key}: the SLO class {former} is called {today} now")
        for name, priority in self.slo_priorities.items():
            if abs(priority) > MAX_SLO_PRIORITY:
                raise ValueError(f"slo_priorities: {name} must be from -{MAX_SLO_PRIORITY} to {MAX_SLO_PRIORITY}")
        for name, target in self.slo_targets.items():
            if name not in SLO_PRIORITIES and name not in self.slo_priorities:
                raise ValueError(f"slo_targets: there is no SLO class {name} (known: {', '.join(SLO_PRIORITIES)})")
            if target < 1:
                raise ValueError(f"slo_targets: {name} must be at least 1 µs")

    def parameters(self) -> Mapping[str, float]:
        """Return the parameters of the policy that have keys of their own, by name. Parameters in `policy` take precedence."""
        return {name: getattr(self, key) for name, key in _KEYS.get(self._name, {}).items()}

    def ineffective_keys(self) -> Iterator[str]:
        """Yield a line for each key of a policy that is not in force."""
        for policy, keys in _KEYS.items():
            for key in keys.values():
                if policy != self._name and ":" not in self.policy and getattr(self, key) != _POLICY_DEFAULTS[key]:
                    yield f"{key} has no effect: the policy is {self.policy}, not {policy}"

    @property
    def never_refuses(self) -> bool:
        """Whether no policy ever refuses a request."""
        return self._name == "always-admit" and not self.tenant_budgets

    @property
    def _name(self) -> str:
        return self.policy.partition("(")[0].strip()


_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "token-bucket": {"rate": "token_bucket_refill_rate", "capacity": "token_bucket_capacity"},
    "tier-shed": {"threshold": "tier_shed_threshold", "min_priority": "tier_shed_min_priority"},
    "gaie-legacy": {"qd_threshold": "gaie_qd_threshold", "kv_threshold": "gaie_kv_threshold"},
}
"""BLIS's keys for the parameters of its policies. Other policies take their parameters in `policy`, and have no keys."""
_POLICY_DEFAULTS: Final = {key: getattr(PolicyConfig(), key) for keys in _KEYS.values() for key in keys.values()}
