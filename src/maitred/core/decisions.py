"""Decisions: what was decided, for which request, when, and why; and the log that makes them reproducible.

A core answers every input with the decisions it took. A driver acts on them and may log them beside the inputs. A core that is
given the inputs of the log again takes the same decisions, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from maitred.core.printing import printable_json
from maitred.core.request import RequestId
from maitred.core.units import Micros

LOG_BEGINS: Final = (b'{"at":', b'{"change":{', b'{"decision":{', b'{"room":"log"')
"""How a line of a log may begin: an input, a change, a decision, and missing lines."""
GAP_ROOM: Final = "log"
"""The room of a line that stands for lines that are missing."""


def encode_gap(num_lines: int) -> bytes:
    """Return the line that stands for so many lines that could not be written."""
    return msgspec.json.encode({"room": GAP_ROOM, "gap": num_lines}) + b"\n"


def refuse_gap(entry: Mapping[str, Any]) -> None:
    """Raise ValueError if a line of a log says that lines are missing there."""
    if entry["room"] == GAP_ROOM:
        raise ValueError(f"{entry['gap']} lines are missing here: the log can be replayed up to them")


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One decision about one request.

    `action` and `reason` come from closed sets of the deciding package; only an admission policy may have a reason of its own.
    """

    at: Micros
    subject: RequestId
    action: StrEnum
    reason: str
    other: RequestId | None = None
    """The other request that it concerns: the preemptor of a victim, or the victim of a preemptor."""
    retry_after: Micros | None = None
    """With a rejection, the time after which another attempt may succeed."""


class DecisionLog:
    """Inputs and decisions as JSON lines in the order of time.

    A line is `{"room": ..., "input": ..., "at": ..., arguments}` for an input of a core, and `{"room": ..., "decision": ...}`
    for a decision. What a core has changed by itself, about no single request, is `{"room": ..., "change": ...}`. Where lines
    could not be written, there is `{"room": "log", "gap": number of lines}` (`encode_gap`). `write` receives each line as bytes
    with its newline.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._encode = msgspec.json.Encoder(order="deterministic").encode

    def log_input(self, room: str, verb: str, at: Micros, **what: Any) -> None:
        """Log that a core of `room` got the input `verb` with the arguments `what` (plain values or structs)."""
        self._write_line({"room": room, "input": verb, "at": at, **what})

    def log_decisions(self, room: str, decisions: Iterable[msgspec.Struct]) -> None:
        """Log decisions of a core of `room`."""
        for decision in decisions:
            self._write_line({"room": room, "decision": decision})

    def log_change(self, room: str, change: msgspec.Struct) -> None:
        """Log what a core of `room` has changed by itself, about no single request."""
        self._write_line({"room": room, "change": change})

    def _write_line(self, entry: Mapping[str, Any]) -> None:
        self._write(printable_json(self._encode(entry)) + b"\n")
