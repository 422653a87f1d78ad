"""The story of one request: what happened to it, when, by which rule, in sentences and as data.

A story is made of what the cores were told and have decided (`narrator`), so a simulation tells it in the same words as a
gateway. Its instants are milliseconds from the arrival of the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from maitred.core.units import Micros

ADMITTED: Final[Mapping[str, str]] = {
    "slot_free": "a slot was free for its class",
    "lead_free": "it got a slot beyond what the engines run at once, and so the next place in one",
    "victim_gone": "its victim {other} had left, and the slot was kept for it",
    "starved": "it was promoted: it had waited longer than its class's starvation threshold",
}
QUEUED: Final[Mapping[str, str]] = {
    "no_capacity": "the pool has no slots: no backend is up",
    "no_slot": "every slot was held",
    "held_by_reservation": "a slot was idle, but a higher class has reserved it",
    "behind_queue": "requests of its class, or of a higher one, waited already",
    "tenant_limit": "its tenant {tenant} holds as many slots as it may",
    "rate_limit": "the token bucket was empty",
    "saturated": "the instances were as loaded as they may be for requests of its urgency",
    "victim_leaving": "{other} was preempted for it, and its slot was about to be free",
    "victim_declined": "the response of its victim had begun already",
    "budget_spent": "its victim did not leave in time",
    "to_be_retried": "it was preempted, and is first in its class to be tried again",
    "taken_over": "it waited already when its gateway began with this scheduler",
    "lost_backend": "its backend failed it and took a slot along, and it is first in its class",
}
REJECTED: Final[Mapping[str, str]] = {
    "queue_full": "the queue of its class was full",
    "queue_timeout": "it had waited for the queue timeout of its class",
    "tenant_queue_full": "as many requests of its tenant waited as may",
    "rate_limited": "the request rate was above its limit",
    "band_full": "as many requests of its priority waited as may",
    "displaced": "the more urgent {other} took its place in a full queue",
}
_ENDS: Final[Mapping[str, str]] = {
    "drained": "the client had the whole answer",
    "client_gone": "its client left, or the gateway shut down",
    "gateway_gone": "its gateway or worker was lost, or cut off from the scheduler, before it told how",
    "failed": "the backend, or the gateway, could not finish it",
    "preempted": "it gave its slot to its preemptor",
}
_PASSED: Final[Mapping[str, str]] = {
    "higher_class": "of a higher class, which goes first",
    "starved": "promoted, as they had waited longer than the threshold of their class",
    "tenant_limit": "while its own tenant held as many slots as it may",
    "first_again": "victims or requests of a failed backend, which are first in their class again",
    "turn": "in the turn of their tenants, by weights and what these were charged",
}


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened to a request."""

    at: Micros
    """On the clock of the log."""
    kind: str
    said: str
    """A whole sentence without its instant."""
    facts: dict[str, Any] = {}


class Passed(msgspec.Struct, frozen=True):
    """Requests that came later, or of a lower class, and got a slot first."""

    rule: str
    count: int
    examples: list[int]
    """Numbers of up to five of them."""


class Holding(msgspec.Struct, frozen=True):
    """What held the slots of a pool from an instant of a wait on."""

    ms: float
    """Since the wait began."""
    slots: int | None
    """None: without limit."""
    held: dict[str, int]
    """Slots in use by class."""
    held_back: dict[str, int]
    """Slots that are idle and reserved, by the class that they are reserved for."""
    tenant: int
    """Requests of the tenant of the request that held a slot; 0 where it is not among the five that hold most."""


class Wait(msgspec.Struct):
    """A time in a queue of admission."""

    began: Micros
    reason: str
    ahead: int
    """Requests that were to go first when it began."""
    ended: Micros | None = None
    outcome: str = ""
    places: list[tuple[float, int]] = msgspec.field(default_factory=list)
    """How many were ahead, by ms since the wait began; at most twenty points."""
    passed: list[Passed] = msgspec.field(default_factory=list)
    held: list[Holding] = msgspec.field(default_factory=list)
    """What held the slots, at most ten times what has changed."""


