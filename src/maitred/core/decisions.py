"""Inputs and decisions as data, and the log of both, from which a core decides the same once more.

Each input of a core is a struct with its instant (`Input`), and `Core.apply` takes it as the method of the core does that it
is named after. A driver calls these methods. Without a log they make no struct; with one, a core's `Recorder` makes a line of
the input as soon as it has been taken, and then one of each decision. The log has all on which decisions depend, so a core
that is given the inputs again (`core.replay`) takes the same decisions, byte for byte. Example:

    {"room":"log","version":3}
    {"at":0,"config":{...},"input":"open","pools":{"m":2},"room":"admission"}
    {"at":7,"class":"default","cost":1,"id":3,"input":"submit","load":{...},"pool":"m",...,"room":"admission"}
    {"decision":{"at":7,"subject":3,"action":"admit","reason":"slot_free",...},"room":"admission"}
    {"at":9,"id":3,"input":"first_byte","raised":"TransitionError","room":"admission"}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from maitred.core.printing import printable_json
from maitred.core.request import RequestId
from maitred.core.units import Micros

LOG_VERSION: Final = 3
"""The version of the lines. Version 1 had no version line, and lacks the inputs that raised; version 2 had no seals."""
LOG_BEGINS: Final = (b'{"at":', b'{"change":{', b'{"decision":{', b'{"note":{', b'{"room":"log"')
"""How a line of a log may begin: an input, a change, a decision, a note, and what the log says of itself."""
NOTES_ROOM: Final = "intake"
"""The room of notes: what a gateway knows of a request that no core is told."""
LOG_ROOM: Final = "log"
"""The room of the lines that the log says of itself: its version, how many lines are missing, and seals."""
_SEALED_LINES: Final = 1000
"""Lines between two seals of a `SealedLines`."""


def encode_gap(num_lines: int) -> bytes:
    """Return the line that stands for `num_lines` lines that could not be written."""
    return msgspec.json.encode({"room": LOG_ROOM, "gap": num_lines}) + b"\n"


def encode_seal(lines: bytes, checksum: int = 0) -> bytes:
    """Return the line that seals `lines`, all that come after the last seal or version line, or their end if `checksum` is that
    of their beginning. A replay finds a decision that is not the core's; a seal finds every other byte that was changed."""
    return b'{"room":"%b","seal":"%08x"}\n' % (LOG_ROOM.encode(), crc32(lines, checksum))


