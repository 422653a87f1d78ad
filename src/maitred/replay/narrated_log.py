"""NarratedLog: a log of decisions that a narrator listens to, and that need not be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from maitred.core.decisions import DecisionLog, Input
from maitred.core.request import RequestId
from maitred.replay.narrator import Narrator


class NarratedLog(DecisionLog):
    """A log that a narrator listens to; it is written only with `write`."""

    is_narrated = True

    def __init__(self, narrator: Narrator, write: Callable[[bytes], object] | None = None) -> None:
        super().__init__(write or len)
        self.narrator = narrator
        self._is_written = self.keeps_changes = write is not None

    def log_input(self, room: str, given: Input, raised: str | None = None) -> None:
        if self._is_written:
            super().log_input(room, given, raised)
        if raised is None:
            self.narrator.on_input(room, given)

    def log_decisions(self, room: str, decisions: Iterable[msgspec.Struct]) -> None:
        if self._is_written:
            super().log_decisions(room, decisions)
        self.narrator.on_decisions(room, decisions)

    def log_change(self, room: str, change: msgspec.Struct) -> None:
        if self._is_written:
            super().log_change(room, change)

    def log_note(self, room: str, note: Mapping[str, Any]) -> None:
        if self._is_written:
            super().log_note(room, note)
        self.narrator.on_note(note)

    def tell_scores(self, number: RequestId, scores: Sequence[Mapping[str, Any]]) -> None:
        self.narrator.on_scores(number, scores)
