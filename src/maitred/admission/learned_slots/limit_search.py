"""Search for the limit of an engine: the number of requests that it runs while something waits in it.

A look is two numbers, running and waiting. `lead` are the slots above the limit that cover a dispatch, so that a place that
becomes free in the engine finds a request: completions per second times 5 ms, rounded down. Where the pool keeps a lead for
urgent requests (`classes/lead_watch.py`), there are slots for 10 ms, rounded to the nearest, and what is beyond 5 ms is kept
for these: they wait for the next place in the engine then, and preempt less.

    something waits beyond the lead   twice, with `running` standing still: what runs is the limit (the most of 8 looks)
    nothing waits, all slots used     more slots: +50 % while nothing was ever confirmed, then +6 %, +12 %, ... up to +50 %
    more runs than was believed       the limit is at least that

**Trust.** A confirmed limit is left alone for 4 s at first, and for twice as long with each probe that confirms it, up to 2
minutes or 16 service times. Then, while all slots are used, a probe lends a few slots. Only if more than the limit runs then,
the search begins anew; if no more runs in three looks although more was sent, the limit is confirmed. A request that the engine
fails makes trust short again.

*Example.* Limit 16, start 8, completions 200/s, so the lead is 1. Looks (running, waiting): (8, 0): 12 slots; (12, 0): 18
slots; (13, 5): still filling; (16, 2): still filling, because 16 > 1.03 · 13 + 1; (16, 2): confirmed, 17 slots. Nothing waits
from here on but the lead; after 4 s 18 slots are a probe. In three looks 18 requests are in flight and 16 run: confirmed, and
trusted for 8 s.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from maitred.admission.learned_slots.signals import LearnedLimit, OwnLoad, PoolDemand, SlotReason
from maitred.core.units import MILLISECOND, SECOND, Micros

_FIRST_TRUST: Final = 4 * SECOND
"""Short, because a first estimate may be wrong; it grows, because a probe gives idle reservations away for a moment."""
_LONGEST_TRUST: Final = 120 * SECOND
"""An engine that runs more than before, say after a restart that was not seen, is found out in this time.
XXX: a guess. To be measured: how often engines come to run more, and nothing shows it."""
_TRUST_AT_FULL_MEMORY: Final = 2 * SECOND
"""A limit seen at full memory says what fitted then. Answers end, and others are shorter."""
_SHRINK_TIME: Final = 750 * MILLISECOND
"""For how long at least a smaller limit must be seen."""
_PROBE_LOOKS: Final = 8
"""Looks after which a probe that nothing has used ends."""
_FILLED_LOOKS: Final = 3
"""Looks with more in flight than the limit. One or two may fall into the dispatch of what was lent."""


def lead_of(own: OwnLoad) -> int:
    """Return the slots above the limit that cover the time of a dispatch."""
    # 5 ms for a dispatch on one machine. XXX: a guess. To be measured: the time from an answer's end to the first step of the
    # request after it. A chat waits as long for these slots as they cover, so no more; a gateway far from its engine leaves
    # places idle for the rest.
    return int(own.ended_per_sec * 0.005)


def urgent_lead_of(own: OwnLoad) -> int:
    """Return the further slots above the limit that are for urgent requests alone, where the pool keeps them."""
    # Rounded to the nearest, so that an engine has one if it ends 50 requests a second. XXX: 10 ms are a guess, as the 5 ms of
    # `lead_of`.
    return int(own.ended_per_sec * 0.010 + 0.5) - lead_of(own)


class LimitSearch:
    """The search at one engine. `slots` may also be set from outside."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.limit: int | None = None
        """The limit that is trusted, or None."""
        self.last_limit: int | None = None
        """The one that was trusted last, also while it is searched for anew."""
        self.largest_limit = 0
        self.is_probing = False
        self.urgent_lead = 0
        """The slots above the limit that are for urgent requests alone, as of the last look with requests that waited."""
        self.reason = SlotReason.RAISED
        """Why `slots` was last changed."""
        self._recent: deque[int] = deque(maxlen=8)
        """What ran in the last looks that found a queue. 8 span a few steps of the engine, and so its dips. (XXX: a guess. 4
        and 16 are the same in simulation. To be measured: how many looks the dips of a real engine last.)"""
        self._previous: tuple[int, int] | None = None
        self._confirmed: int | None = None
        self._confirmed_at: Micros = 0
        self._confirmed_at_full_memory = False
        self._trust = _FIRST_TRUST
        self._raises = 0
        self._raised_at: Micros | None = None
        self._ever_confirmed = False
        self._short_looks = 0
        self._short_since: Micros = 0
        self._probe_looks = 0
        self._filled_looks = 0
        self._probed_limit = self._num_lent = 0

    @property
    def lent(self) -> int:
        """The slots beyond the limit and the lead that a probe has lent."""
        return self._num_lent if self.is_probing else 0

    def forget(self) -> None:
        """Forget the limit, and keep the slots: it may be another engine now."""
        self.limit, self._confirmed, self.is_probing, self.largest_limit = None, None, False, 0
        self._recent.clear()
        self._previous, self._raises, self._short_looks = None, 0, 0
        self.distrust()

    def recall(self, learned: LearnedLimit, now: Micros) -> None:
        """Begin with what another search of this engine has found, in place of all that is known here."""
        self.forget()
        limit, self._ever_confirmed = learned.limit, True
        self.last_limit = self.largest_limit = limit
        if learned.is_trusted:
            self.limit = self._confirmed = limit
            self._confirmed_at, self._confirmed_at_full_memory = now, False
        self._set(limit, SlotReason.RECALLED)

    def forget_limit(self) -> None:
        """Forget the limit, because others share it."""
        self.limit, self.is_probing, self._previous = None, False, None
        self._recent.clear()

    def distrust(self) -> None:
        """Look again soon."""
        self._trust = _FIRST_TRUST

    def guess(self, slots: int) -> None:
        """Have at least `slots`, because nothing can be seen of the engine."""
        self._set(max(self.slots, slots), SlotReason.GUESSED)

    def is_full(self, own: OwnLoad, demand: PoolDemand) -> bool:
        """Return whether all slots are in use or held back, and a request waits for one."""
        # Slots are freed and taken all the time, so a few of them are between two requests at any instant. XXX: a guess.
        # In simulation 1 % and 4 % are the same, as slots are taken at once. To be measured: for how long a real one is free.
        return demand.wanted and own.in_flight + demand.held >= self.slots - max(1, 0.02 * self.slots)

    def look(
        self, running: int, waiting: int, own: OwnLoad, demand: PoolDemand, *, kv_usage: float, period: Micros, now: Micros
    ) -> None:
        """Take a look into account. `running` and `waiting` are ours alone; `period` is the usual time between two looks."""
        if demand.wanted:
            self.urgent_lead = urgent_lead_of(own) if demand.keeps_lead else 0
        lead = self._lead(own)
        # 2 %: of hundreds that run a few have just been sent, and wait for their first step only. XXX: a guess. 1 % and 4 %
        # change the answers per second by 0.3 % in simulation. To be measured: what waits in a real engine that has room.
        if waiting > lead + int(0.02 * running) and running > 0:
            if self._stands_still(running) and not self._may_be_a_dip(running, now):
                self.confirm(running, own, kv_usage=kv_usage, now=now)
        elif waiting <= lead:
            self._short_looks = 0
            self._look_without_queue(running, own, demand, period=period, now=now)
        self._previous = (running, waiting)

    def _stands_still(self, running: int) -> bool:
        # Requests that were just sent wait for their prompts to be computed, also in an engine with room for all: `running`
        # grows from look to look then. 3 % and 1 for its dips (XXX: a guess. To be measured: the dips of a real engine while
        # something waits); a slower growth is taken for a limit, and the next probe corrects that.
        before = self._previous
        return before is not None and before[1] > 0 and running <= 1.03 * before[0] + 1

    def _may_be_a_dip(self, running: int, now: Micros) -> bool:
        """Return whether a smaller number is too new to be believed."""
        # A batch of long prompts, or many answers that end at once, look like a smaller engine for some steps. A limit that is
        # lowered wrongly costs throughput until the next probe; one that is lowered late costs a queue of 0.75 s.
        if self.limit is None or self._confirmed is None or running >= 0.95 * self._confirmed:
            self._short_looks = 0
            return False
        if not self._short_looks:
            self._short_since = now
        self._short_looks += 1
        return self._short_looks < 2 or now - self._short_since < _SHRINK_TIME

    def confirm(self, running: int, own: OwnLoad, *, kv_usage: float, now: Micros) -> None:
        """Take `running` for what the engine runs while something waits in it."""
        recent = self._recent
        if not recent and self._previous is not None:
            recent.append(self._previous[0])
        recent.append(running)
        # `running` may dip between the end of a request and the start of the next, and should not rise above. (Not measured.)
        limit = max(recent)
        last = list(recent)[-3:]
        # Three low looks in a row are no dips: the engine runs less than it did.
        if len(last) == 3 and max(last) < 0.9 * limit:
            recent.clear()
            recent.extend(last)
            limit = max(last)
        # The same limit once more: where KV memory binds, what fits differs by a few requests from look to look. XXX: a guess.
        # To be measured: the spread of what a real engine runs whose memory is full.
        if self._confirmed is not None and abs(limit - self._confirmed) <= max(1, 0.05 * self._confirmed):
            self._extend_trust(own, now)
        else:
            self.distrust()
        self.limit = self.last_limit = self._confirmed = limit
        self.largest_limit = max(limit, self.largest_limit)
        # XXX: 0.85 is a guess: near enough to full for memory to be what binds. To be measured: the usage at which real engines
        # evict.
        self._confirmed_at, self._confirmed_at_full_memory = now, kv_usage > 0.85
        self._raises, self._ever_confirmed, self.is_probing = 0, True, False
        self._set(limit + self._lead(own), SlotReason.CONFIRMED)

    def _look_without_queue(self, running: int, own: OwnLoad, demand: PoolDemand, *, period: Micros, now: Micros) -> None:
        lead = self._lead(own)
        if self.limit is not None and running > self.limit:
            self.limit = self.last_limit = running
            self._set(max(self.slots, running + lead), SlotReason.MORE_RUNNING)
        if self.is_probing and running <= self._probed_limit:
            self._watch_probe(own, lead, demand, now)
            return
        if not self.is_full(own, demand):
            return
        if self._raised_at is not None and now - self._raised_at < 0.7 * period:
            # What the last raise has let in may not be there yet. (0.7 for looks that are not quite regular. XXX: a guess.
            # Half and twice of it change the answers per second by 1 % in simulation, whose looks are regular. To be measured:
            # how far apart the looks at a real engine under load are.)
            return
        if self.limit is not None and now - self._confirmed_at <= self._patience(own):
            if not self.is_probing:
                self._set(max(self.slots, self.limit + lead), SlotReason.CONFIRMED)
            return
        if self.limit is not None and not self.is_probing:
            self._probe(self.limit, lead, demand, now)
        elif running >= 0.9 * own.in_flight - lead - 2:
            # With fewer, what was sent is still on its way, and says nothing yet. XXX: a guess. To be measured: how much
            # of what was sent to a real engine its page does not show a look later.
            self._raise(now)

    def _lead(self, own: OwnLoad) -> int:
        return lead_of(own) + self.urgent_lead

    def _patience(self, own: OwnLoad) -> Micros:
        return _TRUST_AT_FULL_MEMORY if self._confirmed_at_full_memory else self._trust_time(own)

    def _trust_time(self, own: OwnLoad) -> Micros:
        # What an engine runs changes as requests end and others take their places: within a few service times looks say the
        # same. XXX: 4 is a guess. 2 and 8 change the answers per second by 1 % in simulation, where requests stay alike. To be
        # measured: traffic whose service times change.
        return self._trust if self._trust == _FIRST_TRUST else max(self._trust, 4 * own.service_time)

    def _probe(self, limit: int, lead: int, demand: PoolDemand, now: Micros) -> None:
        self.is_probing, self._raised_at, self._probed_limit = True, now, limit
        self._probe_looks = self._filled_looks = self._num_lent = 0
        self._lend(limit, lead, demand)

    def _lend(self, limit: int, lead: int, demand: PoolDemand) -> None:
        """Have so many slots that a few more than the limit can be in flight beside what reservations hold back."""
        # What is lent may have to wait in the engine, before any chat that comes then: so little, as long as it can be seen.
        lent = ceil(max(1.0, 0.03 * limit)) + demand.held
        if lent > self._num_lent:
            self._num_lent, self._probe_looks = max(lent, self.slots - limit - lead), 0
            self._set(limit + lead + self._num_lent, SlotReason.PROBE)

    def _watch_probe(self, own: OwnLoad, lead: int, demand: PoolDemand, now: Micros) -> None:
        """End a probe that is in vain: nothing has used it, or no more runs although more was sent."""
        is_filled = own.in_flight > self._probed_limit + lead
        self._probe_looks += 1
        self._filled_looks += is_filled
        if self.limit is None or (self._probe_looks < _PROBE_LOOKS and self._filled_looks < _FILLED_LOOKS):
            if self.limit is not None and not is_filled and demand.wanted:
                self._lend(self.limit, lead, demand)  # Reservations are shares of the slots, so they may hold back more by now.
            return
        if self._filled_looks >= _FILLED_LOOKS:
            self._extend_trust(own, now)
        self.is_probing, self._confirmed_at = False, now
        self._set(self.limit + lead, SlotReason.PROBE_ENDED)

    def _extend_trust(self, own: OwnLoad, now: Micros) -> None:
        # A queue that stands confirms the limit with each look, so trust grows at most once in half of its time.
        if now - self._confirmed_at > self._trust_time(own) / 2:
            self._trust = min(max(_LONGEST_TRUST, 16 * own.service_time), 2 * self._trust_time(own))

    def _raise(self, now: Micros) -> None:
        self._raises += 1
        self.limit, self.is_probing, self._raised_at = None, False, now
        self._recent.clear()
        # Where a limit was known the new one is mostly near. Otherwise it may be 8 or 512, so the steps are large at once.
        share = min(0.5, 0.06 * 2 ** min(self._raises - 1, 8)) if self._ever_confirmed else 0.5
        self._set(self.slots + max(1, int(self.slots * share)), SlotReason.RAISED)

    def _set(self, slots: int, reason: SlotReason) -> None:
        if slots != self.slots:
            self.slots, self.reason = slots, reason
