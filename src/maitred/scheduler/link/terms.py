"""What the messages of the link say of requests, of the memories of agent programs, and of backends."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from maitred.admission.learned_slots import LearnedLimit
from maitred.scheduler.link.fields import Age, ClassNumber, Count, Number, Real
from maitred.scheduler.link.prompt_hashes import PackedHashes


class MessagePart(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A part of a message: an array with the values of its fields, in order. A change is one of `messages.VERSION`."""


class Standing(IntEnum):
    """What a request is at its gateway, as `Hello` tells it."""

    WAITING = 0
    """It asks for a slot."""
    HELD = 1
    """It holds one, and has no response yet."""
    STREAMING = 2
    """Its response has begun."""


class ClassNote(MessagePart, frozen=True):
    """How a request came by its class. No decision goes by it; the scheduler's log has it (`core.decisions.NOTES_ROOM`)."""

    asked: ClassNumber
    rule: str
    """In words; empty: it got the class that it named."""


class RequestTerms(MessagePart, frozen=True):
    """What admission and routing go by, of one request. Nothing of the text of its prompt."""

    model: str
    priority_class: ClassNumber
    tenant: str
    cost: Count
    prompt_tokens: Count
    max_output_tokens: Count | None = None
    sequences: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 1
    client_id: str = ""
    stream: bool = True
    priority: Real = 0.0
    routing_key: str = ""
    program: str = ""
    cache_namespace: str = ""
    slo_class: str = ""
    slo_target: Age | None = None
    instances: tuple[Count, ...] = ()
    """The only backends that may have it; empty: any may."""
    memory: Count = 0
    """The number of its memory at its gateway (`BeginProgram`), if it is of an agent program; else 0."""
    prompt: PackedHashes | None = None
    """What the router compares prompts by, or None if nothing is known of the prompt, or the router looks at none."""
    class_note: ClassNote | None = None
    """None where the scheduler has no log (`Welcome.keeps_notes`)."""


class ProgramTerms(MessagePart, frozen=True):
    """What decides about the memory of one request of an agent program. Nothing of its prompt."""

    model: str
    tenant: str
    program: str
    """The id of the program; empty: the request is a program of its own."""
    parent: str
    priority_class: ClassNumber
    characters: Count
    prompt_tokens: Count | None = None
    client_id: str = ""
    asks_for_stream: bool = False
    ends_program: bool = False


class LiveMemory(MessagePart, frozen=True):
    """The memory of one request of an agent program in a `Hello`."""

    number: Count
    age: Age
    """Since it was asked for."""
    terms: ProgramTerms
    memory: Number = -1
    """Where it was granted, as the programs core numbers memories; -1 while it waits."""


class LiveRequest(MessagePart, frozen=True):
    """One request in a `Hello`."""

    request: Count
    attempt: Count
    standing: Standing
    age: Age
    """Since it was submitted."""
    terms: RequestTerms
    backend: Number = -1
    """Where it is, if it holds a slot."""
    held: Age = 0
    """Since it has its slot."""
    is_new: bool = False
    """Whether its gateway knows of no scheduler that has decided anything about it."""


class KeptLimits(MessagePart, frozen=True):
    """What a scheduler has learned of its backends, as its gateways keep it for the one that leads next."""

    epoch: Count
    """Of the scheduler that has told it."""
    number: Count
    """How often that has told something before."""
    limits: dict[str, LearnedLimit]
    """By the URLs of the backends."""


class BackendNews(MessagePart, frozen=True):
    """What a gateway needs to know of one backend."""

    number: Number
    healthy: bool
    was_ever_healthy: bool
    has_been_polled: bool
    is_draining: bool
    is_ejected: bool
    rests: Age | None
    """For how long the engine has asked to be left alone, or None."""
    problem: str
    models: bytes
    """JSON, as the engine has it: numbers there may be larger than those of the link."""
    url: str
    """Empty for a number whose backend has gone."""
