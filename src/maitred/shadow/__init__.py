"""A shadow: other rules that decide beside those in force, on the same inputs, and affect nothing.

    disagreements  what is told of a decision that the shadow would have taken otherwise
    admission      its core of admission, with a queue of its own
    programs       its core of programs
    routing        its router
    core           all three, fed with what the cores in force were told and have decided

What comes of decisions is not simulated: a shadow is told what happened, under the decisions in force.

    A request comes          to both, at the same instant.
    Slots, backends, loads   are those in force.
    A request ends           when it ends in force. One that the shadow still has in its queue leaves that queue then, and one
                             that it has refused is told of no more. So a shadow never has a request that is not there, and
                             its state cannot drift further from the real one than by the requests that are here.
    A victim of the shadow   that keeps its slot in force gives it up at once, and waits again or has left, as the rules of the
                             shadow say. One that both preempt gives it up when it does so in force.
    A refusal in force       takes the request out of the shadow's queue, or its slot, because nothing more is heard of it.

Example. One slot is held, and b is refused in force because the queue is full; the shadow has a longer one and queues b. That
is one disagreement, `queue`. b leaves the shadow's queue at once.

Sans-IO, as the cores are: the driver (`gateway.observe.shadow`) gives it time, and may let inputs pass in lumps.
"""

from maitred.shadow.core import Shadow, ShadowRules
from maitred.shadow.disagreements import Disagreement, ShadowKind

__all__ = ["Disagreement", "Shadow", "ShadowKind", "ShadowRules"]
