"""Admission: which requests may be in flight now.

One core for the gateway and for the simulator: a plain state machine that is given inputs (`submit`, `confirm_first_byte`,
`release`, `resize`, `reconfigure`, and time) and answers with decisions. Each model has a pool of slots of its own.
Inside a pool a request is admitted if a slot is free for its class; else it may take the slot of a victim of a lower
class; else it waits in the queue of its class; else it is rejected.

A driver acts on the decisions: `admit` (the request holds a slot until `release`), `queue` (another decision will
follow), `preempt` (stop the work of a request that holds a slot, and release it), `reject` and `cancel` (the request
has left).

    core.py              Admission: the inputs and their answers; how inputs settle what is due
    inputs.py            the inputs as data, as a log has them
    coordinator.py       settles what changes of one pool mean for the others, and what is due; agenda.py: what is to settle
    pool_directory.py    which pools there are, and which models use them
    slot_pool.py         what all pools have in common: a slot is given, freed, and its holder ends or is tried again
    class_pool.py        pools with classes, or with one limit for all requests: who enters, waits, is refused, or takes a
                         slot
    priority.py          what keeps a newcomer out, which request is next, who is preempted, promotions of starved requests
    waiting.py           the waiting requests of a pool: whether a queue is full, until when they wait, which of them starve
    queues.py            the queue of one class: first come first served, or shared fairly among tenants
    slots.py             the arithmetic of slots and reservations
    adaptive_reserve.py  how much of a reservation is kept free, from what arrivals needed
    lead.py              the slots beyond what the engines run at once, and how soon they must be free again
    preemption.py        which requests may be victims, and preemptors that wait for their slots
    flow_pool.py         pools with the load of the instances as their limit (flow control, as in GAIE and BLIS)
    flow_bands.py        their waiting requests by priority, in one flow or one per tenant
    flow_dispatcher.py   which of them enter, over all models
    saturation.py        how loaded the instances are
    policy_gate.py       policies that refuse requests before they ask for a slot; the budgets of tenants
    policies.py          those that come with maitred
    rate_limit.py        requests per second
    retry_after.py       when a rejected request should be sent again
    tenants.py           names, limits and accounts of tenants
    ticket.py            the record of one request, and the table of its states
    enums.py             actions and reasons
    counters.py          what became of every request
    pool_views.py        what a pool looks like from outside
    config.py            the keys of the `admission` section; policy_config.py and flow_config.py: those of policies and of
                         flow control
    presets.py           defaults of the configuration, and options in which other systems differ
    rules.py             the configuration, resolved into what pools work with
    learned_slots/       how many slots an engine should have, where it does not say
"""

from __future__ import annotations

from maitred.admission.config import (
    AdmissionConfig,
    ClassConfig,
    ClassesConfig,
    LegacyConfig,
    TenantPolicy,
    class_from_name,
    parse_class,
)
from maitred.admission.core import Admission
from maitred.admission.counters import ClassView
from maitred.admission.enums import Action, Reason, ReleaseReason
from maitred.admission.flow_config import FlowControlConfig
from maitred.admission.policy_config import PolicyConfig
from maitred.admission.policy_gate import POLICIES, AdmissionPolicy, Refusal
from maitred.admission.pool_directory import SHARED_POOL
from maitred.admission.pool_views import PoolView
from maitred.admission.presets import preset_of
from maitred.admission.rules import bootstrap_problem, overcommit_problem
from maitred.admission.saturation import QueueEstimate, fleet_load
from maitred.admission.slot_pool import EMPTY_LOAD, LoadProbe, no_load
from maitred.admission.tenants import tenant_problem
from maitred.admission.ticket import Ticket, TicketState, TransitionError

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
    "bootstrap_problem",
    "class_from_name",
    "fleet_load",
    "no_load",
    "overcommit_problem",
    "parse_class",
    "preset_of",
    "tenant_problem",
]
