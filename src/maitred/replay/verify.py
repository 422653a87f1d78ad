"""Verify: the cores take the inputs of a log once more, and must decide what the log says.

    for each input of the log:   the core takes it, and says what it logs of it: the input, decisions, changes
                                 these are the next lines of the log, or there is a difference

The first difference ends it, as all that follows may follow from it. Where lines are missing, what a core was told is not known
any more, nor therefore what it must decide: its lines are passed over until the log says anew how it is made (`open`: the next
process, or a core that said it because of the gap). The lines of a log are equal byte for byte; those of an older version may
lack fields, and are compared by what they say.

Memory does not grow with the log: the lines of one input are kept, and the cores.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from maitred.core.decisions import LOG_ROOM, NOTES_ROOM, Core, DecisionLog, Input
from maitred.core.errors import JSON_ERRORS
from maitred.core.replay import LoggedRoom
from maitred.core.units import Micros
from maitred.replay.reading import Broken, Entry, LogPlace, LogReader, Torn
from maitred.replay.state import state_of


class FirstDifference(msgspec.Struct, frozen=True):
    """The first place where a log and its cores part."""

    place: LogPlace
    problem: str
    at: Micros | None = None
    """The instant of the input."""
    given: str = ""
    """The last input that was given, as the log has it."""
    expected: str = ""
    """What the core says once more, or nothing if it says no more."""
    came: str = ""
    """What the log has there."""
    state: dict[str, Any] = {}
    """The core after the input."""


class Gap(msgspec.Struct):
    """A place where lines are missing."""

    place: LogPlace
    num_lines: int | None
    """None: it is not known, because the beginning is missing."""
    num_passed: int = 0
    """Lines behind it that could not be verified."""
    bridged_at: LogPlace | None = None
    """Where the last core that it concerns was made anew, or None if one was not."""


class Verified(msgspec.Struct):
    """What a verification has found."""

    num_lines: int = 0
    num_inputs: int = 0
    num_decisions: int = 0
    """Decisions and changes that were compared."""
    num_unsealed: int = 0
    num_processes: int = 0
    decisions: dict[str, int] = msgspec.field(default_factory=dict)
    """By room."""
    gaps: list[Gap] = msgspec.field(default_factory=list)
    torn: list[LogPlace] = msgspec.field(default_factory=list)
    """Lines that a kill has cut off."""
    difference: FirstDifference | None = None

    @property
    def is_equal(self) -> bool:
        return self.difference is None


class _DifferenceFound(Exception):  # noqa: N818 - it is none
    """A difference was found."""

    def __init__(self, difference: FirstDifference) -> None:
        super().__init__(difference.problem)
        self.difference = difference


class Verifier:
    """Runs one log once more."""

    def __init__(self, rooms: Sequence[LoggedRoom]) -> None:
        self._rooms = {room.name: room for room in rooms}
        self._decoders = {room.name: msgspec.json.Decoder(room.inputs) for room in rooms}
        self._cores: dict[tuple[str, str | int], Core] = {}
        self._lost: set[tuple[str, str | int]] = set()
        """Cores whose state is not known, because lines are missing."""
        self._log = DecisionLog(self._expect)
        self._expected: deque[bytes] = deque()
        self._is_passing = True
        """Whether decisions belong to an input that is missing, or was not given."""
        self._was_sealed = False
        """Whether the last line was a seal."""
        self._opening: tuple[LogPlace, bytes, Entry] | None = None
        """The `open` of a core that has not said it yet."""
        self._last: tuple[bytes, Input | None, Core | None] = (b"", None, None)
        self._found = Verified()
        self._counts: Counter[str] = Counter()

    def run(self, lines: Iterable[tuple[str, int, bytes]]) -> Verified:
        """Verify a log: files, line numbers and lines, in their order. Raises LogError for a version that is not known."""
        reader, found = LogReader(lines), self._found
        place = LogPlace("", 0)
        try:
            for place, line, entry in reader:
                self._take(place, line, entry)
                self._was_sealed = isinstance(entry, Entry) and entry.seal is not None
            self._check_end(place, b"")
        except _DifferenceFound as stop:
            found.difference = stop.difference
        found.num_lines, found.num_processes, found.num_unsealed = reader.num_lines, reader.num_processes, reader.num_unsealed
        found.decisions, found.num_decisions = dict(self._counts), self._counts.total()
        return found

    def _expect(self, line: bytes) -> None:
        if not line.startswith(b'{"room":"log"'):  # Its version, which the other log may not have.
            self._expected.append(line)

    def _take(self, place: LogPlace, line: bytes, entry: Entry | Broken | Torn) -> None:
        if isinstance(entry, Broken):
            raise _DifferenceFound(FirstDifference(place, entry.problem, came=_text(line)))
        if isinstance(entry, Torn):
            self._found.torn.append(place)
            self._expected.clear()  # What is missing of this line may be more than this line.
            self._is_passing = True
        elif entry.room == LOG_ROOM:
            self._take_own(place, line, entry)
        elif entry.input is not None and entry.room in self._rooms:
            self._take_input(place, line, entry)
        elif (entry.decision or entry.change) and entry.room in self._rooms:
            self._take_decision(place, line, entry)
        elif entry.room != NOTES_ROOM or not entry.note:
            raise _DifferenceFound(FirstDifference(place, "no room writes such a line", came=_text(line)))

    def _take_own(self, place: LogPlace, line: bytes, entry: Entry) -> None:
        if entry.version is not None:  # Another process: nothing that came before concerns it.
            self._check_end(place, line)
            self._expected.clear()
            self._cores.clear()
            self._lost.clear()
            self._is_passing = False
        elif entry.gap:
            self._expected.clear()
            self._found.gaps.append(Gap(place, entry.gap))
            self._lost.update(self._cores)
            self._cores.clear()
            self._is_passing = True

    def _take_input(self, place: LogPlace, line: bytes, entry: Entry) -> None:
        try:
            given = self._decoders[entry.room].decode(line)
        except JSON_ERRORS as error:
            raise _DifferenceFound(
                FirstDifference(place, f"it is no input of {entry.room}: {error}", came=_text(line))
            ) from None
        key = (entry.room, given.core_key)
        self._check_all_came(place, line)
        self._is_passing = False
        if entry.input == "open":
            self._cores[key] = self._open(place, line, entry.room, given)
            self._note_bridged(place, key)
            if not self._expected:  # This core says how it is made with its first input.
                self._opening = (place, line, entry)
                return
        elif key in self._cores:
            self._give(place, line, entry, given, self._cores[key])
        else:
            self._pass_over(place, key)
            return
        if self._opening is not None:
            opening, self._opening = self._opening, None
            self._compare(*opening)
        self._found.num_inputs += 1
        self._compare(place, line, entry)

    def _open(self, place: LogPlace, line: bytes, room: str, given: Any) -> Core:
        self._last = (line, given, None)
        try:
            return self._rooms[room].open(given, self._log)
        except Exception as error:  # Whatever a changed configuration leads to.
            problem = f"the core cannot be made: {type(error).__name__}: {error}"
            raise _DifferenceFound(FirstDifference(place, problem, given.at, _text(line))) from error

    def _give(self, place: LogPlace, line: bytes, entry: Entry, given: Any, core: Core) -> None:
        """Let a core take an input, which may raise if it did so when the log was written."""
        self._last = (line, given, core)
        try:
            with suppress(*() if entry.raised is None else (Exception,)):
                core.apply(given)
        except Exception as error:  # What a core raises for an input that was changed can be anything.
            problem = f"the core refuses this input now: {type(error).__name__}: {error}"
            raise _DifferenceFound(
                FirstDifference(place, problem, given.at, _text(line), state=state_of(core, given))
            ) from error

    def _take_decision(self, place: LogPlace, line: bytes, entry: Entry) -> None:
        if self._is_passing:
            self._count_passed()
            return
        self._counts[entry.room] += 1
        self._compare(place, line, entry)

    def _compare(self, place: LogPlace, line: bytes, entry: Entry) -> None:
        """Compare a line with the next that the core has said."""
        expected = self._expected.popleft() if self._expected else b""
        if expected != line and (not expected or not self._says_the_same(expected, line, entry)):
            problem = "the core decides otherwise" if expected else "the core decides nothing more here"
            raise _DifferenceFound(self._difference(place, problem, expected, line))

    def _says_the_same(self, expected: bytes, line: bytes, entry: Entry) -> bool:
        """Return whether two lines differ only by fields that an older version did not write."""
        if entry.input is not None:
            again = msgspec.json.decode(expected, type=Entry)
            decode = self._decoders[entry.room].decode
            return again.raised == entry.raised and again.input == entry.input and bool(decode(expected) == decode(line))
        try:
            ours, theirs = msgspec.json.decode(expected), msgspec.json.decode(line)
        except JSON_ERRORS:
            return False
        kind = "decision" if entry.decision else "change"
        return kind in ours and all(ours[kind].get(name) == value for name, value in theirs[kind].items())

    def _check_all_came(self, place: LogPlace, line: bytes) -> None:
        """Raise _DifferenceFound if the core has said more of the last input than the log has."""
        if self._expected:
            raise _DifferenceFound(self._difference(place, "the log lacks what the core decides", self._expected[0], line))

    def _check_end(self, place: LogPlace, line: bytes) -> None:
        """Raise _DifferenceFound if a process has ended in good order, and lacks lines. A kill may lose the last ones."""
        if self._was_sealed:
            self._check_all_came(place, line)

    def _difference(self, place: LogPlace, problem: str, expected: bytes, came: bytes) -> FirstDifference:
        given_line, given, core = self._last
        state = {} if core is None or given is None else state_of(core, given)
        at = None if given is None else given.at
        return FirstDifference(place, problem, at, _text(given_line), _text(expected), _text(came), state)

    def _pass_over(self, place: LogPlace, key: tuple[str, str | int]) -> None:
        """Pass over an input of a core of which it is not known how it was made."""
        self._is_passing = True
        if key not in self._lost:
            self._lost.add(key)
            if not self._found.gaps:
                self._found.gaps.append(Gap(place, None))
        self._count_passed()

    def _count_passed(self) -> None:
        if self._found.gaps:
            self._found.gaps[-1].num_passed += 1

    def _note_bridged(self, place: LogPlace, key: tuple[str, str | int]) -> None:
        if key in self._lost:
            self._lost.discard(key)
            if not self._lost:
                self._found.gaps[-1].bridged_at = place


def _text(line: bytes) -> str:
    return line.rstrip(b"\n").decode(errors="replace")
