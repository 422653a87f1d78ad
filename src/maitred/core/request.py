"""The request as every package sees it: one frozen record.

It holds what a server knows when a request arrives, and nothing else. The true length of the output is in `workload.Job`, which
no policy can see. State that changes during the life of a request belongs to the package that changes it: `admission.Ticket`,
`core.sequence.SequenceState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

import msgspec

from maitred.core.units import Micros

RequestId: TypeAlias = int
"""Unique within a run, assigned by maitred. A client's own id may repeat, so it is never used as a key."""


class PriorityClass(IntEnum):
    """The class of a request; larger is more urgent. The values are part of SMG's contract: classes are compared."""

    BULK = 0
    DEFAULT = 1
    INTERACTIVE = 2
    SYSTEM = 3

    @property
    def label(self) -> str:
        """The name that users type and read: `system`, `interactive`, `default`, `bulk`."""
        return self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> PriorityClass | None:
        """Return the class named `label`, in any case and with any surrounding white space, or None if there is none."""
        return cls.__members__.get(label.strip().upper())


class PrefixKeys(Protocol):
    """The content of a prompt as a chain of keys, which is made only when a prefix cache asks for it.

    Two prompts share their first n blocks if and only if their first n keys are equal.
    """

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Return one key for each full block of `block_size` tokens."""
        ...


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request for one output: its prompt, its limits and its origin."""

    id: RequestId
    arrival: Micros
    prompt_tokens: int
    max_output_tokens: int | None = None
    """The client's limit for the output, in tokens, or None if only the model's context length limits it."""
    sequences: int = 1
    """Sequences that it makes in the engine at once: prompts times answers."""
    client_id: str = ""
    model: str = ""
    priority_class: PriorityClass = PriorityClass.DEFAULT
    tenant: str = ""
    program: str = ""
    parent_program: str = ""
    """The program that forked this one, on its first request at least; empty: none."""
    stream: bool = True
    priority: float = 0.0
    """The client's priority within the class; larger is more urgent, whatever the engine behind has."""
    routing_key: str = ""
    cache_namespace: str = ""
    deadline: Micros | None = None
    """The instant from which the response is of no use any more."""
    slo_class: str = ""
    """The SLO class that a workload or client names, in BLIS's words: critical, standard, batch, sheddable, background."""
    slo_target: Micros | None = None
    """The target for the time from arrival to the first token, or None for that of the SLO class."""
    instances: tuple[int, ...] = ()
    """The indexes of the only instances that may serve it; empty: any may."""
    prefix: PrefixKeys | None = None
