"""May it enter now?

One core for every world: a plain state machine that is told what happens (`submit`, `first_byte`, `release`, `resize`,
`reconfigure`, and time) and answers with decisions. Each model has a pool of slots of its own; inside a pool a request is
admitted if a slot is free for its class, else it waits in the FIFO queue of its class, else it is rejected.

    ticket.py       the record of one request's life here, and the table of its transitions
    slots.py        the arithmetic of slots and reservations
    queues.py       the FIFO queue of one class
    pool.py         slots and queues of one model: who enters, who waits, who is next
    books.py        what became of every request: totals, and views for metrics
    core.py         Admission: all pools, time, and the books
    record.py       the same core, writing a log that can be replayed
    config.py       the keys of the `admission` section, under SMG's names
    classes.py      the class a header asks for
    vocabulary.py   actions, reasons and ends: the closed sets of this room

The driver acts on decisions: `admit` (a slot is taken; it is held until `release`), `queue` (wait for a later decision),
`reject` and `cancel` (the request has left, nothing of it is kept).
"""

from __future__ import annotations

from maitred.admission.books import ClassView, PoolView
from maitred.admission.classes import parse_class
from maitred.admission.config import AdmissionConfig, ClassConfig
from maitred.admission.core import Admission
from maitred.admission.record import RecordedAdmission, replay
from maitred.admission.ticket import State, Ticket, TransitionError
from maitred.admission.vocabulary import Action, End, Reason

__all__ = [
    "Action",
    "Admission",
    "AdmissionConfig",
    "ClassConfig",
    "ClassView",
    "End",
    "PoolView",
    "Reason",
    "RecordedAdmission",
    "State",
    "Ticket",
    "TransitionError",
    "parse_class",
    "replay",
]
