"""Admission: which requests may be in flight now.

One core for the gateway and for the simulator: a plain state machine that is given inputs (`submit`, `confirm_first_byte`,
`release`, `resize`, `reconfigure`, and time) and answers with decisions. Each model has a pool of slots of its own.
Inside a pool a request is admitted if a slot is free for its class; else it may take the slot of a victim of a lower
class; else it waits in the queue of its class; else it is rejected.

A driver acts on the decisions: `admit` (the request holds a slot until `release`), `queue` (another decision will
follow), `preempt` (stop the work of a request that holds a slot, and release it), `reject` and `cancel` (the request
has left).

    core.py              Admission: the inputs and their answers; how inputs settle what is due
    core_views.py        what can be read of it between two inputs
    inputs.py            the inputs as data, as a log has them
    adoption.py          requests that another core has decided on, taken over each in its state
    coordinator.py       settles what changes of one pool mean for the others, and what is due
    pool_directory.py    which pools there are, and which models use them

    terms/               what is said and counted: the keys and presets, the rules that come of them, actions and reasons, the
                         ticket of a request and the table of its states, counters, accounts of tenants
    waiting/             who waits, in which order and until when; victims and their preemptors; when to come again
    pool/                what all pools have in common: the arithmetic of slots, how one is given and freed
    classes/             pools with classes, or with one limit for all requests: who enters, waits, is refused, or takes a slot
    flow/                pools with the load of the instances as their limit (flow control, as in GAIE and BLIS)
    gates/               what refuses a request before it asks for a slot: its policy, or the request rate
    learned_slots/       how many slots an engine should have, where it does not say
"""

from __future__ import annotations

from maitred.admission.core import Admission
from maitred.admission.flow.saturation import QueueEstimate, fleet_load
from maitred.admission.gates.policy_gate import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.pool.pool_views import PoolView
from maitred.admission.pool.slot_pool import EMPTY_LOAD, LoadProbe, no_load
from maitred.admission.pool_directory import SHARED_POOL
from maitred.admission.terms.config import (
    AdmissionConfig,
    ClassConfig,
    ClassesConfig,
    LegacyConfig,
    TenantPolicy,
    class_from_name,
    parse_class,
)
from maitred.admission.terms.counters import ClassView
from maitred.admission.terms.enums import Action, Reason, ReleaseReason
from maitred.admission.terms.flow_config import FlowControlConfig
from maitred.admission.terms.limits import UsageRecord
from maitred.admission.terms.policy_config import PolicyConfig
from maitred.admission.terms.presets import preset_of
from maitred.admission.terms.rules import bootstrap_problem, overcommit_problem
from maitred.admission.terms.tenants import tenant_problem
from maitred.admission.terms.ticket import Ticket, TicketState, TransitionError

__all__ = [
    "EMPTY_LOAD",
    "POLICIES",
    "SHARED_POOL",
    "Action",
    "Admission",
    "AdmissionConfig",
    "AdmissionPolicy",
    "ClassConfig",
    "ClassView",
    "ClassesConfig",
    "FlowControlConfig",
    "LegacyConfig",
    "LoadProbe",
    "PolicyConfig",
    "PoolView",
    "QueueEstimate",
    "Reason",
    "Refusal",
    "ReleaseReason",
    "TenantPolicy",
    "Ticket",
    "TicketState",
    "TransitionError",
    "UsageRecord",
    "bootstrap_problem",
    "class_from_name",
    "fleet_load",
    "no_load",
    "overcommit_problem",
    "parse_class",
    "preset_of",
    "tenant_problem",
]
