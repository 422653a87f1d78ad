"""What a decision log says of a recorded run that no record has: of each request, and the rules in force.

    of a request    the class that its client asked for, the program that has begun its own, whether it waited, how it ended
    rules           the configuration and the slots under which most requests came

Requests are told by the id of the answer. Rooms and processes number them each in their own way, so numbers are only looked at
until the next process begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from maitred.admission import AdmissionConfig
from maitred.core.decisions import LOG_ROOM, NOTES_ROOM
from maitred.core.errors import ConfigError
from maitred.files.rotated import read_lines
from maitred.programs import ProgramsConfig
from maitred.replay.reading import Broken, Entry, LogError, LogReader
from maitred.routing import RoutingConfig

_QUEUED: Final = "queue"


class RulesInForce(msgspec.Struct, frozen=True, kw_only=True):
    """What decided when the log was written, for most of its requests."""

    admission: AdmissionConfig = AdmissionConfig(mode="off")
    routing: RoutingConfig = RoutingConfig()
    programs: ProgramsConfig = ProgramsConfig()
    slots: dict[str, int] = {}
    """By model."""
    num_others: int = 0
    """Requests that came under other rules."""


class LoggedRequest(msgspec.Struct):
    """What the log says of one request."""

    asked: str | None = None
    end: str = ""
    parent: str = ""
    waited: bool = False
    """Whether it was not let in at once."""
    rooms: set[str] = msgspec.field(default_factory=set)
    """Where it was told of."""


class _Line(msgspec.Struct):
    """What is read of a line of the log, whichever it is."""

    id: int = -1
    client_id: str = ""
    pool: str = ""
    capacity: int | None = None
    end: str = ""
    config: msgspec.Raw = msgspec.Raw(b"{}")
    request: dict[str, Any] = {}
    note: dict[str, Any] = {}
    decision: dict[str, Any] = {}


_decode_line: Final = msgspec.json.Decoder(_Line).decode
_CONFIGS: Final = {"admission": AdmissionConfig, "routing": RoutingConfig, "programs": ProgramsConfig}


class LogFacts:
    """What a log says, collected line by line."""

    def __init__(self) -> None:
        self.by_id: dict[str, list[LoggedRequest]] = {}
        self.num_inputs = 0
        self.kv_tokens: int | None = None
        self._open: dict[tuple[str, int], LoggedRequest] = {}
        """By room, and the number of the request there, in the process that writes."""
        self._asked: dict[int, str] = {}
        self._rules: dict[str, bytes] = {}
        self._slots: dict[str, int] = {}
        self._under: Counter[tuple[tuple[str, bytes], ...]] = Counter()
        """Requests by the rules under which they came."""
        self._slots_under: Counter[tuple[str, int]] = Counter()

    def begin_process(self) -> None:
        self._open.clear()
        self._asked.clear()

    def take(self, entry: Entry, line: bytes) -> None:
        self.num_inputs += entry.input is not None
        match entry.room, entry.input:
            case "intake", None:
                note = _decode_line(line).note
                self._asked[int(note["id"])] = str(note["asked"])
            case ("admission" | "routing" | "programs") as room, "open" | "reconfigure":
                self._rules[room] = bytes(_decode_line(line).config)
            case "admission", "resize":
                said = _decode_line(line)
                self._slots[said.pool] = said.capacity or 0
            case "programs", "set_backend":
                self.kv_tokens = _decode_line(line).capacity or self.kv_tokens
            case "admission", "submit":
                said = _decode_line(line)
                self._begin("admission", said.id, said.client_id, said.pool)
            case "admission", "release":
                said = _decode_line(line)
                if (told := self._open.pop(("admission", said.id), None)) is not None:
                    told.end = said.end
            case "admission", None:
                decided = _decode_line(line).decision
                if decided.get("action") == _QUEUED and (told := self._open.get(("admission", int(decided["subject"])))):
                    told.waited = True
            case ("routing", "choose") | ("programs", "begin"):
                request = _decode_line(line).request
                names = (str(request.get("client_id", "")), str(request.get("model", "")))
                told = self._begin(entry.room, int(request["id"]), *names)
                told.parent = told.parent or str(request.get("parent_program") or request.get("parent") or "")

    def _begin(self, room: str, number: int, client_id: str, pool: str) -> LoggedRequest:
        """Note that a request came to a room, under the number that it has there."""
        told = self._open.get((room, number))
        if told is None:
            same = self.by_id.setdefault(client_id, [])
            # Rooms may number it differently. One id in one room twice is two requests.
            told = next((each for each in same if room not in each.rooms), None)
            if told is None:
                told = LoggedRequest(self._asked.get(number))
                same.append(told)
                self._count(pool)
            told.rooms.add(room)
            self._open[room, number] = told
        return told

    def _count(self, pool: str) -> None:
        self._under[tuple(sorted(self._rules.items()))] += 1
        if pool in self._slots:
            self._slots_under[pool, self._slots[pool]] += 1

    def rules(self, models: Collection[str]) -> RulesInForce:
        """Return the rules under which most requests came, with the slots of `models`."""
        (most, count), *_ = self._under.most_common(1)
        sections = {room: msgspec.json.decode(text, type=_CONFIGS[room]) for room, text in most}
        slots: dict[str, int] = {}
        for (pool, number), _ in self._slots_under.most_common():
            if pool in models or not pool:
                slots.setdefault(pool, number)
        return RulesInForce(**sections, slots=slots, num_others=self._under.total() - count)


def read_log(logs: Sequence[Path]) -> LogFacts:
    """Read the facts of a log. Raises ConfigError for a file that is none."""
    facts = LogFacts()
    try:
        for place, line, entry in LogReader(read_lines(logs)):
            if isinstance(entry, Broken) and not facts.num_inputs:
                raise ConfigError(f"it is no decision log: {entry.problem}", where=str(place))
            if not isinstance(entry, Entry):
                continue
            if entry.room == LOG_ROOM:
                if entry.version is not None:
                    facts.begin_process()
            elif entry.input is not None or entry.decision or (entry.room == NOTES_ROOM and entry.note):
                facts.take(entry, line)
    except LogError as error:
        raise ConfigError(str(error), where=path_names(logs)) from error
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"it is no decision log that can be replayed: {error}", where=path_names(logs)) from error
    if not facts.by_id:
        raise ConfigError("there are no requests in this log", where=path_names(logs), hint="name the files of the whole run")
    return facts


def path_names(paths: Iterable[Path]) -> str:
    """Return some files, for a message."""
    return ", ".join(map(str, paths))