class Story(msgspec.Struct):
    """All that is known of one request."""

    number: int
    request_id: str = ""
    """As in the answer, the access log and the recording; empty where its client had none, as in a simulation."""
    model: str = ""
    tenant: str = ""
    program: str = ""
    priority_class: str = ""
    """The class that it was given."""
    class_asked: str | None = None
    """The class that it asked for; None: not recorded."""
    class_rule: str = ""
    began: Micros = 0
    ended: Micros | None = None
    outcome: str = "under way"
    instance: str = ""
    first_byte: Micros | None = None
    preemptions: int = 0
    retries: int = 0
    waits: list[Wait] = msgspec.field(default_factory=list)
    events: list[Event] = msgspec.field(default_factory=list)
    memory_wait: Micros = 0
    """Time in which its program waited for KV memory."""

    @property
    def queue_wait(self) -> Micros:
        """Time in queues of admission."""
        return sum((wait.ended or self.ended or wait.began) - wait.began for wait in self.waits)

    def add(self, at: Micros, kind: str, said: str, **facts: Any) -> None:
        """Add an event."""
        self.events.append(Event(at, kind, said, facts))


def admitted_in_words(reason: str, other: int | None) -> str:
    """Return why a request got a slot."""
    return ADMITTED.get(reason, reason).format(other=f"request {other}")


def queued_in_words(reason: str, other: int | None, tenant: str) -> str:
    """Return why a request waits."""
    return QUEUED.get(reason, reason).format(other=f"request {other}", tenant=tenant or "(none)")


def rejected_in_words(reason: str, other: int | None) -> str:
    """Return why a request was rejected."""
    known = REJECTED.get(reason)
    return known.format(other=f"request {other}") if known is not None else f"the admission policy refused it: {reason}"


def ended_in_words(end: str) -> str:
    """Return how a request that held a slot has ended."""
    return _ENDS.get(end, end)


def held_in_words(state: Mapping[str, Any], own_class: str) -> str:
    """Name the holders of a pool's slots (`state.pool_state`) for a request of a class that gets none."""
    classes = state["classes"]
    held = [f"{c['in_flight']} {name}" for name, c in classes.items() if c["in_flight"]]
    above = list(classes)[: list(classes).index(own_class)] if own_class in classes else []
    back = [f"{classes[name]['held_back']} for {name}" for name in above if classes[name]["held_back"]]
    lead = state.get("lead", 0)
    parts = [
        f"of {state['slots']:,} slots" if state["slots"] is not None else "of slots without limit",
        f"{state['in_flight']:,} held ({', '.join(held)})" if held else "none held",
    ]
    if back:
        parts.append(f"reserved and kept idle: {', '.join(back)}")
    if lead:
        parts.append(f"{lead} of them beyond what the engines run at once")
    return ", ".join(parts)


def in_sentences(story: Story) -> Iterator[str]:
    """Yield the story, a line for each sentence."""
    name = f"request {story.number:,}" + (f" ({story.request_id})" if story.request_id else "")
    parts = [f"model {story.model}" if story.model else "", f"tenant {story.tenant}" if story.tenant else ""]
    parts.append(f"program {story.program}" if story.program else "")
    about = ", ".join(part for part in parts if part)
    yield f"{name}: {story.outcome}" + (f"; {about}" if about else "")
    yield f"  {_class_in_words(story)}"
    waits = {wait.began: wait for wait in story.waits}
    for event in story.events:
        yield f"  {_instant(event.at, story.began)}  {event.said}"
        if event.kind == "queue" and (wait := waits.get(event.at)) is not None:
            yield from (f"              {line}" for line in _wait_in_words(wait))
    yield f"  {_sum_in_words(story)}"


