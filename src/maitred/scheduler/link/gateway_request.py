"""One request at the gateway's end of a link: what it may do by itself, and what it must be told.

    state      event        then       by
    ---------  -----------  ---------  ----------------------------------------------------
    WAITING    GRANT        HELD       the scheduler
    HELD       FIRST_BYTE   STREAMING  the gateway, which asks nobody
    HELD       PREEMPT      VICTIM     the scheduler
    HELD       ASK_AGAIN    WAITING    the gateway: its backend has failed it
    VICTIM     ASK_AGAIN    WAITING    the gateway: it has stopped, and gives up its slot
    STREAMING  FIRST_BYTE   STREAMING  the gateway
    STREAMING  PREEMPT      STREAMING  the scheduler, too late: the gateway declines

Anything else is late, or comes twice, and changes nothing. The first byte is decided here, by one look at the state: a VICTIM
must send none, and a request that STREAMs is stopped by nobody. A request ends in any state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from msgspec.structs import replace

from maitred.core.units import Micros
from maitred.scheduler.link.messages import HelloPart, Note
from maitred.scheduler.link.terms import LiveMemory, LiveRequest, RequestTerms, Standing

_MOST_PROMPT_BYTES: Final = 8 << 20
"""Bytes of hashes in a `Hello`: half of the longest frame."""
_MOST_PER_PART: Final = 200
"""Requests in one message of a hello, of which each may have 64 KB of names."""


class GatewayRequestState(IntEnum):
    WAITING = 0
    HELD = 1
    STREAMING = 2
    VICTIM = 3


class RequestEvent(IntEnum):
    GRANT = 0
    FIRST_BYTE = 1
    PREEMPT = 2
    ASK_AGAIN = 3


_WAITING: Final = GatewayRequestState.WAITING
TRANSITIONS: Final = {
    (GatewayRequestState.WAITING, RequestEvent.GRANT): GatewayRequestState.HELD,
    (GatewayRequestState.HELD, RequestEvent.FIRST_BYTE): GatewayRequestState.STREAMING,
    (GatewayRequestState.HELD, RequestEvent.PREEMPT): GatewayRequestState.VICTIM,
    (GatewayRequestState.HELD, RequestEvent.ASK_AGAIN): GatewayRequestState.WAITING,
    (GatewayRequestState.VICTIM, RequestEvent.ASK_AGAIN): GatewayRequestState.WAITING,
    (GatewayRequestState.STREAMING, RequestEvent.FIRST_BYTE): GatewayRequestState.STREAMING,
    (GatewayRequestState.STREAMING, RequestEvent.PREEMPT): GatewayRequestState.STREAMING,
}
_STANDINGS: Final = {
    GatewayRequestState.WAITING: Standing.WAITING,
    GatewayRequestState.HELD: Standing.HELD,
    GatewayRequestState.STREAMING: Standing.STREAMING,
    # It holds its slot until it has stopped. A scheduler that has preempted it knows that; another one may let it keep it.
    GatewayRequestState.VICTIM: Standing.HELD,
}


class GatewayRequest:
    """A request of this gateway that waits or holds a slot."""

    __slots__ = ("attempt", "backend", "granted_at", "lapse", "number", "state", "submitted_at", "terms", "was_queued")

    def __init__(self, number: int, terms: RequestTerms, now: Micros) -> None:
        self.number = number
        self.terms = terms
        self.state = _WAITING
        self.was_queued = False
        """Whether a scheduler has said that it waits."""
        self.attempt = 1
        """How often it has asked for a place."""
        self.submitted_at = now
        self.granted_at: Micros = 0
        """When it got its slot, µs."""
        self.backend = -1
        """Where it is, or was last; -1 before its first grant."""
        self.lapse = -1
        """How many leases had lapsed when it got its slot (`GatewayEnd.may_send`); -1: no scheduler has granted it."""

    def take(self, event: RequestEvent) -> bool:
        """Go to the state that follows `event`, and return True; or False if the event comes late."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            return False
        self.state = following
        return True

    def ask_again(self) -> bool:
        """Wait for another place, as another attempt. Return False if the request holds none, or streams."""
        if not self.take(RequestEvent.ASK_AGAIN):
            return False
        self.attempt += 1
        return True

    def introduce(self, now: Micros) -> LiveRequest:
        """Return the request as a `Hello` states it. If it waits, this is another attempt: a grant that is on its way from a
        connection before, or from another scheduler, comes late from now on."""
        standing = _STANDINGS[self.state]
        if standing is Standing.WAITING:
            self.attempt += 1
        held = 0 if standing is Standing.WAITING else now - self.granted_at
        terms = self.terms
        if terms.prompt is not None and standing is not Standing.WAITING:  # It is where it is.
            terms = replace(terms, prompt=None)
        age, is_new = now - self.submitted_at, self.backend < 0 and not self.was_queued
        return LiveRequest(self.number, self.attempt, standing, age, terms, self.backend, held, is_new)


def hello_parts(
    requests: Sequence[LiveRequest], memories: Sequence[LiveMemory], notes: Iterable[Note] = ()
) -> Iterator[HelloPart]:
    """Yield what comes before a `Hello` that names these."""
    for note in notes:
        yield HelloPart([], [], [note])
    requests = _within_prompt_limit(requests)
    for begin in range(0, max(len(requests), len(memories)), _MOST_PER_PART):
        end = begin + _MOST_PER_PART
        yield HelloPart([*requests[begin:end]], [*memories[begin:end]])


def _within_prompt_limit(requests: Iterable[LiveRequest]) -> list[LiveRequest]:
    """Return all requests as a `Hello` states them. Only the first `_MOST_PROMPT_BYTES` of what is known of prompts are in it:
    the others are placed as if nothing were known of them."""
    said, left = list[LiveRequest](), _MOST_PROMPT_BYTES
    for live in requests:
        if live.terms.prompt is not None:
            left -= sum(map(len, live.terms.prompt.values()))
        said.append(live if left >= 0 else replace(live, terms=replace(live.terms, prompt=None)))
    return said
