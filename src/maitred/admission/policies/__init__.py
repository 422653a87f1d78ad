"""Admission policies: which requests are refused before they ask for a slot.

A policy stands before the pools, in every mode. It refuses a request or lets it pass, and a request that passes goes on
to the slots, queues or flow control of the mode. Policies are registered under the name that users type (`POLICIES`);
the names here are BLIS's.

    base.py            what a policy is, what it answers, and the registry
    unconditional.py   always-admit, reject-all
    load_shedding.py   tier-shed, gaie-legacy: less urgent requests are refused while instances are loaded
    token_bucket.py    token-bucket: prompt tokens per second

A module that is added here is found by itself. The budgets of tenants hold with any policy (`admission.policy_gate`).
"""

from __future__ import annotations

from maitred.admission.config import PolicyConfig
from maitred.admission.policies.base import POLICIES, AdmissionPolicy, Refusal

__all__ = ["POLICIES", "AdmissionPolicy", "PolicyConfig", "Refusal"]
