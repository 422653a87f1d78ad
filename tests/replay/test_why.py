"""The story of a request, told by the cores: places, who went past, what held the slots, and in aggregate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maitred import simulate
from maitred.admission import Admission, AdmissionConfig, Reason, ReleaseReason, Ticket, TicketState
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.replay import ROOMS
from maitred.replay.narrated_log import NarratedLog
from maitred.replay.narrator import Narrator
from maitred.replay.story import ADMITTED, QUEUED, REJECTED, Story, in_sentences, story_data
from maitred.replay.why import find_slow, tell
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig

BULK, CHAT = PriorityClass.BULK, PriorityClass.INTERACTIVE


def play(narrator: Narrator, lines: list[bytes]) -> Admission:
    """Serve four requests with one slot: 0 holds it, 1 (bulk) waits, then 2 (interactive) and 3 (bulk) come, and 0 ends."""
    config = AdmissionConfig(mode="priority", on_preempt="reject", preemption_budget_ms=0)
    core = Admission(config, {"m": 1}, log=NarratedLog(narrator, lines.append))
    narrator.core = core
    for number, (at, priority_class) in enumerate(((0, CHAT), (1000, BULK), (2000, CHAT), (3000, BULK))):
        ticket = Ticket(number, "m", priority_class, f"auth:{number % 2}", client_id=f"job-{number}")
        core.submit(ticket, at)
        if number == 0:
            core.confirm_first_byte(0, 500)
    core.release(0, ReleaseReason.DRAINED, 10_000)
    core.confirm_first_byte(2, 12_000)
    core.release(2, ReleaseReason.DRAINED, 20_000)
    core.release(1, ReleaseReason.DRAINED, 30_000)
    core.release(3, ReleaseReason.CLIENT_GONE, 31_000)
    return core


def numbered(lines: list[bytes]) -> list[tuple[str, int, bytes]]:
    return [("log", number, line) for number, line in enumerate(lines, 1)]


def test_a_story_has_places_those_who_went_past_and_what_held_the_slots() -> None:
    narrator, lines = Narrator(), list[bytes]()
    play(narrator, lines)
    (story,) = narrator.find("job-1")
    (wait,) = story.waits
    assert (wait.reason, wait.began, wait.ended, wait.ahead) == ("no_slot", 1000, 20_000, 0)
    assert wait.places == [(0.0, 0), (1.0, 1), (9.0, 0)]  # 2 came at 2 ms, and had the slot at 10 ms.
    assert [(passed.rule, passed.examples) for passed in wait.passed] == [("higher_class", [2])]
    assert (story.queue_wait, story.ended, story.outcome) == (19_000, 30_000, "drained")
    queued = next(event for event in story.events if event.kind == "queue")
    assert "of 1 slots, 1 held (1 interactive)" in queued.said
    said = "\n".join(in_sentences(story))
    assert "1 went past it: of a higher class, which goes first (2)" in said


def test_what_ends_with_its_gateway_is_not_laid_to_its_client() -> None:
    narrator = Narrator()
    core = play(narrator, [])
    for number in (4, 5):
        core.submit(Ticket(number, "m", BULK, client_id=f"job-{number}"), 40_000)
    core.release(5, ReleaseReason.GATEWAY_GONE, 41_000)
    core.release(4, ReleaseReason.GATEWAY_GONE, 42_000)
    (held,), (waited,) = narrator.find("job-4"), narrator.find("job-5")
    assert waited.events[-1].said == "Its gateway or worker was lost, or cut off from the scheduler, while it waited."
    assert "its gateway or worker was lost" in held.events[-1].said
    assert held.outcome == "gateway_gone"


def test_a_request_that_a_new_leader_takes_over_has_its_whole_story_there() -> None:
    narrator = Narrator()
    config = AdmissionConfig(mode="priority", on_preempt="reject", preemption_budget_ms=0)
    core = Admission(config, {"m": 1}, now=9_000, log=NarratedLog(narrator, list[bytes]().append))
    narrator.core = core
    tickets = [Ticket(number, "m", BULK, client_id=f"job-{number}") for number in range(3)]
    for ticket, at, state in zip(tickets, (1_000, 4_000, 2_000), ("STREAMING", "QUEUED", "QUEUED"), strict=True):
        ticket.submitted_at, ticket.state = at, TicketState[state]
    core.adopt(tickets, 9_000)
    core.release(0, ReleaseReason.DRAINED, 10_000)
    core.release(2, ReleaseReason.DRAINED, 20_000)
    (holder,), (younger,), (older,) = map(narrator.find, ("job-0", "job-1", "job-2"))
    assert (holder.events[-1].kind, holder.outcome, holder.waits) == ("end", "drained", [])
    assert [(wait.reason, wait.began, wait.ended, wait.ahead) for wait in older.waits] == [
        ("elsewhere", 2_000, 9_000, 0),
        ("taken_over", 9_000, 10_000, 0),
    ]
    assert (younger.waits[-1].ahead, younger.waits[-1].ended) == (0, 20_000), "it was the first of which was heard"
    assert "it waited already when its gateway began" in "\n".join(in_sentences(older))


def data(story: Story) -> dict[str, Any]:
    """Return a story without what held the slots: a gateway looks ten times a second, a log is read whole."""
    for wait in story.waits:
        wait.held = []
    return story_data(story)


def test_what_held_the_slots_is_told_over_time() -> None:
    """One of three slots is reserved for chats. A request of a tenant that may hold one waits while chats come and go."""
    lines: list[bytes] = []
    limits = {"auth:a": {"max_in_flight": 1}}
    classes = {"interactive": {"reserved_floor": 1}, "system": {"reserved_floor": 0}}
    config = msgspec.convert({"mode": "priority", "classes": classes, "tenant_policies": limits}, AdmissionConfig)
    core = Admission(config, {"m": 3}, log=NarratedLog(Narrator(), lines.append))
    for number, (priority_class, tenant) in enumerate(((BULK, "a"), (BULK, "a"), (CHAT, "c"), (CHAT, "c"))):
        core.submit(Ticket(number, "m", priority_class, f"auth:{tenant}"), number * 1000)
    core.release(3, ReleaseReason.DRAINED, 4000)
    core.release(0, ReleaseReason.DRAINED, 5000)
    core.release(1, ReleaseReason.DRAINED, 6000)
    ((story,), _) = tell(numbered(lines), ROOMS, "1")
    (wait,) = story.waits
    assert wait.reason == "tenant_limit"
    assert [(each.ms, each.held, each.held_back, each.tenant) for each in wait.held] == [
        (0, {"bulk": 1}, {"interactive": 1}, 1),
        (1, {"bulk": 1, "interactive": 1}, {}, 1),
        (2, {"bulk": 1, "interactive": 2}, {}, 1),
        (3, {"bulk": 1, "interactive": 1}, {}, 1),
    ]
    assert "1 ms  2 of 3 (1 interactive, 1 bulk); 1 by its own tenant" in "\n".join(in_sentences(story))


def test_the_log_tells_the_same_as_the_core_that_writes_it() -> None:
    narrator, lines = Narrator(), list[bytes]()
    play(narrator, lines)
    for name in ("job-0", "job-1", "job-2", "job-3"):
        (story,) = narrator.find(name)
        told, _ = tell(numbered(lines), ROOMS, name)
        assert [data(each) for each in told] == [data(story)]
    assert tell(numbered(lines), ROOMS, "nobody")[0] == []
    assert [each.number for each in tell(numbered(lines), ROOMS, "3")[0]] == [3]


def test_every_reason_of_admission_has_words() -> None:
    of_others = {Reason.POLICY, Reason.CLIENT_GONE, Reason.HIGHER_CLASS}
    assert set(map(str, set(Reason) - of_others)) <= {*ADMITTED, *QUEUED, *REJECTED}


def test_memory_is_bounded() -> None:
    narrator = Narrator(max_stories=2, max_moves=3)
    play(narrator, [])
    assert list(narrator.stories) == [2, 3]


def test_a_note_says_which_class_was_asked_for() -> None:
    narrator = Narrator()
    log = NarratedLog(narrator)
    log.log_note("intake", {"id": 0, "asked": "system", "rule": "its tenant may have at most interactive"})
    core = Admission(AdmissionConfig(), {"m": 1}, log=log)
    core.submit(Ticket(0, "m", CHAT), 5)
    (story,) = narrator.find("0")
    assert list(in_sentences(story))[1].strip() == (
        "It asked for class system and was given interactive, its tenant may have at most interactive."
    )


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """The log of a simulation with a router that adds up scores."""
    found: list[bytes] = []
    routing = RoutingConfig(policy="weighted")
    simulate("sample:mixed", ClusterConfig(num_instances=2, capacity=3), routing=routing, log=DecisionLog(found.append))
    return found


def story_of(lines: list[bytes], name: str) -> Story:
    ((story, *_), _) = tell(numbered(lines), ROOMS, name)
    return story


def test_a_simulation_tells_its_story_with_the_scores_that_chose_the_instance(lines: list[bytes]) -> None:
    story = story_of(lines, "40")
    routed = next(event for event in story.events if event.kind == "route")
    assert len(routed.facts["scores"]) == 2
    assert routed.facts["scores"][routed.facts["instance"]]["sum"] == max(each["sum"] for each in routed.facts["scores"])
    assert routed.said.startswith(f"Instance {routed.facts['instance']} was chosen: best score. Scores: instance 0:")


def test_scores_change_no_decision(lines: list[bytes]) -> None:
    again: list[bytes] = []
    simulate(
        "sample:mixed",
        ClusterConfig(num_instances=2, capacity=3),
        routing=RoutingConfig(policy="weighted"),
        log=NarratedLog(Narrator(), again.append),
    )
    assert again == lines


def test_the_slowest_of_each_class_add_up(lines: list[bytes]) -> None:
    table, _ = find_slow(numbered(lines), ROOMS)
    rows = {row.priority_class: row for row in table.rows(5)}
    assert set(rows) == {"bulk", "interactive"}
    for row in rows.values():
        assert row.slowest == 5
        parts = row.memory_ms + sum(row.by_reason.values()) + row.served_ms
        assert parts == pytest.approx(row.mean_ms)
    slowest = table.requests(1)
    assert [each.priority_class for each in slowest] == ["bulk", "interactive"]
    story = story_of(lines, str(slowest[0].number))
    assert story.first_byte is not None
    assert slowest[0].total_ms == pytest.approx((story.first_byte - story.began) / 1000)


def test_the_command(maitred: Callable[..., Any], tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / "log").write_bytes(b"".join(lines))
    told = maitred("why", 40, "--log", "log")
    assert (told.code, told.out.startswith("request 40: drained")) == (0, True)
    data = json.loads(maitred("why", 40, "--log", "log", "--json").out)
    assert data[0]["story"] == told.out.splitlines()
    table = maitred("why", "--slow", 3, "log")
    assert (table.code, "waited: behind queue" in table.out) == (0, True)
    (tmp_path / "readme").write_text("# No log\n\nIt is none.\n")
    refused = maitred("why", 40, "--log", "readme")
    assert "no decision log: readme, line 1: it is no line of a decision log" in refused.err
    wrong = ("why", "nobody", "--log", "log"), ("why", "1"), ("why", "1", "2", "--log", "log"), ("why", "1", "--log", "readme")
    for arguments in wrong:
        refused = maitred(*arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
