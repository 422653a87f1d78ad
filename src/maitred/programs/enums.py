"""The closed sets of this room: phases and states of programs, actions and reasons of decisions, the status of a backend."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from maitred.core.request import RequestId
from maitred.core.units import Micros


class ProgramPhase(StrEnum):
    """The phase of a program."""

    REASONING = "reasoning"
    """At least one of its requests is under way or waits."""
    ACTING = "acting"
    """None is: a tool of the agent works, or the agent thinks."""


class ProgramState(StrEnum):
    """Whether a program may hold KV memory."""

    ACTIVE = "active"
    """The program is registered with a backend."""
    PAUSED = "paused"
    """The program is registered with no backend, and its requests wait."""
    TERMINATED = "terminated"
    """The program has been released, or has expired. No table holds it any more."""


class ProgramAction(StrEnum):
    """The action of a decision."""

    GRANT = "grant"
    """The request may go to `backend` now."""
    WAIT = "wait"
    """The request waits for memory."""
    REJECT = "reject"
    """The request must be refused."""
    PAUSE = "pause"
    """The program loses its place at `backend`."""
    RESUME = "resume"
    """The program gets a place at `backend`."""
    MARK = "mark"
    """The program is to be paused when its requests end."""
    UNMARK = "unmark"
    """The program is not to be paused any more."""
    END = "end"
    """The program is forgotten."""


class ProgramReason(StrEnum):
    """Why."""

    PLACED = "placed"
    """A new program fits."""
    STICKY = "sticky"
    """The program has a place already."""
    RESUMED = "resumed"
    """The program has been resumed."""
    NO_ROOM = "no_room"
    """No backend has room, or other programs wait before this one."""
    PAUSED = "paused"
    """The program is paused."""
    OVERSIZED = "oversized"
    """No backend could ever hold the program."""
    TOO_MANY_WAITING = "too_many_waiting"
    """`max_waiting` requests wait already."""
    TOO_MANY_PROGRAMS = "too_many_programs"
    """The tenant has `max_programs_per_tenant` programs, or all have `max_programs`, and every one has requests under way."""
    NO_BACKEND = "no_backend"
    """No healthy backend serves the model."""
    RELEASED = "released"
    """The client has released the program."""
    OVERFLOW = "overflow"
    """The programs of the backend need more than its capacity."""
    MADE_ROOM = "made_room"
    """A program that has waited for long, or that of a tenant whose turn it is, needs the memory."""
    PRESSURE_ENDED = "pressure_ended"
    """The backend has room again."""
    ROOM = "room"
    """A backend has room."""
    MAX_WAIT = "max_wait"
    """The program has waited for `max_wait_secs`."""
    BACKEND_DOWN = "backend_down"
    """The backend is down, and the KV there is lost."""
    DRAINED = "drained"
    """The backend is being drained."""
    ADOPTED = "adopted"
    """The program was known to the core of the last run."""
    ENDED = "ended"
    """A program of one request has ended, or the only request of a new one left before the program was placed."""
    EXPIRED = "expired"
    """The program was idle for `program_ttl_secs`, or the idlest when another one needed its place."""


class ProgramDecision(msgspec.Struct, frozen=True, gc=False):
    """One decision about one program, or about one of its requests."""

    at: Micros
    program: int
    """The serial number of the program."""
    action: ProgramAction
    reason: ProgramReason
    request: RequestId | None = None
    """The request of GRANT, WAIT and REJECT."""
    backend: int | None = None
    """The index of the backend of GRANT, PAUSE, RESUME, MARK and UNMARK."""


class BackendStatus(StrEnum):
    """The status of a backend."""

    UP = "up"
    DRAINING = "draining"
    """Programs there finish their requests; no program comes."""
    DOWN = "down"