def _class_in_words(story: Story) -> str:
    if story.class_asked is None:
        return f"Its class is {story.priority_class or 'default'}; which one it asked for is not in this log."
    rule = f", {story.class_rule}" if story.class_rule else ""
    return f"It asked for class {story.class_asked} and was given {story.priority_class}{rule}."


def _wait_in_words(wait: Wait) -> Iterator[str]:
    if len(wait.places) > 1:
        yield "ahead of it: " + ", ".join(f"{ahead} at {at:,.0f} ms" for at, ahead in wait.places)
    for passed in wait.passed:
        examples = ", ".join(map(str, passed.examples)) + (", ..." if passed.count > len(passed.examples) else "")
        yield f"{passed.count:,} went past it: {_PASSED.get(passed.rule, passed.rule)} ({examples})"
    if len(wait.held) > 1:
        yield "held meanwhile:"
        yield from (f"{each.ms:>9,.0f} ms  {_holding_in_words(each, wait.reason)}" for each in wait.held)


def _holding_in_words(holding: Holding, reason: str) -> str:
    held = sum(holding.held.values())
    by_class = ", ".join(f"{count:,} {name}" for name, count in holding.held.items())
    parts = [f"{held:,} of {holding.slots:,}" if holding.slots is not None else f"{held:,}"]
    if by_class:
        parts[0] += f" ({by_class})"
    if holding.held_back:
        parts.append("reserved and idle: " + ", ".join(f"{count:,} for {name}" for name, count in holding.held_back.items()))
    if holding.slots is not None and held > holding.slots:
        parts.append(f"{held - holding.slots:,} beyond the slots")
    if reason == "tenant_limit":
        parts.append(f"{holding.tenant:,} by its own tenant")
    return "; ".join(parts)


def _sum_in_words(story: Story) -> str:
    end = story.ended
    parts = [f"waited {story.queue_wait / 1000:,.1f} ms for a slot"]
    if story.memory_wait:
        parts.insert(0, f"waited {story.memory_wait / 1000:,.1f} ms for memory of its program")
    if story.first_byte is not None:
        parts.append(f"first byte after {(story.first_byte - story.began) / 1000:,.1f} ms")
    if end is not None:
        parts.append(f"end after {(end - story.began) / 1000:,.1f} ms")
    parts += [f"{n} {word}" for n, word in ((story.preemptions, "preemptions"), (story.retries, "retries")) if n]
    return "In all: " + ", ".join(parts) + "."


def _instant(at: Micros, began: Micros) -> str:
    return f"{(at - began) / 1000:>9,.1f} ms"


def story_data(story: Story) -> dict[str, Any]:
    """Return a story as JSON has it: instants in ms from the arrival, sentences beside facts."""
    began = story.began

    def ms(at: Micros | None) -> float | None:
        return None if at is None else (at - began) / 1000

    return {
        "id": story.request_id,
        "number": story.number,
        "outcome": story.outcome,
        "model": story.model,
        "tenant": story.tenant,
        "program": story.program,
        "class": {"asked": story.class_asked, "given": story.priority_class, "rule": story.class_rule},
        "instance": story.instance,
        "queue_ms": story.queue_wait / 1000,
        "memory_wait_ms": story.memory_wait / 1000,
        "first_byte_ms": ms(story.first_byte),
        "end_ms": ms(story.ended),
        "preemptions": story.preemptions,
        "retries": story.retries,
        "waits": [
            {
                "from_ms": ms(wait.began),
                "to_ms": ms(wait.ended),
                "reason": wait.reason,
                "ahead": wait.ahead,
                "places": [{"ms": at, "ahead": ahead} for at, ahead in wait.places],
                "passed_by": [msgspec.to_builtins(passed) for passed in wait.passed],
                "held": [msgspec.to_builtins(holding) for holding in wait.held],
                "outcome": wait.outcome,
            }
            for wait in story.waits
        ],
        "events": [{"ms": ms(event.at), "kind": event.kind, "said": event.said, **event.facts} for event in story.events],
        "story": list(in_sentences(story)),
    }
