"""SMG's admission (SGLang Model Gateway 1.13.0), where it differs from ours.

Its reservations are made for fleets of several hundred slots. An entry of its configuration replaces a class as a whole, and
names of tenants are not checked. Promotions of starved requests are not bounded: the head of a starving class is promoted even
if it is next in any case. `Retry-After` is always 2 seconds. Reservations that add up to the capacity exactly are kept. Whether
they fit is asked once, before any backend has come up, against an assumed capacity, and if not, SMG serves without classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from maitred.admission.presets import AdmissionPreset, ClassRules
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND

_BY_PREFIX: Final = "prefix-affinity:2,load-balance:1"
ROUTING_POLICIES: Final[Mapping[str, tuple[str, str | None]]] = {
    "bucket": ("least-loaded", None),
    "cache_aware": ("weighted", _BY_PREFIX),
    "consistent_hashing": ("session-affinity", None),
    "manual": ("session-affinity", None),
    "power_of_two": ("power-of-two", None),
    "prefix_hash": ("weighted", _BY_PREFIX),
    "random": ("power-of-two", None),
    "round_robin": ("round-robin", None),
}
"""Our routing policy that is nearest to each of SMG's, and its scorers."""

ADMISSION: Final = AdmissionPreset(
    retries_victims=False,
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
