"""Narrator: follows what cores are told and decide, and knows the story of each request.

It listens to a log of decisions (`NarratedLog`), so it hears the same of a replay, of a simulation and of a gateway that
serves. Memory is bounded: the last `max_stories` requests are known, and the last `max_moves` steps of others, by which it is
found who went past a request that waited.

    joins, leaves of queues    a count by pool and class: how many are ahead of a newcomer
    moves                      what others did meanwhile, in order: places over time, and who went past
    holdings                   what the pools looked like meanwhile: what held the slots

For one request of a long log, `wants` says which: then no other has a story, and others' moves are kept only while it waits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.admission import Action, ReleaseReason
from maitred.admission import inputs as admission
from maitred.core.decisions import Decision, Input
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros
from maitred.programs import inputs as programs
from maitred.programs.enums import ProgramDecision
from maitred.replay.holdings import LIVE_INTERVAL, Holdings, state_of_pool
from maitred.replay.moves import QueueMove, settle
from maitred.replay.story import (
    Story,
    Wait,
    admitted_in_words,
    ended_in_words,
    held_in_words,
    queued_in_words,
    rejected_in_words,
)
from maitred.routing import inputs as routing

MAX_STORIES: Final = 2000
MAX_MOVES: Final = 50_000
MAX_EVENTS: Final = 200
"""Events of one story; further ones are left out, but for the end."""
_MOST_AT_ONCE: Final = 10**9
_FIRST_AGAIN: Final = frozenset(("to_be_retried", "lost_backend", "budget_spent", "victim_declined"))
"""Reasons for which a request waits first in its class."""
_PROGRAM_WORDS: Final[Mapping[str, str]] = {
    "grant": "its program may use memory at instance {backend}",
    "wait": "it waits for memory of its program",
    "reject": "it was refused, as its program gets no memory",
    "pause": "its program was paused, and lost its place at instance {backend}",
    "resume": "its program was resumed at instance {backend}",
    "mark": "its program is to be paused when its requests end",
    "unmark": "its program is not to be paused any more",
    "end": "its program was forgotten",
}


class _Open:
    """A request that admission has not done with."""

    __slots__ = ("has_slot", "is_first_again", "is_waiting", "joined", "pool", "priority_class", "tenant", "urgency")

    def __init__(self, given: admission.Submit, urgency: int, joined: int) -> None:
        self.pool, self.priority_class, self.tenant = given.pool, given.priority_class, given.tenant
        self.urgency, self.joined = urgency, joined
        self.is_waiting = self.is_first_again = self.has_slot = False


class Narrator:
    """Knows the stories of requests."""

    def __init__(
        self,
        max_stories: int = MAX_STORIES,
        max_moves: int | None = MAX_MOVES,
        wants: Callable[[int, str], bool] | None = None,
        on_end: Callable[[Story], object] | None = None,
    ) -> None:
        """`wants` says of which requests, by number and id, the story is told; None: of all. `max_moves` may be 0. `on_end` is
        told of each story that has ended; it may be told of one twice, if a request comes back."""
        self.stories: OrderedDict[RequestId, Story] = OrderedDict()
        self.core: Any = None
        """The admission core, for the state of its pools."""
        self.instance_name: Callable[[int], str] = "{}".format
        self._max_stories, self._wants, self._on_end = max_stories, wants, on_end
        self._moves: deque[QueueMove] = deque(maxlen=max_moves)
        self._keeps_moves = max_moves != 0
        self._holdings = Holdings(LIVE_INTERVAL if wants is None else 0)
        self._touched: set[str] = set()
        """Pools that the last input may have changed."""
        self._num_waiting_wanted = 0
        self._open: dict[RequestId, _Open] = {}
        self._waiting: Counter[tuple[str, int]] = Counter()
        self._num_joined = 0
        self._mode = "priority"
        self._at: Micros = 0
        self._released: admission.Release | None = None
        self._programs: dict[int, RequestId] = {}
        """The last request of each program, by its serial number."""
        self._memory_since: dict[RequestId, Micros] = {}
        self._notes: OrderedDict[RequestId, Mapping[str, Any]] = OrderedDict()

    def find(self, name: str) -> list[Story]:
        """Return the stories of a request, by its id or number, settled until now."""
        found = [story for story in self.stories.values() if name in (story.request_id, str(story.number))]
        for story in found:
            for wait in story.waits:
                self._settle(story, wait)
        return found

    def on_note(self, note: Mapping[str, Any]) -> None:
        """Take note of what a gateway knows of a request that no core is told."""
        self._notes[note["id"]] = note
        if len(self._notes) > self._max_stories:
            self._notes.popitem(last=False)

    def on_input(self, room: str, given: Input) -> None:
        """Hear what a core was told, and took."""
        self._at = given.at
        if isinstance(given, admission.Submit):
            self._on_submit(given)
        elif isinstance(given, admission.Adopt):
            self._on_adopt(given)
        elif isinstance(given, admission.FirstByte):
            if (story := self.stories.get(given.id)) is not None and story.first_byte is None:
                story.first_byte = given.at
                self._add(story, given.at, "first_byte", "Its first byte went to the client; from here on it is no victim.")
        elif isinstance(given, admission.Release):
            self._released = given
            if (request := self._open.get(given.id)) is not None:
                self._free(request)
        elif isinstance(given, admission.Resize):
            self._touched.add(given.pool)
        elif isinstance(given, admission.LeaveBackend | admission.Decline):
            self._on_kept(given)
        elif isinstance(given, admission.Open | admission.Reconfigure):
            self._mode = given.config.mode
        elif isinstance(given, programs.Begin):
            self._on_begin(given)

    def on_decisions(self, room: str, decisions: Iterable[Any]) -> None:
        """Hear what a core has decided of its last input."""
        released = self._released
        came_back, at = False, self._at
        for decision in decisions:
            if isinstance(decision, Decision):
                came_back |= released is not None and decision.subject == released.id and decision.action == "queue"
                self._on_decision(decision)
            elif isinstance(decision, ProgramDecision):
                self._on_program_decision(decision)
            elif isinstance(decision, routing.RoutingDecision):
                self._on_routing(decision)
        self._released = None
        if released is not None and not came_back:
            self._on_released(released)
        if self._touched:
            self._sample(at)

    def on_scores(self, number: RequestId, scores: Sequence[Mapping[str, Any]]) -> None:
        """Hear by which scores the instance of a request was chosen."""
        story = self.stories.get(number)
        if story is not None and story.events and story.events[-1].kind == "route":
            story.events[-1].facts["scores"] = scores
            said = "; ".join(f"instance {each['instance']}: {each['in_words']}" for each in scores)
            story.events[-1] = msgspec.structs.replace(story.events[-1], said=f"{story.events[-1].said} Scores: {said}.")

    def _story(self, number: RequestId, request_id: str, at: Micros) -> Story | None:
        story = self.stories.get(number)
        if story is None:
            if self._wants is not None and not self._wants(number, request_id):
                return None
            story = self.stories[number] = Story(number, request_id, began=at)
            if len(self.stories) > self._max_stories:
                self.stories.popitem(last=False)
        return story

    def _on_begin(self, given: programs.Begin) -> None:
        request = given.request
        if (story := self._story(request.id, request.client_id, given.at)) is not None:
            story.program, story.tenant, story.model = request.program, request.tenant, request.model
            self._add(
                story, given.at, "memory", f"It asked for memory, as a request of program {request.program or '(its own)'}."
            )

    def _on_submit(self, given: admission.Submit) -> None:
        label = PriorityClass.from_label(given.priority_class)
        urgency = {"priority": label or 0, "flow-control": given.slo_priority}.get(self._mode, 0)
        self._open[given.id] = _Open(given, urgency, self._join(given.at))
        if (story := self._story(given.id, given.client_id, given.at)) is None:
            return
        story.model, story.tenant, story.priority_class = given.pool, given.tenant, given.priority_class
        if (note := self._notes.pop(given.id, None)) is not None:
            story.class_asked, story.class_rule = note.get("asked"), note.get("rule", "")
        slots = f"{given.sequences} slots" if given.sequences > 1 else "a slot"
        what = f"It asked for {slots} of {given.pool or 'the pool'} in class {given.priority_class}"
        self._add(story, given.at, "submit", f"{what}: {given.prompt_tokens:,} prompt tokens, {given.cost:,} in all expected.")

    def _on_kept(self, given: admission.LeaveBackend | admission.Decline) -> None:
        """Note that the slot of a request may be kept."""
        story = self.stories.get(given.id)
        if story is None:
            return
        if isinstance(given, admission.Decline):
            self._add(story, given.at, "decline", "Its answer had begun already, so it kept its slot.")
        else:
            story.retries += 1
            self._add(story, given.at, "retry", "Its backend failed it before its answer began; another one is asked.")

    def _on_adopt(self, given: admission.Adopt) -> None:
        """Go on with requests that the scheduler before this one had, or a connection before this one."""
        for adopted in given.requests:
            self._take_over(adopted, given.at)

    def _take_over(self, adopted: admission.AdoptedRequest, at: Micros) -> None:
        self._on_submit(adopted.submit)
        number = adopted.submit.id
        request, story = self._open[number], self.stories.get(number)
        if adopted.state == "queued":
            if story is not None:
                story.waits.append(Wait(adopted.submit.at, "elsewhere", 0, at, "taken over"))
            self._on_queued(Decision(at, number, Action.QUEUE, "taken_over"), request, story, request.joined)
            return
        request.has_slot = True
        self._holdings.count(request.pool, request.tenant, 1)
        self._touched.add(request.pool)
        if story is not None:
            self._add(story, at, "adopt", "Its gateway told that it holds a slot, by which it was taken over.")

    def _on_decision(self, decision: Decision) -> None:
        number, action, at = decision.subject, str(decision.action), decision.at
        request, story = self._open.get(number), self.stories.get(number)
        reason, other = str(decision.reason), decision.other
        if request is None:
            return
        if action == "queue":
            self._on_queued(decision, request, story)
        elif action == "admit":
            self._leave(request, number, at, reason)
            self._touched.add(request.pool)
            if not request.has_slot:
                request.has_slot = True
                self._holdings.count(request.pool, request.tenant, 1)
            if story is not None:
                self._end_wait(story, at, "admitted")
                self._add(story, at, "admit", f"It got a slot: {admitted_in_words(reason, other)}.", reason=reason, other=other)
        elif action == "preempt":
            if story is not None:
                story.preemptions += 1
                said = f"Request {other} of a higher class found no slot, and takes this one's: it is told to stop."
                self._add(story, at, "preempt", said, other=other)
        else:  # reject, cancel
            self._leave(request, number, at, "")
            del self._open[number]
            if story is not None:
                self._end_wait(story, at, action)
                if action == "reject":
                    said = f"It was rejected: {rejected_in_words(reason, other)}."
                    self._add(story, at, "reject", said, reason=reason, retry_after=decision.retry_after)
                else:
                    released = self._released
                    is_lost = released is not None and released.id == number and released.end is ReleaseReason.GATEWAY_GONE
                    said = "Its gateway or worker was lost, or cut off from the scheduler," if is_lost else "Its client left"
                    self._add(story, at, "cancel", f"{said} while it waited.")
                self._end(story, at, f"rejected ({reason})" if action == "reject" else "left while it waited")

    def _join(self, at: Micros) -> int:
        """Return a number that orders requests by when they came, and at one instant by which was heard of first."""
        self._num_joined += 1
        return at * _MOST_AT_ONCE + self._num_joined % _MOST_AT_ONCE

    def _on_queued(self, decision: Decision, request: _Open, story: Story | None, joined: int | None = None) -> None:
        """Note that a request waits; `joined` says since when by its age, if it has waited elsewhere."""
        reason, at, key = str(decision.reason), decision.at, (request.pool, request.urgency)
        self._leave(request, decision.subject, at, "")  # It may have waited for a victim.
        higher = sum(count for (pool, urgency), count in self._waiting.items() if pool == key[0] and urgency > key[1])
        request.is_first_again = reason in _FIRST_AGAIN
        claims = reason == "victim_leaving"
        ahead = 0 if claims else higher + (0 if request.is_first_again else self._waiting[key])
        if joined is not None and story is not None:
            others = (one for one in self._open.values() if one.is_waiting and (one.pool, one.urgency) == key)
            ahead = higher + sum(one.is_first_again or one.joined < joined for one in others)
        request.is_waiting, request.joined = True, self._join(at) if joined is None else joined
        self._waiting[key] += 1
        if story is not None:
            self._end_wait(story, at, "waits anew")
            if self._wants is not None and not self._num_waiting_wanted:
                self._holdings.begin(at)
            self._num_waiting_wanted += 1
            self._touched.add(request.pool)
        self._note_move(request, decision.subject, at, "", is_join=True)
        if story is None:
            return
        story.waits.append(Wait(at, reason, ahead))
        state = state_of_pool(self.core, request.pool)
        held = "" if state is None else f" Held: {held_in_words(state, request.priority_class)}."
        why = queued_in_words(reason, decision.other, request.tenant)
        said = f"It waits, as {why}; {ahead} ahead of it.{held}"
        self._add(story, at, "queue", said, reason=reason, other=decision.other, ahead=ahead, pool=state)

    def _free(self, request: _Open) -> None:
        self._touched.add(request.pool)
        if request.has_slot:
            request.has_slot = False
            self._holdings.count(request.pool, request.tenant, -1)

    def _sample(self, at: Micros) -> None:
        """Note what the pools look like that have changed, where that may be told."""
        if self._keeps_moves and (self._wants is None or self._num_waiting_wanted):
            for pool in self._touched:
                self._holdings.sample(self.core, pool, at)
        self._touched.clear()

    def _leave(self, request: _Open, number: RequestId, at: Micros, reason: str) -> None:
        """Note that a request leaves its queue, if it waits; and that it has a slot, if there is a `reason`."""
        if request.is_waiting:
            key = (request.pool, request.urgency)
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        if request.is_waiting or reason:
            self._note_move(request, number, at, reason, is_join=False)
        request.is_waiting = False

    def _note_move(self, request: _Open, number: RequestId, at: Micros, reason: str, *, is_join: bool) -> None:
        if self._keeps_moves and (self._wants is None or self._num_waiting_wanted):
            joined, again = request.joined, request.is_first_again
            self._moves.append(
                QueueMove(at, is_join, request.pool, request.urgency, number, joined, reason, again, request.is_waiting)
            )

    def _end_wait(self, story: Story, at: Micros, outcome: str) -> None:
        if story.waits and (wait := story.waits[-1]).ended is None:
            wait.ended, wait.outcome = at, outcome
            self._num_waiting_wanted -= 1
            if self._wants is not None:  # Only these moves are kept, and not for long.
                self._settle(story, wait)
                if not self._num_waiting_wanted:
                    self._moves.clear()

    def _on_released(self, released: admission.Release) -> None:
        self._open.pop(released.id, None)
        story = self.stories.get(released.id)
        if story is not None and story.outcome in ("under way", "admitted"):
            self._add(story, released.at, "end", f"It ended: {ended_in_words(str(released.end))}.", end=str(released.end))
            self._end(story, released.at, str(released.end))

    def _end(self, story: Story, at: Micros, outcome: str) -> None:
        story.ended, story.outcome = at, outcome
        if self._on_end is not None:
            self._on_end(story)

    def _on_program_decision(self, decision: ProgramDecision) -> None:
        number, at, action = decision.request, decision.at, str(decision.action)
        if number is not None:
            self._programs[decision.program] = number
        number = self._programs.get(decision.program)
        story = None if number is None else self.stories.get(number)
        if story is None or (decision.request is None and story.ended is not None):
            return
        said = _PROGRAM_WORDS[action].format(backend=decision.backend)
        reason = str(decision.reason).replace("_", " ")
        self._add(story, at, f"program_{action}", f"{said[0].upper()}{said[1:]} ({reason}).", reason=str(decision.reason))
        if action == "wait":
            self._memory_since[story.number] = at
        elif action in ("grant", "reject") and (since := self._memory_since.pop(story.number, None)) is not None:
            story.memory_wait += at - since
        if action == "reject":
            self._end(story, at, f"rejected ({decision.reason})")

    def _on_routing(self, decision: routing.RoutingDecision) -> None:
        if (story := self.stories.get(decision.request)) is not None:
            story.instance = self.instance_name(decision.instance)
            why = decision.reason.replace("_", " ")
            said = f"Instance {story.instance} was chosen: {why}."
            self._add(story, decision.at, "route", said, instance=decision.instance, reason=decision.reason)

    def _add(self, story: Story, at: Micros, kind: str, said: str, **facts: Any) -> None:
        if len(story.events) < MAX_EVENTS or kind in ("end", "reject"):
            story.add(at, kind, said, **{name: value for name, value in facts.items() if value is not None})

    def _settle(self, story: Story, wait: Wait) -> None:
        """Find the places over time of a wait, who went past, and what held the slots meanwhile."""
        if not wait.places:  # A wait that has ended is settled once.
            settle(self._moves, story.number, wait)
            wait.held = self._holdings.during(story.model, story.tenant, wait.began, wait.ended)
