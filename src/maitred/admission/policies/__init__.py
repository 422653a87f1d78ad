"""Admission policies: who is turned away before he asks for a slot.

A policy stands before the pools, in every mode. It says no, or nothing: who is not refused goes on to the slots, queues or
flows of the mode. Policies are registered under the name that users type (`POLICIES`), which are BLIS's.

    policy.py          what a policy is, and the registry
    config.py          the keys that policies read
    always_admit.py    refuses nobody
    reject_all.py      refuses everybody
    token_bucket.py    so many prompt tokens per second
    tier_shed.py       the less urgent, while an instance is loaded
    gaie_legacy.py     the sheddable, while the fleet is saturated
    screen.py          the configured one at work, and the books of whom it turns away
    tenant_budgets.py  over another policy: the sheddable of a tenant that has its share already
"""

from __future__ import annotations

from maitred.admission.config import PolicyConfig
from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal

__all__ = ["POLICIES", "AdmissionPolicy", "PolicyConfig", "Refusal"]
