"""SlotController: how many requests one engine should have, found and followed by looking at it.

Slots that equal what an engine runs give urgent requests their first token at once, and waste nothing. More slots move less
urgent requests into the engine's own queue, where their class does not count; fewer leave the engine idle. Engines do not
say what that number is, and it is not a constant: whichever binds first of sequences, KV memory and prefill tokens.

    on_reading(reading, own, demand)   each look at the metrics of the engine
    on_tick(own, demand)               ten times per second while requests are in flight
    forget()                           the backend was down
    recall(learned)                    another process has learned this

The parts, each with its own theory: `limit_search` finds the limit; `kv_limit` bounds it by memory; `shared_engine` takes
over while others use the engine; `without_metrics` makes looks of the requests' own streams while there are no metrics. What
each may do to the slots is bounded here, and which readings count. With metrics, ticks do one thing: while the limit is not
known, requests that are overdue, while no more streams answer than before, are a queue in the engine that is seen before the
next reading.

Time and observations are arguments; nothing here reads a clock. With a log, inputs become structs (`inputs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from maitred.admission.learned_slots import inputs
from maitred.admission.learned_slots.kv_limit import KvLimit
from maitred.admission.learned_slots.limit_search import LimitSearch, lead_of
from maitred.admission.learned_slots.shared_engine import SharedEngine
from maitred.admission.learned_slots.signals import (
    EngineReading,
    LearnedLimit,
    OwnLoad,
    PoolDemand,
    SlotDecision,
    SlotReason,
    SlotState,
)
from maitred.admission.learned_slots.without_metrics import StreamLooks
from maitred.admission.terms.config import MAX_SLOTS
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.core.decisions import DecisionLog, Recorder
from maitred.core.errors import InvariantError
from maitred.core.units import MILLISECOND, SECOND, Micros

START_SLOTS: Final = 8
"""Slots before anything is known. What is sent too much stands in the engine before every chat until it has been worked off
(32 before an engine of 16: 0.2 s), and growth by half overshoots a limit by a few requests only; 8 before an engine of 512 cost
a second or two of a part of its throughput, once."""
GUESSED_SLOTS: Final = 32
"""Slots at least where nothing can be learned: without metrics, and without any stream. Half of what a backend has if learning
is off (`DEFAULT_SLOTS_PER_BACKEND`, 64): a wait in front of the engine is ordered by class and one inside is not, and the guess
is corrected by the first reading or stream."""
MOST_LEARNED: Final = 4096
"""A bound for a search that never sees a queue. XXX: a guess; most engines run some hundreds of sequences. To be found:
an engine that runs more."""
LEAST_LEARNED: Final = 2
"""With 1 the engine would idle between the end of each answer and the next dispatch."""
BUSY_INTERVAL: Final = 200 * MILLISECOND
"""Time between two readings while all slots are used, or nearly."""
CALM_INTERVAL: Final = SECOND
"""Time between two readings while there are slots to spare."""
TICK_INTERVAL: Final = 100 * MILLISECOND
"""Time between two looks at our own streams. A look walks over all requests in flight."""
SEARCH_INTERVAL: Final = 50 * MILLISECOND
"""Time between two looks while the limit is searched for or probed: what is sent too much then waits in the engine."""
BLIND_AFTER: Final = 1500 * MILLISECOND
"""Without a reading for this long, the requests' own streams are the signal."""
_FEWEST_STREAMS: Final = 2
"""Streams that answer while a page shows nothing running, from which on that is a contradiction: one may just have ended."""
_MOST_CONTRADICTIONS: Final = 3
"""See `_compare_with_streams`."""


