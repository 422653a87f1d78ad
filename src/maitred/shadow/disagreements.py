"""What is told of a decision that a shadow would have taken otherwise."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from maitred.core.request import RequestId
from maitred.core.units import Micros


class ShadowKind(StrEnum):
    """What the shadow would have done."""

    ADMIT = "admit"
    """It gives a slot to a request that waits or is refused in force."""
    QUEUE = "queue"
    """It lets a request wait that holds a slot or is refused in force."""
    REFUSE = "refuse"
    """It refuses a request that holds a slot or waits in force."""
    VICTIM = "victim"
    """It takes the slot of a request that keeps it in force, or leaves it to one that loses it."""
    INSTANCE = "instance"
    """It sends a request to another backend."""
    PAUSE = "pause"
    """It pauses a program that stays active in force, or the other way round."""


class Disagreement(msgspec.Struct, frozen=True, gc=False):
    """One decision that the shadow would have taken otherwise. Each request is told once for each kind."""

    kind: ShadowKind
    at: Micros
    request: RequestId | None
    """Its number, or None for one about a program."""
    client_id: str
    """The id that the client knows, or the id of the program."""
    tenant: str
    model: str
    real: str
    """What holds in force, and by which rule."""
    shadow: str
    """What holds in the shadow, and by which rule."""
