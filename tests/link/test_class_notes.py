"""Which class a request has asked for, on its way to the log of a scheduler."""

from __future__ import annotations

import json

from link_pair import BULK, SECRET, SYSTEM, FirstBackend, Pair, classes

from maitred.admission import Admission
from maitred.core.decisions import DecisionLog
from maitred.replay import ROOMS
from maitred.replay.story import Story
from maitred.replay.why import tell
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.link.terms import ClassNote, RequestTerms
from maitred.scheduler.sharing.class_notes import ClassNotes

RULE = "the highest that tenant t may have"
TERMS = RequestTerms("m", BULK, "t", 1, 1, client_id="job", class_note=ClassNote(SYSTEM, RULE))


class LoggedPair(Pair):
    """A pair whose scheduler writes a log."""

    def new_scheduler(self, **said: object) -> SchedulerEnd:
        self.log: list[bytes] = []
        log, config = DecisionLog(self.log.append), classes(**said)
        return SchedulerEnd(
            SECRET, lambda now: Admission(config, {}, log=log, now=now), lambda books: FirstBackend((0, 1)), notes=log
        )

    def submit_noted(self, number: int) -> None:
        self.gateways["a"].submit(number, TERMS, self.local("a"))
        self.exchange()

    def story(self) -> Story:
        (*_, story), _ = tell((("log", number, line) for number, line in enumerate(self.log, 1)), ROOMS, "job")
        return story


def test_a_scheduler_with_a_log_asks_for_notes_and_one_without_does_not() -> None:
    for pair, keeps_notes in ((LoggedPair(), True), (Pair(), False)):
        notes: list[bool] = []
        pair.line = lambda event, notes=notes: notes.append(event.keeps_notes) or ""  # type: ignore[assignment,misc]
        pair.lose("a")
        pair.connect("a")
        assert notes == [keeps_notes]


def test_the_note_of_a_request_is_in_the_log_under_the_number_that_its_scheduler_gives_it() -> None:
    p = LoggedPair()
    p.submit_noted(5)
    lines = [json.loads(line) for line in p.log]
    number = next(line["id"] for line in lines if line.get("input") == "submit")
    assert [line["note"] for line in lines if "note" in line] == [{"id": number, "asked": "system", "rule": RULE}]
    assert (p.story().class_asked, p.story().class_rule, p.story().priority_class) == ("system", RULE, "bulk")


def test_the_next_scheduler_has_the_note_of_a_request_that_it_takes_over() -> None:
    p = LoggedPair()
    p.submit_noted(5)
    p.lose("a")
    p.end = p.new_scheduler()  # with a log of its own
    p.lead(2)
    p.connect("a")
    p.at(4)
    assert p.held() == {"a": 1}
    assert {"open", "adopt"} <= {json.loads(line).get("input") for line in p.log}
    assert p.story().class_asked == "system"


def test_a_note_is_there_once_and_the_oldest_of_too_many_goes() -> None:
    notes = ClassNotes()
    for number in range(10_001):
        notes.log_note("intake", {"id": number, "asked": "default", "rule": "as it named none"})
    assert notes.take(0) is None
    assert notes.take(1) == ClassNote(1, "as it named none")
    assert notes.take(1) is None
