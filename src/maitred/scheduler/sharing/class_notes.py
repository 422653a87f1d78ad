"""ClassNotes: which class each request of a gateway has asked for, on its way to the log of a scheduler in another process.

A gateway makes the note when it takes a request in, and sends it with the terms of the request when that asks for a slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from maitred.core.request import PriorityClass, RequestId
from maitred.scheduler.link.terms import ClassNote

_MOST_NOTES: Final = 10_000
"""Of requests that have asked for no slot: they wait for memory of their program, or have left."""


class ClassNotes:
    """A `NoteTaker` for the log of another process."""

    def __init__(self) -> None:
        self.takes_notes = False
        """Whether the scheduler has a log, as it has said last."""
        self._notes: OrderedDict[RequestId, ClassNote] = OrderedDict()

    def log_note(self, room: str, note: Mapping[str, Any]) -> None:
        """Keep the note of a request until it is submitted. The oldest is dropped where too many are."""
        asked = PriorityClass.from_label(note["asked"])
        if asked is not None:
            self._notes[note["id"]] = ClassNote(asked, note.get("rule", ""))
            if len(self._notes) > _MOST_NOTES:
                self._notes.popitem(last=False)

    def take(self, request: RequestId) -> ClassNote | None:
        """Return the note of a request, once; None if there is none."""
        return self._notes.pop(request, None)
