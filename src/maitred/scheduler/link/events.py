"""What a gateway's end of a link tells its driver: what the scheduler has said, where that is to be obeyed."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from maitred.admission import Refusal
from maitred.admission.terms.limits import LimitStatus
from maitred.core.units import Micros
from maitred.scheduler.link.messages import Fleet, Memory, Note


class Granted(msgspec.Struct, frozen=True):
    """A request holds a slot: send it to `backend`."""

    request: int
    backend: int
    rank: int | None
    limits: LimitStatus | None = None
    """The limits of requests and tokens that hold for it, or None if none holds."""


class Queued(msgspec.Struct, frozen=True):
    """A request waits, and why."""

    request: int
    reason: str


class Rejected(msgspec.Struct, frozen=True):
    """A request gets no slot, and has left; `retry_after` in µs."""

    request: int
    reason: str
    retry_after: Micros | None
    refusal: Refusal | None = None


class Preempted(msgspec.Struct, frozen=True):
    """Stop a request, of which nothing was sent, and then `yield_slot`."""

    request: int


class Abandoned(msgspec.Struct, frozen=True):
    """Stop a request at its backend, of which nothing was sent, and ask for another place."""

    request: int


class Opened(msgspec.Struct, frozen=True):
    """The scheduler has welcomed this gateway."""

    epoch: int
    is_learning: bool
    keeps_notes: bool = False


class Closed(msgspec.Struct, frozen=True):
    """The connection is of no use any more: cut it, after `last_bytes` have been tried to be written, and connect again."""

    reason: str
    last_bytes: bytes = b""
    is_lasting: bool = False
    """Whether another connection comes to the same, until a person has changed something."""


LinkEvent: TypeAlias = Granted | Queued | Rejected | Preempted | Abandoned | Opened | Closed | Fleet | Memory | Note
