"""Decisions: what was decided, for whom, when, and why; and the log that proves it.

A core answers every input with the decisions it took. A driver acts on them and may log them, beside the inputs: run the
cores again on the inputs of the log and the decisions must come out the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

from maitred.core.request import RequestId
from maitred.core.units import Micros


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One decision about one request. `action` and `reason` come from closed sets that the deciding room defines; only the
    admission policies of others give reasons of their own."""

    at: Micros
    subject: RequestId
    action: StrEnum
    reason: str
    other: RequestId | None = None
    """The other request it was about: the victim's preemptor, the preemptor's victim."""
    retry_after: Micros | None = None
    """With a rejection: after how long it should be worth while to ask again."""


class DecisionLog:
    """JSON lines in the order of time: `{"room", "input", "at", ...}` for what a core was told, `{"room", "decision", ...}`
    for what it decided. `write` receives each line as bytes with its newline."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._encode = msgspec.json.Encoder(order="deterministic").encode

    def log_input(self, room: str, verb: str, at: Micros, **what: Any) -> None:
        """A core of `room` was given the input `verb` with the arguments `what` (plain values or structs)."""
        self._write(self._encode({"room": room, "input": verb, "at": at, **what}) + b"\n")

    def log_decisions(self, room: str, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._write(self._encode({"room": room, "decision": decision}) + b"\n")
