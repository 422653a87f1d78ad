"""What admission decides, why, and how a request may leave: closed sets, but that an admission policy may have reasons of its
own (`Refusal`). Their values stand in logs, metrics and answers."""

from __future__ import annotations

from enum import StrEnum


class Action(StrEnum):
    """What was decided about the request that a decision names as its subject."""

    ADMIT = "admit"
    """The request holds a slot now, until it is released."""
    QUEUE = "queue"
    """The request waits; another decision will follow. A victim that is to be tried again waits from here on, too."""
    REJECT = "reject"
    """The request may not enter, and has left."""
    CANCEL = "cancel"
    """The request was released while it waited, and has left."""
    PREEMPT_SLOT = "preempt"
    """The slot of the request is wanted by `other`: stop its work, send nothing of it, and release it as preempted."""


class Reason(StrEnum):
    """Why a decision was taken. In groups: with `admit`, `queue`, `reject`, `cancel`, `preempt`."""

    SLOT_FREE = "slot_free"
    LEAD_FREE = "lead_free"
    """It has a slot beyond what the engines run at once, and so the next place that becomes free there."""
    VICTIM_GONE = "victim_gone"
    """The slot of its victim (`other`) was kept for it."""
    STARVED = "starved"
    """Promoted: it waited longer than its class's threshold, and goes before more urgent classes or into a reserved slot."""

    NO_CAPACITY = "no_capacity"
    """The pool has no slots at all: no backend is up."""
    NO_SLOT = "no_slot"
    """Every slot is in flight."""
    HELD_BY_RESERVATION = "held_by_reservation"
    """A slot is idle, but a higher class has reserved it."""
    BEHIND_QUEUE = "behind_queue"
    """Requests of its own class or of a higher one wait already."""
    TENANT_LIMIT = "tenant_limit"
    """Its tenant has as many in flight as it may have."""
    BUCKET_EMPTY = "rate_limit"
    """The token bucket of mode `legacy` is empty: it waits for a token."""
    SATURATED = "saturated"
    """Flow control: the instances are as loaded as they may be for requests of this urgency. (The policy `gaie-legacy` refuses
    requests with the same word.)"""
    VICTIM_LEAVING = "victim_leaving"
    """`other` was preempted for it, and its slot is about to be free."""
    VICTIM_DECLINED = "victim_declined"
    """The response of its victim had begun already, and no other victim is there: it waits in the queue of its class now."""
    BUDGET_SPENT = "budget_spent"
    """Its victim did not leave in time: it waits in the queue of its class now."""
    TO_BE_RETRIED = "to_be_retried"
    """It was preempted and is first in its class now."""
    LOST_BACKEND = "lost_backend"
    """Its backend has failed it before its response began, and has taken a slot along: it is first in its class now."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    """As many requests of its tenant wait as may."""
    RATE_LIMITED = "rate_limited"
    """The request-rate gate in front of the classes is shut."""
    POLICY = "policy"
    """The admission policy refuses it and gives no reason. Other policies give reasons of their own (`policies.Refusal`)."""
    BAND_FULL = "band_full"
    """As many requests of its priority wait as may."""
    DISPLACED = "displaced"
    """It waited, and a more urgent request (`other`) took its place in a full queue."""

    CLIENT_GONE = "client_gone"
    """It was released while it waited, for whatever reason: its client has left, the gateway shuts down, or, in a simulation,
    its deadline has passed."""

    HIGHER_CLASS = "higher_class"
    """A request of a higher class found no slot."""


class ReleaseReason(StrEnum):
    """How a request that held a slot ended."""

    DRAINED = "drained"
    """The client has received the whole body."""
    CLIENT_GONE = "client_gone"
    """Its client has left, the gateway shuts down, or, in a simulation, its deadline has passed before an instance had it."""
    GATEWAY_GONE = "gateway_gone"
    """Its gateway, or its worker, was lost to the scheduler, or cut off, before it told how the request has ended."""
    FAILED = "failed"
    """The backend, or the gateway itself, could not finish it."""
    SLOT_PREEMPTED = "preempted"
    """Its slot was taken away before its first byte: the end of every victim that is not tried again."""
