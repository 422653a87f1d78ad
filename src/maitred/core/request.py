"""Request: the one frozen record that every room sees.

It says what a server knows when a request comes in, and nothing else: the true length of the answer is in `workload.Job`,
where no policy can look. What changes during a request's life belongs to the room that owns it (admission's `Ticket`, the
instance's `SequenceState`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

import msgspec

from maitred.core.units import Micros

RequestId: TypeAlias = int
"""Unique within a run, given by us. A client's own id may repeat, so it is never a key."""


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
        """The class called `label`, in any case and with any white space around it; None if there is none."""
        return cls.__members__.get(label.strip().upper())


class PrefixKeys(Protocol):
    """The content of a prompt as a chain of keys, made only when a prefix cache asks for it.

    Two prompts share their first n blocks if and only if their first n keys are equal.
    """

    def block_keys(self, block_size: int) -> Sequence[int]:
        """One key per full block of `block_size` tokens."""
        ...


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is asked, by whom, and since when."""

    id: RequestId
    arrival: Micros
    prompt_tokens: int
    max_output_tokens: int | None = None
    """What the client allows, in tokens; None: up to the model's length."""
    client_id: str = ""
    model: str = ""
    priority_class: PriorityClass = PriorityClass.DEFAULT
    tenant: str = ""
    program: str = ""
    stream: bool = True
    priority: float = 0.0
    """Within the class; larger is more urgent, whatever the engine behind thinks."""
    routing_key: str = ""
    cache_namespace: str = ""
    deadline: Micros | None = None
    """The instant from which nobody wants the answer any more."""
    slo_class: str = ""
    """The SLO class that a workload or client names, in BLIS's words: critical, standard, batch, sheddable, background."""
    slo_target: Micros | None = None
    """Within which time of its arrival its first token should come; None: its class says."""
    prefix: PrefixKeys | None = None
