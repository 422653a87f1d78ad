"""TappedLog: a decision log that also hands on what it is told, as objects, to who looks at them later.

Cores have one log, and with it they make a struct of each input. Who follows inputs beside a file, or without one, taps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from maitred.core.decisions import DecisionLog, Input, Recorder
from maitred.core.request import RequestId


class Told:
    """An input that a core has taken, with what was decided."""

    __slots__ = ("decisions", "given", "room")

    def __init__(self, room: str, given: Input) -> None:
        self.room, self.given = room, given
        self.decisions: Iterable[Any] = ()


class TappedLog(DecisionLog):
    """A log that is written as another one says, or not at all."""

    def __init__(self, log: DecisionLog | None, tap: Callable[[Told], object]) -> None:
        """`log` writes the lines; None: none are written. `tap` gets each input that was taken and raised nothing, before its
        decisions are added to it."""
        super().__init__(_drop)
        self._log, self._tap = log, tap
        self.is_narrated = log is not None and log.is_narrated
        self.takes_notes = log is not None and log.takes_notes
        self.keeps_changes = log is not None and log.keeps_changes
        self._last: Told | None = None

    def log_input(self, room: str, given: Input, raised: str | None = None) -> None:
        if self._log is not None:
            self._log.log_input(room, given, raised)
        self._last = None
        if raised is None:
            told = self._last = Told(room, given)
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