class SealedLines:
    """Passes lines on, and a seal after every thousand of them and at the end."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._checksum = self._num_lines = 0

    def write(self, line: bytes) -> None:
        """Pass on a line."""
        self._write(line)
        self._checksum = crc32(line, self._checksum)
        self._num_lines += 1
        if self._num_lines == _SEALED_LINES:
            self.close()

    def close(self) -> None:
        """Seal what was passed on since the last seal, if anything was."""
        if self._num_lines:
            self._write(encode_seal(b"", self._checksum))
        self._checksum = self._num_lines = 0


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


def decision_on(subject: RequestId, decisions: Iterable[Decision]) -> Decision:
    """Return the last decision on a request among those that an input has led to. Raises ValueError if there is none."""
    for decision in reversed(list(decisions)):
        if decision.subject == subject:
            return decision
    raise ValueError(f"nothing was decided about request {subject}")


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("_")


class Input(msgspec.Struct, frozen=True, tag_field="input", tag=_snake_case):
    """Something that a core is told. Its class gives it the name that it has in a log: `FirstByte` is `first_byte`. Inputs of
    two rooms may have one name, as lines have their room beside it."""

    at: Micros

    @property
    def core_key(self) -> str | int:
        """Which core it is for, where a room has several."""
        return ""

    def apply_to(self, core: Any) -> Sequence[Any]:
        """Call the method of `core` that takes this input, and return what was decided."""
        raise NotImplementedError


class Core(Protocol):
    """A decision-maker that can be given its inputs as data."""

    def apply(self, given: Any) -> Sequence[Any]:
        """Take an input, and return what was decided. Raises as the method does that the input is named after."""
        ...


class NoteTaker(Protocol):
    """What is told what a gateway knows of a request that no core is told."""

    takes_notes: bool
    """Whether there is a log for them at present."""

    def log_note(self, room: str, note: Mapping[str, Any]) -> None:
        """Log a note."""
        ...


class DecisionLog:
    """Inputs and decisions as JSON lines in the order of time.

    A line is `{"room": ..., "input": ..., "at": ..., fields}` for an input of a core, with `"raised": class` if the core
    refused it, and `{"room": ..., "decision": ...}` for a decision. What a core has changed by itself, about no single request,
    is `{"room": ..., "change": ...}`. The first line is `{"room": "log", "version": ...}`. Where lines could not be written,
    there is `{"room": "log", "gap": number of lines}` (`encode_gap`). A file has seals as well (`encode_seal`).
    `write` receives each line as bytes with its newline.
    """

    is_written: bool = True
    """Whether lines are made of what it is told."""
    is_narrated: bool = False
    """Whether it wants to know scores (`tell_scores`)."""
    takes_notes: bool = True
    keeps_changes: bool = True
    """Whether it wants to know changes (`log_change`), which cost a core more to find than the rest of an input."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._encode = msgspec.json.Encoder(order="deterministic").encode
        self._has_version = False
        self.num_lines = 0
        """Lines that were written."""

    def note_core(self, room: str, core: Any) -> None:
        """Note the core of a room that writes here from now on: for who takes a copy of it (`core.tapped_log`)."""

    def log_input(self, room: str, given: Input, raised: str | None = None) -> None:
        """Log that a core of `room` got an input, and the class of what it raised, if it did."""
        entry: dict[str, Any] = {"room": room, "input": given.__struct_config__.tag, **_said(given)}
        self._write_line(entry if raised is None else entry | {"raised": raised})

    def log_decisions(self, room: str, decisions: Iterable[msgspec.Struct]) -> None:
        """Log decisions of a core of `room`."""
        for decision in decisions:
            self._write_line({"room": room, "decision": decision})

    def log_change(self, room: str, change: msgspec.Struct) -> None:
        """Log what a core of `room` has changed by itself, about no single request."""
        self._write_line({"room": room, "change": change})

    def log_note(self, room: str, note: Mapping[str, Any]) -> None:
        """Log what is known of a request that no core is told, and no core decides by."""
        self._write_line({"room": room, "note": note})

    def tell_scores(self, number: RequestId, scores: Sequence[Mapping[str, Any]]) -> None:
        """Tell by which scores the instance of a request was chosen. It is not written: a replay computes them anew."""

    def _write_line(self, entry: Mapping[str, Any]) -> None:
        if not self._has_version:  # Only now: a log without decisions stays an empty file.
            self._has_version = True
            self._write(msgspec.json.encode({"room": LOG_ROOM, "version": LOG_VERSION}) + b"\n")
        self._write(printable_json(self._encode(entry)) + b"\n")
        self.num_lines += 1


def _said(given: Input) -> dict[str, Any]:
    """Return the fields of an input by their names in the log, without those that have their default."""
    fields, defaults = given.__struct_fields__, given.__struct_defaults__  # The last fields have the defaults.
    values = [getattr(given, field) for field in fields]
    padded = (msgspec.NODEFAULT,) * (len(fields) - len(defaults)) + defaults
    triples = zip(given.__struct_encode_fields__, values, padded, strict=True)
    return {name: value for name, value, default in triples if value != default}


class Recorder:
    """Logs the inputs of one core, with what was decided."""

    def __init__(
        self,
        log: DecisionLog,
        room: str,
        opening: Input,
        changes: Callable[[Micros], Iterable[msgspec.Struct]] | None = None,
    ) -> None:
        """`opening` says how the core is made. `changes` returns what it has changed by itself since it was last called."""
        self._log, self._room, self._changes = log, room, changes
        log.log_input(room, opening)

    def record(self, given: Input, take: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Let the core `take` an input, and return what was decided."""
        try:
            decisions = take()
        except Exception as error:
            self._log.log_input(self._room, given, type(error).__name__)
            raise
        self._log.log_input(self._room, given)
        self._log.log_decisions(self._room, decisions)
        if self._changes is not None:
            for change in self._changes(given.at):
                self._log.log_change(self._room, change)
        return decisions
