"""May it enter now?

One core for every world: a plain state machine that is told what happens (`submit`, `confirm_first_byte`, `release`, `resize`,
`reconfigure`, and time) and answers with decisions. Each model has a pool of slots of its own; inside a pool a request is
admitted if a slot is free for its class; else it may take the slot of a victim of a lower class; else it waits in the queue of
its class; else it is rejected.

    ticket.py       the record of one request's life here, and the table of its transitions
    slots.py        the arithmetic of slots and reservations
    queues.py       the queue of one class: first come first served, or shared fairly among tenants
    starving.py     who has waited too long
    promotions.py   how many starved requests may go before more urgent ones
    forecast.py     when it will be worth while to ask again
    bucket.py       so many at once, and so many per second
    tenants.py      what the tenants that have limits use of them
    victims.py      who may be made to go, and who waits for it
    waiters.py      who waits for the slots of one model, and until when
    precedence.py   who goes before whom: what keeps a newcomer out, who is next, who must go
    pool.py         what all pools have in common: slots, who holds them, who waits, and the books of it
    class_pool.py   slots and queues of one model: what becomes of who comes, waits and leaves
    flow_control/   the other kind of pool: requests wait while the instances are saturated
    policies/       who is turned away before he asks for a slot
    saturation.py   how loaded the instances are
    books.py        what became of every request: totals, and views for metrics
    audit.py        what holds after every event
    pools.py        which pools there are, and whose requests come to which
    rate_gate.py    so many requests per second, in front of the classes
    consequences.py what follows from an event with time, and in the other pools
    core.py         Admission: the inputs, and what each of them is answered with
    record.py       the same core, writing a log that can be replayed
    config.py       the keys of the `admission` section, under SMG's names
    flavours.py     what classes may count on by default: our numbers, SMG's numbers
    rules.py        the configuration, resolved into what a pool goes by
    classes.py      the class a header asks for
    vocabulary.py   actions, reasons and ends: the closed sets of this room

The driver acts on decisions: `admit` (a slot is taken; it is held until `release`), `queue` (wait for a later decision),
`preempt` (stop the work of one that holds a slot, and release it), `reject` and `cancel` (the request has left, nothing of it
is kept).
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
from maitred.admission.core import EMPTY_LOAD, Admission, no_load
from maitred.admission.counters import ClassView, PoolView
from maitred.admission.enums import Action, Reason, ReleaseReason
from maitred.admission.flow_control.config import FlowControlConfig
from maitred.admission.policies import POLICIES, AdmissionPolicy, PolicyConfig, Refusal
from maitred.admission.pool import LoadProbe
from maitred.admission.pools import SHARED_POOL
from maitred.admission.presets import CLASS_PRESETS, SMG_BOOTSTRAP_CAPACITY
from maitred.admission.replay import RecordedAdmission, replay
from maitred.admission.rules import overcommit_problem
from maitred.admission.saturation import fleet_load
from maitred.admission.tenant_names import tenant_problem
from maitred.admission.ticket import Ticket, TicketState, TransitionError

__all__ = [
    "CLASS_PRESETS",
    "EMPTY_LOAD",
    "POLICIES",
    "SHARED_POOL",
    "SMG_BOOTSTRAP_CAPACITY",
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
    "Reason",
    "RecordedAdmission",
    "Refusal",
    "ReleaseReason",
    "TenantPolicy",
    "Ticket",
    "TicketState",
    "TransitionError",
    "class_from_name",
    "fleet_load",
    "no_load",
    "overcommit_problem",
    "parse_class",
    "replay",
    "tenant_problem",
]
