"""TappedLog: a decision log that also hands on what it is told, as objects, to who looks at them later.

Cores have one log, and with it they make a struct of each input. Who follows inputs beside a file, or without one, taps it.
While nobody does, and no file is written, cores make no struct, as without a log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from maitred.core.decisions import DecisionLog, Input, Recorder
from maitred.core.request import RequestId


class TakenInput:
    """An input that a core has taken, with what was decided."""

    __slots__ = ("decisions", "given", "room")

    def __init__(self, room: str, given: Input) -> None:
        self.room, self.given = room, given
        self.decisions: Iterable[Any] = ()


class LoggedCore(Protocol):
    """A core that has a log."""

    def use_log(self, *, is_used: bool) -> None:
        """Tell the log each input from now on, or none."""
        ...


class TappedLog(DecisionLog):
    """A log that is written as another one says, or not at all."""

    def __init__(
        self, log: DecisionLog | None, tap: Callable[[TakenInput], object], rooms: Collection[str] | None = None
    ) -> None:
        """`log` writes the lines; None: none are written. `tap` gets each input of `rooms` (None: of all) that was taken and
        raised nothing, before its decisions are added to it."""
        super().__init__(_drop)
        self._log, self._tap, self.is_written = log, tap, log is not None
        self.is_narrated = log is not None and log.is_narrated
        self.takes_notes = log is not None and log.takes_notes
        self.keeps_changes = log is not None and log.keeps_changes
        self.is_tapped, self.rooms = True, rooms
        self.cores: dict[str, LoggedCore] = {}
        """The core of each room that was made last."""
        self._last: TakenInput | None = None

    def tap(self, *, is_tapped: bool) -> None:
        """Hand on what comes from now on, or not. Between two inputs."""
        self.is_tapped = is_tapped
        for room, core in self.cores.items():
            core.use_log(is_used=self.is_written or self._hands_on(room))

    def note_core(self, room: str, core: LoggedCore) -> None:
        self.cores[room] = core
        core.use_log(is_used=self.is_written or self._hands_on(room))

    def _hands_on(self, room: str) -> bool:
        return self.is_tapped and (self.rooms is None or room in self.rooms)

    def log_input(self, room: str, given: Input, raised: str | None = None) -> None:
        if self._log is not None:
            self._log.log_input(room, given, raised)
        self._last = None
        if raised is None and self._hands_on(room):
            told = self._last = TakenInput(room, given)
            self._tap(told)

    def log_decisions(self, room: str, decisions: Iterable[msgspec.Struct]) -> None:
        if self._log is not None:
            self._log.log_decisions(room, decisions)
        if self._last is not None:
            self._last.decisions = decisions

    def log_change(self, room: str, change: msgspec.Struct) -> None:
        if self._log is not None:
            self._log.log_change(room, change)

    def log_note(self, room: str, note: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.log_note(room, note)

    def tell_scores(self, number: RequestId, scores: Sequence[Mapping[str, Any]]) -> None:
        if self._log is not None:
            self._log.tell_scores(number, scores)


def _drop(line: bytes) -> None:
    """Write nothing."""


class WatchedRecorder(Recorder):
    """A recorder beside which somebody watches, for a while; or who watches a core that has none."""

    def __init__(self, recorder: Recorder | None, watch: Callable[[Input, Sequence[Any]], object]) -> None:
        """`watch` gets each input that was taken and raised nothing, with what was decided."""
        self._recorder, self._watch = recorder, watch

    def record(self, given: Input, take: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        decisions = take() if self._recorder is None else self._recorder.record(given, take)
        self._watch(given, decisions)
        return decisions
