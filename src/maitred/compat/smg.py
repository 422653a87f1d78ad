"""SMG's admission (SGLang Model Gateway 1.13.0), where it differs from ours.

Its reservations are made for fleets of several hundred slots. An entry of its configuration replaces a class as a whole, and
names of tenants are not checked. Promotions of starved requests are not bounded: the head of a starving class is promoted even
if it is next in any case. `Retry-After` is always 2 seconds. Reservations that add up to the capacity exactly are kept. Whether
they fit is asked once, before any backend has come up, against an assumed capacity, and if not, SMG serves without classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from maitred.admission.terms.presets import AdmissionPreset, ClassRules
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND


class RoutingPolicy(msgspec.Struct, frozen=True):
    """Our routing policy for one of SMG's."""

    name: str
    parameters: Mapping[str, str] = MappingProxyType({})
    """Parameters that it has whatever the flags say."""
    flags: Mapping[str, str] = MappingProxyType({})
    """SMG's flags that give it another parameter, and which one."""

    def spec(self, given: Mapping[str, object]) -> str:
        """Return the policy as users write it, with the parameters that SMG's flags give."""
        parameters = {**self.parameters, **{self.flags[flag]: value for flag, value in given.items()}}
        written = ", ".join(f"{name}={value}" for name, value in parameters.items())
        return f"{self.name}({written})" if written else self.name


ROUTING_POLICIES: Final[Mapping[str, RoutingPolicy]] = {
    "cache_aware": RoutingPolicy(
        "cache-aware",
        flags={
            "--cache-threshold": "cache_threshold",
            "--balance-abs-threshold": "balance_abs_threshold",
            "--balance-rel-threshold": "balance_rel_threshold",
        },
    ),
    "consistent_hashing": RoutingPolicy("consistent-hashing"),
    # It is for state that an engine keeps, so no load moves a key.
    "manual": RoutingPolicy(
        "session-affinity",
        {"policy": "least-loaded", "by": "routing-key", "balance_abs_threshold": "inf"},
        flags={"--assignment-mode": "policy"},
    ),
    "power_of_two": RoutingPolicy("power-of-two"),
    "prefix_hash": RoutingPolicy(
        "prefix-hash",
        flags={
            "--prefix-token-count": "prefix_token_count",
            "--prefix-hash-load-factor": "load_factor",
            "--prefix-hash-balance-abs-threshold": "balance_abs_threshold",
        },
    ),
    "random": RoutingPolicy("random"),
    "round_robin": RoutingPolicy("round-robin"),
}
"""Our routing policy for each of SMG's that does the same."""
ASSIGNMENT_MODES: Final[Mapping[str, str]] = {"min_load": "least-loaded", "random": "random"}
"""The policy that places a new routing key, by the mode of SMG's `manual`."""
MISSING_POLICIES: Final[Mapping[str, str]] = {
    "bucket": "least-loaded",
    "dp_min_token": "least-loaded",
    "least_load": "least-loaded(load=effective)",
}
"""SMG's routing policies that nothing here does, and the nearest of ours."""

ADMISSION: Final = AdmissionPreset(
    retries_victims=False,
    counts_sequences=False,
    classes={
        PriorityClass.SYSTEM: ClassRules(
            reserved_floor=32, queue_size=64, queue_timeout_secs=30, starvation_threshold_secs=5, can_preempt=True
        ),
        PriorityClass.INTERACTIVE: ClassRules(
            reserved_floor=128,
            reserved_per_slot=0.25,
            queue_size=256,
            queue_timeout_secs=30,
            starvation_threshold_secs=5,
            can_preempt=True,
        ),
        PriorityClass.DEFAULT: ClassRules(
            reserved_per_slot=0.10, queue_size=512, queue_timeout_secs=60, starvation_threshold_secs=30, can_preempt=False
        ),
        PriorityClass.BULK: ClassRules(
            queue_size=1024, queue_timeout_secs=300, starvation_threshold_secs=120, can_preempt=False
        ),
    },
    replaces_classes=True,
    checks_tenant_names=False,
    sums_rounded_reservations=True,
    bootstrap_capacity=1024,
    keeps_exact_fit=True,
    promotion_share=1.0,
    promotes_next_waiter=True,
    fixed_retry_after=2 * SECOND,
    has_rate_limit_code=False,
    describes_unauthorized=False,
)
