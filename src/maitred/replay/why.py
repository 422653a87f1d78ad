"""Why: the stories of requests from a log, told by the cores that take its inputs once more.

What no log has, such as the state of a pool at an instant or the scores of a router, its cores have again while they run. The
decisions are those of the cores; that they are those of the log too, `verify` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from heapq import nlargest
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from maitred.admission import Admission
from maitred.core.decisions import LOG_ROOM, NOTES_ROOM, Core, Input
from maitred.core.replay import LoggedRoom
from maitred.core.units import Micros
from maitred.replay.narrated_log import NarratedLog
from maitred.replay.narrator import Narrator
from maitred.replay.reading import Broken, Entry, LogError, LogReader
from maitred.replay.story import Story

_SHARE: Final = 0.01
"""Of each class, the slowest requests that a table is about."""


def narrate(lines: Iterable[tuple[str, int, bytes]], rooms: Iterable[LoggedRoom], log: NarratedLog) -> LogReader:
    """Run a log once more for a narrator. Lines that are torn or that nobody can read are passed over, and those of a core that
    the log does not say how to make. Raises LogError for a version that is not known, and if no line is one of a log."""
    known = {room.name: (room, msgspec.json.Decoder(room.inputs)) for room in rooms}
    cores: dict[tuple[str, str | int], Core] = {}
    reader, problem, is_log = LogReader(lines), "", False
    for place, line, entry in reader:
        if not isinstance(entry, Entry):
            problem = problem or f"{place}: {entry.problem if isinstance(entry, Broken) else 'half a line'}"
            continue
        is_log = True
        if entry.room == LOG_ROOM and (entry.version is not None or entry.gap):
            cores.clear()
        elif entry.room == NOTES_ROOM and entry.note:
            log.log_note(entry.room, msgspec.json.decode(entry.note))
        elif entry.input is not None and entry.room in known:
            room, decoder = known[entry.room]
            given: Input = decoder.decode(line)
            _give(room, cores, log, given, entry)
    if problem and not is_log:
        raise LogError(f"no decision log: {problem}")
    return reader


def _give(room: LoggedRoom, cores: dict[tuple[str, str | int], Core], log: NarratedLog, given: Input, entry: Entry) -> None:
    key = (room.name, given.core_key)
    if entry.input == "open":
        core = cores[key] = room.open(given, log)
        if isinstance(core, Admission):
            log.narrator.core = core
    elif key in cores:
        with suppress(Exception):  # It may have raised when the log was written, too.
            cores[key].apply(given)


def tell(lines: Iterable[tuple[str, int, bytes]], rooms: Iterable[LoggedRoom], name: str) -> tuple[list[Story], LogReader]:
    """Return the stories of the requests with an id or number, which several processes may have had, in their order."""
    told: list[Story] = []

    def keep(story: Story) -> None:
        if not any(story is each for each in told):
            told.append(story)

    narrator = Narrator(max_moves=None, wants=lambda number, request_id: name in (request_id, str(number)), on_end=keep)
    reader = narrate(lines, rooms, NarratedLog(narrator))
    for story in narrator.find(name):
        keep(story)
    return told, reader


class SlowRow(msgspec.Struct, frozen=True):
    """What the slowest requests of a class waited for, each a mean in ms."""

    priority_class: str
    requests: int
    """Of the class, with an end."""
    slowest: int
    """How many of them the row is about."""
    from_ms: float
    """The shortest time of these until the first byte, or until the end of a request that had none."""
    mean_ms: float
    memory_ms: float
    by_reason: dict[str, float]
    """In queues of admission, by why they waited."""
    served_ms: float
    """From the slot to the first byte: routing, retries, the engine and its queue."""
    preemptions: int
    rejected: int


class SlowRequest(msgspec.Struct, frozen=True):
    """One slow request."""

    number: int
    request_id: str
    priority_class: str
    total_ms: float
    mostly: str
    """What most of the time went to."""


class _Slow(NamedTuple):
    """A request that has ended."""

    total: float
    number: int
    request_id: str
    parts: dict[str, float] | None
    """What its time went to, in ms; None: all of it to an instance."""
    preemptions: int
    is_rejected: bool


class SlowTable:
    """Collects requests that end. Memory is about 200 bytes for each."""

    def __init__(self) -> None:
        self._ended: dict[str, list[_Slow]] = {}

    def add(self, story: Story) -> None:
        """Take a request that has ended."""
        total = ((story.first_byte if story.first_byte is not None else story.ended or story.began) - story.began) / 1000
        parts = _parts(story, total) if story.waits or story.memory_wait else None
        is_rejected = story.outcome.startswith("rejected")
        slow = _Slow(total, story.number, story.request_id, parts, story.preemptions, is_rejected)
        self._ended.setdefault(story.priority_class or "default", []).append(slow)

    def rows(self, least: int) -> list[SlowRow]:
        """Return a row for each class, about the slowest 1 % of its requests, at least `least` of them if it has as many."""
        return [_row(label, len(ended), self._slowest(label, least)) for label, ended in sorted(self._ended.items())]

    def requests(self, most: int) -> list[SlowRequest]:
        """Return the slowest requests, `most` of each class, the slowest first."""
        return [_request(label, slow) for label in sorted(self._ended) for slow in self._slowest(label, most)[:most]]

    def _slowest(self, label: str, least: int) -> list[_Slow]:
        ended = self._ended[label]
        return nlargest(max(least, round(len(ended) * _SHARE)), ended, key=attrgetter("total"))


def _parts(story: Story, total: float) -> dict[str, float]:
    """Split the time of a request into its parts, in ms: memory, the reasons of its waits, and `instance`."""
    parts = {"memory": story.memory_wait / 1000} if story.memory_wait else {}
    for wait in story.waits:
        ended: Micros = wait.ended or story.ended or wait.began
        parts[wait.reason] = parts.get(wait.reason, 0.0) + (ended - wait.began) / 1000
    return {**parts, "instance": max(0.0, total - sum(parts.values()))}


def _row(label: str, count: int, slowest: list[_Slow]) -> SlowRow:
    sums: Counter[str] = Counter()
    for slow in slowest:
        sums.update(slow.parts or {"instance": slow.total})
    size = len(slowest)
    means = {name: value / size for name, value in sums.items()}
    return SlowRow(
        priority_class=label,
        requests=count,
        slowest=size,
        from_ms=slowest[-1].total,
        mean_ms=sum(slow.total for slow in slowest) / size,
        memory_ms=means.pop("memory", 0.0),
        served_ms=means.pop("instance", 0.0),
        by_reason=means,
        preemptions=sum(slow.preemptions for slow in slowest),
        rejected=sum(slow.is_rejected for slow in slowest),
    )


def _request(label: str, slow: _Slow) -> SlowRequest:
    parts = slow.parts or {"instance": slow.total}
    most = max(parts, key=lambda name: parts[name])
    return SlowRequest(slow.number, slow.request_id, label, slow.total, f"{most} {parts[most]:,.0f} ms")


def find_slow(lines: Iterable[tuple[str, int, bytes]], rooms: Iterable[LoggedRoom]) -> tuple[SlowTable, LogReader]:
    """Return the table of a log."""
    table = SlowTable()
    narrator = Narrator(max_moves=0, on_end=table.add, max_stories=100_000)
    return table, narrate(lines, rooms, NarratedLog(narrator))