class SlotController:
    """The slots of one engine."""

    def __init__(
        self,
        start: int = START_SLOTS,
        most: int = MOST_LEARNED,
        least: int = LEAST_LEARNED,
        *,
        backend: int = 0,
        log: DecisionLog | None = None,
    ) -> None:
        """`log` gets the inputs and the decisions, with the index of the `backend`. Raises ValueError unless
        1 <= least <= start <= most <= MAX_SLOTS."""
        if not 1 <= least <= start <= most <= MAX_SLOTS:
            raise ValueError(f"slots must be in order: 1 <= {least} (least) <= {start} (start) <= {most} (most) <= {MAX_SLOTS}")
        self.least, self.most = least, most
        self._start, self._backend, self._log = start, backend, log
        self._recorder: Recorder | None = None
        """Made with the first input: a controller that is never asked leaves no line."""
        self.changed_at: Micros | None = None
        """When the number of slots last changed, or None if it never did."""
        self.last_reason: SlotReason | None = None
        self._search = LimitSearch(start)
        self._kv = KvLimit()
        self._shared = SharedEngine()
        self._streams = StreamLooks()
        self._is_shared = False
        self._reading: EngineReading | None = None
        self._reading_at: Micros | None = None
        # Between `BUSY_INTERVAL` and `CALM_INTERVAL`, until some readings have told.
        self._period = SECOND // 4
        self._ended_at_reading = 0
        self._failed = 0
        self._contradictions = 0
        self._tick_at: Micros | None = None
        self._overdue_look: int | None = None
        self._is_blind = False
        self._is_guess = False
        """Whether, when it is blind, nothing is streamed either."""
        self._now: Micros = 0

    @property
    def slots(self) -> int:
        return self._search.slots

    @property
    def limit(self) -> int | None:
        """The limit of the engine that is believed, or None while it is searched for or shared."""
        return self._search.limit

    @property
    def learned(self) -> LearnedLimit | None:
        """The limit that another process may begin with (`recall`), or None while none is known."""
        limit = self._search.last_limit
        return None if limit is None else LearnedLimit(limit, self._search.limit is not None)

    @property
    def lead(self) -> Lead:
        """The slots beyond the limit that are for urgent requests only, and those that are lent to all for a probe."""
        limit = self.limit
        kept = 0 if limit is None or self._is_blind else max(0, min(self._search.urgent_lead, self.slots - limit))
        return Lead(kept, self._search.lent) if kept else NO_LEAD

    @property
    def distrusts_page(self) -> bool:
        """Whether the metrics of the engine contradict our streams so often that they are not believed."""
        return self._contradictions >= _MOST_CONTRADICTIONS

    @property
    def state(self) -> SlotState:
        if self._is_blind:
            return SlotState.GUESSED if self._is_guess else SlotState.BLIND
        if self._is_shared:
            return SlotState.CONTENDED if self._shared.contends(self._now) else SlotState.SHARED
        if self._search.limit is None:
            return SlotState.EXPLORING
        return SlotState.PROBING if self._search.is_probing else SlotState.TRUSTED

    def apply(self, given: inputs.SlotsInputs) -> Sequence[inputs.SlotChange]:
        """Take an input, and answer as the method does that it is named after."""
        log, self._log = self._log, None
        if log is None:
            return given.apply_to(self)
        if self._recorder is None:
            opening = inputs.Open(given.at, self._backend, self._start, self.most, self.least)
            self._recorder = Recorder(log, inputs.ROOM_NAME, opening)
        try:
            return self._recorder.record(given, lambda: given.apply_to(self))
        finally:
            self._log = log

    def _apply(self, given: inputs.SlotsInputs) -> SlotDecision | None:
        return next((told.change for told in self.apply(given)), None)

    def on_reading(self, reading: EngineReading, own: OwnLoad, demand: PoolDemand, now: Micros) -> SlotDecision | None:
        """Take a look at the engine into account. Return the change of slots, or None."""
        if self._log is not None:
            return self._apply(inputs.Reading(now, self._backend, reading, own, demand))
        before, last = self.slots, self._reading
        self._compare_with_streams(reading, own)
        # A page that equals the last one in all fields although our requests have ended since comes from a cache.
        if self.distrusts_page or (last == reading and own.ended != self._ended_at_reading):
            return None
        if last is not None and _shows_no_step(reading, last):
            self._reading_at = now  # The engine may be in a long step, and `running` stands still for no other reason.
            return None
        if last is not None and None not in (reading.progress, last.progress) and _went_back(reading, last):
            self._forget()  # A restart. The slots stay: most engines should be what they were. (Not measured.)
        if self._reading_at is not None:
            # A mean over some five. A gap without requests says nothing.
            self._period += (min(now - self._reading_at, 2 * BUSY_INTERVAL) - self._period) // 5
        since = self._period if self._reading_at is None else now - self._reading_at
        self._reading, self._reading_at, self._is_blind = reading, now, False
        self._ended_at_reading = own.ended
        self._streams.forget()
        self._note_failures(own)
        limit = self._kv.update(reading, own, since)
        is_shared = self._shared.look(reading, own)
        if is_shared and not self._is_shared:
            self._search.forget_limit()
        self._is_shared = is_shared
        if is_shared:
            full = self._search.is_full(own, demand)
            self._search.slots = self._shared.slots(reading, own, demand, self.slots, lead_of(own), full=full, now=now)
            reason = SlotReason.SHARED
        else:
            # Ours alone, as the search takes them: no more run than were sent, and of those only what has no data, or none
            # lately, can wait.
            running = min(reading.running, own.most_in_flight)
            waiting = min(reading.waiting, own.unanswered + own.silent)
            self._search.look(running, waiting, own, demand, kv_usage=reading.kv_usage, period=self._period, now=now)
            reason = self._search.reason
        return self._bounded(before, reason, demand, now, limit)

    def on_tick(self, own: OwnLoad, demand: PoolDemand, now: Micros) -> SlotDecision | None:
        """Look at our own streams. Return the change of slots, or None. Too early a call changes nothing."""
        if self._log is not None:
            return self._apply(inputs.Tick(now, self._backend, own, demand))
        # Where tokens are slow, looks in between would see the same streams. A stream is silent after 10 gaps, so 8 at most.
        if self._tick_at is not None and now - self._tick_at < TICK_INTERVAL + 8 * own.token_gap:
            return None
        since, self._tick_at = 0 if self._tick_at is None else now - self._tick_at, now
        before, search = self.slots, self._search
        if self._reading_at is not None and now - self._reading_at <= BLIND_AFTER:
            self._look_for_overdue(own, now)
            return self._bounded(before, search.reason, demand, now)
        if self._reading_at is None and not since:
            return None  # The first tick: a reading may be on its way.
        self._is_blind = True
        self._note_failures(own)
        demand = PoolDemand(demand.wanted, demand.held)  # Our own streams do not tell a limit to within one: there is no lead.
        cap = self._streams.look(search, own, demand, since, now)
        self._is_guess = search.limit is None and own.unstreamed == own.in_flight > 0
        if self._is_guess:
            search.guess(GUESSED_SLOTS)
        reason = search.reason
        if cap is not None and cap < self.slots:
            search.slots, reason = cap, SlotReason.SILENT
        return self._bounded(before, reason, demand, now)

    def reading_due_in(self, in_flight: int, *, wanted: bool) -> Micros | None:
        """Return how long after a reading the next is due; None while nothing is in flight: an idle engine costs nothing."""
        if not in_flight:
            return None
        # With a tenth to spare a burst could fill them before the next look. XXX: a guess. To be measured: bursts of
        # real traffic, as a share of the slots.
        if wanted or in_flight >= 0.9 * self.slots:
            return SEARCH_INTERVAL if self._is_searching else BUSY_INTERVAL
        return CALM_INTERVAL

    @property
    def look_interval(self) -> Micros:
        """How often to look whether a reading is due, or to tick."""
        return SEARCH_INTERVAL if self._is_searching else TICK_INTERVAL

    @property
    def _is_searching(self) -> bool:
        return (self._search.limit is None or self._search.is_probing) and not self._is_shared and not self._is_blind

    @property
    def wants_ticks(self) -> bool:
        """Whether ticks may change anything: readings are missing, or the limit is not known."""
        return self._is_blind or self._reading_at is None or self._search.limit is None or self._search.is_probing

    def forget(self, now: Micros) -> None:
        """Forget the limit and keep the slots: the backend was down, and what comes up may be another engine."""
        if self._log is not None:
            self._apply(inputs.Forget(now, self._backend))
            return
        self._now = now
        self._reading = self._reading_at = None
        self._contradictions = 0
        self._forget()

    def recall(self, learned: LearnedLimit, now: Micros) -> SlotDecision | None:
        """Begin with what another controller of this engine had learned, and go on from there as after any change. Return the
        change of slots, or None."""
        if self._log is not None:
            return self._apply(inputs.Recall(now, self._backend, learned))
        before, limit = self.slots, max(self.least, min(learned.limit, self.most))
        self._forget()
        self._search.recall(LearnedLimit(limit, learned.is_trusted), now)
        return self._bounded(before, self._search.reason, PoolDemand(wanted=True), now)

    def check(self) -> None:
        """Raise InvariantError if the slots, or those of them that are kept for urgent requests, are out of their bounds."""
        if not self.least <= self.slots <= self.most:
            raise InvariantError(f"backend {self._backend}: {self.slots} slots are not from {self.least} to {self.most}")
        if not 0 <= self.lead.kept <= self.slots:
            raise InvariantError(f"backend {self._backend}: a lead of {self.lead.kept} of {self.slots} slots")

    def _forget(self) -> None:
        self._search.forget()
        self._kv, self._shared = KvLimit(), SharedEngine()
        self._is_shared, self._overdue_look = False, None
        self._streams.forget()

    def _compare_with_streams(self, reading: EngineReading, own: OwnLoad) -> None:
        """Count how often the page has shown too little of what answers since it last showed enough."""
        # Another engine's page, or a gauge that is never set. Less than half, because a page is some steps old; three times,
        # because streams may end or begin in those. (XXX: guesses. To be measured: the age of real pages, in steps.) Then the
        # streams are the signal, until the page shows what answers. A reading while hardly anything answers says nothing either
        # way.
        running, answered = reading.running, own.answered
        if running < answered / 2 - 2 or (not running and answered >= _FEWEST_STREAMS):
            self._contradictions += 1
        elif running and running >= answered / 2:
            self._contradictions = 0

    def _note_failures(self, own: OwnLoad) -> None:
        if own.failed > self._failed:
            self._search.distrust()
        self._failed = own.failed

    def _look_for_overdue(self, own: OwnLoad, now: Micros) -> None:
        """Confirm a limit from two looks at our own streams, where it is searched for and readings are too slow."""
        search = self._search
        is_searching = (search.limit is None or search.is_probing) and not self._is_shared
        # Only streams show that they answer. With too many other requests, what answers is not what runs. XXX: a guess.
        # To be measured: how far the one is from the other, by the share of streams.
        if not is_searching or own.unstreamed > 0.3 * own.in_flight or self._reading is None:
            self._overdue_look = None
            return
        # A single first token may be late for other reasons than a queue, and so may a few of hundreds. XXX: a guess.
        # To be measured: first tokens that are late at a real engine without a queue.
        if own.overdue <= lead_of(own) + 1 + 0.05 * own.answered:
            self._overdue_look = None
            return
        # As in `LimitSearch._stands_still`.
        if self._overdue_look is not None and own.answered <= 1.03 * self._overdue_look + 1:
            search.confirm(own.answered, own, kv_usage=self._reading.kv_usage, now=now)
        self._overdue_look = own.answered

    def _bounded(
        self, before: int, reason: SlotReason, demand: PoolDemand, now: Micros, kv_limit: int | None = None
    ) -> SlotDecision | None:
        """Keep the slots within their bounds, and return how they changed, or None."""
        self._now = now
        slots = self.slots
        if kv_limit is not None and kv_limit < slots:
            slots, reason = kv_limit, SlotReason.KV_MEMORY
        if not demand.wanted:  # Without a request that waits, nothing would show that there are too many.
            slots = min(slots, before)
        slots = self._search.slots = max(self.least, min(slots, self.most))
        if slots == before:
            return None
        self.changed_at, self.last_reason = now, reason
        return SlotDecision(now, slots, before, reason, self.state)


def _shows_no_step(reading: EngineReading, last: EngineReading) -> bool:
    """Return whether no step has ended between two readings."""
    if reading.progress is None:
        return reading == last and reading.kv_usage > 0
    return reading.progress == last.progress


def _went_back(reading: EngineReading, last: EngineReading) -> bool:
    assert reading.progress is not None
    assert last.progress is not None
    return reading.progress < last.progress
