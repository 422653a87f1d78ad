"""Replay: a decision log is run again, and the cores write another one.

A log has everything on which decisions depend, so the second run takes the same decisions, byte for byte. The rooms are
arguments, because nothing here knows a room: `maitred.replay` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from maitred.core.decisions import LOG_ROOM, LOG_VERSION, Core, DecisionLog, Input


class LoggedRoom(NamedTuple):
    """What a replay must know of the cores of one room."""

    name: str
    """What its lines have as `room`."""
    inputs: Any
    """The type of its inputs: the union of their structs."""
    open: Callable[[Any, DecisionLog], Core]
    """Makes a core that writes a log, from the input `open`."""


class _Line(msgspec.Struct):
    """What says whether a line is an input, and of whom."""

    room: str
    input: str | None = None
    raised: str | None = None
    version: int = 1
    gap: int = 0


def replay_rooms(lines: Iterable[bytes], log: DecisionLog, rooms: Sequence[LoggedRoom]) -> None:
    """Run the inputs of `rooms` in `lines` (as a DecisionLog writes them) again, and write a new log. Lines of other rooms are
    skipped. Raises ValueError if the inputs of a core do not begin with `open`, where lines are missing, and for a version of
    the log that is not known; and what an input raises that did not raise when the log was written."""
    known = {room.name: room for room in rooms}
    decoders = {room.name: msgspec.json.Decoder(room.inputs) for room in rooms}
    cores: dict[tuple[str, str | int], Core] = {}
    decode = msgspec.json.Decoder(_Line).decode
    for line in lines:
        entry = decode(line)
        _check_line(entry)
        if entry.input is None or entry.room not in known:
            continue
        given: Input = decoders[entry.room].decode(line)
        key = (entry.room, given.core_key)
        if entry.input == "open":
            cores[key] = known[entry.room].open(given, log)
            continue
        if key not in cores:
            raise ValueError(f"the log does not say how this core was made: {entry.room} {given.core_key}".rstrip())
        # Logged once more by the core, with what it raises, if it does.
        with suppress(*() if entry.raised is None else (Exception,)):
            cores[key].apply(given)


def _check_line(entry: _Line) -> None:
    """Raise ValueError if lines are missing here, or cannot be read."""
    if entry.room != LOG_ROOM:
        return
    if entry.gap:
        raise ValueError(f"{entry.gap} lines are missing here: the log can be replayed up to them")
    if entry.version > LOG_VERSION:
        raise ValueError(f"the log has version {entry.version}, and this maitred reads logs up to version {LOG_VERSION}")
